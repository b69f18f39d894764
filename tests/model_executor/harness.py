"""Running tiny models: transformers' own answers, and engines whose requests arrive one after another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.models.hf import HFModel, load_hf_model
from chatpaged.engine.outputs import Completion, RequestMetrics
from chatpaged.engine.sampling_params import SamplingParams

MIN_LOGIT_GAP = 1e-3
"""Between the best and the second token. Rounding cannot bridge it, so that tokens can be compared for equality."""
_NO_SDPA = frozenset({"gpt_oss", "gemma2"})  # sinks and softcap: transformers has only its eager code for them
hf: Any = transformers


def load_reference(directory: Path) -> Any:
    """The model as transformers runs it by itself, in float64."""
    config = hf.AutoConfig.from_pretrained(directory)
    return hf.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float64,
        attn_implementation="eager" if config.model_type in _NO_SDPA else "sdpa",
        experts_implementation="eager",
    ).eval()


def reference_answer(model: Any, prompt: Sequence[int], num_tokens: int, **options: Any) -> tuple[int, ...]:
    """What transformers' `generate` answers greedily, whatever the end token. Options are those of `generate`."""
    generated = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.int64),
        max_new_tokens=num_tokens,
        do_sample=False,
        eos_token_id=None,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    best = torch.cat(generated.scores).topk(2).values
    gap = float((best[:, 0] - best[:, 1]).min())
    assert gap > MIN_LOGIT_GAP, f"two tokens are as good as equal (gap {gap}): choose another prompt"
    return tuple(generated.sequences[0, len(prompt) :].tolist())


def greedy(max_tokens: int, *, n: int = 1) -> SamplingParams:
    """The best token each time, up to a length."""
    return SamplingParams(temperature=0, max_tokens=max_tokens, n=n, ignore_eos=True)


def make_engine(directory: Path, **options: Any) -> LLMEngine:
    """An engine in float64, unless options say otherwise, whose pool is full of NaN: reading what was never written shows."""
    engine = LLMEngine.from_pretrained(directory, EngineConfig(**{"dtype": "float64", "device": "cpu", "threads": 1, **options}))
    runner = engine._executor
    assert isinstance(runner, ModelRunner)
    with torch.inference_mode():  # in which the pool was made
        pool = runner._kv_cache.pool
        pool.fill_(0xFF if pool.dtype == torch.uint8 else torch.nan)  # of all bits, every floating type makes a NaN
    return engine


@dataclass(frozen=True)
class Arrival:
    """A request to come."""

    prompt: Sequence[int]
    step: int = 0
    priority: int = 0


@dataclass
class Answer:
    """What came of one request."""

    completions: dict[int, Completion] = field(default_factory=dict)
    metrics: RequestMetrics | None = None

    @property
    def token_ids(self) -> list[tuple[int, ...]]:
        """Tokens of all samples, in order."""
        return [self.completions[index].token_ids for index in sorted(self.completions)]

    @property
    def cached_tokens(self) -> int:
        """Tokens found in the prefix cache."""
        assert self.metrics is not None
        return self.metrics.cached_tokens


def serve(
    engine: LLMEngine,
    arrivals: Mapping[str, Arrival],
    params: SamplingParams,
    *,
    before_step: Callable[[int], None] = lambda _: None,
) -> dict[str, Answer]:
    """Runs requests, audits the books after each step.

    Args:
        engine: where they run.
        arrivals: the requests, by name.
        params: of all requests.
        before_step: is called with the number of the step that follows.
    """
    answers = {name: Answer() for name in arrivals}
    step = 0
    last = max(arrival.step for arrival in arrivals.values())
    while engine.has_unfinished or step <= last:
        for name, arrival in arrivals.items():
            if arrival.step == step:
                engine.add_request(arrival.prompt, params, request_id=name, priority=arrival.priority)
        before_step(step)
        for output in engine.step():
            answer = answers[output.request_id]
            answer.completions |= {completion.index: completion for completion in output.completions}
            answer.metrics = output.metrics
        engine.check_invariants()
        step += 1
    return answers


def load(directory: Path, *, dtype: torch.dtype = torch.float64, max_model_len: int | None = None) -> HFModel:
    """The model as the engine loads it."""
    return load_hf_model(directory, dtype=dtype, device=torch.device("cpu"), max_model_len=max_model_len)
