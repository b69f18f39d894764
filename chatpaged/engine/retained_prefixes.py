"""Which prefixes stay when blocks are wanted: those that are pinned, and those of the chat in view."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from chatpaged.engine.block_pool import BlockPool, BlockPrefix, Retention

PINNED_SHARE = 4
"""One block in so many may be pinned."""


@dataclass(frozen=True, slots=True)
class PrefixKeys:
    """What the full blocks of a token sequence are published as, from its beginning on."""

    prefixes: tuple[BlockPrefix, ...]

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The keys alone."""
        return tuple(prefix.key for prefix in self.prefixes)


@dataclass(frozen=True, slots=True)
class PinResult:
    """What became of a wish to pin.

    Attributes:
        wanted: full blocks of the token sequence.
        pinned: of these, the first so many that are pinned now: no more fit the share of the pool that may be.
        total: blocks that are pinned under all names.
        limit: blocks that may be.
    """

    wanted: int
    pinned: int
    total: int
    limit: int


class RetainedPrefixes:
    """What a pool is told to retain.

    Attributes:
        pin_yields: pinned blocks that were given up, as one request needed nearly the whole pool.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._pins: dict[str, tuple[BlockPrefix, ...]] = {}
        self._in_view: tuple[bytes, ...] = ()
        self._yields = False
        self.pin_yields = 0

    def look_at(self, prefixes: PrefixKeys | None) -> None:
        """Says which chat is in view: its blocks go last from now on. The one before counts as used just now.

        Args:
            prefixes: of the chat; None is no chat.
        """
        self._in_view = prefixes.keys if prefixes is not None else ()
        self._retain()

    def pin(self, name: str, prefixes: PrefixKeys) -> PinResult:
        """Keeps the beginning of a token sequence: its blocks are never evicted, once they are there.

        Args:
            name: whose it is; takes the place of what was pinned under this name.
            prefixes: what to keep. At most a quarter of the pool can be pinned.
        """
        self._pins.pop(name, None)
        limit = self._pool.num_usable // PINNED_SHARE
        others = {prefix.key for prefixes in self._pins.values() for prefix in prefixes}
        keys = prefixes.keys
        fit = 0
        room = limit - len(others)
        while fit < len(keys) and (keys[fit] in others or room > 0):
            room -= keys[fit] not in others
            fit += 1
        if fit:
            self._pins[name] = prefixes.prefixes[:fit]
        self._yields = False
        self._retain()
        return PinResult(len(keys), fit, len(others.union(keys[:fit])), limit)

    def unpin(self, name: str) -> bool:
        """Lets go of what is pinned under a name. Returns whether anything was."""
        found = self._pins.pop(name, None) is not None
        self._retain()
        return found

    def pins(self) -> dict[str, int]:
        """Blocks that are to be kept, by name; some may not have been computed yet."""
        return {name: len(prefixes) for name, prefixes in self._pins.items()}

    def yield_pins(self) -> bool:
        """Lets pinned blocks go: a request that has the pool for itself needs them. They are pinned again with `restore_pins`.

        Returns whether there were any.
        """
        if self._yields or not self._pool.num_pinned:
            return False
        self._yields = True
        self.pin_yields += self._pool.num_pinned
        self._retain()
        return True

    def restore_pins(self) -> tuple[BlockPrefix, ...]:
        """Nobody needs the whole pool any more. Returns what had been given up, each pin from its beginning on."""
        if not self._yields:
            return ()
        self._yields = False
        self._retain()
        return tuple(itertools.chain.from_iterable(self._pins.values()))

    def _retain(self) -> None:
        levels = dict.fromkeys(self._in_view, Retention.IN_VIEW)
        if not self._yields:
            levels.update((prefix.key, Retention.PINNED) for prefixes in self._pins.values() for prefix in prefixes)
        self._pool.retain(levels)
