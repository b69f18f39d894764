"""Which files of a repository are needed to run its model. Pickle files never are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from chatpaged.engine.weight_files import INDEX, PICKLES, SINGLE
from chatpaged.errors import ModelError
from chatpaged.model_names import HubName

_TEXT_SIDE = frozenset(
    {
        "config.json",
        "generation_config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "chat_template.jinja",
        "chat_template.json",
        "vocab.json",
        "vocab.txt",
        "merges.txt",
        "tokenizer.model",
        "spiece.model",
        "sentencepiece.bpe.model",
        "tiktoken.model",
        "tekken.json",
    }
)
_SHARD = re.compile(r"model-\d+-of-\d+\.safetensors")
_PART = re.compile(r"-\d{5}-of-\d{5}\.gguf$")
_QUANTIZATION = re.compile(r"[-._/]((?:UD-)?(?:IQ|TQ|Q)\d\w*|BF16|F16|F32|MXFP4(?:_MOE)?)\.gguf$", re.IGNORECASE)
_MOST_NAMED = 12


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        path: within the repository.
        size: in bytes.
        sha256: of its contents; known of large files only.
    """

    path: str
    size: int
    sha256: str | None = None


def model_files(name: HubName, files: Sequence[RemoteFile], *, with_code: bool) -> list[RemoteFile]:
    """What a model of safetensors needs: configuration, tokenizer, templates, weights.

    Args:
        name: the model.
        files: everything in the repository.
        with_code: Python code that comes with it as well.

    Raises:
        ModelError: the repository has no safetensors; says what it has instead.
    """
    paths = {file.path for file in files}
    if "config.json" not in paths:
        raise ModelError(_instead(name, files, "no config.json"))
    weights = {path for path in paths if _SHARD.fullmatch(path)} | {INDEX} if INDEX in paths else paths & {SINGLE}
    if not weights - {INDEX}:
        raise ModelError(_instead(name, files, "no safetensors weights"))
    wanted = weights | (paths & _TEXT_SIDE)
    return [file for file in files if file.path in wanted or (with_code and file.path.endswith(".py"))]


def gguf_file(name: HubName, files: Sequence[RemoteFile]) -> RemoteFile:
    """The one GGUF file that a name means.

    Raises:
        ModelError: none or several fit; says which there are.
    """
    there = [file for file in files if file.path.endswith(".gguf") and "mmproj" not in file.path]
    if name.file is not None:
        fitting = [file for file in there if file.path == name.file]
    else:
        wanted = (name.quantization or "").lower()
        fitting = [file for file in there if quantization_of(file.path).lower() == wanted]
    if len(fitting) == 1:
        return fitting[0]
    asked = name.file or name.quantization
    parts = [
        file.path for file in there if name.quantization and name.quantization.lower() in file.path.lower() and _PART.search(file.path)
    ]
    if parts:
        raise ModelError(f"{asked} of {name.repo} comes in {len(parts)} parts, which cannot be used; take one that is a single file")
    if fitting:
        raise ModelError(
            f"{asked} means several files of {name.repo}: {_some([file.path for file in fitting])}; name one: {name.repo}/FILE"
        )
    if there:
        choice = sorted({quantization_of(file.path) or file.path for file in there})
        raise ModelError(f"no GGUF file {asked} in {name.repo}; there are: {_some(choice)}")
    raise ModelError(f"no GGUF files in {name.repo}; without {asked} its safetensors are used, if it has any")


def quantization_of(path: str) -> str:
    """The quantisation that a GGUF file's name ends with; empty if it names none."""
    match = _QUANTIZATION.search(f"/{path}")
    return match[1] if match else ""


def _instead(name: HubName, files: Sequence[RemoteFile], lacking: str) -> str:
    ggufs = sorted({quantization_of(file.path) or file.path for file in files if file.path.endswith(".gguf")})
    if ggufs:
        return f"{name.repo} has {lacking}, but GGUF files; choose one of {_some(ggufs)} as in {name.repo}:{ggufs[0]}"
    pickles = [file.path for file in files if PurePosixPath(file.path).suffix in PICKLES]
    if pickles:
        return (
            f"{name.repo} has {lacking}, only pickle files such as {pickles[0]}, which are never read, as they can run any code; "
            "look for a safetensors version of the model"
        )
    return f"{name.repo} has {lacking}; it is no language model that could be used"


def _some(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
