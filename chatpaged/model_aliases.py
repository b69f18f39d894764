"""Names of the user's own for models, kept in a small file."""

from __future__ import annotations

import json
import re
from pathlib import Path

import filelock

from chatpaged.engine.tokenizer import read_json
from chatpaged.errors import InvalidRequestError
from chatpaged.paths import data_dir, private_dir, replace_file

_NAME = re.compile(r"[\w][\w.+-]*")


def aliases_file() -> Path:
    """Where they are kept."""
    return data_dir() / "model-aliases.json"


def load_aliases() -> dict[str, str]:
    """All aliases with what they stand for, by name.

    Raises:
        ModelError: the file is damaged.
    """
    return {name: target for name, target in sorted(read_json(aliases_file()).items()) if isinstance(target, str)}


def set_alias(name: str, target: str) -> None:
    """Adds an alias or changes it.

    Raises:
        InvalidRequestError: the name could be taken for something else.
    """
    if not _NAME.fullmatch(name) or name.lower().endswith(".gguf"):
        raise InvalidRequestError(f"an alias is made of letters, digits and . _ + -, not {name!r}")
    if Path(name).exists():
        raise InvalidRequestError(f"{name!r} is a file or directory here, which --model would take instead of the alias")
    with _locked():
        replace_file(aliases_file(), _text(load_aliases() | {name: target}))


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
        replace_file(aliases_file(), _text(aliases))


def _locked() -> filelock.BaseFileLock:
    private_dir(aliases_file().parent)
    return filelock.FileLock(aliases_file().with_name(".model-aliases.lock"))


def _text(aliases: dict[str, str]) -> str:
    return json.dumps(aliases, ensure_ascii=False, indent=2, sort_keys=True) + "\n"
