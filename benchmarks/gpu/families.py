"""Engines on tiny models of many families, judged by transformers: the paths that run by default, and attention by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import NO_TIME, Report
from benchmarks.gpu.side_by_side import outcomes
from chatpaged.errors import InvalidRequestError

if TYPE_CHECKING:
    import torch

MOST = {"float32": 1e-4, "float16": 2e-3, "bfloat16": 1e-2}
"""Of differences of log-probabilities, beyond twice what transformers' own rounding does."""
_FALLBACK_FAMILIES = ("llama", "mistral", "gemma2", "gpt_oss")
_FALLBACKS = ("flash", "varlen")


@dataclass(frozen=True, slots=True)
class Family:
    """A tiny model that an engine runs.

    Attributes:
        name: its model type.
        dtype: of weights and arithmetic.
        device: where it runs.
        directory: where models lie.
        attention: see `EngineConfig`.
    """

    name: str
    dtype: str
    device: str
    directory: Path
    attention: str = "auto"

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.name} in {self.dtype}" + ("" if self.attention == "auto" else f", --attention {self.attention}")


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far log-probabilities are from those of transformers in float64.

    Attributes:
        error: most of them are at most this; see `most_of`.
        largest: the largest.
        rounding: as `error`, of transformers itself in the engine's type.
        code: what the engine ran.
        refusal: why it does not run.
    """

    error: float = 0.0
    largest: float = 0.0
    rounding: float = 0.0
    code: str = ""
    refusal: str = ""

    def most(self, dtype: str) -> float:
        """What the error may be."""
        return 2 * self.rounding + MOST[dtype]


def judge_family(family: Family) -> Agreement:
    """An engine's answers to random prompts, judged."""
    import torch

    from benchmarks.gpu.tiny_models import Judge, answers, random_prompts, tiny_config, write_family
    from chatpaged.engine.llm_engine import LLMEngine

    directory = write_family(family.name, family.directory / "tiny" / family.name)
    options = {} if family.attention == "auto" else {"attention": family.attention}
    try:
        with LLMEngine.from_pretrained(directory, tiny_config(family.device, family.dtype, **options)) as engine:
            answered = answers(engine, random_prompts(12, seed=1), 8)
            code = str(engine.code)
    except InvalidRequestError as error:
        return Agreement(refusal=str(error))
    judge = Judge(directory, getattr(torch, family.dtype), family.device)
    narrow = judge.logprobs(answered)
    judge.widen()
    ours, theirs = judge.differences(answered), judge.differences(answered, narrow)
    return Agreement(most_of(ours, family.dtype), float(ours.max()), most_of(theirs, family.dtype), code)


def most_of(differences: torch.Tensor, dtype: str) -> float:
    """The value that 99.9 % of differences do not exceed in float32, 90 % in half types.

    There, rounding sends some tokens to other experts, and what comes of these is another thing altogether.
    """
    share = 0.999 if dtype == "float32" else 0.9
    return float(differences.quantile(share)) if bool(differences.isfinite().all()) else math.inf


def run(report: Report) -> None:
    """The part of this module: every family in bfloat16 and float32, on whatever code the engine takes."""
    from benchmarks.gpu.tiny_models import FAMILIES

    settings = report.settings
    names, dtypes = (("llama", "gpt_oss"), ("float32",)) if settings.smoke else (tuple(FAMILIES), ("bfloat16", "float32"))
    _judge(report, [Family(name, dtype, settings.device, settings.directory) for name in names for dtype in dtypes])


def run_fallbacks(report: Report) -> None:
    """Attention over gathered keys and values: against the formula, and in engines."""
    import torch

    from chatpaged.engine.model_executor.attention.choice import attention_problem

    settings = report.settings
    families = []
    for attention in _FALLBACKS:
        problem = attention_problem(attention, torch.device(settings.device), torch.bfloat16)
        if problem is not None:
            report.leave_out(f"--attention {attention}", problem)
            continue
        for dtype in ("float16", "bfloat16"):
            _check_backend(report, attention, dtype)
        families += [Family(name, "bfloat16", settings.device, settings.directory, attention) for name in _FALLBACK_FAMILIES]
    if families:
        _judge(report, families)


def _check_backend(report: Report, attention: str, dtype: str) -> None:
    """One attention in all cases of the tests, with blocks of several sizes."""
    import torch

    from chatpaged.engine.model_executor.attention.choice import make_attention
    from tests.model_executor.attention_bench import CASES, TOLERANCE, largest_error

    kind, device = getattr(torch, dtype), torch.device(report.settings.device)
    cases = [case for case in CASES.values() if attention != "varlen" or case.options.softcap is None]
    what = f"{attention} attention in {dtype}"
    with report.attempt(what):
        backend = make_attention(attention, device, kind, 100)
        errors = [largest_error(replace(case, block_size=size, dtype=kind), backend, device) for case in cases for size in (1, 16, 256)]
        report.add(what, max(errors), "largest error", most=2 * TOLERANCE[kind], note=f"{len(errors)} shapes")


def _judge(report: Report, families: Sequence[Family]) -> None:
    for outcome in outcomes(report.settings, judge_family, families):
        title, found = outcome.unit.title, outcome.result
        if outcome.error:
            report.fail(title, RuntimeError(outcome.error))
        elif found is None or found.refusal:
            report.leave_out(title, NO_TIME if found is None else found.refusal)
        else:
            note = f"largest {found.largest:.2g}; transformers' own rounding {found.rounding:.2g}; {found.code}"
            report.add(title, found.error, "logprobs", most=found.most(outcome.unit.dtype), note=note)
