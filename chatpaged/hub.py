"""Downloading from the Hugging Face Hub. The only place that imports its library, and only when something has to be fetched.

Large files are fetched here, into the place in the library's cache where it will find them, because it does not go on with a
file after an interruption; everything else about the cache is left to the library.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import filelock

from chatpaged.errors import ModelError
from chatpaged.hub_cache import hub_cache_dir, is_offline, repo_dir, snapshot_dir
from chatpaged.hub_files import RemoteFile, gguf_file, model_files
from chatpaged.hub_progress import Progress
from chatpaged.model_names import HubName

Tell = Callable[[str], None]
_LARGEST_OVER_HTTP = 50_000_000_000  # the hub serves larger files through the library's own protocol only
_MOST_FAILURES = 5  # in a row, without a byte
_PAUSE = 1.0  # seconds before the next try
_WHOLE = 200  # HTTP's status for all of a file, where a part of it is 206
_SPARE = 50_000_000  # bytes of disk left over for small files


def download_model(name: HubName, tell: Tell, show: Tell, *, with_code: bool = False, near: str = "") -> Path:
    """Fetches what is needed of a model, or of one GGUF file, and is not there yet.

    Args:
        name: the model.
        tell: hears, rarely, what is being done.
        show: hears often how far it is.
        with_code: fetch Python code that comes with the model too.
        near: what to add when the name may be misspelt.

    Returns:
        The model's directory, or the GGUF file.

    Raises:
        ModelError: offline, no such repository, no access, no space, damaged on the way, or nothing usable in it.
    """
    if is_offline():
        raise ModelError(f"{name} is not on this machine, and HF_HUB_OFFLINE is set; unset it to fetch the model{near}")
    from huggingface_hub import utils
    from huggingface_hub.errors import HTTPError  # type: ignore[attr-defined]  # of the HTTP library that it uses

    logging: Any = utils.logging  # its functions have no types
    logging.set_verbosity_error()
    progress = Progress(str(name), tell, show)
    try:
        commit, files = _listing(name)
        wanted = [gguf_file(name, files)] if name.is_gguf else model_files(name, files, with_code=with_code)
        missing = _missing(name, commit, wanted)
        if missing:
            _require_disk(name, missing)
            progress.begin(sum(file.size for file in missing))
            for file in missing:
                if file.sha256 is not None and file.size <= _LARGEST_OVER_HTTP:
                    _fetch_large(name, commit, file, progress)
        directory = _complete(name, wanted)
    except (OSError, HTTPError, ValueError) as error:
        raise _explain(error, name, progress, near) from error
    except ModelError:
        raise
    except BaseException:  # the user or the system ends the program
        if progress.begun:
            tell(f"{progress.state()}; the same command goes on from there")
        raise
    return directory / wanted[0].path if name.is_gguf else directory


def delete_revision(name: HubName) -> None:
    """Deletes a revision from the hub's cache by the library's own means: what other revisions use stays.

    Raises:
        ModelError: it cannot be deleted.
    """
    import huggingface_hub

    directory = snapshot_dir(name)
    if directory is None:
        raise ModelError(f"{name} is not in {hub_cache_dir()}")
    try:
        cache = huggingface_hub.scan_cache_dir(hub_cache_dir())
        # Of this repository alone: copies of a repository on the hub have commits in common.
        repos = frozenset(repo for repo in cache.repos if repo.repo_type == "model" and repo.repo_id == name.repo)
        if not any(revision.commit_hash == directory.name for repo in repos for revision in repo.revisions):
            reason = next(
                (str(warning) for warning in cache.warnings if str(repo_dir(name.repo)) in str(warning)),
                "its library finds no such revision",
            )
            raise ModelError(f"cannot delete {name} in {hub_cache_dir()}: {' '.join(reason.split())}")
        dataclasses.replace(cache, repos=repos).delete_revisions(directory.name).execute()
    except (OSError, huggingface_hub.CacheNotFound) as error:
        raise ModelError(f"cannot delete {name} in {hub_cache_dir()}: {error}") from error


# --- what there is -------------------------------------------------------------------------------------------------------


def _listing(name: HubName) -> tuple[str, list[RemoteFile]]:
    from huggingface_hub import HfApi

    info = HfApi(library_name="chatpaged").model_info(name.repo, revision=name.revision, files_metadata=True)
    files = [
        RemoteFile(entry.rfilename, entry.size or 0, entry.lfs.sha256 if entry.lfs is not None else None) for entry in info.siblings or ()
    ]
    return str(info.sha), files


def _missing(name: HubName, commit: str, wanted: Sequence[RemoteFile]) -> list[RemoteFile]:
    """Files that are not in the cache. One of a wrong size is taken out of it, or the library would keep it."""
    directory = repo_dir(name.repo) / "snapshots" / commit
    missing = []
    for file in wanted:
        place = directory / file.path
        if place.is_file() and place.stat().st_size == file.size:
            continue
        if place.is_file():
            place.resolve().unlink()
        place.unlink(missing_ok=True)
        missing.append(file)
    return missing


def _require_disk(name: HubName, missing: Sequence[RemoteFile]) -> None:
    place = hub_cache_dir()
    place.mkdir(parents=True, exist_ok=True)
    here = sum(path.stat().st_size for file in missing if file.sha256 for path in [_blob(name, file), _part(name, file)] if path.is_file())
    needed = sum(file.size for file in missing) - here + _SPARE
    free = shutil.disk_usage(place).free
    if free < needed:
        raise ModelError(f"{name} needs {needed / 1e6:,.0f} MB of disk, {free / 1e6:,.0f} MB are free in {place}")


# --- fetching ------------------------------------------------------------------------------------------------------------


def _blob(name: HubName, file: RemoteFile) -> Path:
    return repo_dir(name.repo) / "blobs" / str(file.sha256)


def _part(name: HubName, file: RemoteFile) -> Path:
    blob = _blob(name, file)
    return blob.with_name(f"{blob.name}.incomplete")


def _fetch_large(name: HubName, commit: str, file: RemoteFile, progress: Progress) -> None:
    """Fetches a file whose digest is known, going on with what an earlier try has left."""
    blob, part = _blob(name, file), _part(name, file)
    blob.parent.mkdir(parents=True, exist_ok=True)
    lock = hub_cache_dir() / ".locks" / repo_dir(name.repo).name / f"{file.sha256}.lock"  # the library's own
    lock.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(lock):
        if blob.is_file() and blob.stat().st_size == file.size:
            progress.advance(file.size)
            return
        blob.unlink(missing_ok=True)
        _fetch_part(name, commit, file, part, progress)
        progress.say(f"checking {file.path}")
        with part.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if digest != file.sha256:
            part.unlink()
            raise ModelError(f"{file.path} of {name} was damaged on the way (its checksum differs); it was not kept, try again")
        part.replace(blob)


def _fetch_part(name: HubName, commit: str, file: RemoteFile, part: Path, progress: Progress) -> None:
    """Adds to what there is of a file until it is all there; takes a connection that breaks up again."""
    from huggingface_hub.errors import HfHubHTTPError, HTTPError  # type: ignore[attr-defined]  # of the HTTP library that it uses

    if part.is_file() and part.stat().st_size > file.size:
        part.unlink()
    failures = 0
    with part.open("ab") as target:
        progress.advance(target.tell())
        while target.tell() < file.size:
            begun = target.tell()
            try:
                _receive(name, commit, file, target, progress)
            except HfHubHTTPError:
                raise  # an answer of the hub, not a failure to get one
            except HTTPError:
                failures = failures + 1 if target.tell() == begun else 1
                if failures > _MOST_FAILURES:
                    raise
                time.sleep(_PAUSE)


def _receive(name: HubName, commit: str, file: RemoteFile, target: BinaryIO, progress: Progress) -> None:
    """One connection's worth of a file."""
    from huggingface_hub import constants, hf_hub_url
    from huggingface_hub.utils import build_hf_headers, get_session, hf_raise_for_status  # type: ignore[attr-defined]

    begun = target.tell()
    headers = build_hf_headers(library_name="chatpaged") | {"Accept-Encoding": "identity", "Range": f"bytes={begun}-"}
    url = hf_hub_url(name.repo, file.path, revision=commit)
    with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT, follow_redirects=True) as response:
        hf_raise_for_status(response)
        if begun and response.status_code == _WHOLE:  # a server that knows no ranges sends everything
            target.truncate(0)
            progress.advance(-begun)
        for piece in response.iter_bytes():
            target.write(piece)
            progress.receive(len(piece))
    target.flush()
    if target.tell() > file.size:
        raise OSError(f"{file.path} is longer than the {file.size:,} bytes that the hub names")


