"""Deleting models: conversions of our own, and what the hub's cache holds. Nothing else is ever deleted."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from chatpaged.errors import ModelError
from chatpaged.hub import delete_revision
from chatpaged.hub_cache import repo_dir, snapshot_dir
from chatpaged.model_names import HubName
from chatpaged.model_sources import ModelSource, SourceKind, cached_gguf, find_here
from chatpaged.paths import models_dir


@dataclass(frozen=True, slots=True)
class Removal:
    """What would be deleted.

    Attributes:
        name: the model.
        places: directories and files.
        size: bytes that they take.
        revision: of the hub's cache, which its own library deletes.
    """

    name: str
    places: tuple[Path, ...]
    size: int
    revision: HubName | None = None

    def execute(self) -> None:
        """Deletes it.

        Raises:
            ModelError: something could not be deleted.
        """
        try:
            if self.revision is not None:
                delete_revision(self.revision)
                return
            for place in self.places:
                if place.is_dir() and not place.is_symlink():
                    shutil.rmtree(place)
                else:
                    place.unlink(missing_ok=True)
        except OSError as error:
            raise ModelError(f"cannot delete {error.filename or self.name}: {error.strerror or error}") from error


def plan_removal(source: ModelSource) -> Removal:
    """What deleting a model would delete.

    Raises:
        ModelError: it lies where nothing is deleted, or is not there.
    """
    if source.kind is SourceKind.DIRECTORY:
        raise ModelError(f"{source.path} is a directory of your own; delete it yourself")
    if source.hub is not None and not source.hub.is_gguf:
        return _of_the_hub(source.hub)
    place = find_here(source)
    places = [place] if place is not None else []
    if any(not directory.is_relative_to(models_dir()) for directory in places):
        raise ModelError(f"{place} is outside of {models_dir()}; delete it yourself")
    if source.hub is not None:
        places += _links_to(source.hub)
    if not places:
        of_its_own = f"; {source.path} itself is a file of your own" if source.path is not None else ""
        raise ModelError(f"nothing to delete: {source.name} has not been fetched or converted{of_its_own}")
    return Removal(source.name, tuple(places), sum(map(_size, places)))


def _of_the_hub(name: HubName) -> Removal:
    directory = snapshot_dir(name)
    if directory is not None:
        return Removal(str(name), (directory,), _size(directory), revision=name)
    base = repo_dir(name.repo)
    if not base.is_dir() or any((base / "snapshots").glob("*")):
        raise ModelError(f"nothing to delete: {name} is not in the hub's cache")
    return Removal(str(name), (base,), _size(base))  # a download that was cut off


def _links_to(name: HubName) -> list[Path]:
    """A GGUF file in the hub's cache: its contents, and the names for them in all revisions."""
    file = cached_gguf(name)
    if file is None:
        return []
    blob = file.resolve()
    links = (path for path in (repo_dir(name.repo) / "snapshots").rglob("*.gguf") if path.is_symlink() and path.resolve() == blob)
    return [*links, blob]


def _size(place: Path) -> int:
    if place.is_symlink():
        return 0
    if place.is_file():
        return place.stat().st_size
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
