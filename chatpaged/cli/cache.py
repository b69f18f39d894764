"""`chatpaged cache`: what was computed before and is kept on disk, so that prompts that begin alike are not read again."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from chatpaged import paths
from chatpaged.amounts import counted, disk_size
from chatpaged.cli.tables import iso_time, time_ago, write, write_json, write_table
from chatpaged.cli.terminal import Status, configure_streams, printable
from chatpaged.errors import ChatpagedError, InvalidRequestError, ModelError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chatpaged.block_cache import CachedModel, Verdict

_SHOWN_DIGITS = 12
_json_option = click.option("--json", "as_json", is_flag=True, help="Write JSON instead of text.")


def complete_cached_models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of models that have blocks in the cache."""
    del ctx, param
    from chatpaged.block_cache import cached_models

    try:
        names = {model.name or model.fingerprint for model in cached_models(paths.blocks_dir())}
    except OSError:
        return []
    return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]


@click.group("cache")
def command() -> None:
    """Show, clear and verify the cache of prompts on disk.

    It holds keys and values of text that a model has read, in blocks, so that text that is sent again is not read again. Nothing in it is
    ever needed: what is not there is computed.
    """
    configure_streams()


@command.command("show")
@_json_option
def show_command(*, as_json: bool) -> None:
    """Show which models have blocks in the cache, and how much they take."""
    from chatpaged.block_cache import cached_models

    root = paths.blocks_dir()
    models = cached_models(root)
    if as_json:
        totals = {"blocks": sum(model.num_blocks for model in models), "bytes": sum(model.num_bytes for model in models)}
        write_json({"directory": str(root), **totals, "models": [_model_json(model) for model in models]})
        return
    if not models:
        write(f"nothing in {root}")
        return
    write_table(("MODEL", "FINGERPRINT", "BLOCKS", "SIZE", "LAST USED", "MADE WITH"), [_row(model) for model in models])
    write(f"{_amount(models)} in {root}")


@command.command("clear")
@click.argument("name", metavar="[MODEL]", required=False, shell_complete=complete_cached_models)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def clear_command(*, name: str | None, yes: bool) -> None:
    """Remove all blocks, or those of one model.

    MODEL is its name, or the beginning of its fingerprint: four digits or more.
    """
    from chatpaged.block_cache import cached_models, clear_models

    models = cached_models(paths.blocks_dir())
    if name is not None:
        models = _chosen(models, name)
    if not models:
        write(f"nothing in {paths.blocks_dir()}")
        return
    amount = _amount(models)
    if not yes:
        if not (sys.stdin and sys.stdin.isatty() and sys.stderr.isatty()):
            raise InvalidRequestError(f"there are {amount}; say --yes to remove them")
        click.confirm(f"remove {printable(amount)}?", abort=True, err=True)
    left = clear_models(models)
    if left:
        raise ChatpagedError(f"removed what could be of {amount}; {counted(len(left), 'file')} cannot be removed, such as {left[0]}")
    write(f"removed {amount}")


@command.command("verify")
@_json_option
def verify_command(*, as_json: bool) -> None:
    """Read every file and compare its checksum. Damaged files are removed: what was in them is computed again.

    Exit codes: 0 all is well, 1 something was damaged or cannot be read.
    """
    from chatpaged.block_cache import cached_models, verify_models

    status = Status()
    models = cached_models(paths.blocks_dir())
    try:
        verdicts = verify_models(models, status.show)
    finally:
        status.clear()
    damaged, unreadable = sum(verdict.num_damaged for verdict in verdicts), sum(verdict.num_unreadable for verdict in verdicts)
    whole = sum(verdict.num_whole for verdict in verdicts)
    if as_json:
        totals = {"whole": whole, "damaged": damaged, "unreadable": unreadable}
        write_json({"directory": str(paths.blocks_dir()), **totals, "models": [_verdict_json(verdict) for verdict in verdicts]})
    else:
        write(f"{counted(whole, 'block')} of {counted(len(verdicts), 'model')} whole in {paths.blocks_dir()}")
    problems = [f"{counted(damaged, 'damaged file')} removed"] if damaged else []
    problems += [f"{counted(unreadable, 'file')} that cannot be read"] if unreadable else []
    if problems:
        raise ChatpagedError(f"{', '.join(problems)}, in {paths.blocks_dir()}; what is missing is computed again")


# --- parts ---------------------------------------------------------------------------------------------------------------


def _chosen(models: Sequence[CachedModel], name: str) -> list[CachedModel]:
    from chatpaged.block_cache import models_called
    from chatpaged.model_files import find_source

    found = models_called(models, name)
    if not found:
        with contextlib.suppress(ChatpagedError):  # the model may be gone, and its blocks still there
            found = models_called(models, find_source(name).name)
    if not found:
        known = ", ".join(sorted({model.name or model.fingerprint for model in models})) or "none"
        raise ModelError(f"no blocks of {name!r} in the cache; there are those of: {known}")
    return found


def _amount(models: Sequence[CachedModel]) -> str:
    blocks, size = sum(model.num_blocks for model in models), sum(model.num_bytes for model in models)
    owner = models[0].name or models[0].fingerprint[:_SHOWN_DIGITS] if len(models) == 1 else counted(len(models), "model")
    return f"{counted(blocks, 'block')} of {owner} ({disk_size(size)})"


def _row(model: CachedModel) -> tuple[str, ...]:
    facts = ", ".join(f"{name} {value}" for name, value in model.facts.items() if value != model.name)
    return (
        model.name or "-",
        model.fingerprint[:_SHOWN_DIGITS],
        f"{model.num_blocks:,}",
        disk_size(model.num_bytes),
        time_ago(model.last_used),
        model.problem or facts or "-",
    )


def _model_json(model: CachedModel) -> dict[str, Any]:
    return {
        "model": model.name,
        "fingerprint": model.fingerprint,
        "facts": dict(model.facts),
        "blocks": model.num_blocks,
        "bytes": model.num_bytes,
        "last_used": iso_time(model.last_used),
        "problem": model.problem,
    }


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    return {
        "model": verdict.model.name,
        "fingerprint": verdict.model.fingerprint,
        "whole": verdict.num_whole,
        "damaged": verdict.num_damaged,
        "unreadable": verdict.num_unreadable,
    }
