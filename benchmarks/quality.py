"""What smaller weights and a smaller KV cache cost: perplexity of a text, and how often the likeliest token stays the same.

python -m benchmarks.quality [--model DIR] [--quantize none,fp16,int8,int4] [--kv-dtype fp32,fp16,int8] [--text FILE] [--json OUT]

Every kind of weights is measured with every kind of KV cache; all are compared with the first. The text is cut into windows of
1,024 tokens, which know nothing of each other; perplexity is over all tokens but the first of each window. `ratio` is to the
first's perplexity; `±` is the standard error of its logarithm, from the differences token by token: a ratio that is off 1 by
less says nothing. `same token %` is the share of positions at which the likeliest token is that of the first.

Windows are computed in chunks of 64 tokens, as prompts are; all attend to keys and values as the KV cache has them.
`--chunk 1` takes the way of generated tokens, which gives the same logits on the native path; it is slow.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import machine, save, show
from chatpaged.engine.config import DEFAULT_BLOCK_SIZE, EngineConfig
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.scheduler_output import SampleRow, ScheduledRow, SchedulerOutput
from chatpaged.engine.tokenizer import Tokenizer
from chatpaged.model_files import resolve_model

TEXT = Path(__file__).parent / "texts" / "public_domain.txt"
_GREEDY = SampleRow(index=0, position=0, temperature=0, top_k=0, top_p=1, uniform=0)
_ROWS = 256  # of float64 logits at once


@dataclass(frozen=True, slots=True)
class Measured:
    """What one model makes of the text.

    Attributes:
        losses: `[tokens but the first of each window]` float64, minus the log-probability of each.
        likeliest: `[tokens]`, the token expected after each.
    """

    losses: torch.Tensor
    likeliest: torch.Tensor

    @property
    def perplexity(self) -> float:
        """The exponential of the mean loss."""
        return math.exp(self.losses.mean().item())


# --- all that knows the engine -------------------------------------------------------------------------------------------


def make_config(quantize: str, kv_dtype: str, window: int, threads: int) -> EngineConfig:
    """Room for one window."""
    blocks = -(-window // DEFAULT_BLOCK_SIZE)
    return EngineConfig(quantize=quantize, kv_dtype=kv_dtype, threads=threads, max_model_len=window, kv_blocks=blocks)


def logits_of(runner: ModelRunner, token_ids: Sequence[int], chunk: int) -> torch.Tensor:
    """Logits `[n, vocab]` after each token of a text that begins with the first; computed `chunk` tokens at a time."""
    model, kv_cache, device = runner._model, runner._kv_cache, runner._device  # noqa: SLF001 - samples are all it gives away
    block_size = kv_cache.layout.block_size
    pieces = []
    for begin in range(0, len(token_ids), chunk):
        part = tuple(token_ids[begin : begin + chunk])
        end = begin + len(part)
        row = ScheduledRow(0, part, begin, tuple(range(1, -(-end // block_size) + 1)), (_GREEDY,))
        with torch.inference_mode():
            batch = InputBatch.build(SchedulerOutput(0, (row,), ()), block_size, device)
            batch = replace(batch, logits_rows=torch.arange(len(part), device=device))
            pieces.append(model.forward(batch, kv_cache).values)
    return torch.cat(pieces)


# --- measuring -----------------------------------------------------------------------------------------------------------


def measure(runner: ModelRunner, windows: Sequence[Sequence[int]], chunk: int) -> Measured:
    """Runs all windows."""
    losses, likeliest = [], []
    for window in windows:
        logits = logits_of(runner, window, chunk)
        following = torch.tensor(window[1:], device=logits.device)
        for begin in range(0, len(following), _ROWS):
            rows, tokens = logits[:-1][begin : begin + _ROWS].double(), following[begin : begin + _ROWS]
            losses.append(torch.nn.functional.cross_entropy(rows, tokens, reduction="none").cpu())
        likeliest.append(logits.argmax(dim=-1).cpu())
    return Measured(torch.cat(losses), torch.cat(likeliest))


def compare(measured: Measured, first: Measured) -> dict[str, float]:
    """The figures of a table's row."""
    differences = measured.losses - first.losses
    return {
        "perplexity": measured.perplexity,
        "ratio": measured.perplexity / first.perplexity,
        "±": (differences.std() / math.sqrt(len(differences))).item(),
        "same token %": 100 * (measured.likeliest == first.likeliest).double().mean().item(),
    }


def cut(directory: Path, text: str, window: int) -> list[list[int]]:
    """Token ids of the windows, each with the tokenizer's begin token where it has one; without a last one of less than a quarter."""
    tokenizer = Tokenizer.from_directory(directory)
    leading, ids = list(tokenizer.leading_ids), tokenizer.encode(text)
    size = window - len(leading)
    pieces = [ids[begin : begin + size] for begin in range(0, len(ids), size)]
    if len(pieces) > 1 and len(pieces[-1]) < size // 4:
        pieces.pop()
    return [leading + piece for piece in pieces]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="model directory (default: the starter model)")
    parser.add_argument("--quantize", default="none,fp16,int8,int4", help="comma list of kinds of weights")
    parser.add_argument("--kv-dtype", default="fp32,fp16,int8", help="comma list of kinds of KV cache")
    parser.add_argument("--text", type=Path, default=TEXT)
    parser.add_argument("--window", type=int, default=1024, help="tokens")
    parser.add_argument("--chunk", type=int, default=64, help="tokens computed at a time")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    kinds = list(product(args.quantize.split(","), args.kv_dtype.split(",")))
    configs = [make_config(*kind, args.window, args.threads) for kind in kinds]  # refused before minutes pass
    directory = resolve_model(args.model, print)
    windows = cut(directory, args.text.read_text(encoding="utf-8"), args.window)
    print(machine())
    print(f"\n{args.text.name}: {sum(map(len, windows)):,} tokens, {len(windows)} windows of at most {args.window:,}\n")
    rows: list[dict[str, Any]] = []
    first: Measured | None = None
    for (quantize, kv_dtype), config in zip(kinds, configs, strict=True):
        begin = time.perf_counter()
        runner = ModelRunner.load(directory, config)
        measured = measure(runner, windows, args.chunk)
        runner.close()
        first = first if first is not None else measured
        seconds = time.perf_counter() - begin
        rows.append({"weights": quantize, "KV cache": kv_dtype, **compare(measured, first), "seconds": seconds})
    show([{**row, "ratio": f"{row['ratio']:.4f}", "±": f"{row['±']:.4f}"} for row in rows])
    save(args.json, {"text": args.text.name, "window": args.window, "chunk": args.chunk, "rows": rows})


if __name__ == "__main__":
    main()
