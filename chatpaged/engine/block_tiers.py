"""The seam below the device pool: where the contents of evicted blocks may go, and come back from.

Tiers are addressed by the same prefix as device blocks. The block manager asks; a tier answers with the operation that
moves the contents, or declines. It never sees tensors: the executor carries out the operations in order.
"""

from __future__ import annotations

from typing import Protocol

from chatpaged.engine.block_pool import BlockPrefix
from chatpaged.engine.scheduler_output import BlockOperation


class BlockTier(Protocol):
    """A lower memory tier."""

    @property
    def num_blocks(self) -> int:
        """Blocks whose contents it holds now."""

    def demote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """A published device block is about to be overwritten. Returns the swap_out that saves it, or None to let it go."""

    def contains(self, prefix: BlockPrefix) -> bool:
        """Whether `promote` would find this prefix; ids are compared, never the key alone."""

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:
        """Returns the swap_in that brings the prefix back into a device block, or None when it is not there any more."""


class NoTier:
    """No lower tier: what is evicted is forgotten and recomputed when it is needed again."""

    num_blocks = 0

    def demote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:  # noqa: ARG002 - the protocol's signature
        """Declines."""
        return None

    def contains(self, prefix: BlockPrefix) -> bool:  # noqa: ARG002 - the protocol's signature
        """Holds nothing."""
        return False

    def promote(self, prefix: BlockPrefix, block: int) -> BlockOperation | None:  # noqa: ARG002 - the protocol's signature
        """Holds nothing."""
        return None
