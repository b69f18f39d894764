"""What is proposed while a prompt is typed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from chatpaged.prompt_completion import MOST_SHOWN, NoChoices, Proposals, candidates, proposals_at
from chatpaged.slash_commands import COMMANDS, Completes


class Names(NoChoices):
    def presets(self) -> Sequence[tuple[str, str]]:
        return [("writer", "hot"), ("coder", "cold"), ("my-coder", "")]

    def models(self) -> Sequence[tuple[str, str]]:
        return [("starter", "135M")]

    def themes(self) -> Sequence[tuple[str, str]]:
        return [("nord", "")]


@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ("/", Proposals(Completes.COMMAND, 0, "")),
        ("/he", Proposals(Completes.COMMAND, 0, "he")),
        ("/usr/bin", None),
        ("/help ", Proposals(Completes.COMMAND, 6, "", optional=True)),
        ("/new co", Proposals(Completes.PRESET, 5, "co")),
        ("/model ", Proposals(Completes.MODEL, 7, "", optional=True)),
        ("/set ", Proposals(Completes.SETTING, 5, "")),
        ("/theme nord ", None),
        ("/tree ", None),
        ("/nosuch x", None),
        ("/export out/x", Proposals(Completes.FILE, 8, "out/x")),
        ("say /he", None),
        ("look at @", Proposals(Completes.FILE, 8, "", optional=True, mention=True)),
        ("look at @src/ma", Proposals(Completes.FILE, 8, "src/ma", mention=True)),
        ('look at @"with sp', Proposals(Completes.FILE, 8, "with sp", mention=True)),
        ("(@x", Proposals(Completes.FILE, 1, "x", mention=True)),
        ("mail a@b", None),
        ("/system use @no", Proposals(Completes.FILE, 12, "no", mention=True)),
        ("x" * 2000 + " @no", Proposals(Completes.FILE, 2001, "no", mention=True)),
        ("", None),
    ],
)
def test_what_is_wanted(before: str, wanted: Proposals | None) -> None:
    assert proposals_at(before, first_line=True) == wanted


def test_commands_are_on_the_first_line_only() -> None:
    assert proposals_at("/he", first_line=False) is None
    assert proposals_at("/new co", first_line=False) is None


def found(before: str, directory: Path = Path()) -> list[str]:
    wanted = proposals_at(before, first_line=True)
    assert wanted is not None
    return [candidate.text for candidate in candidates(wanted, Names(), directory)]


def test_names() -> None:
    assert len(found("/")) == len(COMMANDS)
    assert found("/he") == ["/help "]
    assert found("/tr") == ["/tree"]
    assert found("/searc") == ["/find "]
    assert found("/new co") == ["coder", "my-coder"]
    assert found("/model ") == ["starter"]
    assert found("/theme no") == ["nord"]
    assert found("/set top") == ["top_p", "top_k"]
    assert found("/help tre") == ["tree"]
    assert found("/new nothing") == []


def test_files(tmp_path: Path) -> None:
    for name in ("b.txt", "A.txt", ".hidden", "with space", 'quo"te', "at@x"):
        (tmp_path / name).touch()
    (tmp_path / "sub dir").mkdir()
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "lion.txt").touch()
    assert found("@", tmp_path) == ['@"sub dir/', "@zoo/", "@A.txt", '@"at@x"', "@b.txt", '@"with space"']
    assert found("@a", tmp_path) == ["@A.txt", '@"at@x"']
    assert found("@.", tmp_path) == ["@.hidden"]
    assert found("@zoo/l", tmp_path) == ["@zoo/lion.txt"]
    assert found("@nowhere/", tmp_path) == []
    assert found("@b.txt/", tmp_path) == []
    assert found(f"@{tmp_path}/zoo/", Path()) == [f"@{tmp_path}/zoo/lion.txt"]
    assert found("/export zo", tmp_path) == ["zoo/"]


def test_a_huge_directory_is_cut_short(tmp_path: Path) -> None:
    for i in range(MOST_SHOWN + 50):
        (tmp_path / f"f{i}").touch()
    assert len(found("@", tmp_path)) == MOST_SHOWN
