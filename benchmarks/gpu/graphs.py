"""Steps replayed from CUDA graphs against the same steps launched operation by operation: batches at random, on tiny models."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu.rows import NO_TIME, Report
from benchmarks.gpu.side_by_side import outcomes

if TYPE_CHECKING:
    from benchmarks.gpu.tiny_models import Answer

BATCHES = 20
MOST = {"float32": 1e-3, "bfloat16": 0.25}
"""Of the largest difference of log-probabilities. A padded batch is multiplied by other kernels, which sum up in another order."""
_MAX_NUM_SEQS = 24
_FAMILIES = ("llama", "qwen3", "gemma2", "gpt_oss")


@dataclass(frozen=True, slots=True)
class Replay:
    """A tiny model that two engines run, with graphs and without.

    Attributes:
        name: its model type.
        dtype: of weights and arithmetic.
        device: where it runs; beside a CPU neither engine has graphs.
        directory: where models lie.
        batches: how many.
    """

    name: str
    dtype: str
    device: str
    directory: Path
    batches: int = BATCHES


@dataclass(frozen=True, slots=True)
class Replayed:
    """What came of it.

    Attributes:
        difference: the largest of log-probabilities; see `difference`.
        steps: that were replayed.
        answers: that were compared.
        parted: answers that are not the same to the end.
        code: what the engine with graphs ran.
    """

    difference: float
    steps: int
    answers: int
    parted: int
    code: str


def replay(unit: Replay) -> Replayed:
    """Both engines on the same random batches."""
    from benchmarks.gpu.tiny_models import answers, random_prompts, tiny_config, write_family
    from chatpaged.engine.llm_engine import LLMEngine

    model = write_family(unit.name, unit.directory / "tiny" / unit.name)
    rng = random.Random(7)
    requests = [(random_prompts(rng.randint(1, _MAX_NUM_SEQS), seed=number), rng.randint(1, 8)) for number in range(unit.batches)]
    both: list[list[Answer]] = []
    steps, code = 0, ""
    for enforce_eager in (True, False):
        config = tiny_config(unit.device, unit.dtype, max_num_seqs=_MAX_NUM_SEQS, enforce_eager=enforce_eager, kv_blocks=400)
        with LLMEngine.from_pretrained(model, config) as engine:
            found = []
            for prompts, new_tokens in requests:
                engine.forget_cached()
                found += answers(engine, prompts, new_tokens)
            steps, code = engine.snapshot().counters["graph_steps"], str(engine.code)
            both.append(found)
    pairs = list(zip(*both, strict=True))
    return Replayed(
        difference=max(difference(one, other) for one, other in pairs),
        steps=steps,
        answers=len(pairs),
        parted=sum(one.token_ids != other.token_ids for one, other in pairs),
        code=code,
    )


def run(report: Report) -> None:
    """The part of this module."""
    settings = report.settings
    names, dtypes, batches = (("llama",), ("float32",), 3) if settings.smoke else (_FAMILIES, ("bfloat16", "float32"), BATCHES)
    # In bfloat16, rounding sends some tokens to other experts.
    chosen = [(name, dtype) for name in names for dtype in dtypes if (name, dtype) != ("gpt_oss", "bfloat16")]
    units = [Replay(name, dtype, settings.device, settings.directory, batches) for name, dtype in chosen]
    for outcome in outcomes(settings, replay, units):
        title, found = f"{outcome.unit.name} in {outcome.unit.dtype}", outcome.result
        if outcome.error:
            report.fail(title, RuntimeError(outcome.error))
        elif found is None:
            report.leave_out(title, NO_TIME)
        else:
            note = f"{outcome.unit.batches} batches, {found.answers} answers, {found.parted} of them part at a tie; {found.code}"
            most = MOST[outcome.unit.dtype]
            what = "replayed against eager" if found.steps or not settings.smoke else "eager twice, as nothing is replayed here"
            report.add(f"{title}: {what}", found.difference, "logprobs", most=most, note=note)
            report.add(f"{title}: steps replayed", found.steps, "steps", least=None if settings.smoke else 1)


def difference(one: Answer, other: Answer) -> float:
    """The largest difference of log-probabilities, up to the place where two answers part; there, how much likelier the one token was.

    Answers to one prompt may part where two tokens are as good as equal; whatever comes after has nothing in common any more.
    """
    largest = 0.0
    for mine, theirs in zip(one.places, other.places, strict=True):
        largest = max(largest, *_common(mine.top, theirs.top))
        if mine.token_id != theirs.token_id:
            return max(largest, mine.logprob - dict(mine.top).get(theirs.token_id, float("-inf")))
    return largest


def _common(one: Sequence[tuple[int, float]], other: Sequence[tuple[int, float]]) -> list[float]:
    """Differences at the tokens that both name; infinite if there are none, or no numbers."""
    theirs = dict(other)
    found = [abs(value - theirs[token]) for token, value in one if token in theirs]
    return [value if value == value else float("inf") for value in found] or [float("inf")]  # noqa: PLR0124 - NaN is not equal to itself
