"""`python -m chatpaged.engine.model_executor.convert_tokenizer SOURCE TARGET`: a `tokenizer.json` from older tokenizer files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import transformers

from chatpaged.engine.model_executor.models.hf import silence_transformers
from chatpaged.errors import ModelError

_LIBRARIES = ("sentencepiece", "protobuf", "tiktoken", "mistral_common")


def convert(source: Path, target: Path) -> None:
    """Writes `tokenizer.json` and settings to `target`.

    Raises:
        ModelError: a library is missing, or the tokenizer exists as a Python program only.
    """
    silence_transformers()
    try:
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever transformers makes of files that somebody else wrote
        missing = [name for name in _LIBRARIES if name in str(error).lower() and not _is_installed(name)]
        if missing:
            raise ModelError(f"transformers needs {' and '.join(missing)}: pip install 'chatpaged[tokenizers]'") from error
        raise ModelError(" ".join(str(error).split()) or type(error).__name__) from error
    if not tokenizer.is_fast:
        raise ModelError(f"{type(tokenizer).__name__} is a Python program that no tokenizer.json can stand for")
    tokenizer.save_pretrained(target)
    if not (target / "tokenizer.json").is_file():
        raise ModelError(f"{type(tokenizer).__name__} saves no tokenizer.json")


def _is_installed(name: str) -> bool:
    utils: Any = transformers.utils  # its functions have no types
    return bool(getattr(utils, f"is_{name}_available")())


def main() -> int:
    """Runs the conversion that the command line names. Returns the exit status."""
    try:
        convert(Path(sys.argv[1]), Path(sys.argv[2]))
    except ModelError as error:
        sys.stderr.write(f"\n{error}\n")
        return ModelError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
