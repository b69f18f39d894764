"""What a name has been understood as, and which models are on this machine. Nothing is fetched here, and no network is used."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import NOTE
from chatpaged.errors import ModelError
from chatpaged.gguf_files import conversions_dir, converted_directory
from chatpaged.hub_cache import cached_names, gguf_paths, snapshot_dir
from chatpaged.hub_files import RemoteFile, gguf_file
from chatpaged.model_names import HubName, parse_hub_name
from chatpaged.starter_model import STARTER, starter_place


class SourceKind(Enum):
    """Where a model comes from."""

    STARTER = "starter"
    DIRECTORY = "directory"
    GGUF = "gguf"
    HUB = "hub"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A name that has been understood.

    Attributes:
        kind: where the model comes from.
        name: what to call it.
        path: of a directory or GGUF file on disk.
        hub: its name on the hub.
        converted: where a conversion of it is known to lie.
    """

    kind: SourceKind
    name: str
    path: Path | None = None
    hub: HubName | None = None
    converted: Path | None = None


def known_models() -> dict[str, ModelSource]:
    """Every model on this machine that has a name, and the starter model, by name."""
    starter = ModelSource(SourceKind.STARTER, STARTER.name)
    found = [starter, *_conversions(), *(_cached(name) for name in cached_names())]
    taken = Counter(source.name for source in found if source.kind is not SourceKind.HUB)
    models: dict[str, ModelSource] = {}
    for source in found:
        ambiguous = taken[source.name] > 1 and source.kind is SourceKind.GGUF
        known = dataclasses.replace(source, name=str(source.path)) if ambiguous else source
        models.setdefault(known.name, known)
    return models


def find_here(source: ModelSource) -> Path | None:
    """The directory of a model if it is on this machine, complete or not; nothing is fetched or converted."""
    place = source.converted
    if source.kind is SourceKind.DIRECTORY:
        place = source.path
    elif source.kind is SourceKind.STARTER:
        place = starter_place()
    elif source.hub is not None and not source.hub.is_gguf:
        place = snapshot_dir(source.hub)
    else:
        file = source.path if source.hub is None else cached_gguf(source.hub)
        if file is not None and file.is_file():
            place = converted_directory(file)
    return place if place is not None and place.is_dir() else None


def cached_gguf(name: HubName) -> Path | None:
    """The GGUF file in the hub's cache that a name means, if there is just one."""
    directory = snapshot_dir(name)
    if directory is None:
        return None
    try:
        return directory / gguf_file(name, [RemoteFile(path, 0) for path in gguf_paths(directory)]).path
    except ModelError:
        return None  # the hub may have more files than its cache


def _cached(name: HubName) -> ModelSource:
    return ModelSource(SourceKind.HUB, str(name), hub=name)


def _conversions() -> Iterator[ModelSource]:
    for path in sorted(conversions_dir().glob(f"*/{NOTE}")):
        note = _note(path)
        name, place = note.get("name"), note.get("source")
        if not isinstance(name, str) or not isinstance(place, str):
            continue
        hub = parse_hub_name(name) if "/" in name else None
        if hub is not None and hub.is_gguf:
            yield ModelSource(SourceKind.HUB, name, hub=hub, converted=path.parent)
        else:
            yield ModelSource(SourceKind.GGUF, name, Path(place), converted=path.parent)


def _note(path: Path) -> dict[str, object]:
    try:
        return read_json(path)
    except ModelError:
        return {}  # somebody else's file
