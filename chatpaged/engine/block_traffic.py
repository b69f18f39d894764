"""Contents of blocks on the move, in the pool and below it: what is copied, goes down, comes up or gets a file, in one ordered list.

What a chat has computed is worth a file, where there are files: it is written when its block is evicted, or while nothing else is to do.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from chatpaged.engine.block_pool import NULL_BLOCK, BlockPool, BlockPrefix
from chatpaged.engine.block_tiers import BlockTier
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.sequence import GroupCounters


@dataclass(slots=True)
class BlockCounters:
    """What happened to blocks since the start.

    Attributes:
        copies: made before a shared block was written.
        evictions: contents of cached blocks that made room.
        swap_out: blocks copied to a lower tier, host memory or file.
        swap_in: blocks brought back from one.
    """

    copies: int = 0
    evictions: int = 0
    swap_out: int = 0
    swap_in: int = 0


class BlockTraffic:
    """Takes blocks of the pool for others, and notes the moves that this needs.

    Attributes:
        tier: the memory below.
        counters: what happened since the start.
    """

    def __init__(self, pool: BlockPool, tier: BlockTier) -> None:
        self.tier = tier
        self.counters = BlockCounters()
        self._pool = pool
        self._operations: list[BlockOperation] = []
        self._unsaved: dict[bytes, None] = {}
        self._wanted: deque[BlockPrefix] = deque()
        self._swap_ins_left: int | None = None

    # --- in a step -------------------------------------------------------------------------------------------------------

    def begin_step(self, max_swap_ins: int | None = None) -> None:
        """Begins to collect the moves of a step.

        Args:
            max_swap_ins: blocks that may come up from lower tiers in this step; None is any number. Sequences with more than that load
                on in the next one.
        """
        self._swap_ins_left = max_swap_ins

    @property
    def may_swap_in(self) -> bool:
        """Whether one more block may come up in this step."""
        return self._swap_ins_left != 0

    def allocate(self, after: int, group: GroupCounters | None = None) -> int:
        """Takes a block; what it held goes down.

        Args:
            after: the block behind which it should lie, if that is possible.
            group: of the request it is for, if it is for one.
        """
        block, evicted = self._pool.allocate(after)
        if evicted is not None:
            self.counters.evictions += 1
            is_unsaved = evicted.key in self._unsaved
            self._unsaved.pop(evicted.key, None)
            operations = self.tier.demote(evicted, block, is_unsaved=is_unsaved)
            self._operations += operations
            if operations:
                self.counters.swap_out += 1
                if group is not None:
                    group.swap_out += 1
        return block

    def copy(self, source: int, after: int, group: GroupCounters) -> int:
        """Takes a block and has another one copied into it. Arguments as for `allocate`."""
        block = self.allocate(after, group)
        self._operations.append(BlockOperation(BlockOperationKind.COPY, source, block))
        self.counters.copies += 1
        group.cow += 1
        return block

    def bring(self, prefix: BlockPrefix, after: int, group: GroupCounters | None = None) -> int | None:
        """Takes a block for what the lower tier holds, and publishes it; None if it is not there any more. Arguments as for `allocate`."""
        block = self.allocate(after, group)
        operation = self.tier.promote(prefix, block)  # after the allocation, which may have pushed it out of the tier
        if operation is None:
            self._pool.release(block)
            return None
        self._operations.append(operation)
        self._pool.publish(block, prefix)
        self.counters.swap_in += 1
        if group is not None:
            group.swap_in += 1
            self._swap_ins_left = self._swap_ins_left - 1 if self._swap_ins_left is not None else None
        return block

    def take_operations(self) -> tuple[BlockOperation, ...]:
        """The moves since the last call, in the order in which they have to be carried out."""
        operations, self._operations = tuple(self._operations), []
        return operations

    # --- between two steps -----------------------------------------------------------------------------------------------

    def look_at(self, prefixes: Iterable[BlockPrefix]) -> None:
        """Says what somebody looks at, from a sequence's beginning on: `bring_up` brings what is below of it."""
        self._wanted = deque(prefixes)
        self.tier.touch(self._wanted)

    def want(self, prefixes: Iterable[BlockPrefix]) -> None:
        """Says what `bring_up` brings before anything else, from a sequence's beginning on."""
        self._wanted.extendleft(reversed(tuple(prefixes)))

    def bring_up(self, limit: int) -> tuple[BlockOperation, ...]:
        """Operations that bring back blocks of the chat in view before anybody asks; to be carried out at once.

        Args:
            limit: blocks at most.
        """
        count = 0
        while self._wanted and count < limit:
            prefix = self._wanted.popleft()
            if self._pool.lookup(prefix) is not None:
                continue
            block = self.bring(prefix, NULL_BLOCK) if self._pool.num_spare and self.tier.contains(prefix) else None
            if block is None:  # what comes behind it would be of no use
                self._wanted.clear()
            else:
                self._pool.release(block)
                count += 1
        return self.take_operations()

    def note_worth(self, prefix: BlockPrefix) -> None:
        """A published block is worth a file."""
        if self.tier.keeps_files and not prefix.is_private:
            self._unsaved[prefix.key] = None

    @property
    def num_unsaved(self) -> int:
        """Blocks that are worth a file and may not have one."""
        return len(self._unsaved)

    def save_some(self, limit: int) -> tuple[BlockOperation, ...]:
        """Operations that write blocks without a file; to be carried out at once.

        Args:
            limit: blocks at most.
        """
        operations: list[BlockOperation] = []
        while self._unsaved and len(operations) < limit and self.tier.can_save:
            key = next(iter(self._unsaved))
            del self._unsaved[key]
            block, prefix = self._pool.find(key)
            operation = self.tier.save(prefix, block) if prefix is not None else None
            if operation is not None:
                operations.append(operation)
        self.counters.swap_out += len(operations)
        return tuple(operations)

    def forget(self) -> None:
        """The prefix cache is emptied: nothing is worth a file any more."""
        self._unsaved.clear()
