"""What is loaded through transformers, what is refused, and that nothing of it depends on the batch."""

from __future__ import annotations

import builtins
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from chatpaged.engine.config import EngineConfig
from chatpaged.engine.llm_engine import LLMEngine
from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention, forward_context
from chatpaged.engine.model_executor.models.attention_hook import ATTENTION_NAME
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.hf import _context
from chatpaged.engine.outputs import FinishReason
from chatpaged.engine.sampling_params import SamplingParams
from chatpaged.errors import InvalidRequestError, MemoryBudgetError, ModelError
from tests.model_executor.harness import load, load_reference, make_engine, reference_answer
from tests.model_executor.tiny_models import _SIZES as SIZES
from tests.model_executor.tiny_models import CONTEXT, END, FAMILIES, VOCAB_SIZE, WINDOW, save_model

PROMPT = [40, 50, 60, 70, 80]
hf: Any = transformers


@pytest.fixture
def model(model_directory: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a model directory, to change."""
    return Path(shutil.copytree(model_directory("llama"), tmp_path / "model"))


def change(path: Path, **values: Any) -> None:
    """Sets values in a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


# --- files that do not fit together --------------------------------------------------------------------------------------


def test_missing_weights_are_never_made_up(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    for name in ("model.layers.1.mlp.up_proj.weight", "model.layers.1.mlp.down_proj.weight"):
        del tensors[name]
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"incomplete: no weights for model\.layers\.1\.mlp\.down_proj\.weight and 1 more"):
        load(model)


def test_tied_weights_are_not_missing(tmp_path: Path) -> None:
    directory = save_model(hf.LlamaConfig(**SIZES, tie_word_embeddings=True), tmp_path)
    assert "lm_head.weight" not in load_file(directory / "model.safetensors")
    assert load(directory).vocab_size == VOCAB_SIZE


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"model_type": "mystery"}, r"cannot use config\.json of .*ValueError: .*mystery"),
        ({"model_type": None}, r"cannot use .*config\.json"),
        ({"hidden_size": "many"}, r"cannot use config\.json .*hidden_size': .*expected int, got str"),
        ({"num_attention_heads": 3}, r"cannot use .*config\.json"),
        ({"num_attention_heads": 0}, r"cannot use .*config\.json .*Error: .*by zero"),
        ({"hidden_act": "mystery"}, r"cannot use .*config\.json .*KeyError: 'mystery'"),
        ({"quantization_config": "x"}, r"cannot (use|load) .*AttributeError: 'str'"),
        ({"rope_parameters": {"rope_type": "mystery", "rope_theta": 1.0}}, "cannot use .*KeyError: 'mystery'"),
        (
            {"hidden_size": 64},
            r"does not fit the weights: model\.embed_tokens\.weight has the shape \d+ x 32 in the files, and \d+ x 64 by",
        ),
        (
            {"vocab_size": 200},
            r"does not fit the weights: model\.embed_tokens\.weight has the shape \d+ x 32 in the files, and 200 x 32 by",
        ),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1,000,000,000, and the files hold [0-9]+ tensors"),
        ({"num_hidden_layers": 3}, r"incomplete: no weights for model\.layers\.2"),
        ({"quantization_config": {"quant_method": "secret", "bits": 4}}, "weights are secret, which transformers .* does not know"),
        ({"max_position_embeddings": 0}, "max_position_embeddings in .* is 0; it has to be a positive whole number"),
        ({"max_position_embeddings": None}, r"cannot use .*config\.json|does not name its context"),
    ],
)
def test_configurations_that_cannot_be_used(model: Path, values: dict[str, Any], reason: str) -> None:
    change(model / "config.json", **values)
    with pytest.raises(ModelError, match=reason) as refused:
        load(model)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", ["</s>", [1, 2, None], {"a": 1}, 1.5, True])
def test_end_tokens_that_are_no_ids(model: Path, value: object) -> None:
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(ModelError, match=r"eos_token_id in .*generation_config\.json is .*; it has to be a token id, or a list"):
        load(model)


