"""KV blocks: reference counts, the free list that is also the eviction queue, and the map of published prefixes.

```text
block 0          never allocated: target of padding ("null block")
free             no user, nothing worth keeping
cached           no user, but published: a hit takes it back, an allocation evicts it
used             one user or more (ref_count); may be published as well
                       front of the free list                          its end      last
    allocate  <──  [ free, free, cached (oldest) ... cached (newest) ]  <──  [ cached, in view ]
```

Prefixes can be retained: those of the chat in view are evicted when nothing else is left, pinned ones never. Retention belongs to
the key: a block that comes to hold a pinned prefix is pinned, in use or not.
"""

from __future__ import annotations

import enum
import hashlib
import itertools
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

NULL_BLOCK = 0
KEY_BYTES = 16


class BlockState(enum.IntEnum):
    """State of one block, as a byte of `BlockPool.states`."""

    NULL = 0
    FREE = 1
    CACHED = 2
    USED = 3
    SHARED = 4


class Retention(enum.IntEnum):
    """How long a prefix stays when blocks are wanted."""

    IN_VIEW = 1
    PINNED = 2


def states_of(blocks: Iterable[int], states: bytes) -> bytes:
    """The states of some blocks, to be counted without a loop in Python.

    Args:
        blocks: of a pool.
        states: the `BlockPool.states` of that moment.
    """
    return bytes(map(states.__getitem__, blocks))


@dataclass(frozen=True, slots=True)
class BlockPrefix:
    """What a full block holds: its tokens, and by the chain of keys everything before them.

    Attributes:
        key: 128-bit chain over the parent's key and the token ids.
        parent_key: key of the block before, or the root that stands for everything else that changes keys and values.
        token_ids: the block's own tokens.
        index: number of the block in its sequence, from 0.
        is_private: its contents must not reach a disk.
    """

    key: bytes
    parent_key: bytes
    token_ids: tuple[int, ...]
    index: int = 0
    is_private: bool = field(default=False, compare=False)


def root_key(*parts: bytes) -> bytes:
    """The key before the first block: a digest of what, besides tokens, decides the contents of a block."""
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def chain(parent_key: bytes, token_ids: tuple[int, ...], index: int = 0, *, is_private: bool = False) -> BlockPrefix:
    """The prefix that continues `parent_key` with one block of tokens."""
    key = hashlib.blake2b(parent_key + array("q", token_ids).tobytes(), digest_size=KEY_BYTES).digest()
    return BlockPrefix(key, parent_key, token_ids, index, is_private)


class NoFreeBlockError(RuntimeError):
    """Allocation from an exhausted pool: the caller has to count first."""


