"""A fake model whose KV slots remember what was written into them.

Each slot stores the hash of the token prefix that ends with its token. The shadow applies block operations in order, and before
a row is computed it reads every earlier position of the row's sequence through the row's block table: each must hold the
hash of that sequence's own prefix. The next token is a function of the prefix, so a whole answer can be predicted.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_pool import BlockPool
from chatpaged.engine.block_tiers import BlockTier, HostTier, LowerTiers
from chatpaged.engine.config import SchedulerConfig
from chatpaged.engine.executor import BlockExchange
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.engine.scheduler import Scheduler
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind, ScheduledRow, SchedulerOutput
from chatpaged.engine.sequence import Keep, Sequence, SequenceGroup
from chatpaged.engine.tier_policy import TierPolicy

VOCABULARY = 5  # small: sequences that differ still share beginnings


class ShadowError(AssertionError):
    """A sequence would have read or overwritten what is not its own."""


def extend(prefix_hash: int, token: int) -> int:
    """Hash of a prefix and one more token."""
    return hash((prefix_hash, token))


def next_token(prefix_hash: int, sample: int) -> int:
    """What the fake model says after a prefix. Samples of one prompt part ways at their first token."""
    return hash((prefix_hash, sample, -7)) % VOCABULARY


def predict(prompt: Items[int], sample: int, count: int) -> list[int]:
    """The answer that a sample must give."""
    prefix_hash = 0
    for token in prompt:
        prefix_hash = extend(prefix_hash, token)
    answer: list[int] = []
    while len(answer) < count:
        answer.append(next_token(prefix_hash, sample if not answer else 0))
        prefix_hash = extend(prefix_hash, answer[-1])
    return answer


@dataclass
class ShadowKV:
    """The slots of all blocks, on the device and below."""

    scheduler: Scheduler
    exchange: BlockExchange | None = None
    device: dict[int, dict[int, int]] = field(default_factory=dict)
    lower: dict[int, dict[int, int]] = field(default_factory=dict)

    def execute(self, output: SchedulerOutput) -> list[tuple[int, ...]]:
        """Carries out a step; returns the tokens drawn."""
        self.apply(output.operations)
        rows = [(row, self._sequence(row)) for row in output.rows]
        for row, sequence in rows:
            self._check_reads(row, sequence)
        for row, sequence in rows:
            self._write(row, sequence)
        return [self._sample(row, sequence) for row, sequence in rows]

    def apply(self, operations: Iterable[BlockOperation]) -> None:
        """Moves blocks."""
        for operation in operations:
            self._apply(operation)

    def _apply(self, operation: BlockOperation) -> None:
        if operation.kind is BlockOperationKind.SAVE and self.exchange is not None:
            self.exchange.leave(operation.destination, self._packed(self.device.get(operation.source, {})))
            return
        if operation.kind is BlockOperationKind.LOAD and self.exchange is not None:
            self.device[operation.destination] = self._unpacked(self.exchange.fetch(operation.source))
            return
        memory = {
            BlockOperationKind.COPY: (self.device, self.device),
            BlockOperationKind.SWAP_OUT: (self.device, self.lower),
            BlockOperationKind.SWAP_IN: (self.lower, self.device),
        }
        source, destination = memory[operation.kind]
        destination[operation.destination] = dict(source.get(operation.source, {}))

    def _packed(self, slots: dict[int, int]) -> bytearray:
        """A block as bytes: a number for each slot, 0 where nothing was written."""
        size = self.scheduler.blocks.block_size
        return bytearray(struct.pack(f"<{size}q", *(slots.get(i, 0) for i in range(size))))

    def _unpacked(self, data: bytearray) -> dict[int, int]:
        return dict(enumerate(struct.unpack(f"<{self.scheduler.blocks.block_size}q", data)))

    def _sequence(self, row: ScheduledRow) -> Sequence:
        return next(s for s in self.scheduler.running if s.seq_id == row.seq_id)

    def _hashes(self, sequence: Sequence) -> list[int]:
        hashes = []
        prefix_hash = 0
        for token in sequence.token_ids:
            prefix_hash = extend(prefix_hash, token)
            hashes.append(prefix_hash)
        return hashes

    def _check_reads(self, row: ScheduledRow, sequence: Sequence) -> None:
        size = self.scheduler.blocks.block_size
        if row.token_ids != tuple(sequence.token_ids[row.start : row.end]):
            raise ShadowError(f"{sequence} is given tokens that are not its own")
        for position, expected in enumerate(self._hashes(sequence)[: row.start]):
            block = row.block_table[position // size]
            if self.device.get(block, {}).get(position % size) != expected:
                raise ShadowError(f"{sequence} reads something else at position {position} in block {block}")

    def _write(self, row: ScheduledRow, sequence: Sequence) -> None:
        pool, size = self.scheduler.blocks.pool, self.scheduler.blocks.block_size
        hashes = self._hashes(sequence)
        for position in range(row.start, row.end):
            block = row.block_table[position // size]
            if pool.ref_count(block) != 1 or pool.prefix(block) is not None:
                raise ShadowError(f"{sequence} writes into block {block}, which is shared, published or free")
            self.device.setdefault(block, {})[position % size] = hashes[position]

    def _sample(self, row: ScheduledRow, sequence: Sequence) -> tuple[int, ...]:
        if not row.samples:
            return ()
        last = self._hashes(sequence)[row.end - 1]
        return tuple(next_token(last, sample.index if sample.position == 0 else 0) for sample in row.samples)


class FakeTier(LowerTiers):
    """Host slots alone."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(TierPolicy(1), HostTier(num_slots))