def test_shapes_are_compared_before_memory_is_taken(model: Path, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder) -> None:
    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("it would be loaded"))
    for size in (10_000_000, 10**12, 0):
        change(model / "config.json", hidden_size=size, head_dim=8)
        with pytest.raises(ModelError, match=r"does not fit the weights|cannot use"):
            load(model)
    assert not recwarn.list


def test_shapes_of_renamed_weights_are_compared_when_loading(model: Path) -> None:
    tensors = load_file(model / "model.safetensors")
    save_file(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items()}, model / "model.safetensors", metadata={"format": "pt"}
    )
    assert load(model).vocab_size == VOCAB_SIZE
    change(model / "config.json", intermediate_size=72)
    with pytest.raises(ModelError, match=r"does not fit the weights: .*mlp\.\w+\.weight has the shape .* in the files, and .*72"):
        load(model)


def test_memory_that_the_configuration_asks_for(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = load_file(model / "model.safetensors")
    save_file({f"x.{name}": tensor for name, tensor in tensors.items()}, model / "model.safetensors", metadata={"format": "pt"})
    change(model / "config.json", intermediate_size=10**12)
    monkeypatch.setattr(hf.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: pytest.fail("it would be loaded"))
    with pytest.raises(MemoryBudgetError, match=r"as its config\.json describes it, needs \d.* TiB"):
        load(model)


def test_types_of_tensors_that_are_not_known(model: Path) -> None:
    header = json.dumps({name: {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]} for name in "abc"}).encode()
    (model / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 4)
    with pytest.raises(ModelError, match=r"cannot load .*Q9"):
        load(model)


def test_code_from_a_model_is_neither_run_nor_asked_about(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "configuration_mystery.py").write_text("raise SystemExit('this was run')\n")
    names = {"AutoConfig": "configuration_mystery.MysteryConfig", "AutoModelForCausalLM": "configuration_mystery.Mystery"}
    change(model / "config.json", model_type="mystery", architectures=["Mystery"], auto_map=names)
    monkeypatch.setattr(builtins, "input", pytest.fail)
    with pytest.raises(ModelError, match="Python code of its own"):
        load(model)


# --- facts of a model ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "geometry"),
    [
        ("llama", KVGeometry(2, 2, 8)),
        ("gemma3_text", KVGeometry(3, 2, 8)),
        ("deepseek_v3", KVGeometry(2, 4, 12, uniform=False)),  # keys of 8 + 4, values of 6
        ("gpt2", KVGeometry(2, 4, 8)),
    ],
)
def test_geometry(family: str, geometry: KVGeometry, model_directory: Callable[[str], Path]) -> None:
    loaded = load(model_directory(family))
    assert loaded.geometry() == geometry
    assert (loaded.vocab_size, loaded.max_model_len) == (VOCAB_SIZE, CONTEXT)


def test_options_of_each_layer_arrive(model_directory: Callable[[str], Path]) -> None:
    seen: dict[int, AttentionOptions] = {}

    class Recorder:
        def attend(
            self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions
        ) -> torch.Tensor:
            seen[layer] = options
            return torch.zeros_like(query)

    token = torch.zeros(1, dtype=torch.int64)
    for family in ("gemma3_text", "gemma2", "gpt_oss"):
        loaded = load(model_directory(family))
        with forward_context(Recorder()):
            loaded.forward(token, token, token)
        assert {layer: options.window for layer, options in seen.items() if options.window} == dict.fromkeys(
            {"gemma3_text": [0, 2]}.get(family, [0]), WINDOW
        )
        assert seen[0].softcap == (4.0 if family == "gemma2" else None)
        assert seen[0].scale == pytest.approx(8**-0.5 if family == "gpt_oss" else 5**-0.5)
        assert (seen[1].sinks is not None) == (family == "gpt_oss")
        seen.clear()


def test_outside_a_forward_pass_there_is_no_attention(model_directory: Callable[[str], Path]) -> None:
    with pytest.raises(LookupError):
        current_attention()
    token = torch.zeros(1, dtype=torch.int64)
    loaded = load(model_directory("llama"))
    with pytest.raises(LookupError):
        loaded.forward(token, token, token)


