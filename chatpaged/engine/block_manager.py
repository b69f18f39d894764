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

from chatpaged.engine.block_pool import NULL_BLOCK, BlockPool, BlockPrefix, BlockState, chain, root_key
from chatpaged.engine.block_tiers import BlockTier, NoTier
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.sequence import Sequence


class Admission(enum.Enum):
    """Whether a sequence can get the blocks for all its tokens."""

    OK = "ok"
    LATER = "later"
    NEVER = "never"


@dataclass(slots=True)
class BlockCounters:
    """What happened to blocks since the start."""

    copies: int = 0
    evictions: int = 0
    swap_out: int = 0
    swap_in: int = 0


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """What the full blocks of a token sequence are published under."""

    keys: tuple[bytes, ...]


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
        self.block_size = block_size
        self.counters = BlockCounters()
        self._caching = enable_prefix_caching
        self._fingerprint = fingerprint
        self._tier: BlockTier = tier if tier is not None else NoTier()
        self._tables: dict[int, BlockTable] = {}
        self._chains: dict[int, list[BlockPrefix]] = {}
        self._operations: list[BlockOperation] = []

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
    def num_tier_blocks(self) -> int:
        """Blocks whose contents the lower tier holds."""
        return self._tier.num_blocks

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
        """The keys of a sequence's full blocks, to be kept by whoever asks `cached_blocks` often."""
        keys = []
        parent = root_key(self._fingerprint, salt)
        for start in range(0, len(token_ids) - self.block_size + 1, self.block_size):
            parent = chain(parent, tuple(token_ids[start : start + self.block_size])).key
            keys.append(parent)
        return PrefixKeys(tuple(keys))

    def cached_blocks(self, keys: PrefixKeys) -> tuple[int, ...]:
        """The blocks that hold the beginning of a sequence now, in use or not. Asking changes nothing."""
        return self.pool.blocks_of(keys.keys)

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
        in_use = sum(block is not None and self.pool.ref_count(block) > 0 for _, block in self._find(sequence))
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
        return self._chain(reader, first + 1)[first].key == self._chain(other, first + 1)[first].key

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
        for _, block in found:  # before any allocation, which could evict one of them
            if block is not None:
                self.pool.acquire(block)
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
            table.blocks[i] = self._allocate(sequence, table.blocks[i - 1] if i else NULL_BLOCK)
            self._operations.append(BlockOperation(BlockOperationKind.COPY, source, table.blocks[i]))
            self.counters.copies += 1
            sequence.group.counters.cow += 1
            self.pool.release(source)
        for _ in range(fresh):
            table.blocks.append(self._allocate(sequence, table.last))
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
            prefixes = self._chain(sequence, num_full)
            for i in range(table.num_published, num_full):
                self.pool.publish(table.blocks[i], prefixes[i])
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

    def forget(self, sequence: Sequence) -> None:
        """Drops everything kept for a sequence that will not run again."""
        self.release(sequence)
        self._chains.pop(sequence.seq_id, None)

    def take_operations(self) -> tuple[BlockOperation, ...]:
        """The block moves since the last call, in the order in which they have to be carried out."""
        operations, self._operations = tuple(self._operations), []
        return operations

    def forget_cached(self) -> int:
        """Empties the prefix cache. Returns how many blocks were in it."""
        for table in self._tables.values():
            table.num_published = 0
        return self.pool.forget_cached()

    # --- inside --------------------------------------------------------------------------------------------------------

    def _allocate(self, sequence: Sequence, after: int) -> int:
        block, evicted = self.pool.allocate(after)
        if evicted is not None:
            self.counters.evictions += 1
            operation = self._tier.demote(evicted, block)
            if operation is not None:
                self._operations.append(operation)
                self.counters.swap_out += 1
                sequence.group.counters.swap_out += 1
        return block

    def _attach(self, table: BlockTable, prefix: BlockPrefix, block: int | None) -> bool:
        """Appends a found block to a table, bringing it up from the lower tier if `block` is None."""
        if block is None:
            if self.pool.num_free == 0:
                return False
            block = self._allocate(table.sequence, table.last)
            operation = self._tier.promote(prefix, block)  # after the allocation, which may have pushed it out of the tier
            if operation is None:
                self.pool.release(block)
                return False
            self._operations.append(operation)
            self.counters.swap_in += 1
            table.sequence.group.counters.swap_in += 1
            self.pool.publish(block, prefix)
        table.blocks.append(block)
        table.num_published += 1
        return True

    def _find(self, sequence: Sequence, start: int = 0) -> list[tuple[BlockPrefix, int | None]]:
        """The longest run of computed blocks from block `start` of the sequence on; None stands for one in the lower tier."""
        found: list[tuple[BlockPrefix, int | None]] = []
        if self._caching:
            for prefix in self._chain(sequence, (sequence.num_tokens - 1) // self.block_size)[start:]:
                block = self.pool.lookup(prefix)
                if block is None and not self._tier.contains(prefix):
                    break
                found.append((prefix, block))
        return found

    def _chain(self, sequence: Sequence, num_blocks: int) -> list[BlockPrefix]:
        """The first `num_blocks` prefixes of the sequence. They never change, so they are kept as long as the sequence."""
        prefixes = self._chains.setdefault(sequence.seq_id, [])
        salt = sequence.group.salt
        parent = prefixes[-1].key if prefixes else root_key(self._fingerprint, salt)
        for i in range(len(prefixes), num_blocks):
            token_ids = tuple(sequence.token_ids[i * self.block_size : (i + 1) * self.block_size])
            prefix = chain(parent, token_ids, i, is_private=bool(salt))
            prefixes.append(prefix)
            parent = prefix.key
        return prefixes[:num_blocks]

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
