"""What transformers says to the starter model's greedy answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

TIE = 1e-3
"""Logits closer than this may change places by rounding alone."""


class GreedyReference:
    """transformers' own model, float32, eager attention."""

    def __init__(self, directory: Path) -> None:
        load: Any = transformers.AutoModelForCausalLM.from_pretrained
        self.model = load(directory, dtype=torch.float32, attn_implementation="eager").eval()

    def generate(self, prompt: Sequence[int], num_tokens: int) -> list[int]:
        """The answer of `generate`."""
        ids = torch.tensor([list(prompt)])
        with torch.inference_mode():
            output = self.model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=num_tokens, do_sample=False, eos_token_id=None, pad_token_id=0
            )
        return [int(token) for token in output[0, len(prompt) :]]

    def disagreements(self, prompt: Sequence[int], answer: Sequence[int]) -> list[tuple[int, float]]:
        """Where an answer is not the greedy one, given what comes before: position, and how much the chosen logit falls short.

        One forward pass over the whole: if there are none, `generate` gives exactly this answer.
        """
        with torch.inference_mode():
            logits = self.model(torch.tensor([[*prompt, *answer]])).logits[0, len(prompt) - 1 : -1]
        best = logits.max(dim=-1).values
        chosen = logits.gather(1, torch.tensor(answer).unsqueeze(1)).squeeze(1)
        gaps = (best - chosen).tolist()
        return [(position, gap) for position, gap in enumerate(gaps) if gap > 0]
