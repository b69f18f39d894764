"""What values settings take, and that every place takes the same."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatpaged.setting_kinds import Choice, Flag, Keys, Kind, Number, Size, Text, parse_size

SHARE = Number(minimum=0, maximum=1, above=True)
COUNT = Number(minimum=1, whole=True)
POWER = Number(minimum=1, whole=True, power_of_two=True)
COLOR = Choice(("auto", "never"), off="never")


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Text(), "", ""),
        (Text(), "a\nb", "a\nb"),
        (SHARE, "1", 1.0),
        (SHARE, "0.5", 0.5),
        (SHARE, "1e-3", 0.001),
        (COUNT, "1", 1),
        (COUNT, str(2**63 - 1), 2**63 - 1),
        (POWER, "64", 64),
        (COLOR, "never", "never"),
        (Flag(), "Yes", True),
        (Flag(), "0", False),
        (Size(), "1.5GiB", 3 * 2**29),
        (Size(), "4096", 4096),
        (Keys(), "ctrl+n", "ctrl+n"),
        (Keys(), "shift+enter, alt+enter ,ctrl+j", "shift+enter,alt+enter,ctrl+j"),
        (Keys(), "F24", "f24"),
        (Keys(), "escape,tab,backspace,delete,insert,home,end,up", "escape,tab,backspace,delete,insert,home,end,up"),
        (Keys(), "shift+ctrl+PageDown", "ctrl+shift+pagedown"),
        (Keys(), "super+meta+k", "meta+super+k"),
        (Keys(), "ctrl+/,ctrl+slash", "ctrl+slash,ctrl+slash"),
        (Keys(), "ctrl++,alt+-,ctrl+@", "ctrl+plus,alt+minus,ctrl+@"),
        (Keys(), "ctrl+comma,alt+left_square_bracket,ctrl+space", "ctrl+comma,alt+left_square_bracket,ctrl+space"),
        (Keys(), "ctrl+é", "ctrl+é"),
    ],
)
def test_values(kind: Kind, text: str, value: object) -> None:
    parsed = kind.parse(text)
    assert (parsed, type(parsed)) == (value, type(value))
    assert kind.check(parsed) == value
    assert kind.check(kind.plain(parsed)) == value


@pytest.mark.parametrize(
    ("kind", "text", "part"),
    [
        (SHARE, "0", "above 0 and at most 1, not 0.0"),
        (SHARE, "1.01", "not 1.01"),
        (SHARE, "nan", "not nan"),
        (SHARE, "inf", "not inf"),
        (SHARE, "half", "a number above 0"),
        (COUNT, "0", "at least 1, not 0"),
        (COUNT, "1.5", "a whole number"),
        (COUNT, "9" * 5000, "a whole number"),
        (COUNT, str(2**63), "a whole number"),
        (POWER, "24", "a power of two, not 24"),
        (Number(minimum=0, above=True), "0", "a number, above 0"),
        (COLOR, "Auto", "one of auto, never, not 'Auto'"),
        (Flag(), "maybe", "true or false, not 'maybe'"),
        (Size(), "much", "a size such as 512M or 2G"),
        (Size(), "0", "a size"),
        (Size(), "9" * 400 + "G", "..."),
        (Keys(), "", "not empty"),
        (Keys(), "ctrl+n,,f5", "one of them is empty"),
        (Keys(), "ctrl+,", "is no key"),
        (Keys(), "nonsense", "'nonsense' is no key"),
        (Keys(), "ctrl+esc", "did you mean ctrl+escape?"),
        (Keys(), "f25", "'f25' is no key"),
        (Keys(), "control+n", "'control' in 'control+n' is none of alt, ctrl"),
        (Keys(), "a", "a is typed as text"),
        (Keys(), "A", "A is typed as text"),
        (Keys(), "shift+a", "shift+a is typed as text"),
        (Keys(), "+", "+ is typed as text"),
        (Keys(), "slash", "slash is typed as text"),
        (Keys(), "space", "space is typed as text"),
        (Keys(), "ctrl+\x1b", "is no key"),
        (Keys(), "x" * 400, "..."),
    ],
)
def test_refused_texts(kind: Kind, text: str, part: str) -> None:
    with pytest.raises(ValueError, match=r"^must be ") as caught:
        kind.parse(text)
    assert part in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "toml"),
    [
        (Text(), "1"),
        (Text(), "[]"),
        (SHARE, "true"),
        (SHARE, '"0.5"'),
        (SHARE, "{}"),
        (COUNT, "1.0"),
        (COUNT, "true"),
        (COUNT, "0"),
        (SHARE, "1" + "0" * 400),  # more than a float holds
        (COLOR, "1"),
        (COLOR, '["auto"]'),
        (Flag(), "1"),
        (Flag(), '"true"'),
        (Size(), "true"),
        (Size(), "1.5"),
        (Size(), "0"),
        (Size(), str(2**63)),
        (Size(), "1979-05-27"),
        (Keys(), "1"),
        (Keys(), '["ctrl+n"]'),
        (Keys(), '"nonsense"'),
    ],
)
def test_refused_toml(kind: Kind, toml: str) -> None:
    with pytest.raises(ValueError, match=r"^must be "):
        kind.check(tomllib.loads(f"x = {toml}")["x"])


@given(st.integers(1, 2**63 - 1))
def test_sizes_are_written_exactly(size: int) -> None:
    assert parse_size(str(Size().plain(size))) == size


def test_sizes_are_written_short() -> None:
    assert [Size().plain(size) for size in (2**31, 1536 * 2**20, 2**41, 1000)] == ["2G", "1536M", "2T", "1000"]
