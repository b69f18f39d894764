"""Where a model's `tokenizer.json` is. Models that lack it bring other files, from which transformers makes one, once."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

import filelock

from chatpaged.child_process import fail, run_module
from chatpaged.errors import ModelError
from chatpaged.paths import cache_dir, private_dir

FAST = "tokenizer.json"
# What transformers builds a tokenizer from, in the field's names. At least one of them has to be there.
_VOCABULARIES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "tiktoken.model", "vocab.json", "vocab.txt", "tekken.json")
_COMPANIONS = ("merges.txt", "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json", "config.json")
_PARTIAL = ".partial-"
_VERSION = b"1"


def tokenizer_directory(directory: Path) -> Path:
    """The directory with a model's `tokenizer.json`: the model's own, or one in the cache that was made from its other files.

    The model's directory is never written to. What was made is found again by the contents of the files it was made from.

    Raises:
        ModelError: there are no tokenizer files, or no `tokenizer.json` can be made from them.
    """
    if (directory / FAST).is_file():
        return directory
    vocabularies = [name for name in _VOCABULARIES if (directory / name).is_file()]
    if not vocabularies:
        raise ModelError(f"no {FAST} in {directory}, and no other tokenizer file that one could be made from")
    try:
        target = cache_dir() / "tokenizers" / _digest(directory, vocabularies)
        if not target.is_dir():
            private_dir(target.parent)
            with filelock.FileLock(target.parent / ".lock"):
                if not target.is_dir():  # another process may have been faster
                    _convert(directory, vocabularies, target)
    except OSError as error:
        raise ModelError(f"cannot store a {FAST} for {directory}: {error.strerror or error}") from error
    return target


def _digest(directory: Path, vocabularies: list[str]) -> str:
    digest = hashlib.blake2b(_VERSION, digest_size=16)
    for name in (*vocabularies, *_COMPANIONS):
        path = directory / name
        content = path.read_bytes() if path.is_file() else b""
        digest.update(f"\0{name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def _convert(directory: Path, vocabularies: list[str], target: Path) -> None:
    """Lets transformers read copies of the tokenizer's files, so that nothing else of the model plays a part."""
    for left in target.parent.glob(f"{_PARTIAL}*"):
        shutil.rmtree(left, ignore_errors=True)  # by a process that was killed: who has the lock is alone
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=_PARTIAL) as work:
        source, made = Path(work, "source"), Path(work, "made")
        source.mkdir()
        for name in (*vocabularies, *_COMPANIONS):
            if (directory / name).is_file():
                shutil.copyfile(directory / name, source / name)
        done = run_module("chatpaged.engine.model_executor.convert_tokenizer", str(source), str(made))
        if done.returncode != 0:
            raise fail(done, f"cannot make a {FAST} from {', '.join(vocabularies)} in {directory}")
        made.rename(target)
