"""Whom a session is held with, and what holds for all its prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from chatpaged.engine.sequence import Keep

if TYPE_CHECKING:  # what they import is loaded with the model, on its thread
    from chatpaged.chat_template import ChatTemplate
    from chatpaged.engine.tokenizer import Tokenizer


_PROBE = (
    "The quick brown fox: 0123456789 àéîöß Ελλ Жы 漢字 かな 한글 🙂\n"
    "\tdef f(x_1, y):\n        return {'k': [x_1 ** 2, \"y\"]}  # -> <b>&amp;</b>\n"
)


@dataclass(frozen=True)
class SessionModel:
    """The text side of a model, known before its weights are loaded.

    Attributes:
        name: what to call it.
        tokenizer: its tokenizer.
        template: its chat template; None for a model without, which takes single prompts only.
        context: longest sequence in tokens, prompt and answer; None where it is not known yet.
    """

    name: str
    tokenizer: Tokenizer
    template: ChatTemplate | None
    context: int | None = None

    @cached_property
    def fingerprint(self) -> str:
        """Stands for what token ids mean: models with the same vocabulary have the same one."""
        facts = (self.tokenizer.vocab_size, sorted(self.tokenizer.control_tokens.items()), self.tokenizer.encode(_PROBE))
        return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """What holds for every prompt of a session.

    Attributes:
        arguments: what the template gets besides the messages.
        keep_reasoning: keep the thinking of earlier answers, also where the template leaves it out.
        salt: sessions with the same one share computed blocks; those with any keep theirs off the disk.
        keep: which computed blocks are worth a file.
        leave_out: where the conversation outgrows the context, leave out its oldest turns instead of refusing.
    """

    arguments: Mapping[str, object] = field(default_factory=dict)
    keep_reasoning: bool = False
    salt: bytes = b""
    keep: Keep = Keep.FILE
    leave_out: bool = False
