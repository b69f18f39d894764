"""Presets: kept in the files of settings, used with -p, edited in the user's own editor."""

from __future__ import annotations

import difflib
import json
import stat
from pathlib import Path

import pytest

from chatpaged.presets import PIN
from chatpaged.setting_groups import all_settings
from tests.cli.runner import Result, run_inside

GERMAN = """\
[presets.german]
system = "Answer in German"
sampling.temperature = 0.25

[presets.long]
sampling = { max_tokens = 900, min_p = 0.1 }
"""


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's file; the current directory is empty."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    path = tmp_path / "config/chatpaged/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text(GERMAN)
    return path


def editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """An editor that replaces the text, and notes what it was."""
    script, seen = tmp_path / "editor", tmp_path / "seen"
    script.write_text(f"#!/bin/sh\ncp \"$1\" '{seen}'\nprintf '%s' '{text}' > \"$1\"\nsleep 0.01; touch -d '2040-01-01' \"$1\"\n")
    script.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(script))
    return seen


def test_list_and_show(user: Path) -> None:
    listed = run_inside("presets", "list")
    assert listed.out == "german: system Answer in German, temperature 0.25\nlong: max_tokens 900, min_p 0.1\n"
    assert json.loads(run_inside("presets", "list", "--json").out)["long"]["values"] == {"sampling.max_tokens": 900, "sampling.min_p": 0.1}
    shown = run_inside("presets", "show", "german")
    assert shown.out == f'# {user}\n[presets.german]\nsystem = "Answer in German"\nsampling.temperature = 0.25\n'
    run_inside("presets", "show", "germna").failed(2, "no preset 'germna'", "did you mean german?")
    user.unlink()
    assert run_inside("presets", "list").out == ""
    run_inside("presets", "show", "x").failed(2, "there are none yet", "'chatpaged presets edit x' makes one")


def test_other_commands_do_not_mind_presets(user: Path) -> None:
    assert user.exists()
    shown = run_inside("config", "show")
    assert (shown.status, shown.err) == (0, "")
    assert "german" not in shown.out


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[presets.a]\ntemperature = 1", ["preset 'a'", "there is no setting 'temperature'", "sampling.temperature"]),
        ("[presets.a]\nsampling.top_p = 7", ["preset 'a'", "sampling.top_p", "at most 1, not 7"]),
        ("[presets.a]\nengine.kv_blocks = 5\nengine.kv_memory = '1G'", ["preset 'a'", "say the same thing in two ways"]),
        ("[presets.a]\npin = 'yes'", ["preset 'a'", "pin must be true or false, not 'yes'"]),
        ("[presets.a]\npinned = true", ["preset 'a'", "there is no setting 'pinned'", "did you mean pin?"]),
        ("presets = 3", ["must be tables"]),
        ("[presets]\na = 3", ["preset 'a' must be a table"]),
    ],
)
def test_wrong_presets_are_named(user: Path, text: str, parts: list[str]) -> None:
    user.write_text(text)
    run_inside("presets", "list").failed(2, str(user), *parts)


def test_a_preset_may_pin_its_system_prompt(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("[presets.german]\npin = true\nsystem = 'S'\n[presets.long]\npin = false\n")
    assert run_inside("presets", "list").out == "german: system S, pinned\nlong:\n"
    listed = json.loads(run_inside("presets", "list", "--json").out)
    assert {name: (preset["pin"], preset["values"]) for name, preset in listed.items()} == {
        "german": (True, {"system": "S"}),
        "long": (False, {}),
    }
    seen = editor(tmp_path, monkeypatch, "pin = true")
    assert run_inside("presets", "edit", "german").status == 0
    assert seen.read_text() == 'system = "S"\npin = true\n'
    assert run_inside("presets", "show", "german").out == f"# {user}\n[presets.german]\npin = true\n"
    editor(tmp_path, monkeypatch, "pin = 1")
    run_inside("presets", "edit", "german").failed(2, "pin must be true or false, not 1", "what you wrote is in")


def test_pin_is_no_setting(user: Path) -> None:
    user.write_text("pin = true\n")
    result = run_inside("config", "show")
    assert result.status == 2
    assert "there is no setting 'pin'" in result.err
    assert not [key for key in all_settings() if difflib.get_close_matches(key, (PIN,))]


def test_presets_that_are_preloaded_are_looked_up_before_the_window_opens(user: Path) -> None:
    assert user.exists()
    run_inside("run", "--preload", "german", "--preload", "germna").failed(2, "no preset 'germna'", "did you mean german?")
    run_inside("run", "--preload", "german").failed(2, "needs a terminal")


def dry(*arguments: str) -> Result:
    return run_inside("ask", "--dry-run", "--json", *arguments, "hi")


@pytest.mark.starter
def test_a_preset_ranks_between_options_and_the_environment(user: Path, starter_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert user.exists()
    monkeypatch.setenv("CHATPAGED_SAMPLING_TEMPERATURE", "0.9")
    assert dry().json["sampling"]["temperature"] == 0.9
    preset = dry("-p", "german").json
    assert preset["sampling"]["temperature"] == 0.25
    assert "system\nAnswer in German<" in preset["prompt"]
    assert dry("--temperature", "0.5", "-p", "german").json["sampling"]["temperature"] == 0.5
    assert dry("-p", "long").json["sampling"].items() >= {"temperature": 0.9, "max_tokens": 900, "min_p": 0.1}.items()
    dry("-p", "nope").failed(2, "no preset 'nope'", "german, long")
    Path("chatpaged.toml").write_text("[presets.german]\nsystem = 'From the project'")
    assert "system\nFrom the project<" in dry("-p", "german").json["prompt"]


def test_editing_makes_changes_and_takes_away(user: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    user.write_text("# mine\nmodel = 'starter'\n\n" + GERMAN)
    seen = editor(tmp_path, monkeypatch, 'system = "Sprich Deutsch"')
    assert run_inside("presets", "edit", "german").status == 0
    assert seen.read_text() == 'system = "Answer in German"\nsampling.temperature = 0.25\n'
    assert run_inside("presets", "show", "german").out.endswith('[presets.german]\nsystem = "Sprich Deutsch"\n')
    assert user.read_text().startswith("# mine\nmodel = 'starter'\n")
    assert stat.S_IMODE(user.stat().st_mode) == 0o600
    seen = editor(tmp_path, monkeypatch, "sampling.seed_free = 1")
    run_inside("presets", "edit", "new").failed(2, "there is no setting 'sampling.seed_free'", "what you wrote is in")
    assert "# sampling.temperature = ..." in seen.read_text()
    assert (tmp_path / "state/chatpaged/preset-new.toml").read_text() == "sampling.seed_free = 1"
    editor(tmp_path, monkeypatch, "sampling.max_tokens = 7")
    assert run_inside("presets", "edit", "new").status == 0
    assert json.loads(run_inside("presets", "show", "new", "--json").out)["values"] == {"sampling.max_tokens": 7}
    editor(tmp_path, monkeypatch, "")
    assert run_inside("presets", "edit", "long").status == 0
    assert json.loads(run_inside("presets", "list", "--json").out).keys() == {"german", "new"}
    run_inside("presets", "edit", "a b").failed(2, "no name for a preset")


def test_an_editor_that_fails(user: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = user.read_text()
    monkeypatch.setenv("VISUAL", "/no/such/editor")
    result = run_inside("presets", "edit", "german")
    assert result.status != 0
    assert user.read_text() == before
    monkeypatch.setenv("VISUAL", "true")
    assert run_inside("presets", "edit", "german").err == "nothing was changed\n"
