"""Checkpoints that are quantised already, on a GPU: answers are those of the unpacked weights."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers.utils.import_utils import is_gptqmodel_available, is_optimum_available

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from tests.model_executor import tiny_quantizer
from tests.model_executor.harness import Arrival, greedy, serve
from tests.model_executor.logits import save
from tests.model_executor.packed_checkpoints import save_packed, save_with
from tests.model_executor.tiny_models import build_tokenizer

DEVICE = "cuda"
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
ARRIVALS = {"one": Arrival(list(range(5, 25))), "two": Arrival([9, 8], step=2)}


@pytest.fixture(autouse=True)
def _quantizer() -> Iterator[None]:
    with tiny_quantizer.registered():
        yield


def run(directory: Path) -> tuple[list[list[tuple[int, ...]]], str]:
    """Tokens, and what the model runs on."""
    options = EngineConfig(device=DEVICE, dtype="float32", code_path="universal", kv_blocks=40)
    with LLMEngine.from_pretrained(directory, options) as engine:
        answers = serve(engine, ARRIVALS, greedy(8))
        return [answer.token_ids for answer in answers.values()], engine.code.with_reason


@pytest.mark.parametrize("method", [tiny_quantizer.METHOD, "fp8", "gptq", "awq"])
def test_answers_are_those_of_the_unpacked_weights(method: str, tmp_path: Path) -> None:
    if method in {"gptq", "awq"} and not (is_gptqmodel_available() and is_optimum_available()):
        pytest.skip("the packages gptqmodel and optimum are not installed")
    plain = save("llama", SIZES, tmp_path / "plain")
    build_tokenizer().save(str(plain / "tokenizer.json"))
    packed, unpacked = tmp_path / "packed", tmp_path / "unpacked"
    if method == tiny_quantizer.METHOD:
        save_with(tiny_quantizer.rows8, tiny_quantizer.SETTINGS, plain, packed, unpacked)
    else:
        save_packed(method, plain, packed, unpacked)
    tokens, told = run(packed)
    assert f"its weights are {method if method == tiny_quantizer.METHOD else method.upper()} already" in told
    assert ("CUDA graphs: they have not been tried" in told) == (method != "fp8")
    if method in {tiny_quantizer.METHOD, "fp8"}:  # the others round to half types on the way
        assert tokens == run(unpacked)[0]
    else:
        assert all(len(answer[0]) == 8 for answer in tokens)
