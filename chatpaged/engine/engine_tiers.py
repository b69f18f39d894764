"""The memory below an engine's pool, put together from its options: host slots, block files, and who measures both."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Self

from chatpaged import paths
from chatpaged.engine.block_files import BlockFiles
from chatpaged.engine.block_manager import BlockManager
from chatpaged.engine.block_room import DiskRoom
from chatpaged.engine.block_tiers import HostTier, LowerTiers
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.disk_tier import MAX_PENDING_BYTES, DiskTier, TurnClock
from chatpaged.engine.disk_writer import DiskWriter
from chatpaged.engine.executor import ModelExecutor
from chatpaged.engine.scheduler_output import BlockOperation, BlockOperationKind
from chatpaged.engine.tier_policy import TierKind, TierPolicy
from chatpaged.errors import InvalidRequestError

_log = logging.getLogger(__name__)
_MOVED_AT_ONCE = 8
_FILE_BYTES = 4096
"""What a file may take besides a block's keys and values."""
_POLL_SECONDS = 0.005
CLOSE_SECONDS = 5.0
"""How long the end may wait for blocks to be written."""


class EngineTiers:
    """Moves blocks between two steps, and learns what moves cost.

    Attributes:
        policy: what is worth moving.
        lower: the tiers, for the block manager.
    """

    def __init__(self, executor: ModelExecutor, policy: TierPolicy, disk: DiskTier | None) -> None:
        self.policy = policy
        self.lower = LowerTiers(policy, HostTier(executor.num_host_blocks, is_file=executor.host_is_file), disk)
        self._executor = executor
        self._disk = disk
        self._is_sound = True

    @classmethod
    def open(cls, executor: ModelExecutor, config: EngineConfig) -> Self:
        """Makes the tiers. Without a directory that can be written there are no files, and a warning says so.

        Raises:
            InvalidRequestError: the limit of the files is less than a block.
        """
        policy = TierPolicy(config.block_size)
        disk = _open_disk(executor, config, policy) if config.disk_cache and config.enable_prefix_caching else None
        if disk is not None:
            executor.connect(disk)
        return cls(executor, policy, disk)

    def observe(self, operations: Sequence[BlockOperation], seconds: float) -> None:
        """Learns from operations that were carried out.

        Args:
            operations: all of a step.
            seconds: for all of them.
        """
        num_swap_ins = sum(operation.kind is BlockOperationKind.SWAP_IN for operation in operations)
        if num_swap_ins:
            self.policy.observe_moves(TierKind.HOST, num_swap_ins, seconds * num_swap_ins / len(operations))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Around all that writes into blocks: when it breaks off, nobody knows what they hold, and none of them gets a file."""
        self._is_sound = False
        yield
        self._is_sound = True

    def move(self, operations: Sequence[BlockOperation]) -> None:
        """Carries out operations alone."""
        if operations:
            with self.at_work():
                seconds = self._executor.move(operations)
            self.observe(operations, seconds)

    def work_ahead(self, blocks: BlockManager) -> bool:
        """Does a little of what may be wanted later. Returns whether there is more.

        First blocks of the chat in view come up, then blocks that are worth a file get one.
        """
        operations = blocks.traffic.bring_up(_MOVED_AT_ONCE)
        self.move(operations)
        return bool(operations) or self.save_some(blocks)

    def save_some(self, blocks: BlockManager) -> bool:
        """Writes a few blocks that are worth a file and have none. Returns whether there are more."""
        self.move(blocks.traffic.save_some(_MOVED_AT_ONCE))
        return blocks.traffic.num_unsaved > 0

    def close(self, blocks: BlockManager, seconds: float) -> None:
        """Writes what is worth a file, for so long at most; what is not written then is computed again."""
        disk, self._disk = self._disk, None
        if disk is not None:
            end = time.monotonic() + seconds
            while self._is_sound and self.save_some(blocks) and time.monotonic() < end:
                if not disk.can_save:
                    time.sleep(_POLL_SECONDS)
            disk.close(max(0.0, end - time.monotonic()))


def _open_disk(executor: ModelExecutor, config: EngineConfig, policy: TierPolicy) -> DiskTier | None:
    needed = executor.block_bytes + _FILE_BYTES
    if config.disk_cache < needed:
        raise InvalidRequestError(
            f"a cache on disk of {config.disk_cache:,} bytes holds no block: this model needs at least {needed:,}; "
            "use a larger --disk-cache, or 0 for none"
        )
    root = config.disk_cache_directory if config.disk_cache_directory is not None else paths.blocks_dir()
    facts = {**executor.facts, "block_size": str(config.block_size)}
    clock = TurnClock()
    try:
        files = BlockFiles(root, fingerprint=executor.fingerprint, block_bytes=executor.block_bytes, facts=facts, clock=clock)
    except OSError as error:
        _log.warning("nothing is kept in the cache on disk: %s", error)
        return None
    return DiskTier(files, DiskWriter(files, DiskRoom(root, config.disk_cache)), policy, clock, max_pending_bytes=MAX_PENDING_BYTES)
