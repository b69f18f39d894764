"""Tiny models of many families with random weights, their answers by engines, and what transformers makes of these answers."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import rmtree
from typing import Any

import torch
import transformers

from benchmarks.gpu.models import write_tokenizer
from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.outputs import TokenLogprobs
from chatpaged.engine.sampling_params import SamplingParams
from tests.model_executor.architectures import ARCHITECTURES, VOCAB_SIZE, build_config
from tests.model_executor.logits import randomize

hf: Any = transformers
# Sizes that kernels for GPUs take: heads as narrow as those of tests on a CPU are nobody's.
_SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    **{name: ARCHITECTURES[name] | _SIZES for name in ("llama", "qwen3", "mistral", "gemma2", "gemma3_text", "gpt_oss", "qwen3_moe")},
    # What they have to be the same size in is not named alike.
    **{name: ARCHITECTURES[name] for name in ("phi3", "olmo2", "deepseek_v3")},
}
"""Model types, with what their configuration needs beyond the usual sizes: windows, softcaps, sinks, experts, values narrower than keys."""
TOP = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """One request's prompt, and what an engine answered greedily, with the likeliest tokens at each place."""

    prompt: tuple[int, ...]
    places: tuple[TokenLogprobs, ...]

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer."""
        return tuple(place.token_id for place in self.places)


def write_family(name: str, directory: Path) -> Path:
    """Writes a model directory, unless it is there. Its logits are of order one, and depend on every key."""
    if not directory.is_dir():
        model = hf.AutoModelForCausalLM.from_config(build_config(name, FAMILIES[name]), dtype=torch.float32)
        randomize(model)
        _calm(model)
        directory.parent.mkdir(parents=True, exist_ok=True)
        begun = Path(tempfile.mkdtemp(dir=directory.parent))
        write_tokenizer(begun, VOCAB_SIZE)
        model.save_pretrained(begun)
        try:
            begun.rename(directory)
        except OSError:  # another process was faster
            rmtree(begun)
    return directory


def _calm(model: Any) -> None:
    """Makes logits smaller, which grow with the width: at ten times the size, rounding to bfloat16 alone would be seen everywhere."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed" in name or "lm_head" in name:
                parameter.mul_(2 * parameter.shape[-1] ** -0.5)


def random_prompts(count: int, *, seed: int, longest: int = 60) -> list[tuple[int, ...]]:
    """Prompts of 1 to `longest` tokens."""
    rng = random.Random(seed)
    return [tuple(rng.randrange(3, VOCAB_SIZE) for _ in range(rng.randint(1, longest))) for _ in range(count)]


def answers(engine: LLMEngine, prompts: Sequence[tuple[int, ...]], new_tokens: int) -> list[Answer]:
    """Greedy answers to all prompts at once."""
    params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True, logprobs=TOP)
    results = engine.generate_many([(prompt, params) for prompt in prompts])
    return [Answer(result.prompt_token_ids, result.completions[0].logprobs) for result in results]


class Judge:
    """transformers' own model with the same weights, which says how likely each token of an answer is."""

    def __init__(self, directory: Path, dtype: torch.dtype, device: str) -> None:
        """Loads it.

        Args:
            directory: the model.
            dtype: type that its weights are rounded to.
            device: where it runs.
        """
        load = hf.AutoModelForCausalLM.from_pretrained
        self._model = load(directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager").to(device).eval()
        self._device = device

    def widen(self) -> None:
        """From now on it computes in float64, with the weights that it has."""
        self._model.double()

    def differences(self, answered: Sequence[Answer], others: Sequence[torch.Tensor] | None = None) -> torch.Tensor:
        """How far log-probabilities are from those of this model, at all places and for the likeliest tokens there, `[N]`.

        Args:
            answered: an engine's answers; the tokens are theirs.
            others: log-probabilities at these places that are judged instead of the engine's own, as `logprobs` gives them.
        """
        parts = []
        for number, (answer, ours) in enumerate(zip(answered, self.logprobs(answered), strict=True)):
            tokens = torch.tensor([[token for token, _ in place.top] for place in answer.places], device=self._device)
            if others is None:
                judged = torch.tensor(
                    [[value for _, value in place.top] for place in answer.places], device=self._device, dtype=torch.float64
                )
            else:
                judged = others[number].gather(1, tokens)
            parts.append((ours.gather(1, tokens) - judged).abs().flatten())
        return torch.cat(parts)

    def logprobs(self, answered: Sequence[Answer]) -> list[torch.Tensor]:
        """Log-probabilities at the places of each answer: float64 `[places, vocabulary]`."""
        found = []
        with torch.inference_mode():
            for answer in answered:
                ids = torch.tensor([answer.prompt + answer.token_ids[:-1]], device=self._device)
                logits = self._model(input_ids=ids, use_cache=False).logits[0, len(answer.prompt) - 1 :]
                found.append(torch.log_softmax(logits.double(), dim=-1))
        return found


def tiny_config(device: str, dtype: str, **options: Any) -> EngineConfig:
    """Options of an engine whose prompts are read in chunks, beside answers."""
    sizes: dict[str, Any] = {"kv_blocks": 200, "max_num_seqs": 8, "max_num_batched_tokens": 48, "swap_space": 0}
    if device == "cpu":  # the code that would run on a GPU, as far as it runs here
        options = {"code_path": "universal", "attention": "torch", "threads": 1} | options
    return EngineConfig(device=device, dtype=dtype, **(sizes | options))
