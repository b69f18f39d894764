"""Which sequence reads and writes which blocks.

A sequence's block table lists the blocks of its positions in order; position p lives in slot `p % block_size` of block
`table[p // block_size]`:

```text
sequence A  [ 3 | 4 | 9 ]      3, 4  full, published, ref_count 2
sequence B  [ 3 | 4 | 7 ]      9, 7  partly filled, ref_count 1: appending into them needs no copy
```

The manager never touches tensors. Copies, and moves to and from lower tiers, are kept as one ordered list of operations
which somebody else carries out before the next forward pass.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from chatpaged.engine.block_pool import NULL_BLOCK, BlockPool, BlockPrefix, BlockState
from chatpaged.engine.block_tiers import BlockTier, NoTier
from chatpaged.engine.block_traffic import BlockCounters, BlockTraffic
from chatpaged.engine.prefix_chains import PrefixChains
from chatpaged.engine.retained_prefixes import PrefixKeys, RetainedPrefixes
from chatpaged.engine.scheduler_output import BlockOperation
from chatpaged.engine.sequence import Keep, Sequence


class Admission(enum.Enum):
    """Whether a sequence can get the blocks for all its tokens."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


@dataclass(slots=True)
class BlockTable:
    """The blocks of one running sequence."""

    sequence: Sequence
    blocks: list[int] = field(default_factory=list)
    num_published: int = 0

    @property
    def last(self) -> int:
        """The last block, or the null block."""
        return self.blocks[-1] if self.blocks else NULL_BLOCK


