"""What a configuration alone is refused for."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chatpaged.engine.model_executor.models.support import WHAT_RUNS, check_supported
from chatpaged.errors import ModelError
from tests.model_executor.tiny_models import FAMILIES, OTHER_FAMILIES

hf: Any = transformers


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("T5Config", "encoder-decoder"),
        ("WhisperConfig", "encoder-decoder"),
        ("ViTConfig", "no causal language model"),
        ("FalconConfig", "does not let its attention be exchanged"),
        ("BloomConfig", "does not let its attention be exchanged"),
        ("MambaConfig", "does not let its attention be exchanged"),
        ("Qwen3NextConfig", "does not let its attention be exchanged"),
        ("Llama4TextConfig", "chunked_attention"),
        ("Gemma3nTextConfig", r"share keys and values \(num_kv_shared_layers\)"),
    ],
)
def test_unsupported_architectures_are_named(name: str, reason: str) -> None:
    config = getattr(hf, name)()
    with pytest.raises(ModelError, match=f"^{config.model_type} .*{reason}"):
        check_supported(config)


def test_encoder_decoders_of_several_models_are_named() -> None:
    # Which of its parts is the text model is not to be asked.
    config = hf.MusicgenConfig(
        text_encoder={"model_type": "t5"}, audio_encoder={"model_type": "encodec"}, decoder={"model_type": "musicgen_decoder"}
    )
    with pytest.raises(ModelError, match=r"^musicgen is an encoder-decoder"):
        check_supported(config)


@pytest.mark.parametrize(
    ("option", "value", "reason"),
    [
        ("attention_chunk_size", 64, "chunked attention"),
        ("num_kv_shared_layers", 1, "share keys and values"),
        ("use_bidirectional_attention", True, "bidirectional attention"),
        ("layer_types", ["full_attention", "linear_attention"], "layers of type linear_attention; supported are full_attention, sliding"),
    ],
)
def test_unsupported_options_are_named(option: str, value: Any, reason: str) -> None:
    config = FAMILIES["gemma3_text"]()
    config.architectures = ["TinyForCausalLM"]
    check_supported(config)
    setattr(config, option, value)
    with pytest.raises(ModelError, match=f"^TinyForCausalLM .*{reason}"):
        check_supported(config)


@pytest.mark.parametrize("family", [*FAMILIES, *OTHER_FAMILIES])
def test_supported_architectures(family: str) -> None:
    check_supported((FAMILIES | OTHER_FAMILIES)[family]())


@pytest.mark.parametrize("value", [None, "vision"])
def test_images_that_see_themselves_do_not_matter_for_text(value: Any) -> None:
    check_supported(hf.Gemma4UnifiedTextConfig(use_bidirectional_attention=value))
    with pytest.raises(ModelError, match="bidirectional attention"):
        check_supported(hf.Gemma4UnifiedTextConfig(use_bidirectional_attention="all"))


def test_refusals_say_what_runs() -> None:
    with pytest.raises(ModelError, match=f"; {WHAT_RUNS}$"):
        check_supported(hf.T5Config())


@pytest.mark.parametrize("name", ["Qwen2_5_VLConfig", "Mistral3Config", "LlavaConfig"])
def test_models_of_images_and_text_without_a_text_class_are_named(name: str) -> None:
    config = getattr(hf, name)()
    with pytest.raises(ModelError, match=f"^{config.model_type} reads more than text, and transformers has no causal language model for"):
        check_supported(config)


@pytest.mark.parametrize("layers", [0, None, "two"])
def test_a_number_of_layers_that_is_none(layers: Any) -> None:
    config = FAMILIES["llama"]()
    object.__setattr__(config, "num_hidden_layers", layers)
    with pytest.raises(ModelError, match=rf"^llama has no layers \(num_hidden_layers is {layers}\)"):
        check_supported(config)


def test_several_language_models_in_one_are_named() -> None:
    config = FAMILIES["llama"]()
    config.text_config = config.decoder = FAMILIES["llama"]()
    with pytest.raises(ModelError, match=r"^llama consists of several language models"):
        check_supported(config)


def test_every_configuration_that_transformers_knows_is_taken_or_refused() -> None:
    configs = []
    for model_type in CONFIG_MAPPING:
        with contextlib.suppress(Exception):  # two of them have defaults that their own classes refuse
            configs.append(CONFIG_MAPPING[model_type]())
    refused = [config for config in configs if is_refused(config)]
    assert len(configs) > 400
    assert 100 < len(configs) - len(refused) < 300


def is_refused(config: Any) -> bool:
    try:
        check_supported(config)
    except ModelError:
        return True
    return False
