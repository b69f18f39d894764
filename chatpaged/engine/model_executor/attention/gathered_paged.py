"""Paged attention of a library's kernel for packed sequences: keys and values are copied out of the pool, token by token.

```text
query   [ a17 a18 | b5 | c0 c1 c2 ]                   cu_q [0 2 3 6]
key     [ a0 ... a18 | b0 ... b5 | c0 c1 c2 ]         cu_k [0 19 25 28]      with a window only what somebody attends to
```

Tokens are copied and nothing else, so what lies in a block beyond a sequence's end is never read. Where all sequences of a step begin in
it, nothing is copied: their keys and values are the ones just computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.attention.step_rows import StepRows
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.kv_cache import KVCache

MAX_HEAD_DIM = 256
DTYPES = (torch.float16, torch.bfloat16)
DIM_MULTIPLE = 8
"""Kernels of FlashAttention read 16 bytes at a time."""
_MIN_CAPABILITY = (8, 0)
TRIED_OPTIONS = (AttentionOptions(), AttentionOptions(scale=0.3, window=5, sinks=torch.tensor([0.5])))
"""What a kernel is tried with: the direction of its windows and of its sums' logarithms are easily mistaken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedLengths:
    """Where N sequences lie in packed queries and keys.

    Attributes:
        cu_q: int32 `[N + 1]`, where the queries of each begin.
        cu_k: int32 `[N + 1]`, where the keys of each begin; the last query of each belongs to its last key.
        max_q: most queries of one.
        max_k: most keys of one.
    """

    cu_q: torch.Tensor
    cu_k: torch.Tensor
    max_q: int
    max_k: int


PackedAttention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, PackedLengths, AttentionOptions], tuple[torch.Tensor, torch.Tensor | None]
]
"""Causal attention of query `[Tq, heads, dim]`, key and value `[Tk, kv_heads, dim]`, whose scale is given; sinks are none of its business.

Gives `[Tq, heads, dim]` and, where the options have sinks, the natural logarithm of each softmax's sum, `[heads, Tq]`.
"""


def packed_problem(device: torch.device, dtype: torch.dtype, head_dim: int = 0) -> str | None:
    """Why no kernel of FlashAttention can run, whatever library it is from, or None.

    Args:
        device: where it would run.
        dtype: of queries, keys and values.
        head_dim: the most of any layer; 0 if that is not known yet.
    """
    problem = device_problem(device)
    if problem is not None:
        return problem
    if dtype not in DTYPES:
        return f"its kernels have no {str(dtype).removeprefix('torch.')}"
    return f"heads of {head_dim} dimensions, more than {MAX_HEAD_DIM}" if head_dim > MAX_HEAD_DIM else None


def device_problem(device: torch.device) -> str | None:
    """What speaks against a device, or None."""
    if device.type != "cuda":
        return f"its kernels run on CUDA, this is {device.type}"
    capability = torch.cuda.get_device_capability(device)
    if capability < _MIN_CAPABILITY:
        return f"its kernels need compute capability 8.0, this is {capability[0]}.{capability[1]}"
    return None


@dataclass(frozen=True, slots=True)
class _Plan:
    """What to attend to; the same for all layers with the same window.

    Attributes:
        lengths: where the sequences lie.
        slots: `[2, Tk]`, the keys and the values to copy, in layer 0; None when all of them belong to this step.
    """

    lengths: PackedLengths
    slots: torch.Tensor | None


