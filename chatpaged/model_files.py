"""From a model's name to a directory with its files, wherever they come from.

The order in which a name is understood:

1. nothing, `starter` or `SmolLM2-135M-Instruct`: the starter model;
2. a directory or a GGUF file on disk;
3. an alias of the user's;
4. an id of the Hugging Face Hub: what is in its cache is used without a network, the rest is fetched;
5. the last part of the name of exactly one model that is here already.

Anything else is refused with the near names; no other model is ever taken in its place.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from chatpaged.engine.tokenizer import read_json
from chatpaged.engine.weight_files import check_directory
from chatpaged.errors import ModelError
from chatpaged.gguf_files import gguf_directory
from chatpaged.hub import download_model
from chatpaged.hub_cache import is_offline, snapshot_dir
from chatpaged.model_aliases import load_aliases
from chatpaged.model_names import HubName, is_path, last_part, parse_hub_name, suggestion
from chatpaged.model_sources import ModelSource, SourceKind, cached_gguf, known_models
from chatpaged.starter_model import STARTER, STARTER_NAMES, starter_directory

Tell = Callable[[str], None]
"""Is told, in a few words, what is being done."""

_FORMS = "give a model directory, a .gguf file, a hub id such as org/name, or 'starter'"


def resolve_model(name: str | None, tell: Tell, *, show: Tell | None = None, trust_remote_code: bool = False) -> Path:
    """The directory of a model, fetched and converted where that is needed.

    Args:
        name: see the module; None for the starter model.
        tell: hears about downloads and conversions.
        show: hears how far they are, several times a second.
        trust_remote_code: fetch Python code that comes with the model too.

    Raises:
        ModelError: there is no such model, or it could not be fetched.
        MemoryBudgetError: not enough memory to convert it.
    """
    return fetch_model(find_source(name), tell, show=show, trust_remote_code=trust_remote_code)


def find_source(name: str | None) -> ModelSource:
    """What a name means. Nothing is fetched.

    Raises:
        ModelError: it means nothing, or more than one model.
    """
    if name is None:
        return _starter()
    source = _direct_source(name)
    if source is not None:
        return source
    aliases = load_aliases()
    if name in aliases:
        source = _direct_source(aliases[name]) or _hub_source(aliases[name])
        if source is None:
            raise ModelError(f"the alias {name!r} stands for {aliases[name]!r}, which is no model; set it anew with models alias")
        return source
    source = _hub_source(name) or _short_source(name)
    if source is None:
        raise ModelError(f"no model {name!r}: {_FORMS}{suggestion(name, (*known_models(), *aliases))}")
    return source


def fetch_model(source: ModelSource, tell: Tell, *, show: Tell | None = None, trust_remote_code: bool = False, renew: bool = False) -> Path:
    """The directory of a model that `find_source` has found. Arguments and errors as for `resolve_model`.

    Args:
        source: the model.
        tell: as above.
        show: as above.
        trust_remote_code: as above.
        renew: ask the hub for a newer version, and check sizes, of what is here already.
    """
    if source.kind is SourceKind.STARTER:
        return starter_directory(tell)
    if source.hub is not None:
        show = show if show is not None else _ignore
        if source.hub.is_gguf:
            return _hub_gguf(source.hub, tell, show, renew=renew)
        return _hub_directory(source.hub, tell, show, with_code=trust_remote_code, renew=renew)
    if source.path is None:
        raise ValueError(f"{source} lies nowhere")
    if source.kind is SourceKind.DIRECTORY:
        _require_model(source.path)
        return source.path
    if source.converted is not None and not source.path.is_file():
        return source.converted  # the file it was made from is gone
    return gguf_directory(source.path, source.name, tell)


def context_length(directory: Path) -> int | None:
    """The model's context in tokens, if its configuration names it.

    Raises:
        ModelError: `config.json` is missing or damaged, or names something that is no length.
    """
    config = read_json(directory / "config.json")
    if not config:
        raise ModelError(f"no config.json in {directory}")
    text = config.get("text_config")
    context = (text if isinstance(text, dict) else config).get("max_position_embeddings")
    if context is None:
        return None
    if not isinstance(context, int) or isinstance(context, bool) or context < 1:
        raise ModelError(f"max_position_embeddings in {directory / 'config.json'} is {context!r}; it has to be a positive whole number")
    return context


# --- the hub -------------------------------------------------------------------------------------------------------------


def _hub_directory(name: HubName, tell: Tell, show: Tell, *, with_code: bool, renew: bool) -> Path:
    """What is in the hub's cache, if it is whole; else fetched."""
    directory = snapshot_dir(name)
    damage: ModelError | None = None
    if directory is not None:
        try:
            check_directory(directory)
            if not renew and not (with_code and _lacks_code(directory)):
                return directory
        except ModelError as error:
            damage = error
    if is_offline() and directory is not None:
        if damage is not None:
            raise ModelError(f"{damage} (HF_HUB_OFFLINE is set)") from damage
        return directory
    return download_model(name, tell, show, with_code=with_code, near=_near(name))


