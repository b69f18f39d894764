"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from chatpaged.cli.setting_options import add_options, group_options
from chatpaged.engine.config import EngineConfig

F = TypeVar("F", bound=Callable[..., Any])
_NO_DISK_CACHE = click.option("--no-disk-cache", is_flag=True, help="Neither keep KV blocks on disk nor look for any there.")


# No setting: what lets code run is decided each time, by the one who types the command.
_TRUST = click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the model; it can do anything you can.")


def engine_options(function: F) -> F:
    """Adds the options that `engine_config` takes."""
    return add_options(function, (*group_options("engine"), _NO_DISK_CACHE, _TRUST))


def engine_config(  # noqa: PLR0913 - one parameter an option
    *,
    device: str,
    dtype: str,
    quantize: str,
    kv_dtype: str,
    attention: str,
    enforce_eager: bool,
    threads: int | None,
    kv_blocks: int | None,
    kv_memory: int | None,
    memory_utilization: float | None,
    swap_space: int | None,
    disk_cache: int,
    no_disk_cache: bool,
    block_size: int,
    max_num_seqs: int,
    max_batched_tokens: int | None,
    max_model_len: int | None,
    prefix_caching: bool,
    trust_remote_code: bool,
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
        swap_space=swap_space,
        disk_cache=0 if no_disk_cache else disk_cache,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_batched_tokens,
        max_model_len=max_model_len,
        enable_prefix_caching=prefix_caching,
        device=device,
        dtype=dtype,
        quantize=quantize,
        kv_dtype=kv_dtype,
        attention=attention,
        enforce_eager=enforce_eager,
        threads=threads,
        trust_remote_code=trust_remote_code,
    )
