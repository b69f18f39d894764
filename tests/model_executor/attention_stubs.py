"""Stand-ins for flash-attn 2.8.3 and for `torch.nn.attention.varlen` of two releases, in plain torch on the CPU.

They have the libraries' signatures and demands, and fail where those fail; what is computed is the formula, in float32 at least.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import torch

HALVES = frozenset({torch.float16, torch.bfloat16})
PAGE_MULTIPLE = 256


def demand(met: bool, text: str) -> None:
    """What the libraries check in C++."""
    if not met:
        raise RuntimeError(text)


@dataclass
class Sums:
    """One sequence after another.

    Attributes:
        dtypes: what is taken.
        top_left: a mistake: later keys are hidden as if the first query were that of the first key.
        excess: a mistake: so many tokens more in each window.
        base_two: a mistake: logarithms of another base.
    """

    dtypes: frozenset[torch.dtype] = HALVES
    top_left: bool = False
    excess: int = 0
    base_two: bool = False

    def check(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Types, shapes and places in memory. The shape of keys is `[..., kv_heads, dim]`."""
        demand(query.dtype in self.dtypes, "FlashAttention only support fp16 and bf16 data type")
        demand(key.dtype == query.dtype, "query and key must have the same dtype")
        demand(value.dtype == query.dtype, "query and value must have the same dtype")
        for tensor in (query, key, value):
            demand(tensor.stride(-1) == 1, "Input tensor must have contiguous last dimension")
            demand(tensor.data_ptr() % 16 == 0 and not any(stride % 8 for stride in tensor.stride()[:-1]), "misaligned address")
        dim = query.shape[-1]
        demand(dim <= 256, "FlashAttention forward only supports head dimension at most 256")
        demand(dim % 8 == 0, "head_size must be a multiple of 8")
        demand(key.shape[-1] == dim and value.shape == key.shape, "k must have shape (total_k, num_heads_k, head_size)")
        demand(query.shape[-2] % key.shape[-2] == 0, "Number of heads in key/value must divide number of heads in query")

    def one(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float, window: tuple[int, int], softcap: float = 0.0
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One sequence, `[length, heads, dim]` each; a window's ends count. Gives `[Q, heads, dim]` and sums' logarithms, `[heads, Q]`."""
        num_queries, num_keys, groups = len(query), len(key), query.shape[1] // key.shape[1]
        wide = torch.promote_types(query.dtype, torch.float32)
        keys, values = (tensor.to(wide).repeat_interleave(groups, dim=1) for tensor in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query.to(wide), keys) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        offset = 0 if self.top_left else num_keys - num_queries
        distance = torch.arange(num_queries).unsqueeze(1) + offset - torch.arange(num_keys)
        hidden = torch.zeros(num_queries, num_keys, dtype=torch.bool)
        if window[0] >= 0:
            hidden |= distance > window[0] + self.excess
        if window[1] >= 0:
            hidden |= distance < -window[1]
        scores = scores.masked_fill(hidden, -torch.inf)
        sums = torch.logsumexp(scores, -1)
        out = torch.einsum("hqk,khd->qhd", torch.softmax(scores, -1).nan_to_num(0.0), values)
        return out.to(query.dtype), sums / torch.log(torch.tensor(2.0)) if self.base_two else sums


def check_lengths(cu_seqlens: torch.Tensor, longest: int, total: int | None, what: str) -> list[int]:
    """Where sequences begin. A library would read beyond its tensors where this raises."""
    demand(cu_seqlens.dtype == torch.int32, f"cu_seqlens_{what} must have dtype int32")
    demand(cu_seqlens.is_contiguous(), f"cu_seqlens_{what} must be contiguous")
    begins: list[int] = cu_seqlens.tolist()
    counts = [after - before for before, after in pairwise(begins)]
    demand(len(counts) > 0, "batch size must be positive")
    demand(begins[0] == 0 and total in {begins[-1], None} and min(counts) > 0, f"cu_seqlens_{what} does not fit the tensors")
    demand(type(longest) is int and longest == max(counts), f"max_seqlen_{what} is {longest}, not {max(counts)}")
    return begins


@dataclass
class FlashStub:
    """What `import flash_attn` would give. `calls` names its functions in the order in which they were called."""

    sums: Sums = field(default_factory=Sums)
    calls: list[str] = field(default_factory=list)

    def flash_attn_varlen_func(  # noqa: PLR0917 - flash-attn's signature
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cu_seqlens_q: torch.Tensor,
        cu_seqlens_k: torch.Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        block_table: torch.Tensor | None = None,
    ) -> Any:
        self.calls.append("varlen" if block_table is None else "varlen in place")
        self.sums.check(q, k, v)
        begins_q = check_lengths(cu_seqlens_q, max_seqlen_q, len(q), "q")
        begins_k = check_lengths(cu_seqlens_k, max_seqlen_k, None if block_table is not None else len(k), "k")
        demand(len(begins_q) == len(begins_k), "cu_seqlens_k must have shape (batch_size + 1)")
        window = (window_size[0], 0 if causal else window_size[1])
        outs, sums = [], []
        for i in range(len(begins_q) - 1):
            span = slice(begins_k[i], begins_k[i + 1])
            keys, values = (k[span], v[span]) if block_table is None else _pages(k, v, block_table, i, span.stop - span.start)
            out, logarithms = self.sums.one(
                q[begins_q[i] : begins_q[i + 1]], keys, values, softmax_scale or q.shape[-1] ** -0.5, window, softcap
            )
            if block_table is not None and max_seqlen_q == 1 and i > 0:  # flash-attention#1217: only the first sequence is written
                out = torch.full_like(out, torch.nan)
            outs.append(out)
            sums.append(logarithms)
        return (torch.cat(outs), torch.cat(sums, dim=1), None) if return_attn_probs else torch.cat(outs)

    def flash_attn_with_kvcache(  # noqa: PLR0917 - likewise
        self,
        q: torch.Tensor,
        k_cache: torch.Tensor,
        v_cache: torch.Tensor,
        k: torch.Tensor | None = None,
        v: torch.Tensor | None = None,
        rotary_cos: torch.Tensor | None = None,
        rotary_sin: torch.Tensor | None = None,
        cache_seqlens: Any = None,
        cache_batch_idx: torch.Tensor | None = None,
        cache_leftpad: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        softcap: float = 0.0,
        rotary_interleaved: bool = True,
        alibi_slopes: torch.Tensor | None = None,
        num_splits: int = 0,
        return_softmax_lse: bool = False,
    ) -> Any:
        self.calls.append("kvcache")
        self.sums.check(q, k_cache, v_cache)
        assert k is None
        assert block_table is not None
        assert isinstance(cache_seqlens, torch.Tensor)
        batch, length = q.shape[:2]
        demand(cache_seqlens.dtype == torch.int32, "seqlens_k must have dtype int32")
        demand(cache_seqlens.is_contiguous() and cache_seqlens.shape == (batch,), "seqlens_k must have shape (batch_size)")
        window = (window_size[0], 0 if causal and length > 1 else window_size[1])
        outs, sums = [], []
        for i in range(batch):
            keys, values = _pages(k_cache, v_cache, block_table, i, int(cache_seqlens[i]))
            out, logarithms = self.sums.one(q[i], keys, values, softmax_scale or q.shape[-1] ** -0.5, window, softcap)
            outs.append(out)
            sums.append(logarithms)
        return (torch.stack(outs), torch.stack(sums)) if return_softmax_lse else torch.stack(outs)


def _pages(keys: torch.Tensor, values: torch.Tensor, block_table: torch.Tensor, row: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    demand(block_table.dtype == torch.int32, "block_table must have dtype torch.int32")
    demand(block_table.stride(-1) == 1, "block_table must have contiguous last dimension")
    page_size = keys.shape[1]
    demand(page_size % PAGE_MULTIPLE == 0, "Paged KV cache block size must be divisible by 256")
    pages = block_table[row, : -(-length // page_size)].tolist()
    return torch.cat([keys[page] for page in pages])[:length], torch.cat([values[page] for page in pages])[:length]


class _AuxRequest(NamedTuple):
    lse: bool = False


@dataclass
class VarlenStub211:
    """The module `torch.nn.attention.varlen` of torch 2.11."""

    sums: Sums = field(default_factory=Sums)
    AuxRequest: Any = _AuxRequest

    def varlen_attn(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor,
        max_q: int,
        max_k: int,
        *,
        return_aux: _AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
    ) -> Any:
        self.sums.check(query, key, value)
        begins_q, begins_k = check_lengths(cu_seq_q, max_q, len(query), "q"), check_lengths(cu_seq_k, max_k, len(key), "k")
        demand(len(begins_q) == len(begins_k), "cu_seqlens_k must have shape (batch_size + 1)")
        parts = []
        for i in range(len(begins_q) - 1):
            of_q, of_k = slice(*begins_q[i : i + 2]), slice(*begins_k[i : i + 2])
            parts.append(self.sums.one(query[of_q], key[of_k], value[of_k], scale or query.shape[-1] ** -0.5, window_size))
        out = torch.cat([part for part, _ in parts])
        return (out, torch.cat([sums for _, sums in parts], dim=1)) if return_aux is not None and return_aux.lse else out


class VarlenStub213(VarlenStub211):
    """That of torch 2.12 and 2.13."""

    def varlen_attn(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cu_seq_q: torch.Tensor,
        cu_seq_k: torch.Tensor | None,
        max_q: int,
        max_k: int,
        *,
        return_aux: _AuxRequest | None = None,
        scale: float | None = None,
        window_size: tuple[int, int] = (-1, -1),
        enable_gqa: bool = False,
        seqused_k: torch.Tensor | None = None,
        block_table: torch.Tensor | None = None,
        num_splits: int | None = None,
    ) -> Any:
        assert seqused_k is None
        assert block_table is None
        assert cu_seq_k is not None
        if not enable_gqa and query.shape[1] != key.shape[1]:
            raise ValueError("Expect query and key/value to have the same number of heads")
        demand(num_splits == 1, "splits give NaN once in a while")
        return super().varlen_attn(
            query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, return_aux=return_aux, scale=scale, window_size=window_size
        )