class Harness:
    """A scheduler over shadow memory: adds requests, steps, and checks every answer."""

    def __init__(
        self,
        *,
        num_blocks: int = 12,
        block_size: int = 4,
        max_num_seqs: int = 4,
        max_num_batched_tokens: int = 16,
        max_model_len: int = 64,
        caching: bool = True,
        tier: BlockTier | None = None,
        exchange: BlockExchange | None = None,
        fingerprint: bytes = b"",
        policy: TierPolicy | None = None,
    ) -> None:
        blocks = BlockManager(BlockPool(num_blocks + 1), block_size, enable_prefix_caching=caching, fingerprint=fingerprint, tier=tier)
        config = SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=max_num_batched_tokens, max_model_len=max_model_len)
        self.scheduler = Scheduler(config, blocks, policy=policy)
        self.shadow = ShadowKV(self.scheduler, exchange)
        self.finished: list[Sequence] = []
        self.outputs: list[SchedulerOutput] = []
        self._num_requests = 0

    def add(
        self,
        prompt: Items[int],
        *,
        max_tokens: int = 4,
        n: int = 1,
        priority: int = 0,
        interactive: bool = False,
        salt: bytes = b"",
        keep: Keep = Keep.FILE,
    ) -> SequenceGroup:
        """Queues a request."""
        group = SequenceGroup(
            f"r{self._num_requests}",
            tuple(prompt),
            SamplingParams(temperature=0, max_tokens=max_tokens, n=n),
            seed=0,
            priority=priority,
            interactive=interactive,
            salt=salt,
            keep=keep,
        )
        self._num_requests += 1
        self.scheduler.add(group)
        return group

    def step(self) -> SchedulerOutput:
        """One step, audited before and after."""
        output = self.scheduler.schedule()
        self.outputs.append(output)
        self._check_limits(output)
        self.scheduler.check_invariants()
        for sequence in self.scheduler.update(output, self.shadow.execute(output)):
            params = sequence.group.params
            expected = predict(sequence.group.prompt_token_ids, sequence.index, sequence.num_output_tokens)
            if sequence.token_ids[sequence.group.num_prompt_tokens :] != expected:
                raise ShadowError(f"{sequence} says something else than when it is alone")
            if sequence.num_output_tokens == params.max_tokens or sequence.num_tokens == self.scheduler.max_tokens:
                self.scheduler.finish(sequence)
                self.finished.append(sequence)
        self.scheduler.check_invariants()
        return output

    def work_ahead(self, limit: int) -> None:
        """What an engine does with nothing to do."""
        self.shadow.apply(self.scheduler.blocks.traffic.bring_up(limit))
        self.shadow.apply(self.scheduler.blocks.traffic.save_some(limit))

    def _check_limits(self, output: SchedulerOutput) -> None:
        config = self.scheduler.config
        if output.num_tokens > config.max_num_batched_tokens:
            raise ShadowError(f"{output.num_tokens} tokens in a step of at most {config.max_num_batched_tokens}")
        if len(self.scheduler.running) > config.max_num_seqs:
            raise ShadowError(f"{len(self.scheduler.running)} sequences run, {config.max_num_seqs} are allowed")
        if self.scheduler.has_unfinished and not (output.rows or output.operations):
            raise ShadowError("there is work, but the step is empty")

    def run(self, max_steps: int = 10_000) -> None:
        """Steps until everything is finished, then audits the pool."""
        for _ in range(max_steps):
            if not self.scheduler.has_unfinished:
                break
            self.step()
        else:
            raise ShadowError(f"not finished after {max_steps} steps")
        pool = self.scheduler.blocks.pool
        in_use = sum(pool.ref_count(block) > 0 for block in range(pool.num_blocks))
        if in_use:
            raise ShadowError(f"{in_use} blocks are still in use although nothing runs")
