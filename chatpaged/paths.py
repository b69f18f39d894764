"""Every place on disk the application uses. Nothing lies directly in the home directory; XDG variables are respected."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import platformdirs

_APP = "chatpaged"
PROJECT_FILE = "chatpaged.toml"


def config_dir() -> Path:
    """What the user has set."""
    return platformdirs.user_config_path(_APP, appauthor=False)


def data_dir() -> Path:
    """What the user has made and would miss: conversations."""
    return platformdirs.user_data_path(_APP, appauthor=False)


def state_dir() -> Path:
    """What is remembered between runs and would not be missed: logs, last used things."""
    return platformdirs.user_state_path(_APP, appauthor=False)


def cache_dir() -> Path:
    """Things that can be fetched or computed again."""
    return platformdirs.user_cache_path(_APP, appauthor=False)


def models_dir() -> Path:
    """Downloaded and converted models."""
    return cache_dir() / "models"


def blocks_dir() -> Path:
    """Keys and values of what was read before, so that it is not read again."""
    return cache_dir() / "blocks"


def store_file() -> Path:
    """The user's conversations."""
    return data_dir() / "conversations.db"


def aliases_file() -> Path:
    """The user's own names for models."""
    return data_dir() / "model-aliases.json"


def log_file() -> Path:
    """What libraries have printed while the application was on the screen."""
    return state_dir() / "log.txt"


def user_settings_file() -> Path:
    """The settings of this user."""
    return config_dir() / "config.toml"


def project_settings_file(start: Path) -> Path | None:
    """The nearest project file: in `start` or a directory above it, up to the root of the repository or the home directory.

    Outside of both only `start` itself counts: what lies in a directory that many can write to, such as /tmp, is not the user's.
    """
    places = (start, *start.parents)
    home = Path(os.path.expanduser("~"))
    last = next((i for i, place in enumerate(places) if place == home or (place / ".git").exists()), 0)
    return next((place / PROJECT_FILE for place in places[: last + 1] if (place / PROJECT_FILE).is_file()), None)


def private_dir(path: Path) -> Path:
    """Makes a directory, parents included, that only its owner can look into.

    Raises:
        NotADirectoryError: something else is in the way; it is named.
        OSError: it cannot be made.
    """
    if not path.is_dir():
        private_dir(path.parent)  # mkdir's own `parents` would leave them open to others
        try:
            path.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
    return path


def write_text(path: Path, text: str) -> None:
    """Writes to a place that a user names: a file is replaced in one piece, a device or a pipe is written to.

    A link is followed, and a directory that is not there is not made.

    Raises:
        OSError: it cannot be written.
    """
    target = path.resolve()
    if target.exists() and not target.is_file():
        with target.open("w", encoding="utf-8", newline="") as stream:
            stream.write(text)
    elif not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target.parent))
    else:
        replace_file(target, text)


def replace_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Replaces a file in one piece: nobody ever sees half of it. Its directory is made if need be, as a private one.

    Args:
        path: the file.
        text: its new contents, line ends as they are.
        mode: its permissions; those of a file that only its owner can read.
    """
    private_dir(path.parent)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # made with mode 0600
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
