"""What a model's name may look like: a place on disk, or an id of the Hugging Face Hub with what can follow it."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

DEFAULT_REVISION = "main"
_PART = r"[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
_HUB = re.compile(
    rf"(?P<repo>{_PART}/{_PART}|(?<=hf:){_PART})(?:/(?P<file>[^:@]+\.gguf))?(?:@(?P<revision>[\w./-]+))?(?::(?P<quantization>[\w.-]+))?",
    re.ASCII,
)
_MOST_NEAR = 8


@dataclass(frozen=True, slots=True)
class HubName:
    """A model on the Hugging Face Hub.

    Attributes:
        repo: `organization/name`; a few old ones have no organization.
        revision: branch, tag or commit.
        file: path of a GGUF file in the repository, if one is meant.
        quantization: a GGUF file by its quantisation, such as Q4_K_M, if one is meant.
    """

    repo: str
    revision: str = DEFAULT_REVISION
    file: str | None = None
    quantization: str | None = None

    @property
    def is_gguf(self) -> bool:
        """Whether a GGUF file is meant, not safetensors."""
        return self.file is not None or self.quantization is not None

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        revision = f"@{self.revision}" if self.revision != DEFAULT_REVISION else ""
        return f"{self.repo}{file}{revision}" + (f":{self.quantization}" if self.quantization else "")


def parse_hub_name(name: str) -> HubName | None:
    """`org/name`, `org/name@revision`, `org/name:Q4_K_M`, `org/name/file.gguf`, each with or without `hf:` before it; else None."""
    match = _HUB.fullmatch(name, len("hf:") if name.startswith("hf:") else 0)
    if match is None or ".." in name or "--" in match["repo"]:
        return None
    return HubName(match["repo"], match["revision"] or DEFAULT_REVISION, match["file"], match["quantization"])


def is_path(name: str) -> bool:
    """Whether a name can only mean a place on disk."""
    return name.startswith((".", "/", "~", os.sep)) or (os.altsep is not None and os.altsep in name)


def last_part(name: str) -> str:
    """A name without its organization, in small letters: what people remember of it."""
    return name.rpartition("/")[2].lower()


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Known names that somebody might have meant, the nearest first."""
    wanted = name.lower()
    names = sorted(set(known))
    within = [entry for entry in names if wanted and (wanted in entry.lower() or last_part(wanted) in last_part(entry))]
    parts: dict[str, list[str]] = {}
    for entry in names:
        for part in {entry.lower(), last_part(entry)}:
            parts.setdefault(part, []).append(entry)
    close = difflib.get_close_matches(wanted, parts, n=_MOST_NEAR, cutoff=0.6)
    close += difflib.get_close_matches(last_part(wanted), parts, n=_MOST_NEAR, cutoff=0.75)
    found = [entry for part in close for entry in parts[part]] + within
    return list(dict.fromkeys(found))[:_MOST_NEAR]


def suggestion(name: str, known: Iterable[str]) -> str:
    """The near names as the end of a sentence; empty if there are none."""
    near = near_names(name, known)
    return f"; near names: {', '.join(near)}" if near else ""