class BlockPool:
    """All blocks of the device, and who may use them again.

    The pool knows nothing of sequences. Block ids run from 0 to `num_blocks - 1`; block 0 is the null block.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise ValueError(f"a pool needs the null block and at least one more, not {num_blocks}")
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._prefixes: list[BlockPrefix | None] = [None] * num_blocks
        self._by_key: dict[bytes, int] = {}
        # Insertion order is eviction order; blocks in view go when there are no others.
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))
        self._in_view: OrderedDict[int, None] = OrderedDict()
        self._pinned: OrderedDict[int, None] = OrderedDict()
        self._retained: dict[bytes, Retention] = {}
        # Kept up to date block by block: whoever shows the pool asks often, and it may have many thousands of blocks.
        self._states = bytearray([BlockState.NULL] + [BlockState.FREE] * (num_blocks - 1))

    @property
    def num_usable(self) -> int:
        """Blocks that can hold tokens: all but the null block."""
        return self.num_blocks - 1

    @property
    def num_free(self) -> int:
        """Blocks without a user that are not pinned; published ones count, since allocation may evict them."""
        return len(self._free) + len(self._in_view)

    @property
    def num_spare(self) -> int:
        """Of these, blocks that are not the chat's in view."""
        return len(self._free)

    @property
    def num_cached(self) -> int:
        """Blocks without a user whose contents can still be found."""
        return self._states.count(BlockState.CACHED)

    @property
    def pinned(self) -> tuple[int, ...]:
        """Blocks with pinned contents, in use or not."""
        pins = (key for key, level in self._retained.items() if level is Retention.PINNED)
        return tuple(block for key in pins if (block := self._by_key.get(key)) is not None)

    @property
    def num_pinned(self) -> int:
        """How many these are."""
        return len(self.pinned)

    @property
    def states(self) -> bytes:
        """A `BlockState` for each block, as it is now."""
        return bytes(self._states)

    def ref_count(self, block: int) -> int:
        """Users of a block."""
        return self._ref_counts[block]

    def prefix(self, block: int) -> BlockPrefix | None:
        """What a block was published as, if it was."""
        return self._prefixes[block]

    def allocate(self, after: int = NULL_BLOCK) -> tuple[int, BlockPrefix | None]:
        """Takes a block for one user.

        Args:
            after: the user's last block. The next id is preferred when nothing is lost by it: contiguous runs of blocks
                are cheaper to read.

        Returns:
            The block, and the prefix it was published as until now (None if it was not): the caller may save its
            contents elsewhere before anything is written.

        Raises:
            NoFreeBlockError: every block has a user.
        """
        following = after + 1
        if after != NULL_BLOCK and following in self._free and self._prefixes[following] is None:
            block = following
            del self._free[block]
        elif self._free:
            block, _ = self._free.popitem(last=False)
        elif self._in_view:
            block, _ = self._in_view.popitem(last=False)
        else:
            raise NoFreeBlockError(f"all {self.num_usable} blocks are in use or pinned")
        evicted = self._prefixes[block]
        if evicted is not None:
            self._unpublish(block, evicted)
        self._ref_counts[block] = 1
        self._states[block] = BlockState.USED
        return block, evicted

    def acquire(self, block: int) -> None:
        """Adds a user to a block that is in use or cached."""
        if self._ref_counts[block] == 0:
            del self._queue(block)[block]
        self._ref_counts[block] += 1
        self._note_state(block)

    def release(self, block: int) -> None:
        """Takes a user away. Without users a published block goes to the end of the free list, any other to its front."""
        if self._ref_counts[block] < 1:
            raise RuntimeError(f"block {block} is released more often than it was taken")
        self._ref_counts[block] -= 1
        if self._ref_counts[block] == 0:
            self._enqueue(block)
        self._note_state(block)

    def lookup(self, prefix: BlockPrefix) -> int | None:
        """The block published with this prefix. Token ids and parent are compared too, never the key alone."""
        block = self._by_key.get(prefix.key)
        return block if block is not None and self._prefixes[block] == prefix else None

    def find(self, key: bytes) -> tuple[int, BlockPrefix | None]:
        """The block published under a key, and its prefix; the null block and None if there is none."""
        block = self._by_key.get(key, NULL_BLOCK)
        return block, self._prefixes[block]

    def blocks_of(self, keys: Iterable[bytes]) -> tuple[int, ...]:
        """The blocks published under these keys, up to the first key that nobody has. To be shown, not to be read from.

        Looking is not using: the order of eviction stays what it is.
        """
        blocks = []
        for key in keys:
            block = self._by_key.get(key)
            if block is None:
                break
            blocks.append(block)
        return tuple(blocks)

    def is_reserved(self, block: int) -> bool:
        """Whether allocation cannot take a block: it has users, or is pinned."""
        return self._ref_counts[block] > 0 or block in self._pinned

    def retain(self, levels: Mapping[bytes, Retention]) -> None:
        """Says anew which prefixes are retained. What is not any more counts as used just now.

        Args:
            levels: keys, those of a sequence from its beginning on.
        """
        # Ends first, so that beginnings outlive them in the queue that they come to.
        changed = {**self._retained, **levels}
        moved = [
            block
            for key in reversed(changed)
            if self._retained.get(key) is not levels.get(key) and (block := self._by_key.get(key)) is not None
        ]
        idle = [block for block in moved if self._ref_counts[block] == 0]
        for block in idle:
            del self._queue(block)[block]
        self._retained = dict(levels)
        for block in idle:
            self._enqueue(block)

    def _queue(self, block: int) -> OrderedDict[int, None]:
        """Where a block without a user is."""
        prefix = self._prefixes[block]
        level = self._retained.get(prefix.key) if prefix is not None else None
        return self._free if level is None else self._in_view if level is Retention.IN_VIEW else self._pinned

    def _enqueue(self, block: int) -> None:
        queue = self._queue(block)
        queue[block] = None
        if self._prefixes[block] is None:
            queue.move_to_end(block, last=False)

    def publish(self, block: int, prefix: BlockPrefix) -> None:
        """Makes a full, computed block findable. When its key is taken (same contents computed twice) the first one stays."""
        if prefix.key not in self._by_key:
            self._by_key[prefix.key] = block
            self._prefixes[block] = prefix
            self._note_state(block)

    def forget_cached(self) -> int:
        """Empties the prefix map; blocks in use stay in use. Returns how many blocks lost their prefix."""
        published = [(block, prefix) for block, prefix in enumerate(self._prefixes) if prefix is not None]
        for block, prefix in published:
            queue = self._queue(block) if self._ref_counts[block] == 0 else None
            self._unpublish(block, prefix)
            if queue is not None and queue is not self._free:
                del queue[block]
                self._enqueue(block)
        return len(published)

    def _unpublish(self, block: int, prefix: BlockPrefix) -> None:
        del self._by_key[prefix.key]
        self._prefixes[block] = None
        self._note_state(block)

    def _note_state(self, block: int) -> None:
        self._states[block] = self._state(block)

    def _state(self, block: int) -> BlockState:
        users = self._ref_counts[block]
        if users:
            return BlockState.SHARED if users > 1 else BlockState.USED
        if block == NULL_BLOCK:
            return BlockState.NULL
        return BlockState.CACHED if self._prefixes[block] is not None else BlockState.FREE

    def check_invariants(self) -> None:
        """Audits the books: every block is null, free or used, and the prefix map agrees with the blocks.

        Raises:
            RuntimeError: something does not add up.
        """
        idle = Counter(itertools.chain(self._free, self._in_view, self._pinned))
        problems = [
            f"block {block} has {count} users but is {'free' if block in idle else 'not free'}"
            for block, count in enumerate(self._ref_counts)
            if block != NULL_BLOCK and idle[block] != (count == 0)
        ]
        if any(block not in self._queue(block) for block in idle):
            problems.append("a block is in another queue than its prefix wants")
        if NULL_BLOCK in idle or self._ref_counts[NULL_BLOCK] or self._prefixes[NULL_BLOCK] is not None:
            problems.append("the null block is in use")
        published = {prefix.key: block for block, prefix in enumerate(self._prefixes) if prefix is not None}
        if published != self._by_key:
            problems.append("the prefix map and the blocks disagree")
        if self._states != bytes(self._state(block) for block in range(self.num_blocks)):
            problems.append("the states and the blocks disagree")
        if problems:
            raise RuntimeError("; ".join(problems))
