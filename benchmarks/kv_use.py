"""How much of the KV pool holds live tokens, against contiguous reservations. Needs no model: scheduling alone decides it.

python -m benchmarks.kv_use [--sequences 32] [--requests 128] [--max-model-len 8192] [--token-bytes N] [--json OUT]

Requests of 128 to 1,024 tokens (prompt and answer) run through the real scheduler and block manager, 32 at a time. Printed: the
share of slots in blocks in use that hold computed tokens, over all steps and over the steps in which all 32 run; what
reserving `max_model_len` for each would hold; and how many sequences of this kind the same memory takes each way.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import save, show
from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import BlockPool
from chatpaged.engine.config import SchedulerConfig
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.sequence import SequenceGroup
from chatpaged.engine.snapshot import GraphCounters, take_snapshot

BLOCK_SIZE = 16


@dataclass(slots=True)
class Use:
    """Sums over steps."""

    live_slots: int = 0
    slots: int = 0
    sequences: int = 0
    steps: int = 0

    def add(self, live: int, slots: int, sequences: int) -> None:
        """Counts one step."""
        self.live_slots += live
        self.slots += slots
        self.sequences += sequences
        self.steps += 1


def requests(count: int) -> list[SequenceGroup]:
    """Random requests; prompts share nothing."""
    rng = random.Random(0)
    groups = []
    for i in range(count):
        total = rng.randint(128, 1024)
        prompt = rng.randint(total // 4, 3 * total // 4)
        ids = tuple(rng.randrange(10**6) for _ in range(prompt))
        groups.append(SequenceGroup(f"r{i}", ids, SamplingParams(temperature=0, max_tokens=total - prompt), seed=0))
    return groups


def run(num_requests: int, max_num_seqs: int, max_model_len: int, num_blocks: int) -> tuple[Use, Use]:
    """Runs all requests; returns the use over all steps, and over those in which as many ran as may."""
    scheduler = Scheduler(
        SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=256, max_model_len=max_model_len),
        BlockManager(BlockPool(num_blocks + 1), BLOCK_SIZE),
    )
    for group in requests(num_requests):
        scheduler.add(group)
    overall, full = Use(), Use()
    while scheduler.has_unfinished:
        output = scheduler.schedule()
        grown = scheduler.update(output, [(0,) * len(row.samples) for row in output.rows])
        snapshot = take_snapshot(scheduler, code="", block_bytes=0, steps=(), speeds={}, graphs=GraphCounters())
        slots = (snapshot.used_blocks + snapshot.shared_blocks) * BLOCK_SIZE
        for use in (overall, full) if len(scheduler.running) == max_num_seqs else (overall,):
            use.add(snapshot.live_tokens, slots, len(scheduler.running))
        for sequence in grown:
            if sequence.num_output_tokens == sequence.group.params.max_tokens:
                scheduler.finish(sequence)
    return overall, full


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--token-bytes", type=int, default=46_080, help="KV bytes of a token (default: the starter model, float32)")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    overall, full = run(args.requests, args.sequences, args.max_model_len, num_blocks=4096)
    rows: list[dict[str, Any]] = []
    for name, use in (("all steps", overall), (f"steps with {args.sequences} running", full)):
        live = use.live_slots / use.steps
        reserved = use.sequences / use.steps * args.max_model_len
        rows.append(
            {
                "KV memory over": name,
                "steps": use.steps,
                "live tokens": live,
                "paged: slots in use": use.slots / use.steps,
                "live %": 100 * use.live_slots / use.slots,
                "reserved: slots": reserved,
                "its live %": 100 * live / reserved,
            }
        )
    show(rows)
    slots_each = full.slots / full.sequences
    memory = args.sequences * args.max_model_len * args.token_bytes
    fits = int(args.sequences * args.max_model_len / slots_each)
    print(
        f"\nThe memory that {args.sequences} reservations of {args.max_model_len} tokens take ({memory / 2**30:.1f} GiB) "
        f"holds {args.sequences} sequences of this kind reserved, {fits} paged: {fits / args.sequences:.1f} times as many."
    )
    save(args.json, {"rows": rows, "reserved_sequences": args.sequences, "paged_sequences": fits})


if __name__ == "__main__":
    main()
