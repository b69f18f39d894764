"""The cache of the Hugging Face Hub as it lies on disk, read without its library: no network, nothing heavy to import.

```text
models--org--name/
├── refs/main                     the commit that a branch or tag stood for
├── snapshots/<commit>/...        the files of a commit, links to
└── blobs/<digest>                what was downloaded; <digest>.incomplete while it is
```
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from chatpaged.model_names import DEFAULT_REVISION, HubName

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PREFIX = "models--"
_TRUE = frozenset({"1", "ON", "YES", "TRUE"})


def is_offline() -> bool:
    """Whether the user has forbidden all access to the hub."""
    return (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper() in _TRUE


def hub_cache_dir() -> Path:
    """Where the hub's own library keeps its downloads, whichever variable says so."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    home = os.environ.get("HF_HOME") or f"{base}/huggingface"
    place = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or f"{home}/hub"
    return Path(os.path.expandvars(os.path.expanduser(place)))


def repo_dir(repo: str) -> Path:
    """Where a repository's files lie."""
    return hub_cache_dir() / (_PREFIX + repo.replace("/", "--"))


def snapshot_dir(name: HubName) -> Path | None:
    """The files of a revision, complete or not; None if nothing of it is there."""
    base = repo_dir(name.repo)
    commit = name.revision if _COMMIT.fullmatch(name.revision) else _read_ref(base / "refs" / name.revision)
    place = base / "snapshots" / commit if commit else None
    return place if place is not None and place.is_dir() else None


def cached_names() -> list[HubName]:
    """Every model in the cache: each revision that has a name, and commits without one; GGUF files one by one."""
    return [name for base in sorted(hub_cache_dir().glob(f"{_PREFIX}*")) for name in _names(base)]


def gguf_paths(directory: Path) -> list[str]:
    """GGUF files of a snapshot, as paths within it."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.gguf") if path.is_file())


def unfinished_bytes(repo: str) -> int:
    """Size of what downloads of a repository that were cut off have left."""
    return sum(path.stat().st_size for path in (repo_dir(repo) / "blobs").glob("*.incomplete"))


def _names(base: Path) -> Iterator[HubName]:
    repo = base.name.removeprefix(_PREFIX).replace("--", "/")
    refs = {path.relative_to(base / "refs").as_posix(): _read_ref(path) for path in sorted((base / "refs").rglob("*")) if path.is_file()}
    commits = {path.name for path in (base / "snapshots").glob("*") if path.is_dir()}
    revisions = sorted(refs, key=lambda ref: (ref != DEFAULT_REVISION, ref)) + sorted(commits - set(refs.values()))
    for revision in revisions:
        name = HubName(repo, revision)
        directory = snapshot_dir(name)
        if directory is None:
            continue
        if (directory / "config.json").is_file():
            yield name
        yield from (HubName(repo, revision, file=file) for file in gguf_paths(directory))
    if not commits and unfinished_bytes(repo):
        yield HubName(repo)


def _read_ref(path: Path) -> str:
    try:
        commit = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    return commit if _COMMIT.fullmatch(commit) else ""