@pytest.mark.parametrize(
    ("of_config", "of_generation", "stops"), [(1, [1, 106], {1, 106}), ([1, 7], 106, {1, 7, 106}), (1, None, {1}), (None, [5], {5})]
)
def test_e8_end_tokens_are_the_union(model: Path, of_config: Any, of_generation: Any, stops: set[int]) -> None:
    change(model / "config.json", eos_token_id=of_config)
    change(model / "generation_config.json", eos_token_id=of_generation)
    assert load(model).stop_token_ids == stops


def test_e8_the_second_end_token_stops(model: Path) -> None:
    expected = reference_answer(load_reference(model), PROMPT, 12)
    at = next(i for i in range(3, 12) if expected[i] not in expected[:i])
    change(model / "generation_config.json", eos_token_id=[END, expected[at]])
    with make_engine(model, kv_blocks=10) as engine:
        result = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12))
        unstopped = engine.generate(PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    assert result.completions[0].finish_reason is FinishReason.STOP
    assert result.token_ids == expected[:at]
    assert unstopped.token_ids == expected


# --- configurations ------------------------------------------------------------------------------------------------------


def test_loading_changes_no_configuration_but_its_own(model_directory: Callable[[str], Path]) -> None:
    directory = model_directory("llama")
    before = (directory / "config.json").read_bytes()
    first, second = load(directory), load(directory)
    assert first._model.config is not second._model.config
    assert first._model.config._attn_implementation == ATTENTION_NAME
    # A model that somebody else loads from the same place is a stock one.
    assert load_reference(directory).config._attn_implementation == "sdpa"
    assert (directory / "config.json").read_bytes() == before


def test_nothing_is_trained(model_directory: Callable[[str], Path]) -> None:
    loaded = load(model_directory("llama"))
    assert not any(parameter.requires_grad for parameter in loaded._model.parameters())
    assert not any(module.training for module in loaded._model.modules())


def test_max_model_len_of_the_configuration_or_the_user(model: Path) -> None:
    assert load(model, max_model_len=50).max_model_len == 50
    with pytest.raises(InvalidRequestError, match=f"max_model_len {CONTEXT + 1} is more than the model's context of {CONTEXT}"):
        load(model, max_model_len=CONTEXT + 1)


def llama_config(context: object) -> Any:
    config = FAMILIES["llama"]()
    object.__setattr__(config, "max_position_embeddings", context)
    return config


def test_a_configuration_that_names_no_context() -> None:
    assert _context(llama_config(None), 50) == 50
    with pytest.raises(ModelError, match=r"does not name its context .*; use --max-model-len"):
        _context(llama_config(None), None)


@pytest.mark.parametrize("named", [0, -1, "long", True, 4.5])
def test_a_context_that_is_no_length(named: object) -> None:
    for longest in (None, 50):
        with pytest.raises(ModelError, match="has to be a positive whole number"):
            _context(llama_config(named), longest)


def test_a_short_context_shortens_answers(model_directory: Callable[[str], Path]) -> None:
    with LLMEngine.from_pretrained(model_directory("llama"), EngineConfig(max_model_len=9, kv_blocks=5, device="cpu", threads=1)) as engine:
        result = engine.generate(PROMPT, SamplingParams(temperature=0, ignore_eos=True))
    assert len(result.token_ids) == 4
    assert result.completions[0].finish_reason is FinishReason.LENGTH


def test_the_text_part_of_a_model_that_sees_answers(tmp_path: Path) -> None:
    layers = ["sliding_attention", "full_attention"]
    text = SIZES | {"sliding_window": WINDOW, "layer_types": layers, "query_pre_attn_scalar": 5}
    eyes = {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "image_size": 28,
        "patch_size": 14,
    }
    config = hf.Gemma3Config(text_config=text, vision_config=eyes, mm_tokens_per_image=4, tie_word_embeddings=False)
    directory = save_model(config, tmp_path)
    assert json.loads((directory / "config.json").read_text())["architectures"] == ["Gemma3ForConditionalGeneration"]
    prompt = [40 + i for i in range(20)]
    expected = reference_answer(load_reference(directory), prompt, 12)
    with make_engine(directory, kv_blocks=10) as engine:
        result = engine.generate(prompt, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    assert result.token_ids == expected