def _complete(name: HubName, wanted: Sequence[RemoteFile]) -> Path:
    """Lets the library fetch the small files and put everything in its place."""
    import huggingface_hub

    utils: Any = huggingface_hub.utils  # it has no types

    class Silent(utils.tqdm):  # type: ignore[misc]  # likewise
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options | {"disable": True})

    directory = huggingface_hub.snapshot_download(
        name.repo,
        revision=name.revision,
        cache_dir=hub_cache_dir(),
        allow_patterns=[_literal(file.path) for file in wanted],
        library_name="chatpaged",
        tqdm_class=Silent,
    )
    return Path(directory)


def _literal(path: str) -> str:
    """A pattern that only this path fits."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in path)


# --- what went wrong -----------------------------------------------------------------------------------------------------


def _explain(error: Exception, name: HubName, progress: Progress, near: str) -> ModelError:
    """One line for every way in which a download can fail."""
    from huggingface_hub import errors

    response = getattr(error, "response", None)
    status = response.status_code if response is not None else None
    repo = name.repo
    if isinstance(error, errors.GatedRepoError):
        reason = f"{repo} is gated: ask for access on its page of the hub, then set HF_TOKEN to a token of yours"
    elif isinstance(error, errors.RevisionNotFoundError):
        reason = f"{repo} has no revision {name.revision!r}"
    elif isinstance(error, errors.RepositoryNotFoundError):
        reason = f"no model {repo!r} on the hub; if it is private, set HF_TOKEN to a token that may read it{near}"
    elif status in {401, 403}:
        reason = f"the hub refuses access to {repo} ({status}); check HF_TOKEN and what the token may read"
    elif status is not None:
        reason = f"the hub answers {status} for {repo}; try again later"
    elif isinstance(error, errors.HFValidationError):
        reason = f"{name} is no name that the hub could have: {error}"
    elif isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
        reason = f"no space left in {hub_cache_dir()} for {name}; {progress.state()}"
    elif isinstance(error, OSError) and error.errno in {errno.EACCES, errno.EROFS, errno.EPERM}:
        reason = f"cannot write to {error.filename or hub_cache_dir()}: {error.strerror}"
    elif isinstance(error, OSError) and error.filename is not None and error.strerror is not None:
        reason = f"cannot use {error.filename}: {error.strerror}"
    else:
        reason = _unreachable(error, name, progress, near)
    return ModelError(" ".join(reason.split()))


def _unreachable(error: Exception, name: HubName, progress: Progress, near: str) -> str:
    cause = error.__cause__ if type(error).__name__ == "LocalEntryNotFoundError" and error.__cause__ is not None else error
    why = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    if progress.begun:
        return f"the connection broke ({why}); {progress.state()}; the same command goes on from there"
    known = snapshot_dir(name)
    hint = f"; what is in {known} is not complete" if known is not None else ""
    return f"cannot reach the hub for {name} ({why}){hint}; check the network, HF_ENDPOINT and proxies{near}"
