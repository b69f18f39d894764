"""One tiny model of every architecture, loaded as the engine loads it, against transformers: whole prompts, chunks and decode mixed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from chatpaged.engine.model_executor.attention.base import AttentionOptions, PagedAttention
from chatpaged.engine.model_executor.attention.torch_paged import TorchPagedAttention
from chatpaged.engine.model_executor.forward_context import forward_context
from chatpaged.engine.model_executor.input_batch import InputBatch
from chatpaged.engine.model_executor.models.hf import HFModel
from chatpaged.errors import ModelError
from tests.model_executor.architectures import ARCHITECTURES, DOCUMENT, REFUSED, WINDOW, brought_up_to_date, refused_by_configuration
from tests.model_executor.harness import load
from tests.model_executor.logits import TOLERANCE, computed, error, reference, save

hf: Any = transformers
CLEARLY_WRONG = 1e-3
FIRST_WRONG_STEP = 2


# --- what a mistake would do ---------------------------------------------------------------------------------------------


def wrong_positions(step: int, batch: InputBatch) -> tuple[InputBatch, type[TorchPagedAttention]]:
    return replace(batch, positions=batch.positions + (step >= FIRST_WRONG_STEP)), TorchPagedAttention


def wrong_block(step: int, batch: InputBatch) -> tuple[InputBatch, type[TorchPagedAttention]]:
    """The last sequence but one that has been read completely takes a block of its neighbour for its own."""
    if step < FIRST_WRONG_STEP:
        return batch, TorchPagedAttention
    first, second, *others = batch.spans
    own = second.block_table
    stolen = replace(second, block_table=(*own[:-2], first.block_table[2], own[-1]))
    return replace(batch, spans=(first, stolen, *others)), TorchPagedAttention


class NoWindow(TorchPagedAttention):
    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        return super().attend(layer, query, key, value, replace(options, window=None))


def no_window(_: int, batch: InputBatch) -> tuple[InputBatch, type[TorchPagedAttention]]:
    return batch, NoWindow


class WindowFinder:
    """Notes the windows that layers ask for. Satisfies `PagedAttention`."""

    def __init__(self) -> None:
        self.windows: set[int | None] = set()

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        self.windows.add(options.window)
        return query.new_zeros(*query.shape[:2], value.shape[2])


def has_window(model: HFModel) -> bool:
    finder = WindowFinder()
    attention: PagedAttention = finder
    token = torch.zeros(1, dtype=torch.int64)
    with torch.inference_mode(), forward_context(attention):
        model.forward(token, token, token)
    return WINDOW in finder.windows


# --- tests ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_agrees_with_transformers(model_type: str, tmp_path: Path) -> None:
    directory = save(model_type, ARCHITECTURES[model_type], tmp_path)
    model = load(directory, dtype=torch.float32)
    expected = reference(directory)
    assert error(computed(model), expected) < TOLERANCE
    # The same comparison sees mistakes.
    for mistake in (wrong_positions, wrong_block, *([no_window] if has_window(model) else [])):
        assert error(computed(model, distort=mistake), expected) > CLEARLY_WRONG, mistake.__name__


@pytest.mark.parametrize("model_type", REFUSED)
def test_is_refused_when_it_runs(model_type: str, tmp_path: Path) -> None:
    refused = REFUSED[model_type]
    directory = save(model_type, refused.options, tmp_path, model_class=refused.model_class)
    with pytest.raises(ModelError, match=rf"^\w+(ForCausalLM|LMHeadModel|Decoder) .*{refused.reason}.*; decoder-only models such as"):
        load(directory, dtype=torch.float32).geometry()


def test_every_language_model_of_transformers_agrees_or_is_refused() -> None:
    known = {config.model_type for config in hf.AutoModelForCausalLM._model_mapping}
    assert known == ARCHITECTURES.keys() | REFUSED.keys() | refused_by_configuration().keys()


def test_windows_are_among_what_is_tested(tmp_path: Path) -> None:
    for name in ("mistral", "gemma3", "gpt_oss", "qwen3", "smollm3"):
        assert has_window(load(save(name, ARCHITECTURES[name], tmp_path / name)))
    assert not has_window(load(save("llama", ARCHITECTURES["llama"], tmp_path / "llama")))


def test_the_document_is_current() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert len(ARCHITECTURES) >= 45
    assert brought_up_to_date(text) == text, "run python -m tests.model_executor.architectures"
