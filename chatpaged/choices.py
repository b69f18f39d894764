"""What can be chosen from a list: models that are here, presets. Reads files: not for the event loop."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from chatpaged.amounts import disk_size, large_number
from chatpaged.model_list import ModelEntry, ModelFacts, list_models
from chatpaged.presets import Preset, all_presets
from chatpaged.text_matches import has_words


@dataclass(frozen=True, slots=True)
class Choice:
    """One thing of a list.

    Attributes:
        id: what choosing it gives.
        label: what to call it.
        note: a few words beside it.
        details: what is known of it, by names.
        text: a longer text that belongs to it.
        warning: what speaks against it.
    """

    id: str
    label: str
    note: str = ""
    details: tuple[tuple[str, str], ...] = ()
    text: str = ""
    warning: str = ""


def fitting_choices(choices: Iterable[Choice], text: str) -> list[Choice]:
    """Those in which all words of a text occur, in their order; those that begin like the text go before others."""
    fitting = [choice for choice in choices if has_words(f"{choice.label} {choice.note} {choice.id}", text)]
    begin = text.strip().casefold()
    return sorted(fitting, key=lambda choice: not choice.label.casefold().startswith(begin))


def named_choices(names: Iterable[str]) -> tuple[Choice, ...]:
    """Things of which there is nothing to know but their names, such as themes."""
    return tuple(Choice(name, name) for name in names)


def model_choices() -> tuple[Choice, ...]:
    """The models on this machine, the last used first.

    Raises:
        ModelError: the file of aliases is damaged.
    """
    return tuple(_model(entry) for entry in list_models())


def preset_choices(directory: Path) -> tuple[Choice, ...]:
    """The presets that can be used in a directory.

    Raises:
        SettingsError: a file or a preset in it is wrong.
    """
    return tuple(_preset(preset) for preset in all_presets(directory).values())


def _model(entry: ModelEntry) -> Choice:
    facts = entry.facts
    known = {
        "family": facts.family,
        "parameters": large_number(facts.parameters) if facts.parameters else None,
        "size": disk_size(facts.size) if facts.size else None,
        "weights": facts.quantization or facts.stored_type,
        "context": f"{facts.context:,} tokens" if facts.context else None,
        "also called": ", ".join(entry.aliases),
        "from": str(entry.source.path) if entry.source.path is not None else None,
    }
    return Choice(entry.name, entry.name, _short(facts), _details(known), warning=facts.problem or "")


def _short(facts: ModelFacts) -> str:
    """What tells models apart in a list."""
    if facts.parameters:
        return large_number(facts.parameters)
    return disk_size(facts.size) if facts.size else ""


def _preset(preset: Preset) -> Choice:
    values = {key.rpartition(".")[2].replace("_", " "): str(value) for key, value in preset.values.items() if key != "system"}
    note = ", ".join([f"{name} {value}" for name, value in values.items()] + (["pinned"] if preset.pin else []))
    values |= {"pinned": "yes"} if preset.pin else {}
    return Choice(preset.name, preset.name, note, _details(values | {"from": str(preset.path)}), text=str(preset.values.get("system", "")))


def _details(values: Mapping[str, str | None]) -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in values.items() if value)
