"""Texts that go into a prompt: files and what is piped in."""

from __future__ import annotations

import codecs
import sys
from dataclasses import dataclass
from pathlib import Path

from chatpaged.errors import InvalidRequestError

STDIN = "-"
_MAX_BYTES = 50_000_000
_HEAD = 8192
_WIDE_SHARE = 0.7
_STRAY_SHARE = 0.1
_STRAY_ZEROS = 8
_ENOUGH_TO_GUESS = 64
_WESTERN_SHARE = 0.4
_WESTERN_MARKS = bytes.fromhex("80828485 8b919293 94959697 999ba0a1 a3a7a9ab aeb0b7bb bf").decode("cp1252")  # quotes, dashes, signs
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark it begins with
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_BINARY = {
    b"%PDF-": "a PDF document; convert it to text first, for example with pdftotext",
    b"\x89PNG": "a PNG image",
    b"\xff\xd8\xff": "a JPEG image",
    b"GIF8": "a GIF image",
    b"PK\x03\x04": "an archive or an office document; save it as text first",
    b"\x1f\x8b": "a gzip archive; unpack it first",
    b"\x7fELF": "a program",
    b"GGUF": "a model; use --model",
}


@dataclass(frozen=True, slots=True)
class Document:
    """A text from outside.

    Attributes:
        name: where it comes from.
        text: its contents, less one newline at the end.
        encoding: what it was read as where that had to be guessed; else empty.
    """

    name: str
    text: str
    encoding: str = ""


def read_documents(paths: tuple[str, ...], encoding: str | None) -> list[Document]:
    """The files, then what is piped in unless `-` among the files has asked for it. Empty input is left out.

    Args:
        paths: files; `-` is standard input.
        encoding: of all of them; None finds it out.

    Raises:
        InvalidRequestError: a file cannot be read, or is no text.
    """
    if paths.count(STDIN) > 1:
        raise InvalidRequestError("standard input can be read once only; give -f - one time")
    documents = [_read_stdin(encoding) if path == STDIN else read_document(path, encoding) for path in paths]
    if STDIN not in paths:
        documents.append(_read_stdin(encoding))
    return [document for document in documents if document.text]


def join_documents(documents: list[Document]) -> str:
    """One text: of several documents each comes after a line with its name."""
    if len(documents) == 1:
        return documents[0].text
    return "\n\n".join(f"--- {document.name} ---\n{document.text}" for document in documents)


def read_document(name: str, encoding: str | None = None) -> Document:
    """One file.

    Args:
        name: of the file; `~` is the home directory.
        encoding: of the file; None finds it out.

    Raises:
        InvalidRequestError: it cannot be read, or is no text.
    """
    try:
        with Path(name).expanduser().open("rb") as file:
            head = file.read(_HEAD)
            _refuse_binary(name, head)
            data = head + file.read(_MAX_BYTES)
    except OSError as error:
        raise InvalidRequestError(f"cannot read {name!r}: {error.strerror or error}") from error
    except (ValueError, RuntimeError) as error:  # a name with NUL in it, a home that does not exist
        raise InvalidRequestError(f"cannot read {name!r}: {error}") from error
    return _document(name, data, encoding)


def _read_stdin(encoding: str | None) -> Document:
    """What is piped in; empty on a terminal."""
    name = "standard input"
    if sys.stdin is None or sys.stdin.isatty():
        return Document(name, "")
    try:
        data = sys.stdin.buffer.read(_MAX_BYTES + 1)
    except OSError as error:  # it was closed, or is a directory
        raise InvalidRequestError(f"cannot read {name}: {error.strerror or error}") from error
    _refuse_binary(name, data[:_HEAD])
    return _document(name, data, encoding)


def _refuse_binary(name: str, head: bytes) -> None:
    kind = next((kind for start, kind in _BINARY.items() if head.startswith(start)), None)
    if kind is not None:
        raise InvalidRequestError(f"{name} is {kind}")


def _document(name: str, data: bytes, encoding: str | None) -> Document:
    if len(data) > _MAX_BYTES:
        raise InvalidRequestError(f"{name} is larger than {_MAX_BYTES // 10**6} MB, which no model could read")
    guessed = ""
    if encoding is None:
        encoding, guessed = _find_encoding(name, data)
    try:
        text = data.decode(encoding)
    except LookupError as error:
        raise InvalidRequestError(f"unknown encoding {encoding!r}; utf-8, latin-1 and cp1252 are some") from error
    except ValueError as error:
        raise InvalidRequestError(f"{name} is not {encoding} text ({error}); use --encoding") from error
    # One newline ends the last line of a text; it is no part of what the text says.
    text = text[:-1].removesuffix("\r") if text.endswith("\n") else text
    return Document(name, text, guessed)


def _find_encoding(name: str, data: bytes) -> tuple[str, str]:
    """The encoding to read some bytes with, and the same again if it is a guess."""
    marked = next((encoding for mark, encoding in _MARKS if data.startswith(mark)), None)
    if marked is not None:
        return marked, ""
    num_zeros = data.count(0)
    wide = _wide_encoding(data) if num_zeros else None
    if wide is not None:
        return wide, wide
    binary = InvalidRequestError(f"{name} is not text but binary data; if it is text, name its --encoding")
    if num_zeros > max(_STRAY_ZEROS, len(data) * _STRAY_SHARE):
        raise binary
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if num_zeros:
            raise binary from error
        guess = _guess(data, cut_short=error.reason == "unexpected end of data" and error.start < len(data) - 1)
        if guess is None:
            at = f"byte {data[error.start]:#04x} at {error.start}"
            raise InvalidRequestError(f"{name} is not UTF-8 text ({at}); name its --encoding, such as latin-1") from error
        return guess, guess
    return "utf-8", ""


def _wide_encoding(data: bytes) -> str | None:
    """UTF-16 without a mark, of text that is mostly ASCII: every second byte is zero."""
    evens, odds = (data[start:_HEAD:2].count(0) / max(1, len(data[start:_HEAD:2])) for start in (0, 1))
    if max(evens, odds) < _WIDE_SHARE or min(evens, odds) > 0 or len(data) % 2:
        return None
    return "utf-16-be" if evens > odds else "utf-16-le"


def _looks_western(data: bytes) -> bool:
    """Whether bytes read as cp1252 are words with an accent here and there. Other alphabets would be nothing but accents."""
    try:
        text = data.decode("cp1252")
    except UnicodeDecodeError:
        return False
    signs = [character for character in text if character > "\x7f" and not character.isalpha()]
    letters = [character for character in text if character.isalpha()]
    num_accented = sum(character > "\x7f" for character in letters)
    return all(sign in _WESTERN_MARKS for sign in signs) and num_accented <= max(1, len(letters) * _WESTERN_SHARE)


def _guess(data: bytes, *, cut_short: bool) -> str | None:
    """The encoding of bytes that are not UTF-8; None where a guess would be worth nothing."""
    beyond_ascii = [character for character in data.decode("utf-8", errors="replace") if character > "\x7f"]
    num_bad = beyond_ascii.count("\ufffd")
    if cut_short or len(beyond_ascii) - num_bad > num_bad:
        return None  # UTF-8 that is damaged
    if _looks_western(data):
        return "cp1252"
    if len(data) < _ENOUGH_TO_GUESS:
        return None
    import charset_normalizer  # noqa: PLC0415 - it is slow to import and seldom needed

    best = charset_normalizer.from_bytes(data).best()
    return best.encoding if best is not None and not best.encoding.startswith(("utf_16", "utf_32")) else None