class BlockManager:
    """Owner of all block tables."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        fingerprint: bytes = b"",
        tier: BlockTier | None = None,
    ) -> None:
        """Makes a manager.

        Args:
            pool: the device blocks.
            block_size: tokens a block holds.
            enable_prefix_caching: publish computed blocks and look for them.
            fingerprint: everything but tokens that decides what a block holds (model, dtype, rope).
            tier: where evicted blocks may go.
        """
        self.pool = pool
        self.retained = RetainedPrefixes(pool)
        self.traffic = BlockTraffic(pool, tier if tier is not None else NoTier())
        self.block_size = block_size
        self._caching = enable_prefix_caching
        self._chains = PrefixChains(block_size, fingerprint)
        self._tables: dict[int, BlockTable] = {}
        self._loading: set[int] = set()

    # --- questions ---------------------------------------------------------------------------------------------------

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold this many tokens."""
        return -(-num_tokens // self.block_size)

    @property
    def capacity(self) -> int:
        """Tokens that one sequence can hold when it has the pool for itself."""
        return self.pool.num_usable * self.block_size

    def table(self, sequence: Sequence) -> tuple[int, ...]:
        """The sequence's blocks; empty while it is not running."""
        table = self._tables.get(sequence.seq_id)
        return tuple(table.blocks) if table else ()

    def num_blocks_of(self, sequences: Iterable[Sequence]) -> int:
        """Different blocks that these sequences hold together."""
        return len({block for sequence in sequences for block in self.table(sequence)})

    def tables(self) -> list[tuple[Sequence, tuple[int, ...]]]:
        """All block tables."""
        return [(table.sequence, tuple(table.blocks)) for table in self._tables.values()]

    @property
    def counters(self) -> BlockCounters:
        """What happened to blocks since the start."""
        return self.traffic.counters

    def other_counts(self) -> dict[str, int]:
        """What happened to pins and below the device."""
        return {"pin_yields": self.retained.pin_yields, **self.traffic.tier.counts()}

    @property
    def num_references(self) -> int:
        """Entries of all block tables; a block that several sequences use is in several of them."""
        return sum(len(table.blocks) for table in self._tables.values())

    def live_tokens(self) -> int:
        """Slots of blocks in use that hold a computed token, each slot counted once."""
        states = self.pool.states
        in_use = states.count(BlockState.USED) + states.count(BlockState.SHARED)
        # All blocks of a table are full, but those from the first token on that is still to be computed; whoever writes into a
        # shared block copies it first, so all its users see it equally full.
        filled: dict[int, int] = {}
        for table in self._tables.values():
            computed = table.sequence.num_computed_tokens
            for i in range(computed // self.block_size, len(table.blocks)):
                filled[table.blocks[i]] = max(0, computed - i * self.block_size)
        return (in_use - len(filled)) * self.block_size + sum(filled.values())

    def prefix_keys(self, token_ids: Items[int], salt: bytes = b"") -> PrefixKeys:
        """What a sequence's full blocks are found under, to be kept by whoever asks `cached_blocks` often."""
        return PrefixKeys(self._chains.of_tokens(token_ids, salt))

    def cached_blocks(self, keys: PrefixKeys) -> tuple[int, ...]:
        """The blocks that hold the beginning of a sequence now, in use or not. Asking changes nothing."""
        return self.pool.blocks_of(prefix.key for prefix in keys.prefixes)

    def admission(self, sequence: Sequence, reserve: int = 0) -> Admission:
        """Whether the sequence can start now.

        It can when the blocks of all its known tokens are there beside those promised to running sequences whose prompts
        are still being read: partly read prompts can then never block each other.

        Args:
            sequence: one without a table.
            reserve: blocks to leave for sequences that grow.
        """
        needed = self.blocks_for(sequence.num_tokens)
        if needed > self.pool.num_usable:
            return Admission.NEVER
        in_use = sum(block is not None and self.pool.is_reserved(block) for _, block in self._find(sequence))
        promised = sum(self.blocks_for(table.sequence.num_tokens) - len(table.blocks) for table in self._tables.values())
        return Admission.OK if needed - in_use + promised + reserve <= self.pool.num_free else Admission.LATER

    def is_reading_for(self, reader: Sequence, other: Sequence) -> bool:
        """Whether a running sequence is about to compute the first block that another one would have to compute.

        Args:
            reader: a running sequence.
            other: one that is not running.
        """
        if not self._caching:
            return False
        first = len(self._find(other))
        end = (first + 1) * self.block_size
        if not reader.num_computed_tokens < end <= reader.num_tokens or end > other.num_tokens - 1:
            return False
        # The key of a block stands for all tokens up to its end.
        return self._chains.of_sequence(reader, first + 1)[first].key == self._chains.of_sequence(other, first + 1)[first].key

    def is_loading(self, sequence: Sequence) -> bool:
        """Whether more of the sequence comes up from a lower tier with the next step."""
        return sequence.seq_id in self._loading

    def tokens_to_redo(self, sequence: Sequence) -> int:
        """Tokens that a running sequence alone keeps computed: what is lost at worst when it gives way."""
        table = self._tables[sequence.seq_id]
        shared = sum(self.pool.ref_count(block) > 1 for block in table.blocks)
        return max(0, sequence.num_computed_tokens - shared * self.block_size)

    # --- blocks come and go ------------------------------------------------------------------------------------------

    def extend_prefix(self, sequence: Sequence) -> int:
        """Lets the sequence's table go on with blocks that have been computed already, by whomever.

        Called when a sequence is admitted (its table is empty then) and before each further chunk of its prompt. At least
        one token is left to compute, since sampling needs its logits. Blocks in a lower tier are brought up.

        Returns:
            The number of tokens found. They count as computed.
        """
        table = self._tables.setdefault(sequence.seq_id, BlockTable(sequence))
        if len(table.blocks) * self.block_size != sequence.num_computed_tokens:
            return 0
        found = self._find(sequence, len(table.blocks))
        for prefix, block in found:  # before any allocation, which could evict one of them
            if block is not None:
                self.pool.acquire(block)
                self.traffic.note_worth(prefix)
        attached = 0
        while attached < len(found) and self._attach(table, *found[attached]):
            attached += 1
        for _, block in found[attached + 1 :]:  # behind a block that its tier has lost in the meantime
            if block is not None:
                self.pool.release(block)
        num_tokens = attached * self.block_size
        sequence.num_computed_tokens += num_tokens
        return num_tokens

    def append_slots(self, sequence: Sequence, num_tokens: int) -> bool:
        """Makes room for the next `num_tokens` tokens to compute, all of them or none.

        A block that others use as well is replaced by a copy before it is written.

        Returns:
            False, with nothing changed, when there are not enough free blocks.
        """
        table = self._tables[sequence.seq_id]
        first = sequence.num_computed_tokens // self.block_size
        end = self.blocks_for(sequence.num_computed_tokens + num_tokens)
        shared = [i for i in range(first, min(end, len(table.blocks))) if self.pool.ref_count(table.blocks[i]) > 1]
        fresh = max(0, end - len(table.blocks))
        if len(shared) + fresh > self.pool.num_free:
            return False
        for i in shared:
            source = table.blocks[i]
            table.blocks[i] = self.traffic.copy(source, table.blocks[i - 1] if i else NULL_BLOCK, sequence.group.counters)
            self.pool.release(source)
        for _ in range(fresh):
            table.blocks.append(self.traffic.allocate(table.last, sequence.group.counters))
        return True

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Gives the child the parent's blocks. Takes no memory; whoever writes into a shared block first copies it."""
        source = self._tables[parent.seq_id]
        for block in source.blocks:
            self.pool.acquire(block)
        self._tables[child.seq_id] = BlockTable(child, list(source.blocks), source.num_published)
        child.num_computed_tokens = parent.num_computed_tokens

    def publish(self, sequence: Sequence) -> None:
        """Makes the sequence's full blocks findable. Only what has been computed: call this after the step."""
        if not self._caching:
            return
        table = self._tables[sequence.seq_id]
        num_full = sequence.num_computed_tokens // self.block_size
        if num_full > table.num_published:
            prefixes = self._chains.of_sequence(sequence, num_full)
            for i in range(table.num_published, num_full):
                self.pool.publish(table.blocks[i], prefixes[i])
                if sequence.group.keep is Keep.FILE:
                    self.traffic.note_worth(prefixes[i])
            table.num_published = num_full

    def release(self, sequence: Sequence) -> None:
        """Takes the sequence's blocks away, last first, so that beginnings outlive ends in the eviction queue."""
        table = self._tables.get(sequence.seq_id)
        if table is not None:
            counters = sequence.group.counters
            counters.peak_blocks = max(counters.peak_blocks, self.num_blocks_of(sequence.group.sequences))
            del self._tables[sequence.seq_id]
            for block in reversed(table.blocks):
                self.pool.release(block)

    def preempt(self, sequence: Sequence) -> None:
        """The same for a sequence that will want them back: they are worth a file."""
        table = self._tables[sequence.seq_id]
        for prefix in self._chains.of_sequence(sequence, table.num_published):
            self.traffic.note_worth(prefix)
        self.release(sequence)

    def forget(self, sequence: Sequence) -> None:
        """Drops everything kept for a sequence that will not run again. What it has used was used now, below as well."""
        table = self._tables.get(sequence.seq_id)
        if table is not None:
            self.traffic.tier.touch(self._chains.of_sequence(sequence, table.num_published))
        self.release(sequence)
        self._chains.forget(sequence)

    def begin_step(self, max_swap_ins: int | None = None) -> None:
        """Begins to collect the moves of a step; see `BlockTraffic.begin_step`."""
        self.traffic.begin_step(max_swap_ins)
        self._loading.clear()

    def take_operations(self) -> tuple[BlockOperation, ...]:
        """The block moves since the last call, in the order in which they have to be carried out."""
        return self.traffic.take_operations()

    def forget_cached(self) -> int:
        """Empties the prefix cache. Returns how many blocks were in it."""
        for table in self._tables.values():
            table.num_published = 0
        self.traffic.forget()
        return self.pool.forget_cached()

    def restore_pins(self) -> None:
        """Nobody needs nearly the whole pool any more: what was pinned is pinned again, and comes up while nothing else is to do."""
        self.traffic.want(self.retained.restore_pins())

    def look_at(self, prefixes: PrefixKeys | None) -> None:
        """Says which chat is in view: its blocks go last from now on, here and below, and come up while nothing else is to do.

        Args:
            prefixes: of the chat; None is no chat.
        """
        self.retained.look_at(prefixes)
        self.traffic.look_at(prefixes.prefixes if prefixes is not None and self._caching else ())

    # --- inside --------------------------------------------------------------------------------------------------------

    def _attach(self, table: BlockTable, prefix: BlockPrefix, block: int | None) -> bool:
        """Appends a found block to a table, bringing it up from the lower tier if `block` is None."""
        if block is None:
            if not self.traffic.may_swap_in:
                self._loading.add(table.sequence.seq_id)
                return False
            block = self.traffic.bring(prefix, table.last, table.sequence.group.counters) if self.pool.num_free else None
            if block is None:
                return False
        table.blocks.append(block)
        table.num_published += 1
        return True

    def _find(self, sequence: Sequence, start: int = 0) -> list[tuple[BlockPrefix, int | None]]:
        """The longest run of computed blocks from block `start` of the sequence on; None stands for one in the lower tier."""
        found: list[tuple[BlockPrefix, int | None]] = []
        if self._caching:
            for prefix in self._chains.of_sequence(sequence, (sequence.num_tokens - 1) // self.block_size)[start:]:
                block = self.pool.lookup(prefix)
                if block is None and not self.traffic.tier.contains(prefix):
                    break
                found.append((prefix, block))
        return found

    def check_invariants(self) -> None:
        """Audits tables against reference counts, then the pool itself.

        Raises:
            RuntimeError: something does not add up.
        """
        users = [0] * self.pool.num_blocks
        for table in self._tables.values():
            for block in table.blocks:
                users[block] += 1
        counts = [self.pool.ref_count(block) for block in range(self.pool.num_blocks)]
        if users != counts:
            wrong = [(block, users[block], counts[block]) for block in range(len(users)) if users[block] != counts[block]]
            raise RuntimeError(f"blocks whose users and reference counts differ (block, users, count): {wrong}")
        self.pool.check_invariants()
