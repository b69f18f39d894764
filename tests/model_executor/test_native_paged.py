"""Native attention beside torch's operations: the same logits as with torch's attention, for models that have everything."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.model_runner import ModelRunner
from chatpaged.engine.model_executor.native.library import native_problem
from chatpaged.engine.model_executor.native_kv_cache import NativeKVCache
from chatpaged.engine.outputs import Completion
from chatpaged.engine.sampling_params import SamplingParams

pytestmark = pytest.mark.skipif(native_problem() is not None, reason=str(native_problem()))


def answers(directory: Path, native: bool, **options: Any) -> tuple[type, list[Completion]]:
    """The kind of pool, and what two prompts get side by side, read in small chunks."""
    config = EngineConfig(
        dtype="float32", device="cpu", threads=1, code_path="auto" if native else "universal", max_num_batched_tokens=32, **options
    )
    with LLMEngine.from_pretrained(directory, config) as engine:
        runner = engine._executor
        assert isinstance(runner, ModelRunner)
        if isinstance(runner._kv_cache, NativeKVCache):
            runner._kv_cache.pool.view(torch.float32).fill_(torch.nan)  # what was never written must not count
        names = [
            engine.add_request(list(range(3, end)), SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, logprobs=3))
            for end in (50, 9)
        ]
        done: dict[str, Completion] = {}
        while engine.has_unfinished:
            done |= {output.request_id: completion for output in engine.step() for completion in output.completions}
        return type(runner._kv_cache), [done[name] for name in names]


@pytest.mark.parametrize("family", ["gpt_oss", "qwen3_moe", "gpt2"])  # sinks and windows, experts, as many key heads as query heads
@pytest.mark.parametrize("block_size", [4, 16])
def test_same_answers(family: str, block_size: int, model_directory: Callable[[str], Path]) -> None:
    directory = model_directory(family)
    pool, ours = answers(directory, native=True, block_size=block_size)
    assert pool is NativeKVCache
    plain_pool, plain = answers(directory, native=False, block_size=block_size)
    assert plain_pool is not NativeKVCache
    for one, other in zip(ours, plain, strict=True):
        assert one.token_ids == other.token_ids
        for mine, theirs in zip(one.logprobs, other.logprobs, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-3)


def test_layers_of_several_shapes_keep_torchs_attention(model_directory: Callable[[str], Path]) -> None:
    assert answers(model_directory("deepseek_v3"), native=True)[0] is not NativeKVCache
