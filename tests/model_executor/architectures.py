"""Every architecture that is tested, each as small as it gets. `python -m tests.model_executor.architectures` writes docs/models.md.

A class takes those of the sizes below whose names it knows; what it needs beyond them is written beside its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from chatpaged.engine.model_executor.models.hf import silence_transformers
from chatpaged.engine.model_executor.models.support import WHAT_RUNS, check_supported
from chatpaged.errors import ModelError

DOCUMENT = Path(__file__).parents[2] / "docs" / "models.md"
VOCAB_SIZE = 96
CONTEXT = 128
WINDOW = 8

Options = dict[str, Any]

_SIZES: Options = (
    {"vocab_size": VOCAB_SIZE, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2, "sliding_window": WINDOW}
    | dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len"), CONTEXT)
    | dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "backbone_hidden_size"), 32)
    | dict.fromkeys(("intermediate_size", "dense_intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner"), 48)
    | dict.fromkeys(("shared_intermediate_size", "shared_expert_intermediate_size"), 24)
    | dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 16)
    | dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2)
    | dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "swa_num_attention_heads"), 4)
    | dict.fromkeys(("num_key_value_heads", "swa_num_key_value_heads"), 2)
    | dict.fromkeys(("head_dim", "global_head_dim", "kv_channels", "qk_nope_head_dim", "v_head_dim", "swa_head_dim", "swa_v_head_dim"), 8)
    | dict.fromkeys(("qk_rope_head_dim", "rotary_dim"), 4)
    | dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim"), 12)
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4)
    | dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k", "n_group", "zero_expert_num"), 2)
    | dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "topk_group"), 1)
    | dict.fromkeys(("first_k_dense_replace", "num_dense_layers"), 1)
    # Classes work these out from the number of layers.
    | dict.fromkeys(("layer_types", "mlp_layer_types", "no_rope_layers", "full_attn_idxs"))
)
# Dimensions of heads follow from others there.
_NO_HEAD_DIM: Options = {"num_key_value_heads": 4, "head_dim": ...}
_EQUAL_HEADS: Options = {"num_key_value_heads": 4}
_FULL_LAYERS: Options = {"layer_types": ["full_attention"] * 2}
_MIXED_LAYERS: Options = {"num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}

_INNER: Options = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 2,
}
_INNER_QWEN: Options = _INNER | _FULL_LAYERS
_INNER_MIXED: Options = _INNER | {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
_INNER_GEMMA4: Options = {"global_head_dim": 16, "vocab_size_per_layer_input": VOCAB_SIZE, "hidden_size_per_layer_input": 8}
_EYES: Options = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4, "patch_size": 14}
_EARS: Options = {"d_model": 32, "encoder_layers": 1, "encoder_attention_heads": 4, "encoder_ffn_dim": 48}
_MLLAMA_EYES: Options = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_global_layers": 1,
    "attention_heads": 4,
} | {
    "image_size": 28,
    "patch_size": 14,
    "vision_output_dim": 64,
    "intermediate_layers_indices": [0],
}
_EMU3_EYES: Options = {"codebook_size": 8, "embed_dim": 4, "latent_channels": 4, "base_channels": 32, "channel_multiplier": [1, 1]} | {
    "num_res_blocks": 1,
    "attn_resolutions": [],
    "hidden_size": 32,
    "num_attention_heads": 4,
}
_SCALED_BY_POSITION: Options = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 16.0,
    "original_max_position_embeddings": 8,
    "llama_4_scaling_beta": 0.5,
}
_PHI4_EARS: Options = {"hidden_size": 32, "intermediate_size": 48, "num_blocks": 1, "ext_pw_out_channel": 32, "nemo_conv_channels": 32}

# fmt: off
_PLAIN = (
    "apertus", "apertus1p5_text", "arcee", "aria_text", "bitnet", "codegen", "cohere", "ctrl", "ernie4_5", "ernie4_5_moe", "exaone",
    "flex_olmo", "gemma", "glm", "glm4", "glm4_moe", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe",
    "granitemoeshared", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "hy_v3", "hyperclovax", "internlm3", "iquestcoder", "jais2",
    "jetmoe", "llama", "minimax_m2", "mistral", "mixtral", "moshi", "nanochat", "nemotron", "olmo", "olmo2", "olmoe",
    "opt", "persimmon", "phi", "phi3", "qwen2_moe", "sarvam_moe", "seed_oss", "solar_open", "starcoder2",
)
_WITH_WINDOWS = (
    "afmoe", "beam", "cohere2", "cohere2_moe", "cwm", "dots1", "exaone4", "exaone_moe", "flint", "gemma3_text", "gpt_oss",
    "granite_swa", "granitemoe_swa", "kolibri1", "laguna", "mellum", "mimo_v2_flash", "ministral", "modernbert-decoder", "olmo3",

)
# fmt: on
_TEXT_ONLY = "text only"
_ATTENTION_ONLY = "if all its layers are attention layers"
_OTHERS: dict[str, Options] = {
    "axk1": _NO_HEAD_DIM,
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}} | _FULL_LAYERS,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "deepseek_v2": _EQUAL_HEADS | {"topk_method": "greedy"},
    "deepseek_v3": _NO_HEAD_DIM,
    "fuyu": {"text_config": _INNER_QWEN | {"model_type": "persimmon"}, "patch_size": 4, "image_size": 8},
    "gemma2": _MIXED_LAYERS | {"attn_logit_softcapping": 4.0},
    "gemma3": {"text_config": _INNER_MIXED, "vision_config": _EYES | {"image_size": 28}, "mm_tokens_per_image": 4},
    "gemma4": {
        "text_config": _INNER_MIXED | _INNER_GEMMA4 | {"num_kv_shared_layers": 0},
        "vision_config": {name: value for name, value in _EYES.items() if name != "patch_size"} | {"head_dim": 8},
        "audio_config": None,
    },
    "gemma4_text": _MIXED_LAYERS | _INNER_GEMMA4,
    "gemma4_unified": {"text_config": _INNER_MIXED | {"global_head_dim": 16}},
    "gemma4_unified_text": _MIXED_LAYERS | {"global_head_dim": 16},
    "glm4_moe_lite": _EQUAL_HEADS,
    "got_ocr2": {
        "text_config": _INNER_QWEN | {"model_type": "qwen2"},
        "vision_config": _EYES | {"patch_size": 16, "image_size": 64, "output_channels": 16, "mlp_dim": 48, "global_attn_indexes": [0]},
    },
    "gpt2": {"scale_attn_by_inverse_layer_idx": True},
    "granitemoehybrid": {"layer_types": ["attention"] * 2, "mamba_n_heads": 4, "position_embedding_type": "rope"},
    "lfm2": _FULL_LAYERS,
    "lfm2_moe": _FULL_LAYERS,
    "lfm3": _MIXED_LAYERS,
    "longcat_flash": _EQUAL_HEADS | {"head_dim": 4, "n_group": ..., "topk_group": ...},
    "minicpm3": _EQUAL_HEADS,
    "minimax": _FULL_LAYERS,
    "minimax_m3_vl_text": _FULL_LAYERS,
    "ministral3": {"rope_parameters": _SCALED_BY_POSITION},
    "moss_transcribe_diarize": {"text_config": _INNER_QWEN | {"model_type": "qwen3"}, "audio_config": _EARS},
    "phi4_multimodal": {"vision_config": _EYES | {"image_size": 28}, "audio_config": _PHI4_EARS},
    "phimoe": {"sliding_window": CONTEXT},
    "qwen2": _MIXED_LAYERS | {"use_sliding_window": True},
    "qwen3": _MIXED_LAYERS | {"use_sliding_window": True},
    "smollm3": _MIXED_LAYERS | {"use_sliding_window": True},
    "qwen3_moe": {"use_sliding_window": True},
    "sarvam_mla": _EQUAL_HEADS,
    "vaultgemma": _MIXED_LAYERS | {"attn_logit_softcapping": 4.0},
    "youtu": _NO_HEAD_DIM,
}
ARCHITECTURES: dict[str, Options] = dict.fromkeys(sorted(_PLAIN), Options()) | dict.fromkeys(sorted(_WITH_WINDOWS), _MIXED_LAYERS) | _OTHERS
"""Model types that run, and what their smallest configuration needs beyond the usual sizes."""

NOTES: dict[str, str] = (
    dict.fromkeys(("fuyu", "gemma3", "gemma4_unified", "got_ocr2", "moshi", "moss_transcribe_diarize", "phi4_multimodal"), _TEXT_ONLY)
    | dict.fromkeys(("granitemoehybrid", "lfm2", "lfm2_moe", "lfm3", "minimax", "minimax_m3_vl_text"), _ATTENTION_ONLY)
    | dict.fromkeys(("phimoe", "qwen2_moe"), "up to the length of its sliding window, if it has one")
    | {"gemma4": "text only, and if no layers share keys and values", "gemma4_text": "if no layers share keys and values"}
)
"""Under which condition a model type runs."""


@dataclass(frozen=True)
class Refused:
    """A model whose configuration looks as if it would run.

    Attributes:
        reason: why it is refused once it is loaded.
        options: what its smallest configuration needs beyond the usual sizes.
        model_class: the class that its weights are of, if it is not the one that transformers loads them with.
    """

    reason: str
    options: Options = field(default_factory=dict)
    model_class: str | None = None


_LOOKS_AHEAD = "attends to later tokens as well"
_ONE_NUMBER = "two attention layers of this model share one number"
REFUSED: dict[str, Refused] = {
    "bert": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "bert-generation": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "camembert": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "data2vec-text": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "diffllama": Refused(_ONE_NUMBER),
    "doge": Refused("changes its attention mask"),
    "dory": Refused(_ONE_NUMBER),
    "electra": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "emu3": Refused(
        "does not fit the weights",
        {"text_config": _INNER, "vq_config": _EMU3_EYES, "vocabulary_map": {"<image>": 5}},
        "Emu3ForConditionalGeneration",
    ),
    "ernie": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "hrm_text": Refused(_ONE_NUMBER),
    "mllama": Refused(
        "attention was reached in 1 of 2 layers",
        {"text_config": _INNER | {"cross_attention_layers": [1]}, "vision_config": _MLLAMA_EYES},
        "MllamaForConditionalGeneration",
    ),
    "phimoe": Refused(f"does not pass its sliding window of {WINDOW} tokens on"),
    "qwen2_moe": Refused(f"does not pass its sliding window of {WINDOW} tokens on", _MIXED_LAYERS | {"use_sliding_window": True}),
    "roberta": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "roberta-prelayernorm": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "roc_bert": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "xlm-roberta": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "xlm-roberta-xl": Refused(_LOOKS_AHEAD, _EQUAL_HEADS),
    "xmod": Refused(_LOOKS_AHEAD, _EQUAL_HEADS | {"default_language": "en_XX"}),
}
"""By model type."""


def build_config(model_type: str, options: Options) -> Any:
    """A small configuration: the usual sizes as far as the class knows them, and the options. An ellipsis takes a size back."""
    config_class: Any = CONFIG_MAPPING[model_type]
    known = set(config_class().to_dict()) | set(getattr(config_class, "__dataclass_fields__", ()))
    renamed = {old for old, new in config_class.attribute_map.items() if new in known}
    sizes = {name: value for name, value in _SIZES.items() if name in known and name not in renamed}
    return config_class(**{name: value for name, value in (sizes | options).items() if value is not ...})


def model_class_name(model_type: str) -> str:
    """The class that transformers runs a model type with."""
    model_class: Any = transformers.AutoModelForCausalLM._model_mapping[CONFIG_MAPPING[model_type]]
    return str(model_class.__name__)


def refused_by_configuration() -> dict[str, str]:
    """Why language models of transformers are refused before they are loaded, by model type."""
    # The only ones whose own defaults contradict each other.
    text = {"model_type": "gemma4_text", "num_hidden_layers": 2, "num_kv_shared_layers": 2}
    options: dict[str, Any] = {
        "gemma4_assistant": {"text_config": text | {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}
    }
    reasons = {}
    config_class: Any
    for config_class in transformers.AutoModelForCausalLM._model_mapping:
        model_type: str = config_class.model_type
        if model_type not in ARCHITECTURES and model_type not in REFUSED:
            try:
                check_supported(config_class(**options.get(model_type, {})))
            except ModelError as error:
                reasons[model_type] = str(error).removeprefix(f"{model_type} ").removesuffix(f"; {WHAT_RUNS}")
    return reasons


def table() -> str:
    """The supported architectures as a Markdown table."""
    rows = [f"| `{name}` | `{model_class_name(name)}` | {NOTES.get(name, '')} |".replace("|  |", "| |") for name in sorted(ARCHITECTURES)]
    head = [f"{len(ARCHITECTURES)} architectures of transformers {transformers.__version__} are tested:", ""]
    return "\n".join([*head, "| `model_type` | class in transformers | only |", "|---|---|---|", *rows])


def refusals() -> str:
    """The refused architectures as a Markdown list, by reason."""
    reasons = refused_by_configuration() | {name: refused.reason for name, refused in REFUSED.items() if name not in ARCHITECTURES}
    names: dict[str, list[str]] = {}
    for name, reason in sorted(reasons.items()):
        names.setdefault(
            re.sub(r"(?<=has layers of )type .*", "other types", re.sub(r" \(.*|, which is not supported", "", reason)), []
        ).append(f"`{name}`")
    head = [f"{len(reasons)} language models of transformers {transformers.__version__} are refused:", ""]
    return "\n".join(head + [f"- {reason}: {', '.join(names[reason])}" for reason in sorted(names, key=lambda reason: -len(names[reason]))])


def brought_up_to_date(text: str) -> str:
    """A document with both lists as they are now."""
    for mark, content in (("supported", table()), ("refused", refusals())):
        before, begin, rest = text.partition(f"<!-- {mark} -->\n")
        _, end, after = rest.partition(f"<!-- end of {mark} -->\n")
        text = f"{before}{begin}{content}\n{end}{after}"
    return text


if __name__ == "__main__":
    silence_transformers()
    DOCUMENT.write_text(brought_up_to_date(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
