"""The engine's figures in words: what memory is shared and kept, what was done since the start, what went to swap space and to the disk."""

from __future__ import annotations

from chatpaged.amounts import counted, memory_size
from chatpaged.engine_view import EngineView
from chatpaged.ui.short_texts import share, short_count
from chatpaged.ui.widgets.figures import Figure


def sharing(view: EngineView) -> list[Figure]:
    """What memory is used, shared and kept now. Pins and swap space are named where there are any."""
    snapshot = view.snapshot
    found = short_count(snapshot.counters["prefix_hit_tokens"])
    shown = [
        Figure("In use", memory_size(view.blocks_in_use * snapshot.block_bytes), f"{view.blocks_in_use:,} blocks"),
        Figure("Saved by sharing", memory_size(view.saved_bytes), f"{snapshot.saved_blocks:,} blocks"),
        Figure("Prefix hit rate", share(snapshot.prefix_hit_rate), f"{found} tokens"),
    ]
    kept = {"Pinned": snapshot.pinned_blocks, "In swap space": snapshot.tier_blocks}
    return shown + [_blocks(view, name, count) for name, count in kept.items() if count]


def figures(view: EngineView) -> list[Figure]:
    """What was done since the start."""
    counters = view.snapshot.counters
    done = [
        Figure("Prompt tokens read", short_count(counters["prefill_tokens"])),
        Figure("Tokens written", short_count(counters["decode_tokens"])),
        Figure("Read again", short_count(counters["recomputed_tokens"])),
        Figure("Waits for a prefix", short_count(counters["prefix_waits"])),
        Figure("Copies on write", short_count(counters["copies"])),
        Figure("Preemptions", short_count(counters["preemptions"])),
        Figure("Evictions", short_count(counters["evictions"])),
    ]
    # Only beside a GPU.
    replayed = {"Steps by graph": "graph_steps", "Steps without": "eager_steps", "Padding tokens": "graph_padding"}
    return done + [Figure(name, short_count(counters[key])) for name, key in replayed.items() if counters.get(key)]


def tiers(view: EngineView) -> list[Figure]:
    """What happened below the pool: only what did."""
    counters = view.snapshot.counters
    moved = {
        "Swapped out": "swap_out",
        "Swapped in": "swap_in",
        "Written to disk": "disk_writes",
        "Read from disk": "disk_reads",
        "Waiting for disk": "disk_pending",
        "Disk too slow or full": "disk_drops",
    }
    shown = [_blocks(view, name, counters[key]) for name, key in moved.items() if counters.get(key)]
    happened = {"Unreadable files": "disk_faults", "Quicker to compute": "tier_declined", "Pins given up": "pin_yields"}
    shown += [Figure(name, short_count(counters[key])) for name, key in happened.items() if counters.get(key)]
    saved = counters.get("tier_ms_saved", 0) / 1000
    if saved:
        shown.append(Figure("Time saved", f"{saved:,.1f} s"))
    return shown


def _blocks(view: EngineView, name: str, count: int) -> Figure:
    return Figure(name, memory_size(count * view.snapshot.block_bytes), counted(count, "block"))
