"""Every place on disk the application uses. Nothing lies directly in the home directory; XDG variables are respected."""

from __future__ import annotations

from pathlib import Path

import platformdirs

_APP = "chatpaged"


def cache_dir() -> Path:
    """Things that can be fetched or computed again."""
    return platformdirs.user_cache_path(_APP, appauthor=False)


def models_dir() -> Path:
    """Downloaded and converted models."""
    return cache_dir() / "models"


def private_dir(path: Path) -> Path:
    """Makes a directory, parents included, that only its owner can look into."""
    if not path.is_dir():
        private_dir(path.parent)  # mkdir's own `parents` would leave them open to others
        path.mkdir(mode=0o700, exist_ok=True)
    return path
