r"""Files that a prompt names with `@`: their text goes before the prompt, as that of `ask -f` does.

```text
@notes.txt   @"with spaces.txt"   @~/x   @src/main.py,      attach a file
a@b.c   @someone   \@notes.txt   `@code`                    are text
@src/missing.py                                             is refused: it looks like a file, and there is none
```
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from chatpaged.documents import Document, join_documents, read_document
from chatpaged.errors import InvalidRequestError
from chatpaged.prompt_draft import Pasted, PromptDraft

_CODE = re.compile(r"^```.*?(?:^```|\Z)|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_MENTION = re.compile(r'(?<![^\s(\[{<])(?P<escape>\\?)@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s@"]+))')
_PATH = re.compile(r"[\w.~+\-/]+\Z")
_EXTENSION = re.compile(r"[^/.]\.[A-Za-z]\w{0,4}\Z")
_TRAILING = ".,;:!?)]}>'\""


@dataclass(frozen=True, slots=True)
class Expansion:
    """A prompt with its files in it.

    Attributes:
        text: what is sent.
        names: of the files.
        notes: how some of them were read.
    """

    text: str
    names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Mention:
    """A file in a text, from `start` to `end` with all its marks."""

    start: int
    end: int
    name: str
    escaped: bool


def may_attach(draft: PromptDraft) -> bool:
    """Whether there could be a file in it: a quick look, without the disk."""
    return any("@" in part for part in draft.parts if isinstance(part, str))


def attach_files(draft: PromptDraft, directory: Path) -> Expansion:
    """Reads the files that the typed text names; what was pasted as one piece names none. It may be slow: not for an application's loop.

    Args:
        draft: what was typed.
        directory: where relative names begin.

    Raises:
        InvalidRequestError: a file is missing, is no text, or cannot be read; the message is one line.
    """
    documents: dict[Path, Document] = {}
    pieces: list[tuple[str, bool]] = []
    for part in draft.parts:
        pieces += [(part.text, False)] if isinstance(part, Pasted) else _expanded(part, directory, documents)
    text = "".join(piece for piece, _ in pieces)
    if documents and not any(piece.strip() for piece, is_mention in pieces if not is_mention):
        text = ""  # nothing but files: their names add nothing
    if documents:
        text = "\n\n".join(part for part in (join_documents(list(documents.values())), text) if part)
    read = documents.values()
    notes = tuple(f"{document.name} was read as {document.encoding}" for document in read if document.encoding)
    return Expansion(text, tuple(document.name for document in read), notes)


def _expanded(text: str, directory: Path, documents: dict[Path, Document]) -> Iterator[tuple[str, bool]]:
    """A text in pieces with names in place of mentions, and whether each is one. Reads the files that are not among the documents yet."""
    done = 0
    for mention in _mentions(text, directory):
        yield text[done : mention.start], False
        yield f"@{text[mention.start + 2 : mention.end]}" if mention.escaped else mention.name, True
        done = mention.end
        if not mention.escaped:
            path = _place(mention.name, directory)
            if path not in documents:
                documents[path] = _read(mention.name, path)
    yield text[done:], False


def _mentions(text: str, directory: Path) -> Iterator[_Mention]:
    """The files in a text, in order."""
    if "@" not in text:
        return
    code = [match.span() for match in _CODE.finditer(text)]
    for match in _MENTION.finditer(text):
        if any(start <= match.start() < end for start, end in code):
            continue
        quoted = match["quoted"]
        names: Sequence[str] = (quoted,) if quoted is not None else list(_shorter(match["plain"]))
        name = next((name for name in names if _exists(name, directory)), None)
        if name is None and (quoted is not None or _looks_like_path(names[-1])):
            name = names[-1]
        if name is not None:
            end = match.end() - (len(names[0]) - len(name))
            yield _Mention(match.start(), end, name, escaped=bool(match["escape"]))


def _shorter(word: str) -> Iterator[str]:
    """A word, and what is left of it without the marks that end a sentence."""
    yield word
    while len(word) > 1 and word[-1] in _TRAILING:
        word = word[:-1]
        yield word


def _looks_like_path(word: str) -> bool:
    return _PATH.match(word) is not None and ("/" in word or _EXTENSION.search(word) is not None)


def _exists(name: str, directory: Path) -> bool:
    try:
        path = _place(name, directory)
        return path.is_file() or (path.exists() and _looks_like_path(name))
    except (OSError, ValueError):
        return False


def _place(name: str, directory: Path) -> Path:
    try:
        return directory / Path(name).expanduser()
    except RuntimeError:  # the home of nobody
        return directory / name


def _read(name: str, path: Path) -> Document:
    what = f"@{name}" if " " not in name else f'@"{name}"'
    try:
        problem = _problem(what, path)
        document = Document(name, "") if problem else read_document(str(path))
    except OSError as error:
        raise InvalidRequestError(f"cannot read {what}: {error.strerror or error}; write \\@ for text") from error
    except InvalidRequestError as error:
        message = str(error).replace(str(path), name)
        hint = "; save it as UTF-8 text" if "--encoding" in message else ""
        raise InvalidRequestError(message.partition("; ")[0] + hint if hint else message) from error
    if problem or not document.text.strip():
        raise InvalidRequestError(f"{problem}; write \\@ for text" if problem else f"{what} is empty")
    return Document(name, document.text, document.encoding)


def _problem(what: str, path: Path) -> str:
    """Why a path cannot be read as a file; empty if it can."""
    if not path.exists():
        return f"there is no file {what}"
    if path.is_dir():
        return f"{what} is a directory; name a file in it"
    return "" if path.is_file() else f"{what} is no regular file"  # to open a pipe would wait for ever
