"""Options that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeVar

import click

from chatpaged.engine.config import DEFAULT_BLOCK_SIZE, DEVICES, DTYPES, EngineConfig

F = TypeVar("F", bound=Callable[..., Any])
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_LARGEST = 2**63 - 1


def parse_size(value: str) -> int:
    """Bytes from a text such as 2G, 512M or 1.5GiB (powers of 1024)."""
    match = _SIZE.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a size such as 512M or 2G")
    size = int(Fraction(match[1]) * _FACTORS[match[2].lower()])
    if size > _LARGEST:
        raise click.BadParameter(f"{value!r} is more than any memory holds")
    return size


_COUNT = click.IntRange(min=1)
_ENGINE = (
    click.option("--device", type=click.Choice(DEVICES), default="auto", show_default=True, help="Where to run."),
    click.option(
        "--dtype",
        type=click.Choice(DTYPES),
        default="auto",
        show_default=True,
        help="Type of weights and KV; auto is float32 on a CPU.",
    ),
    click.option("--threads", type=_COUNT, help="CPU threads.  [default: physical cores]"),
    click.option("--kv-blocks", type=_COUNT, help="Size of the KV pool in blocks."),
    click.option("--kv-memory", type=parse_size, metavar="SIZE", help="Size of the KV pool in bytes, such as 2G."),
    click.option("--memory-utilization", type=click.FloatRange(0, 1, min_open=True), help="Share of the free memory for the KV pool."),
    click.option("--block-size", type=_COUNT, default=DEFAULT_BLOCK_SIZE, show_default=True, help="Tokens in a KV block; a power of two."),
    click.option("--max-num-seqs", type=_COUNT, default=32, show_default=True, help="Sequences that run at once."),
    click.option("--max-batched-tokens", type=_COUNT, help="Tokens a step may compute.  [default: by device]"),
    click.option("--max-model-len", type=_COUNT, help="Longest sequence in tokens.  [default: the model's context]"),
    click.option("--no-prefix-caching", is_flag=True, help="Do not share computed blocks between requests."),
)


def engine_options(function: F) -> F:
    """Adds the options that `engine_config` takes."""
    for option in reversed(_ENGINE):
        function = option(function)
    return function


def engine_config(  # noqa: PLR0913 - one parameter an option
    *,
    device: str,
    dtype: str,
    threads: int | None,
    kv_blocks: int | None,
    kv_memory: int | None,
    memory_utilization: float | None,
    block_size: int,
    max_num_seqs: int,
    max_batched_tokens: int | None,
    max_model_len: int | None,
    no_prefix_caching: bool,
) -> EngineConfig:
    """The `EngineConfig` that the options describe.

    Raises:
        InvalidRequestError: they contradict each other.
    """
    return EngineConfig(
        block_size=block_size,
        kv_blocks=kv_blocks,
        kv_memory=kv_memory,
        memory_utilization=memory_utilization,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=not no_prefix_caching,
        device=device,
        dtype=dtype,
        threads=threads,
    )
