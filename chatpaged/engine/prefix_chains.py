"""What the full blocks of token sequences are published as: chains of keys from a root."""

from __future__ import annotations

from collections.abc import Sequence as Items

from chatpaged.engine.block_pool import BlockPrefix, chain, root_key
from chatpaged.engine.sequence import Keep, Sequence


class PrefixChains:
    """The chains of sequences. Prefixes never change, so they are kept as long as their sequence."""

    def __init__(self, block_size: int, fingerprint: bytes) -> None:
        self._block_size = block_size
        self._fingerprint = fingerprint
        self._chains: dict[int, list[BlockPrefix]] = {}

    def of_sequence(self, sequence: Sequence, num_blocks: int) -> list[BlockPrefix]:
        """The first `num_blocks` prefixes of a sequence, whose tokens are all known."""
        prefixes = self._chains.setdefault(sequence.seq_id, [])
        group = sequence.group
        self._extend(prefixes, sequence.token_ids, num_blocks, group.salt, is_private=bool(group.salt) or group.keep is Keep.MEMORY)
        return prefixes[:num_blocks]

    def of_tokens(self, token_ids: Items[int], salt: bytes) -> tuple[BlockPrefix, ...]:
        """The prefixes of all full blocks of tokens that need not be a sequence of the engine."""
        prefixes: list[BlockPrefix] = []
        self._extend(prefixes, token_ids, len(token_ids) // self._block_size, salt, is_private=bool(salt))
        return tuple(prefixes)

    def forget(self, sequence: Sequence) -> None:
        """Drops what is kept for a sequence."""
        self._chains.pop(sequence.seq_id, None)

    def _extend(self, prefixes: list[BlockPrefix], token_ids: Items[int], num_blocks: int, salt: bytes, *, is_private: bool) -> None:
        parent = prefixes[-1].key if prefixes else root_key(self._fingerprint, salt)
        for i in range(len(prefixes), num_blocks):
            own = tuple(token_ids[i * self._block_size : (i + 1) * self._block_size])
            prefix = chain(parent, own, i, is_private=is_private)
            prefixes.append(prefix)
            parent = prefix.key
