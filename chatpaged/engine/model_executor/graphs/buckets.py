"""The sizes that graphs are recorded for. A step is padded to the smallest that holds it.

```text
decode    sequences   1  2  4  8  16  24  32 ... max_num_seqs     each computes one token
mixed     tokens      64  96  128  192  256 ... 2,048             of up to max_num_seqs sequences, prompts and decodes
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SMALL_DECODES = (1, 2, 4)
_DECODE_STEP = 8
_LEAST_MIXED = 64
MOST_MIXED = 2048
"""Larger steps are so much arithmetic that launching them one by one is hidden behind it."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """A size of batch.

    Attributes:
        num_tokens: tokens, padding included.
        num_seqs: sequences, padding included.
        only_single: whether each sequence computes one token.
    """

    num_tokens: int
    num_seqs: int
    only_single: bool


def decode_buckets(max_num_seqs: int) -> list[Bucket]:
    """For steps in which each sequence computes one token, smallest first."""
    sizes = [size for size in _SMALL_DECODES if size < max_num_seqs]
    sizes += range(_DECODE_STEP, max_num_seqs, _DECODE_STEP)
    return [Bucket(size, size, only_single=True) for size in (*sizes, max_num_seqs)]


def mixed_buckets(max_num_seqs: int, max_num_batched_tokens: int) -> list[Bucket]:
    """For all other steps, smallest first: none is padded to more than half as much again, from 64 tokens on.

    Each has room for one sequence more than can run: tokens of padding are its.
    """
    most = min(max_num_batched_tokens, MOST_MIXED)
    sizes = []
    size = _LEAST_MIXED
    while size < most:
        sizes += [size, size * 3 // 2]
        size *= 2
    sizes = [size for size in sizes if size < most]
    return [Bucket(size, max_num_seqs + 1, only_single=False) for size in (*sizes, most)]


def choose_bucket(buckets: Sequence[Bucket], num_tokens: int, num_seqs: int, *, only_single: bool) -> Bucket | None:
    """The smallest bucket that holds a step; None if there is none.

    Args:
        buckets: of both kinds.
        num_tokens: of the step.
        num_seqs: of the step.
        only_single: whether each of its sequences computes one token.
    """
    fits = [
        bucket
        for bucket in buckets
        if bucket.only_single == only_single and num_tokens <= bucket.num_tokens and num_seqs <= bucket.num_seqs - (not only_single)
    ]
    return min(fits, key=lambda bucket: bucket.num_tokens, default=None)
