"""A tiny llama as a GGUF file, written as llama.cpp's converter would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from tests.model_executor.tiny_models import CHAT_TEMPLATE, CONTEXT, END, FAMILIES, SPECIAL_TOKENS, START, build_model, build_tokenizer

_LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_NAMES = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight", "lm_head.weight": "output.weight"}


def save_gguf(
    path: Path, *, seed: int = 0, quantize: bool = False, template: bool = True, left_out: str = "", arch: str = "llama", parts: int = 0
) -> dict[str, torch.Tensor]:
    """Writes the file.

    Args:
        path: where to.
        seed: of the random weights.
        quantize: store matrices as Q8_0 where their rows allow it.
        template: whether there is a chat template.
        left_out: a tensor that is missing.
        arch: what the file calls its architecture.
        parts: of how many files it says to be one; 0 for not.

    Returns:
        The weights by transformers' names.
    """
    config = FAMILIES["llama"]()
    model = build_model(config, seed).float()
    weights: dict[str, torch.Tensor] = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    writer = gguf.GGUFWriter(path, arch)
    _write_settings(writer, config, template=template, quantize=quantize)
    if parts:
        writer.add_uint16("split.count", parts)
    for name, tensor in weights.items():
        if name != left_out:
            _write_tensor(writer, name, tensor, config, quantize=quantize)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def _write_settings(writer: Any, config: Any, *, template: bool, quantize: bool) -> None:
    writer.add_name("tiny")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if quantize else gguf.LlamaFileType.ALL_F32)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    inner = json.loads(build_tokenizer().to_str())["model"]
    tokens = sorted(inner["vocab"], key=lambda token: int(inner["vocab"][token]))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.CONTROL if token in SPECIAL_TOKENS else gguf.TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in inner["merges"]])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    if template:
        writer.add_chat_template(CHAT_TEMPLATE)


def _write_tensor(writer: Any, name: str, tensor: torch.Tensor, config: Any, *, quantize: bool) -> None:
    data = tensor.numpy().astype(np.float32)
    parts = name.split(".")
    if name in _NAMES:
        target = _NAMES[name]
    else:
        inner = ".".join(parts[3:-1])
        target = f"blk.{parts[2]}.{_LAYER_NAMES[inner]}.weight"
        heads = {"self_attn.q_proj": config.num_attention_heads, "self_attn.k_proj": config.num_key_value_heads}.get(inner)
        if heads is not None:  # llama.cpp rotates neighbours, transformers halves
            data = data.reshape(heads, 2, data.shape[0] // heads // 2, *data.shape[1:]).swapaxes(1, 2).reshape(data.shape)
    if quantize and data.ndim == 2 and data.shape[1] % 32 == 0:
        kind = gguf.GGMLQuantizationType.Q8_0
        writer.add_tensor(target, gguf.quantize(data, kind), raw_dtype=kind)
    else:
        writer.add_tensor(target, np.ascontiguousarray(data))
