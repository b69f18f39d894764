"""Tiny models with random weights, saved as real model directories: configuration, safetensors, tokenizer, chat template.

Weights are drawn far wider than training would start from. Attention is sharp then, and each token depends on the whole context:
a wrong key, mask or position changes the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers, trainers

hf: Any = transformers  # its classes have no useful types

VOCAB_SIZE = 300
CONTEXT = 128
WINDOW = 8
START, END, PAD = 0, 1, 2
SPECIAL_TOKENS = ("<|start|>", "<|end|>", "<|pad|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
_CORPUS = (
    "the blocks of one layer lie apart, and the table of a sequence says where each of them is",
    "a token attends to all tokens before it, or to those that its window still shows",
    "what has been computed once is found again by whoever begins with the same words",
)
_STANDARD_DEVIATION = 0.4

_SIZES: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": CONTEXT,
    "bos_token_id": START,
    "eos_token_id": END,
    "pad_token_id": PAD,
}
_EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
_MIXED_LAYERS = ["sliding_attention", "full_attention", "sliding_attention"]


def _llama() -> Any:
    return hf.LlamaConfig(**_SIZES)


def _qwen3() -> Any:
    return hf.Qwen3Config(**_SIZES)


def _gemma3_text() -> Any:
    sizes = _SIZES | {"num_hidden_layers": 3, "layer_types": _MIXED_LAYERS, "sliding_window": WINDOW}
    return hf.Gemma3TextConfig(**sizes, query_pre_attn_scalar=5, tie_word_embeddings=False)


def _mistral() -> Any:
    return hf.MistralConfig(**_SIZES, sliding_window=WINDOW)


def _gpt_oss() -> Any:
    # The rope is written out: the class's own default stretches a context of 4,096.
    rope = {"rope_type": "yarn", "rope_theta": 150000.0, "factor": 4.0, "original_max_position_embeddings": CONTEXT // 4}
    return hf.GptOssConfig(**_SIZES, sliding_window=WINDOW, num_local_experts=4, num_experts_per_tok=2, rope_parameters=rope)


def _qwen3_moe() -> Any:
    return hf.Qwen3MoeConfig(**_SIZES, **_EXPERTS, num_experts=4, decoder_sparse_step=1)


def _gemma2() -> Any:
    return hf.Gemma2Config(**_SIZES, sliding_window=WINDOW, query_pre_attn_scalar=5, attn_logit_softcapping=4.0, tie_word_embeddings=False)


def _deepseek_v3() -> Any:
    """Values are narrower than keys, and its first layer has no experts."""
    sizes = {name: value for name, value in _SIZES.items() if name != "head_dim"} | {"num_key_value_heads": 4}
    heads = {"kv_lora_rank": 12, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 6}
    groups = {"n_routed_experts": 4, "n_group": 2, "topk_group": 1, "n_shared_experts": 1, "first_k_dense_replace": 1}
    return hf.DeepseekV3Config(**sizes, **heads, **groups, **_EXPERTS)


def _deepseek_v2() -> Any:
    """Its rotary embedding is one tensor of complex numbers."""
    sizes = {name: value for name, value in _SIZES.items() if name != "head_dim"} | {"num_key_value_heads": 4}
    heads = {"kv_lora_rank": 12, "q_lora_rank": 12, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    groups = {"n_routed_experts": 4, "topk_method": "greedy", "n_shared_experts": 1, "first_k_dense_replace": 1}
    return hf.DeepseekV2Config(**sizes, **heads, **groups, **_EXPERTS)


def _gpt2() -> Any:
    """Learned positions, no groups, no rotary embedding."""
    sizes = {"vocab_size": VOCAB_SIZE, "n_positions": CONTEXT, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return hf.GPT2Config(**sizes, bos_token_id=START, eos_token_id=END, tie_word_embeddings=False)


FAMILIES: dict[str, Callable[[], Any]] = {
    "llama": _llama,
    "qwen3": _qwen3,
    "gemma3_text": _gemma3_text,
    "mistral": _mistral,
    "gpt_oss": _gpt_oss,
    "qwen3_moe": _qwen3_moe,
}
OTHER_FAMILIES: dict[str, Callable[[], Any]] = {"gemma2": _gemma2, "deepseek_v3": _deepseek_v3, "deepseek_v2": _deepseek_v2, "gpt2": _gpt2}


DENSE_FAMILIES = ("llama", "qwen3", "gemma3_text", "mistral", "gemma2")
"""Those of both that the dense decoder runs."""


def build_tokenizer() -> tokenizers.Tokenizer:
    """A byte-level BPE tokenizer that fills the vocabulary."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise RuntimeError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCAB_SIZE}")
    return tokenizer


def build_model(config: Any, seed: int = 0) -> Any:
    """A float64 model with wide random weights, biases and norms."""
    generator = torch.Generator().manual_seed(seed)
    model = hf.AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * _STANDARD_DEVIATION
            # A norm multiplies: around what it starts from, so that it keeps the scale.
            parameter.copy_(parameter + noise if "norm" in name or ".ln_" in name else noise)
    return model.eval()


def save_model(config: Any, directory: Path, *, seed: int = 0, max_shard_size: str = "1GB") -> Path:
    """Writes a complete model directory."""
    build_model(config, seed).save_pretrained(directory, max_shard_size=max_shard_size)
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=build_tokenizer(), bos_token=SPECIAL_TOKENS[START], eos_token=SPECIAL_TOKENS[END], pad_token=SPECIAL_TOKENS[PAD]
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    return directory


def save_family(family: str, directory: Path) -> Path:
    """Writes the directory of one of the families."""
    return save_model((FAMILIES | OTHER_FAMILIES)[family](), directory)
