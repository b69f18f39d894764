"""The benchmark workloads: random token ids, the same on every machine.

- W1: one stream, 128 prompt and 128 new tokens.
- W2: 32 requests at once, 32 to 512 prompt and 16 to 256 new tokens (10,020 and 3,999 in all).
- W3: 16 chats that share a system prompt of 1,024 tokens; 3 turns of 40 tokens in and 64 out, each turn after the reply before.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SMALLEST_ID, LARGEST_ID = 100, 48_999  # ordinary tokens of a vocabulary of 49,152


@dataclass(frozen=True, slots=True)
class Request:
    """A prompt, and how many tokens to generate."""

    prompt: tuple[int, ...]
    new_tokens: int


@dataclass(frozen=True, slots=True)
class Chats:
    """Chats with one system prompt. `turns[chat]` are the ids of what is said in each turn."""

    system: tuple[int, ...]
    turns: tuple[tuple[tuple[int, ...], ...], ...]
    new_tokens: int


def w1() -> Request:
    """One stream."""
    return Request(_ids(random.Random(1), 128), 128)


def w2() -> list[Request]:
    """32 mixed requests."""
    rng = random.Random(0)
    return [Request(_ids(rng, rng.randint(32, 512)), rng.randint(16, 256)) for _ in range(32)]


def w3() -> Chats:
    """16 chats with a shared prompt."""
    rng = random.Random(3)
    system = _ids(rng, 1024)
    return Chats(system, tuple(tuple(_ids(rng, 40) for _ in range(3)) for _ in range(16)), 64)


def _ids(rng: random.Random, count: int) -> tuple[int, ...]:
    return tuple(rng.randint(SMALLEST_ID, LARGEST_ID) for _ in range(count))
