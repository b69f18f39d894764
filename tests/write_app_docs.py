"""Writes the tables of docs/app.md from the commands and the keys there are: python -m tests.write_app_docs

A test compares the page with what this would write.
"""

from __future__ import annotations

from pathlib import Path

from chatpaged.key_names import key_labels
from chatpaged.setting_groups import all_settings
from chatpaged.slash_commands import markdown_table

PAGE = Path(__file__).parent.parent / "docs/app.md"


def keys_table() -> str:
    keys = [setting for setting in all_settings().values() if setting.group == "keys"]
    rows = [f"| {key_labels(str(setting.default))} | {setting.text} | `{setting.key}` |" for setting in keys]
    return "\n".join(["| key | what it does | setting |", "|---|---|---|", *rows]) + "\n"


def page() -> str:
    """The page with its tables made anew; everything else stays."""
    text = PAGE.read_text(encoding="utf-8")
    for name, table in (("commands", markdown_table()), ("keys", keys_table())):
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->\n")
        assert begin, f"{PAGE} has no place for {name}"
        assert end, f"{PAGE} has no end of {name}"
        text = f"{before}{begin}{table}{end}{after}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
