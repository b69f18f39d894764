"""transformers' `generate` on the workloads: one request after another, or in static batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from benchmarks.workloads import Request
from chatpaged.engine.model_executor.models.hf import silence_transformers


class TransformersPeer:
    """The model in float32; greedy, end tokens ignored."""

    def __init__(self, directory: Path) -> None:
        silence_transformers()
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        self._model = load(directory, dtype=torch.float32, local_files_only=True).eval()
        self._model.generation_config.eos_token_id = None

    def generate(self, requests: Sequence[Request]) -> list[list[int]]:
        """Runs requests as one batch, left-padded, as long as its longest answer. Returns what each asked for."""
        length = max(len(request.prompt) for request in requests)
        pads = [length - len(request.prompt) for request in requests]
        new_tokens = max(request.new_tokens for request in requests)
        with torch.inference_mode():
            output = self._model.generate(
                torch.tensor([[0] * pad + list(request.prompt) for pad, request in zip(pads, requests, strict=True)]),
                attention_mask=torch.tensor([[0] * pad + [1] * (length - pad) for pad in pads]),
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                pad_token_id=0,
            )
        return [row[length : length + request.new_tokens] for row, request in zip(output.tolist(), requests, strict=True)]

    def one_by_one(self, requests: Sequence[Request]) -> list[list[int]]:
        """One request after another."""
        return [self.generate([request])[0] for request in requests]

    def static_batches(self, requests: Sequence[Request], size: int = 16) -> list[list[int]]:
        """Batches of `size` in order of arrival."""
        return [answer for begin in range(0, len(requests), size) for answer in self.generate(requests[begin : begin + size])]
