"""Models that would run and be wrong are found out by what they do."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import nn
from transformers.models.llama import modeling_llama

from chatpaged.engine.model_executor.models.attention_hook import ATTENTION_NAME, chatpaged_attention
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.hf import HFModel
from chatpaged.errors import ModelError
from tests.model_executor.architectures import ARCHITECTURES, REFUSED, build_config
from tests.model_executor.architectures import WINDOW as ARCHITECTURES_WINDOW
from tests.model_executor.harness import load, make_engine
from tests.model_executor.logits import TOLERANCE, computed, error, reference, save
from tests.model_executor.tiny_models import _SIZES as SIZES
from tests.model_executor.tiny_models import WINDOW, save_model

hf: Any = transformers


@pytest.fixture
def llama(model_directory: Callable[[str], Path]) -> HFModel:
    """A model that is fine, to spoil."""
    loaded = load(model_directory("llama"))
    loaded.geometry()
    return loaded


def test_encoders_are_refused(tmp_path: Path) -> None:
    # transformers lists them as causal language models, and runs them without a causal mask.
    sizes = {name: value for name, value in SIZES.items() if name not in {"head_dim", "num_key_value_heads"}}
    directory = save_model(hf.BertConfig(**sizes), tmp_path)
    with pytest.raises(ModelError, match=r"^BertLMHeadModel is not supported: BertSelfAttention attends to later tokens"):
        load(directory).geometry()


def test_windows_that_are_only_in_the_mask_are_refused(tmp_path: Path) -> None:
    # This class leaves the window to the mask, which is never built here.
    directory = save_model(hf.PhimoeConfig(**SIZES, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2), tmp_path)
    with pytest.raises(ModelError, match=f"^PhimoeForCausalLM is not supported: it does not pass its sliding window of {WINDOW} tokens on"):
        load(directory).geometry()
    assert load(directory, max_model_len=WINDOW).geometry().num_layers == 2  # it never matters then


def test_a_mask_is_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ModelError, match="Linear brings an attention mask of its own"):
        chatpaged_attention(nn.Linear(1, 1), tensor, tensor, tensor, tensor)


def test_a_layer_without_a_number_is_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ModelError, match="Linear does not say which layer it is"):
        chatpaged_attention(nn.Linear(1, 1), tensor, tensor, tensor, None)


def test_arguments_that_are_not_known_are_refused() -> None:
    tensor = torch.zeros(1, 1, 1, 1)
    layer = nn.Linear(1, 1)
    setattr(layer, "layer_idx", 0)  # noqa: B010 - a module's type says that it holds modules only
    with pytest.raises(ModelError, match="Linear passes position_bias to its attention"):
        chatpaged_attention(layer, tensor, tensor, tensor, None, dropout=0.0, position_bias=tensor)
    with pytest.raises(ModelError, match="Linear attends to later tokens as well"):
        chatpaged_attention(layer, tensor, tensor, tensor, None, is_causal=False)
    with pytest.raises(LookupError):  # it is past the checks, and no forward pass is running
        chatpaged_attention(layer, tensor, tensor, tensor, None, dropout=0.0, position_bias=None)


def test_two_layers_with_one_number_are_refused(llama: HFModel) -> None:
    for layer in llama._model.model.layers:
        layer.self_attn.layer_idx = 0
    with pytest.raises(ModelError, match=r"^LlamaForCausalLM is not supported: two attention layers of this model share one number"):
        llama.geometry()


def test_attention_that_is_not_reached_is_refused(llama: HFModel) -> None:
    del llama._model.model.layers[1]
    with pytest.raises(ModelError, match="attention was reached in 1 of 2 layers"):
        llama.geometry()


def test_models_that_change_their_mask_are_refused(tmp_path: Path) -> None:
    directory = save_model(hf.DogeConfig(**SIZES), tmp_path)
    with pytest.raises(ModelError, match=r"^DogeForCausalLM is not supported: DogeAttention changes its attention mask"):
        load(directory).geometry()


def test_masks_that_look_ahead_are_refused(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama, "create_causal_mask", transformers.masking_utils.create_bidirectional_mask)
    with pytest.raises(ModelError, match="its tokens attend to later tokens as well"):
        llama.geometry()


def test_masks_of_chunks_are_refused(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    llama._model.config.attention_chunk_size = 16
    monkeypatch.setattr(modeling_llama, "create_causal_mask", transformers.masking_utils.create_chunked_causal_mask)
    with pytest.raises(ModelError, match="its attention mask shows other tokens than its window"):
        llama.geometry()


def test_windows_that_differ_from_the_mask_are_refused(model_directory: Callable[[str], Path]) -> None:
    loaded = load(model_directory("gemma3_text"))
    loaded._model.model.layers[2].self_attn.sliding_window += 1
    with pytest.raises(ModelError, match="its attention mask shows other tokens than its window"):
        loaded.geometry()


@pytest.mark.parametrize("wrong", [0, 1])
def test_masks_that_look_up_images_are_compared_as_well(wrong: int, tmp_path: Path) -> None:
    config = build_config("gemma4_unified", ARCHITECTURES["gemma4_unified"])
    hf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype=torch.float32)
    attention = loaded._model.model.language_model.layers[0].self_attn
    assert attention.sliding_window == ARCHITECTURES_WINDOW
    attention.sliding_window += wrong
    if wrong:
        with pytest.raises(ModelError, match="its attention mask shows other tokens than its window"):
            loaded.geometry()
    else:
        assert loaded.geometry() == KVGeometry(2, 2, 16, uniform=False)


def test_masks_that_cannot_be_seen_are_refused(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modeling_llama, "create_causal_mask", lambda **_: None)
    with pytest.raises(ModelError, match="its attention mask cannot be compared"):
        llama.geometry()


def test_tokens_that_meet_outside_attention_are_refused(llama: HFModel) -> None:
    mlp = llama._model.model.layers[1].mlp
    stock = mlp.forward
    mlp.forward = lambda x: stock(x + x.roll(1, dims=1))  # a convolution over two tokens
    with pytest.raises(ModelError, match="its tokens depend on each other outside attention"):
        llama.geometry()


def test_rounding_that_sends_a_token_elsewhere_once_is_forgiven(llama: HFModel) -> None:
    mlp = llama._model.model.layers[1].mlp
    stock = mlp.forward
    passes: list[int] = []

    def sometimes(x: torch.Tensor) -> torch.Tensor:
        passes.append(len(passes))
        result: torch.Tensor = stock(x)
        if passes[-1] == 1:  # the second pass is the first that is compared
            result[:, -1] += 1
        return result

    mlp.forward = sometimes
    assert llama.geometry().num_layers == 2
    assert len(passes) == 3


def test_positions_that_are_counted_are_refused(llama: HFModel) -> None:
    rotary = llama._model.model.rotary_emb
    stock = rotary.forward
    rotary.forward = lambda x, position_ids: stock(x, torch.arange(position_ids.shape[1]).unsqueeze(0))
    with pytest.raises(ModelError, match="or not on the positions that they are given"):
        llama.geometry()


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert", "xmod", "roberta-prelayernorm", "data2vec-text"])
def test_positions_that_begin_elsewhere_are_refused(model_type: str, tmp_path: Path) -> None:
    # As decoders these look ahead no more, but number positions from behind that of the padding token.
    directory = save(model_type, REFUSED[model_type].options | {"is_decoder": True}, tmp_path)
    with pytest.raises(ModelError, match=r"is not supported: it does not number positions from 0"):
        load(directory, dtype=torch.float32).geometry()


def test_encoders_that_were_made_decoders_run(tmp_path: Path) -> None:
    directory = save("bert", REFUSED["bert"].options | {"is_decoder": True}, tmp_path)
    assert error(computed(load(directory, dtype=torch.float32)), reference(directory)) < TOLERANCE


@pytest.mark.parametrize("max_model_len", [1, 2, 3])
def test_a_context_of_hardly_any_tokens(max_model_len: int, model_directory: Callable[[str], Path]) -> None:
    for family in ("llama", "gpt2", "gemma3_text"):
        assert load(model_directory(family), max_model_len=max_model_len).geometry().kv_heads in {2, 4}


def test_models_that_give_all_logits_are_refused(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    stock = llama._model.forward
    monkeypatch.setattr(llama._model, "forward", lambda **arguments: stock(**(arguments | {"logits_to_keep": 0})))
    with pytest.raises(ModelError, match="it does not give the logits of just the tokens"):
        llama.geometry()


def test_whatever_a_model_raises_names_it(llama: HFModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no language is set\nsee the documentation")

    monkeypatch.setattr(llama._model.model.layers[1].mlp, "forward", fail)
    with pytest.raises(ModelError, match=r"^LlamaForCausalLM is not supported: no language is set; decoder-only models"):
        llama.geometry()
    # Other models, and a second attempt, get the attention they had.
    assert llama._model.config._attn_implementation == ATTENTION_NAME
    monkeypatch.undo()
    assert llama.geometry().num_layers == 2


def test_too_little_memory_is_no_reason_to_refuse_a_model(llama: HFModel) -> None:
    def fail(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    llama._model.model.layers[1].mlp.forward = fail
    with pytest.raises(torch.OutOfMemoryError):
        llama.geometry()


def test_weights_that_are_not_numbers_are_called_damaged(model_directory: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(model_directory("llama"), tmp_path / "nan")
    weights = load_file(tmp_path / "nan/model.safetensors")
    weights["model.norm.weight"].fill_(torch.nan)
    save_file(weights, tmp_path / "nan/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"LlamaForCausalLM computes no numbers .*: damaged weights") as raised:
        make_engine(tmp_path / "nan")
    assert "docs/models.md" not in str(raised.value)