class GatheredPagedAttention:
    """One step's attention. Satisfies `PagedAttention`."""

    def __init__(self, batch: InputBatch, kv_cache: KVCache, kernel: PackedAttention) -> None:
        self._spans = batch.spans
        self._kv_cache = kv_cache
        self._kernel = kernel
        self._rows = StepRows.build(batch, kv_cache.layout.block_size)
        self._slot_index = kv_cache.slot_index(batch.slot_blocks, batch.slot_offsets)
        self._plans: dict[int | None, _Plan] = {}

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        self._kv_cache.write(layer, key, value, self._slot_index)
        plan = self._plans.get(options.window)
        if plan is None:
            plan = self._plans[options.window] = self._make_plan(options.window)
        keys, values = key, value
        if plan.slots is not None:
            gathered = self._kv_cache.gather_slots(layer, plan.slots)
            keys, values = (part[:, : new.shape[1], : new.shape[2]] for part, new in zip(gathered, (key, value), strict=True))
        # Some kernels take one dimension for all three, a multiple of 8. Zeros change no score, and make columns that are cut off again.
        dim = round_up(max(key.shape[2], value.shape[2]), DIM_MULTIPLE)
        attended, sums = self._kernel(fit(query, dim), fit(keys, dim), fit(values, dim), plan.lengths, with_scale(options, query.shape[2]))
        return add_sinks(attended, sums, options.sinks)[..., : value.shape[2]]

    def _make_plan(self, window: int | None) -> _Plan:
        spans = self._spans
        firsts = [0 if window is None else max(0, span.start + 1 - window) for span in spans]
        counts = [span.num_keys - first for span, first in zip(spans, firsts, strict=True)]
        begins = list(accumulate(counts, initial=0))
        cu_k = self._rows.cu_q
        slots = None
        if any(span.start for span in spans):
            cu_k, slots = self._place(begins, firsts)
        lengths = PackedLengths(cu_q=self._rows.cu_q, cu_k=cu_k, max_q=max(span.length for span in spans), max_k=max(counts))
        return _Plan(lengths, slots)

    def _place(self, begins: list[int], firsts: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """On the device, with one transfer and no waiting: where keys of each sequence begin, and the slots of all of them.

        Args:
            begins: place of each sequence's first key among all of them, and how many there are.
            firsts: position of that key in its sequence.
        """
        device = self._rows.cu_q.device
        numbers = torch.tensor(begins + firsts, dtype=torch.int32).to(device)
        cu_k = numbers[: len(begins)]
        places = torch.arange(begins[-1], device=device, dtype=torch.int32)
        row = torch.searchsorted(cu_k[1:], places, right=True, out_int32=True)
        positions = places - (cu_k[:-1] - numbers[len(begins) :])[row]
        block_size = self._kv_cache.layout.block_size
        blocks = self._rows.block_table[row, positions // block_size]
        return cu_k, self._kv_cache.slot_index(blocks.long(), positions % block_size)


def round_up(number: int, multiple: int) -> int:
    """The least multiple that is no less."""
    return -(-number // multiple) * multiple


def fit(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    """Makes heads `dim` wide, with zeros, and lays them out so that each can be read 16 bytes at a time."""
    if tensor.shape[-1] != dim:
        return F.pad(tensor, (0, dim - tensor.shape[-1]))
    aligned = tensor.data_ptr() % 16 == 0 and not any(stride % DIM_MULTIPLE for stride in tensor.stride()[:-1])
    return tensor if aligned and tensor.stride(-1) == 1 else tensor.clone(memory_format=torch.contiguous_format)


def with_scale(options: AttentionOptions, dim: int) -> AttentionOptions:
    """The same with the scale that they stand for, which depends on the dimensions of a head before any are added."""
    if options.scale is not None:
        return options
    return AttentionOptions(scale=dim**-0.5, window=options.window, softcap=options.softcap, sinks=options.sinks)


def add_sinks(attended: torch.Tensor, sums: torch.Tensor | None, sinks: torch.Tensor | None) -> torch.Tensor:
    """Lets sinks take part in softmaxes that are over: with `l` the logarithm of a sum, its share was `e^l / (e^l + e^sink)` of all.

    Args:
        attended: `[T, heads, dim]`.
        sums: natural logarithms of the softmaxes' sums, `[heads, T]`; only needed with sinks.
        sinks: `[heads]` or None.
    """
    if sinks is None or sums is None:
        return attended
    share = torch.sigmoid(sums.float() - sinks.float().unsqueeze(1)).t().unsqueeze(2)
    return (attended * share).to(attended.dtype)
