"""What is known of the models on this machine, from small files and headers: no network, no torch."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import NOTE, check_directory
from chatpaged.errors import ModelError
from chatpaged.hub_cache import unfinished_bytes
from chatpaged.hub_files import quantization_of
from chatpaged.model_aliases import load_aliases
from chatpaged.model_files import find_source
from chatpaged.model_sources import ModelSource, SourceKind, cached_gguf, find_here, known_models
from chatpaged.model_usage import last_used, load_uses

_T = TypeVar("_T")
_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a model directory says about itself. None is unknown.

    Attributes:
        family: kind of model, as transformers names it.
        architecture: class of model, as transformers names it.
        parameters: elements of all tensors.
        size: bytes on disk.
        quantization: as its makers name it; None where there is none.
        stored_type: type of most weights on disk.
        context: longest sequence in tokens.
        problem: what is wrong with it.
    """

    family: str | None = None
    architecture: str | None = None
    parameters: int | None = None
    size: int | None = None
    quantization: str | None = None
    stored_type: str | None = None
    context: int | None = None
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """A line of the list.

    Attributes:
        name: what `--model` takes.
        source: where it comes from.
        directory: where it lies; None if it has to be fetched or converted first.
        facts: what is known of it.
        last_used: seconds since 1970.
        aliases: other names for it.
    """

    name: str
    source: ModelSource
    directory: Path | None
    facts: ModelFacts
    last_used: float | None
    aliases: tuple[str, ...]


def list_models() -> list[ModelEntry]:
    """Every model on this machine that has a name, the last used first; the starter model always.

    Raises:
        ModelError: the file of aliases is damaged.
    """
    found = {_identity(source): source for source in known_models().values()}
    aliases: dict[str, list[str]] = {}
    for alias, target in load_aliases().items():
        source = _meant(target)
        if source is not None:
            found.setdefault(_identity(source), source)
            aliases.setdefault(_identity(source), []).append(alias)
    uses = load_uses()
    shared = Counter(source.name for source in found.values())
    entries = [
        # A name of several models tells nothing: then it is the place.
        _entry(str(source.path) if shared[source.name] > 1 and source.path else source.name, source, uses, tuple(aliases.get(key, ())))
        for key, source in found.items()
    ]
    return sorted(entries, key=lambda entry: (-(entry.last_used or 0), entry.name.lower()))


def read_facts(directory: Path) -> ModelFacts:
    """What a model directory says about itself. Damage is told in `problem`, not raised."""
    problem = None
    parameters, stored = None, None
    config: dict[str, Any] = {}
    note: dict[str, Any] = {}
    try:
        config, note = read_json(directory / "config.json"), read_json(directory / NOTE)
        files = check_directory(directory)
        parameters, stored = files.num_parameters, _TYPES.get(files.stored_type, files.stored_type.lower())
    except ModelError as error:
        problem = str(error)
    text = config.get("text_config") if isinstance(config.get("text_config"), dict) else config
    architectures = config.get("architectures")
    return ModelFacts(
        family=_as(str, config.get("model_type")),
        architecture=_as(str, architectures[0]) if isinstance(architectures, list) and architectures else None,
        parameters=parameters,
        size=sum(path.stat().st_size for path in directory.rglob("*") if path.is_file()),
        quantization=_as(str, note.get("quantization")) or _quantization(config.get("quantization_config")),
        stored_type=stored,
        context=_as(int, (text or {}).get("max_position_embeddings")),
        problem=problem,
    )


def _entry(name: str, source: ModelSource, uses: dict[str, float], aliases: tuple[str, ...]) -> ModelEntry:
    directory = find_here(source)
    facts = read_facts(directory) if directory is not None else _facts_of_what_is_missing(source)
    return ModelEntry(name, source, directory, facts, last_used(directory, uses) if directory is not None else None, aliases)


def _facts_of_what_is_missing(source: ModelSource) -> ModelFacts:
    if source.hub is None:
        return ModelFacts(problem="not fetched yet" if source.kind is SourceKind.STARTER else "not converted yet")
    file = cached_gguf(source.hub) if source.hub.is_gguf else None
    if file is not None:
        return ModelFacts(size=file.stat().st_size, quantization=quantization_of(file.name) or None, problem="not converted yet")
    begun = unfinished_bytes(source.hub.repo)
    return ModelFacts(size=begun or None, problem="the download was cut off" if begun else "not fetched yet")


def _identity(source: ModelSource) -> str:
    """The same for two sources of one model: different ones may have one name."""
    directory = find_here(source)
    return str(directory.resolve()) if directory is not None else f"{source.kind.value} {source.path or source.name}"


def _meant(target: str) -> ModelSource | None:
    try:
        return find_source(target)
    except ModelError:
        return None  # an alias of something that is gone


def _quantization(settings: object) -> str | None:
    if not isinstance(settings, dict):
        return None
    method = _as(str, settings.get("quant_method")) or "quantized"
    bits = _as(int, settings.get("bits"))
    return f"{method} {bits} bit" if bits else method


def _as(kind: type[_T], value: object) -> _T | None:
    return value if isinstance(value, kind) else None
