"""What can be chosen from a list."""

from __future__ import annotations

from pathlib import Path

import pytest

from chatpaged import amounts, choices
from chatpaged.choices import Choice, fitting_choices, named_choices, preset_choices
from chatpaged.errors import SettingsError
from chatpaged.model_list import ModelEntry, ModelFacts
from chatpaged.model_sources import ModelSource, SourceKind


def test_amounts_are_short() -> None:
    assert [amounts.memory_size(count) for count in (0, 1023, 1024, 720 * 1024, 54.3 * 1024**2, 1.44 * 1024**3)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "720 KiB",
        "54 MiB",
        "1.4 GiB",
    ]
    assert [amounts.large_number(count) for count in (0, 950, 999.6, 135e6, 1.54e9)] == ["0", "950", "1.0k", "135M", "1.5B"]
    assert [amounts.disk_size(count) for count in (98_362_432, 1_520_000_000)] == ["98.4 MB", "1.52 GB"]
    assert [amounts.counted(1, "branch", "branches"), amounts.counted(1204, "token")] == ["1 branch", "1,204 tokens"]


def test_what_begins_like_the_text_comes_first() -> None:
    there = [Choice("x/smol", "x/smol"), Choice("smol", "smol", "135M"), Choice("other", "other")]
    assert [choice.id for choice in fitting_choices(there, "smol")] == ["smol", "x/smol"]
    assert [choice.id for choice in fitting_choices(there, "135m")] == ["smol"]
    assert fitting_choices(there, " ") == there
    assert named_choices(["nord"]) == (Choice("nord", "nord"),)


def test_models_are_told_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ModelFacts(family="llama", parameters=134_515_008, size=270_900_000, stored_type="bfloat16", context=8192)
    source = ModelSource(SourceKind.STARTER, "starter")
    entries = [
        ModelEntry("starter", source, Path("/m"), facts, 1.0, ("tiny",)),
        ModelEntry("cut", source, None, ModelFacts(problem="the download was cut off", size=5_000_000), None, ()),
    ]
    monkeypatch.setattr(choices, "list_models", lambda: entries)
    starter, cut = choices.model_choices()
    assert (starter.id, starter.note, starter.warning) == ("starter", "135M", "")
    assert starter.details == (
        ("family", "llama"),
        ("parameters", "135M"),
        ("size", "270.9 MB"),
        ("weights", "bfloat16"),
        ("context", "8,192 tokens"),
        ("also called", "tiny"),
    )
    assert (cut.note, cut.warning) == ("5.0 MB", "the download was cut off")


def test_presets_are_told_with_their_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    project = tmp_path / "chatpaged.toml"
    project.write_text('[presets.german]\nsystem = "Antworte auf Deutsch"\nsampling.temperature = 0.2\n', encoding="utf-8")
    (german,) = preset_choices(tmp_path)
    assert german == Choice(
        "german", "german", "temperature 0.2", (("temperature", "0.2"), ("from", str(project))), text="Antworte auf Deutsch"
    )
    project.write_text('[presets.german]\nsystem = "Antworte auf Deutsch"\npin = true\n', encoding="utf-8")
    assert preset_choices(tmp_path)[0].note == "pinned"
    project.write_text("[presets.german]\nnonsense = 1\n", encoding="utf-8")
    with pytest.raises(SettingsError):
        preset_choices(tmp_path)
