"""What has been typed and not been sent yet, as plain data."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pasted:
    """A long text that was pasted, and stands in the prompt as one piece."""

    text: str


@dataclass(frozen=True, slots=True)
class PromptDraft:
    """Typed text, with pasted pieces in it, in order."""

    parts: tuple[str | Pasted, ...] = ()

    @classmethod
    def of(cls, text: str) -> PromptDraft:
        """A draft of typed text alone."""
        return cls((text,) if text else ())

    @property
    def text(self) -> str:
        """All of it, pasted pieces in full."""
        return "".join(part if isinstance(part, str) else part.text for part in self.parts)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing in it that could be sent."""
        return not self.text.strip()

    def joined(self, other: PromptDraft, between: str = "\n") -> PromptDraft:
        """This draft with another one after it."""
        return PromptDraft((*self.parts, between, *other.parts)) if self.parts and other.parts else self if self.parts else other

    def without_prefix(self, length: int) -> PromptDraft:
        """The draft without that many typed characters at its beginning."""
        first, *others = self.parts or ("",)
        if not isinstance(first, str):
            return self
        first = first[length:]
        return PromptDraft((first, *others) if first else tuple(others))

    def changed_to(self, text: str) -> PromptDraft:
        """The draft after its text was changed as a whole: pasted pieces that are still in it stay pieces."""
        parts: list[str | Pasted] = []
        for piece in (part for part in self.parts if isinstance(part, Pasted)):
            before, found, after = text.partition(piece.text)
            if found:
                parts += [before, piece]
                text = after
        return PromptDraft(tuple(part for part in (*parts, text) if part))

    def to_json(self) -> str:
        """The draft as one line of text; empty if there is nothing in it."""
        if not self.parts:
            return ""
        return json.dumps([part if isinstance(part, str) else {"pasted": part.text} for part in self.parts], ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> PromptDraft:
        """What `to_json` has made. Anything else is text, so that nothing is lost."""
        try:
            data = json.loads(line) if line else []
        except ValueError:
            return cls.of(line)
        parts = [_part(entry) for entry in data] if isinstance(data, list) else [None]
        return cls(tuple(part for part in parts if part is not None)) if None not in parts else cls.of(line)


def _part(entry: object) -> str | Pasted | None:
    if isinstance(entry, str):
        return entry
    text = entry.get("pasted") if isinstance(entry, dict) else None
    return Pasted(text) if isinstance(text, str) else None
