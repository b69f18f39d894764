"""What is made of each character there is, wherever text of somebody's gets onto the screen or into the prompt."""

from __future__ import annotations

import sys

from chatpaged.cli.terminal import printable
from chatpaged.pasted_text import clean_text
from chatpaged.shown_text import shown

PICTURES = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n\r"}
CONTROLS = PICTURES | {0x7F: "␡"} | dict.fromkeys(range(0x80, 0xA0), "�")
TURNS = (*range(0x202A, 0x202F), *range(0x2066, 0x206A))
MARKS = (0x200E, 0x200F)


def test_every_character_stays_or_gets_its_sign() -> None:
    changed = {code: (printable(chr(code)), shown(chr(code)), clean_text(chr(code))) for code in range(sys.maxunicode + 1)}
    changed = {code: signs for code, signs in changed.items() if signs != (chr(code),) * 3}
    wanted = {code: (sign,) * 3 for code, sign in CONTROLS.items()}
    wanted |= dict.fromkeys(TURNS, ("�", "�", ""))
    wanted |= {code: ("�", "�", chr(code)) for code in MARKS}
    wanted |= {code: (chr(code), "�", chr(code)) for code in (0x2028, 0x2029)}
    wanted |= {code: (chr(code), chr(code), "�") for code in (*range(0xD800, 0xE000), *range(0xFDD0, 0xFDF0))}
    wanted[0x0D] = ("␍", "\n", "\n")
    assert changed == wanted