def _lacks_code(directory: Path) -> bool:
    """Whether Python code that a model brings is not there: it is fetched only for those who want to run it."""
    return "auto_map" in read_json(directory / "config.json") and not any(directory.glob("*.py"))


def _hub_gguf(name: HubName, tell: Tell, show: Tell, *, renew: bool) -> Path:
    file = cached_gguf(name)
    if file is None or (renew and not is_offline()):
        file = download_model(name, tell, show, near=_near(name))
    directory = snapshot_dir(name)
    path = file.relative_to(directory).as_posix() if directory is not None and file.is_relative_to(directory) else name.file
    # Named by its file, whichever way it was asked for.
    return gguf_directory(file, str(HubName(name.repo, name.revision, path)), tell)


def _near(name: HubName) -> str:
    return suggestion(str(name), known_models())


def _ignore(_: str) -> None:
    """Nobody wants to know."""


def _require_model(directory: Path) -> None:
    """Says so if a directory is no model at all, before what is only one of its files is missed."""
    try:
        if (directory / "config.json").exists():
            return
        ggufs = sorted(path.name for path in directory.iterdir() if path.suffix.lower() == ".gguf")
    except OSError as error:
        raise ModelError(f"cannot read {directory}: {error.strerror or error}") from error
    hint = f"; give the file itself: {directory / ggufs[0]}" if ggufs else ""
    raise ModelError(f"{directory} is no model directory: there is no config.json in it{hint}")


# --- what a name means ---------------------------------------------------------------------------------------------------


def _starter() -> ModelSource:
    return ModelSource(SourceKind.STARTER, STARTER.name)


def _direct_source(name: str) -> ModelSource | None:
    """The starter, or a place on disk."""
    if name in STARTER_NAMES:
        return _starter()
    # pathlib's own versions raise for unknown users and for names that are too long, and take an empty name for ".".
    place = os.path.expanduser(name)
    if os.path.isdir(place):
        return ModelSource(SourceKind.DIRECTORY, Path(place).absolute().name, Path(place))
    if os.path.isfile(place):
        if not place.lower().endswith(".gguf"):
            raise ModelError(f"{name} is a file, but no .gguf file; give a model directory (config.json, tokenizer.json, safetensors)")
        return ModelSource(SourceKind.GGUF, Path(place).stem, Path(place))
    if is_path(name):
        raise ModelError(f"no model {name!r}: there is no such file or directory")
    return None


def _hub_source(name: str) -> ModelSource | None:
    hub = parse_hub_name(name)
    return ModelSource(SourceKind.HUB, str(hub), hub=hub) if hub is not None else None


def _short_source(name: str) -> ModelSource | None:
    """The one model here whose name is, or ends with, exactly this."""
    known = known_models()
    fitting = [full for full in known if name.lower() in {full.lower(), last_part(full)}]
    if len(fitting) > 1:
        raise ModelError(f"{name!r} could be any of {', '.join(fitting)}; give one of these names in full")
    return known[fitting[0]] if fitting else None
