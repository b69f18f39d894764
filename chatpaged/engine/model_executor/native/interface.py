"""The structures and functions of `src/chatpaged.h`, for ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any, ClassVar

VERSION = 5
"""Of structures and layouts; has to be that of the library."""
F32, F16, I8, I4, BF16 = range(5)
"""Formats, as `enum Format` numbers them."""
PANEL = 32
GROUP = 32

_int, _float, _pointer = ctypes.c_int32, ctypes.c_float, ctypes.c_void_p


class Linear(ctypes.Structure):
    """`cp_linear`: a weight matrix in panels."""

    _fields_: ClassVar = [("format", _int), ("n", _int), ("k", _int), ("data", _pointer), ("bias", _pointer)]


class Layer(ctypes.Structure):
    """`cp_layer`."""

    _fields_: ClassVar = [
        *(
            (name, _pointer)
            for name in (
                "input_norm",
                "post_attention_norm",
                "pre_mlp_norm",
                "post_mlp_norm",
                "q_norm",
                "k_norm",
                "cosine",
                "sine",
                "sinks",
            )
        ),
        *((name, Linear) for name in ("qkv", "o", "gate_up", "down")),
        ("window", _int),
    ]


class ModelConfig(ctypes.Structure):
    """`cp_model_config`."""

    _fields_: ClassVar = [
        *(
            (name, _int)
            for name in (
                "num_layers",
                "hidden",
                "intermediate",
                "heads",
                "kv_heads",
                "head_dim",
                "vocab",
                "rotary_dim",
                "activation",
                "qk_norm",
            )
        ),
        *(
            (name, _float)
            for name in (
                "norm_eps",
                "embedding_scale",
                "residual_scale",
                "logits_scale",
                "attention_scale",
                "attention_softcap",
                "final_softcap",
            )
        ),
        ("embedding_format", _int),
        ("embedding", _pointer),
        ("final_norm", _pointer),
        ("lm_head", Linear),
        ("layers", ctypes.POINTER(Layer)),
        ("kv_format", _int),
        ("block_size", _int),
    ]


class Step(ctypes.Structure):
    """`cp_step`."""

    _fields_: ClassVar = [
        *((name, _int) for name in ("num_tokens", "num_rows", "num_logits")),
        *(
            (name, _pointer)
            for name in (
                "token_ids",
                "row_tokens",
                "row_starts",
                "row_blocks",
                "tables",
                "logits_tokens",
                "pool",
                "logits",
                "best",
                "best_logit",
            )
        ),
    ]


class AttentionConfig(ctypes.Structure):
    """`cp_attention_config`."""

    _fields_: ClassVar = [
        *((name, _int) for name in ("heads", "kv_heads", "head_dim", "block_size", "kv_format", "num_layers", "window")),
        ("scale", _float),
        ("softcap", _float),
        ("sinks", _pointer),
    ]


class Draw(ctypes.Structure):
    """`cp_draw`."""

    _fields_: ClassVar = [
        ("logits", _pointer),
        *((name, _float) for name in ("temperature", "top_p", "min_p")),
        ("top_k", _int),
        ("uniform", ctypes.c_double),
    ]


_step, _linear = ctypes.POINTER(Step), ctypes.POINTER(Linear)
FUNCTIONS: Mapping[str, tuple[Any, list[Any]]] = {
    "cp_version": (_int, []),
    "cp_instruction_sets": (ctypes.c_char_p, []),
    "cp_team_create": (_pointer, [_int, ctypes.c_char_p]),
    "cp_team_destroy": (None, [_pointer]),
    "cp_team_instruction_set": (ctypes.c_char_p, [_pointer]),
    "cp_model_create": (_pointer, [_pointer, ctypes.POINTER(ModelConfig)]),
    "cp_model_destroy": (None, [_pointer]),
    "cp_model_block_bytes": (ctypes.c_int64, [_pointer]),
    "cp_model_reserve": (_int, [_pointer, _int]),
    "cp_model_step": (_int, [_pointer, _step]),
    "cp_attention": (_int, [_pointer, ctypes.POINTER(AttentionConfig), _int, _step, _pointer, _pointer, _pointer, _pointer]),
    "cp_linear_apply": (_int, [_pointer, _linear, _int, _pointer, _pointer]),
    "cp_sample": (_int, [_pointer, _int, ctypes.POINTER(Draw), _int, _pointer]),
    "cp_use_large_pages": (None, [_pointer, ctypes.c_int64]),
    "cp_pack": (None, [_pointer, _pointer, _int, _int, _int, _pointer]),
    "cp_read_bandwidth": (ctypes.c_double, [_pointer, _pointer, ctypes.c_int64, ctypes.POINTER(_float)]),
}
"""Result and arguments by name."""
