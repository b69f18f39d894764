"""What `bench` runs: chats of random token ids, the same on every machine.

- w1: one stream, 128 prompt and 128 new tokens.
- w2: 32 requests at once, 32 to 512 prompt and 16 to 256 new tokens (10,020 and 3,999 in all).
- w3: 16 chats that share a system prompt of 1,024 tokens; 3 turns of 40 tokens in and 64 out, each turn after the reply before.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

# Ordinary tokens of a vocabulary of 49,152, which is that of the starter model.
_FIRST_ID, _END_ID = 100, 49_000
WARM_UP_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Chat:
    """Turns, each said when the reply before it is complete. A request is a chat of one turn.

    Attributes:
        turns: the token ids of what is said in each of them.
        new_tokens: tokens of each reply.
        arrival: seconds after the start at which the first turn is said.
    """

    turns: tuple[tuple[int, ...], ...]
    new_tokens: int
    arrival: float = 0.0

    @property
    def num_tokens(self) -> int:
        """Tokens of all turns and replies."""
        return sum(len(turn) + self.new_tokens for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Workload:
    """Chats that are held together.

    Attributes:
        name: what it is called.
        about: what it is, in a few words.
        chats: in no particular order of their arrival.
        system: token ids that all chats begin with.
    """

    name: str
    about: str
    chats: tuple[Chat, ...]
    system: tuple[int, ...] = ()

    @property
    def num_replies(self) -> int:
        """Turns of all chats."""
        return sum(len(chat.turns) for chat in self.chats)

    @property
    def num_new_tokens(self) -> int:
        """Tokens of all replies."""
        return sum(len(chat.turns) * chat.new_tokens for chat in self.chats)

    @property
    def longest(self) -> int:
        """Tokens of the longest chat at its end."""
        return len(self.system) + max(chat.num_tokens for chat in self.chats)

    def limited(self, count: int | None) -> Workload:
        """Its first chats only; None is all of them."""
        if count is None or count >= len(self.chats):
            return self
        return replace(self, about=f"{self.about}; only the first {count} of {len(self.chats)} chats", chats=self.chats[:count])

    def fitted(self, vocab_size: int) -> Workload:
        """With ids that a vocabulary has: modulo its size."""

        def fit(ids: Iterable[int]) -> tuple[int, ...]:
            return tuple(token_id % vocab_size for token_id in ids)

        chats = tuple(replace(chat, turns=tuple(map(fit, chat.turns))) for chat in self.chats)
        return replace(self, chats=chats, system=fit(self.system))

    def plain(self) -> dict[str, Any]:
        """As peers in other processes are told of it: with lists."""
        told: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return told


def w1() -> Workload:
    """One stream."""
    return Workload("w1", "one stream, 128 prompt and 128 new tokens", (Chat((_ids(_rng(1), 128),), 128),))


def w2() -> Workload:
    """Mixed requests at once."""
    rng = _rng(0)
    chats = tuple(Chat((_ids(rng, rng.randint(32, 512)),), rng.randint(16, 256)) for _ in range(32))
    return Workload("w2", "32 requests at once, 32 to 512 prompt and 16 to 256 new tokens", chats)


def w3() -> Workload:
    """Chats with a shared system prompt."""
    rng = _rng(3)
    system = _ids(rng, 1024)
    chats = tuple(Chat(tuple(_ids(rng, 40) for _ in range(3)), 64) for _ in range(16))
    return Workload("w3", "16 chats with a shared system prompt of 1,024 tokens, 3 turns of 40 tokens in and 64 out", chats, system)


def warm_up() -> Workload:
    """What is run before anything is measured."""
    return Workload("warm-up", "one short request", (Chat((tuple(range(_FIRST_ID, _FIRST_ID + 128)),), WARM_UP_TOKENS),))


WORKLOADS: dict[str, Callable[[], Workload]] = {"w1": w1, "w2": w2, "w3": w3}


def _rng(seed: int) -> random.Random:
    return random.Random(seed)  # noqa: S311 - the same numbers everywhere are what is wanted


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randrange(_FIRST_ID, _END_ID) for _ in range(count))
