"""Names of the user's own for models, kept in a small file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import filelock

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import InvalidRequestError, ModelError
from chatpaged.paths import aliases_file, private_dir, replace_file
from chatpaged.starter_model import STARTER_NAMES

_NAME = re.compile(r"[\w][\w.+-]*")


def load_aliases() -> dict[str, str]:
    """All aliases with what they stand for, by name.

    Raises:
        ModelError: the file is damaged.
    """
    try:
        aliases = read_json(aliases_file())
    except ModelError as error:
        raise ModelError(f"{error}; mend it, or delete it and set the aliases anew with 'chatpaged models alias'") from error
    return {name: target for name, target in sorted(aliases.items()) if isinstance(target, str)}


def set_alias(name: str, target: str) -> str | None:
    """Adds an alias or changes it. Returns what it stood for before.

    Raises:
        InvalidRequestError: the name could be taken for something else.
    """
    if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise InvalidRequestError(f"an alias is made of letters, digits and . _ + -, not {name!r}")
    if name.lower() in {known.lower() for known in STARTER_NAMES}:
        raise InvalidRequestError(f"{name!r} is the starter model's own name")
    if Path(name).exists():
        raise InvalidRequestError(f"{name!r} is a file or directory here, which --model would take instead of the alias")
    with _locked():
        aliases = load_aliases()
        replace_file(aliases_file().resolve(), _text(aliases | {name: target}))
    return aliases.get(name)


def remove_alias(name: str) -> None:
    """Forgets an alias.

    Raises:
        InvalidRequestError: there is none of this name.
    """
    with _locked():
        aliases = load_aliases()
        if name not in aliases:
            raise InvalidRequestError(f"no alias {name!r}; there are: {', '.join(aliases) or 'none'}")
        del aliases[name]
        replace_file(aliases_file().resolve(), _text(aliases))


def _locked() -> filelock.BaseFileLock:
    private_dir(aliases_file().parent)
    return filelock.FileLock(aliases_file().with_name(".model-aliases.lock"))


def _text(aliases: dict[str, str]) -> str:
    return json.dumps(aliases, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
