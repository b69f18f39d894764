"""Measurements behind two choices in the model executor, on this machine's CPU.

python -m benchmarks.building_blocks [--threads N] [--json OUT]

1. Linear layers with few rows: `F.linear` against the transposed product of `models/few_rows.py`.
2. Attention of decoding rows over block-major storage: copying blocks out, against reading a run of blocks in place, where each
   block is an element of a batch and the partial softmax sums are merged.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from benchmarks.report import machine, save, show
from chatpaged.engine.model_executor.models.few_rows import MAX_ROWS, few_rows_linear

COLD_BYTES = 2**27
"""Weights are cycled through this much memory, so that they do not come from a processor cache."""


def milliseconds(function: Callable[[], object], repeats: int = 30) -> float:
    """Median time of a call, after two warm-up calls."""
    times = []
    for _ in range(repeats + 2):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return 1e3 * median(times[2:])


def linears() -> list[dict[str, Any]]:
    """Shapes of the starter model and of a model of a billion parameters."""
    rows: list[dict[str, Any]] = []
    for inputs, outputs in ((576, 576), (576, 1536), (1536, 576), (576, 49_152), (2048, 2048), (2048, 8192)):
        layers = [torch.nn.Linear(inputs, outputs, bias=False) for _ in range(max(1, COLD_BYTES // (4 * inputs * outputs)))]
        for count in range(1, MAX_ROWS + 1):
            x = torch.randn(count, inputs)
            plain = milliseconds(lambda x=x: [F.linear(x, layer.weight) for layer in layers]) / len(layers)  # type: ignore[misc]
            fast = milliseconds(lambda x=x: [few_rows_linear(layer, x) for layer in layers]) / len(layers)  # type: ignore[misc]
            rows.append(
                {"linear": f"{inputs} to {outputs}", "rows": count, "F.linear ms": plain, "transposed ms": fast, "ratio": plain / fast}
            )
    return rows


def attentions() -> list[dict[str, Any]]:
    """One layer of the starter model: 9 query heads, 3 KV heads of 64, blocks of 16."""
    layers, size, heads, dim, groups = 30, 16, 3, 64, 3
    rows: list[dict[str, Any]] = []
    for batch, context in ((1, 256), (1, 4096), (16, 1024), (32, 400)):
        count = context // size
        pool = torch.randn(batch * count + 1, layers, 2, size, heads, dim)
        flat = pool.view(-1, size * heads * dim)
        query = torch.randn(batch, heads * groups, 1, dim)
        blocks = torch.arange(1, batch * count + 1)
        index = torch.cat((blocks * 2 * layers, blocks * 2 * layers + 1))

        def copied() -> torch.Tensor:
            key, value = torch.index_select(flat, 0, index + 2).view(2, batch, context, heads, dim).transpose(2, 3)
            return F.scaled_dot_product_attention(query, key, value, enable_gqa=True)

        def in_place() -> torch.Tensor:
            outputs = []
            for row in range(batch):
                run = pool[1 + row * count : 1 + (row + 1) * count, 1]
                part, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001 - gives the sums too
                    query[row : row + 1].expand(count, -1, -1, -1), run[:, 0].transpose(1, 2), run[:, 1].transpose(1, 2)
                )
                outputs.append((part * torch.softmax(sums, 0).unsqueeze(-1)).sum(0))
            return torch.stack(outputs)

        torch.testing.assert_close(copied(), in_place(), rtol=1e-3, atol=1e-4)
        first, second = milliseconds(copied), milliseconds(in_place)
        rows.append({"attention": f"{batch} x {context}", "copied ms": first, "in place ms": second, "ratio": second / first})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    print(machine())
    with torch.inference_mode():
        result = {"linears": linears(), "attentions": attentions()}
    for rows in result.values():
        print()
        show(rows)
    save(args.json, result)


if __name__ == "__main__":
    main()
