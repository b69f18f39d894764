"""Below the device pool: where the contents of evicted blocks go, and come back from.

```text
device blocks      evicted: a copy goes down     found below: it comes up again
    │  ▲
    ▼  │  swap_out / swap_in
host slots         pinned memory beside a GPU; a memory-mapped file without a name beside a CPU
    │  ▲
    ▼  │  save / load                            straight from and to the device
block files        survive the process
```

Tiers are addressed by the same prefix as device blocks, ids compared. The block manager asks; a tier answers with the operations that
move the contents, or declines. It never sees tensors: the executor carries out the operations in order. What has come up stays below as
well, so that it can be evicted again without being copied again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Protocol

from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.disk_tier import DiskTier
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.tier_policy import TierKind, TierPolicy


class BlockTier(Protocol):
    """A lower memory tier, or several as one."""

    @property
    def num_blocks(self) -> int:
        """Blocks whose contents memory below the device holds now; those on a disk do not count."""

    @property
    def keeps_files(self) -> bool:
        """Whether `save` does anything."""

    @property
    def can_save(self) -> bool:
        """Whether one more block can be written now, without being dropped."""

    def demote(self, prefix: BlockPrefix, block: int, *, is_unsaved: bool) -> tuple[BlockOperation, ...]:
        """A published device block is about to be overwritten. Returns what saves its contents; nothing if they are below, or let go.

        Args:
            prefix: what it holds.
            block: the device block.
            is_unsaved: it is worth a file and may not have one.
        """

    def save(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """Returns what writes a published device block to a file, or None when it has one, must not have one, or cannot have one now."""

    def contains(self, prefix: BlockPrefix) -> bool:
        """Whether it is worth trying to `promote` this prefix."""

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """Returns what brings the prefix back into a device block, or None when it is not there any more, or damaged; ids are compared."""

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """Somebody looks at what these belong to: they should go last. From a sequence's beginning on."""

    def counts(self) -> dict[str, int]:
        """What happened since the start, under the names that are shown."""


class NoTier:
    """No lower tier: what is evicted is forgotten and recomputed when it is needed again."""

    num_blocks = 0
    keeps_files = False
    can_save = False

    def demote(self, prefix: BlockPrefix, block: int, *, is_unsaved: bool) -> tuple[BlockOperation, ...]:  # noqa: ARG002 - the protocol's signature
        """Declines."""
        return ()

    def save(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:  # noqa: ARG002 - the protocol's signature
        """Declines."""
        return None

    def contains(self, prefix: BlockPrefix) -> bool:  # noqa: ARG002 - the protocol's signature
        """Holds nothing."""
        return False

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:  # noqa: ARG002 - the protocol's signature
        """Holds nothing."""
        return None

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """Holds nothing."""

    def counts(self) -> dict[str, int]:
        """Nothing happens."""
        return {}


class HostTier:
    """Slots of host memory, least recently used out first."""

    def __init__(self, num_slots: int, *, is_file: bool = False) -> None:
        """Makes a tier.

        Args:
            num_slots: blocks it can hold.
            is_file: whether what it holds can reach a disk; private blocks then stay out.
        """
        self._slots: OrderedDict[bytes, tuple[int, BlockPrefix]] = OrderedDict()
        self._free = list(range(num_slots - 1, -1, -1))
        self._num_slots = num_slots
        self._is_file = is_file

    @property
    def num_blocks(self) -> int:
        """Slots in use."""
        return len(self._slots)

    def demote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """See `BlockTier.demote`."""
        if self._num_slots == 0 or (prefix.is_private and self._is_file):
            return None
        if self.contains(prefix):
            self._slots.move_to_end(prefix.key)
            return None
        other = self._slots.pop(prefix.key, None)  # the same key with other ids: never seen, but then its slot is the one to take
        if other is not None:
            slot = other[0]
        elif self._free:
            slot = self._free.pop()
        else:
            slot = self._slots.popitem(last=False)[1][0]
        self._slots[prefix.key] = (slot, prefix)
        return BlockOperation(BlockOperationKind.SWAP_OUT, block, slot)

    def contains(self, prefix: BlockPrefix) -> bool:
        """Whether a slot holds exactly this."""
        found = self._slots.get(prefix.key)
        return found is not None and found[1] == prefix

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """See `BlockTier.promote`."""
        if not self.contains(prefix):
            return None
        self._slots.move_to_end(prefix.key)
        return BlockOperation(BlockOperationKind.SWAP_IN, self._slots[prefix.key][0], block)

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """See `BlockTier.touch`."""
        for prefix in reversed(list(prefixes)):
            if self.contains(prefix):
                self._slots.move_to_end(prefix.key)


class LowerTiers:
    """Host memory, then files; either may be missing. Satisfies `BlockTier`."""

    def __init__(self, policy: TierPolicy, host: HostTier | None = None, disk: DiskTier | None = None) -> None:
        self.policy = policy
        self._host = host if host is not None else HostTier(0)
        self._disk = disk

    @property
    def num_blocks(self) -> int:
        """Host slots in use."""
        return self._host.num_blocks

    @property
    def keeps_files(self) -> bool:
        """Whether there is a disk tier."""
        return self._disk is not None

    def demote(self, prefix: BlockPrefix, block: int, *, is_unsaved: bool) -> tuple[BlockOperation, ...]:
        """To host memory, and to a file if it is worth one."""
        swap_out = self._host.demote(prefix, block)
        save = self._disk.save(prefix, block) if self._disk is not None and is_unsaved else None
        return tuple(operation for operation in (swap_out, save) if operation is not None)

    def save(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """See `BlockTier.save`."""
        return self._disk.save(prefix, block) if self._disk is not None else None

    @property
    def can_save(self) -> bool:
        """Whether the disk keeps up."""
        return self._disk is not None and self._disk.can_save

    def contains(self, prefix: BlockPrefix) -> bool:
        """Whether it is below and sooner brought back than computed."""
        if self._host.contains(prefix):
            return self.policy.is_worth_it(TierKind.HOST)
        return self._disk is not None and self._disk.contains(prefix) and self.policy.is_worth_it(TierKind.DISK)

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """From host memory if it is there, else from its file, which is read and checked at once."""
        operation = self._host.promote(prefix, block)
        if operation is None and self._disk is not None:
            operation = self._disk.promote(prefix, block)
        return operation

    def touch(self, prefixes: Iterable[BlockPrefix]) -> None:
        """See `BlockTier.touch`."""
        kept = list(prefixes)
        self._host.touch(kept)
        if self._disk is not None:
            self._disk.touch(kept)

    def counts(self) -> dict[str, int]:
        """Of the policy and of the files."""
        policy = {"tier_declined": self.policy.declined, "tier_ms_saved": int(1000 * self.policy.seconds_saved)}
        return {**policy, **(self._disk.counts() if self._disk is not None else {})}
