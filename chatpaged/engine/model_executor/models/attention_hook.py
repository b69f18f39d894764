"""Where transformers' layers call our attention: the one function of this engine that runs inside their code."""

from __future__ import annotations

import torch
import transformers
from torch import nn

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention
from chatpaged.errors import ModelError

ATTENTION_NAME = "chatpaged"
# Keys are turned by their positions already, there is no dropout outside training, and the rest is about what is to be returned.
_WITHOUT_EFFECT = frozenset(
    {"dropout", "logits_to_keep", "output_attentions", "output_hidden_states", "output_router_logits", "position_ids", "use_cache"}
)


def register_attention() -> None:
    """Makes `attn_implementation="chatpaged"` known to transformers."""
    transformers.AttentionInterface.register(ATTENTION_NAME, chatpaged_attention)


def chatpaged_attention(  # noqa: PLR0913, PLR0917 - transformers' signature
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,  # noqa: FBT001 - transformers' signature
    **others: object,
) -> tuple[torch.Tensor, None]:
    """The function that transformers' layers call. Query `[1, heads, T, dim]`; returns `[1, T, heads, value_dim]`."""
    if attention_mask is not None:
        raise ModelError(f"{type(module).__name__} brings an attention mask of its own")
    layer = getattr(module, "layer_idx", None)
    if not isinstance(layer, int):
        raise ModelError(f"{type(module).__name__} does not say which layer it is, which is needed to find its keys and values")
    if is_causal is False or getattr(module, "is_causal", True) is False:  # encoders that transformers also lists as language models
        raise ModelError(f"{type(module).__name__} attends to later tokens as well")
    for name in others.keys() - _WITHOUT_EFFECT:
        if others[name] is not None:  # a bias, a choice of tokens: whatever it is, it was not passed for nothing
            raise ModelError(f"{type(module).__name__} passes {name} to its attention")
    options = AttentionOptions(scale=scaling, window=sliding_window, softcap=softcap, sinks=s_aux)
    query, key, value = (tensor.squeeze(0).transpose(0, 1) for tensor in (query, key, value))
    return current_attention().attend(layer, query, key, value, options).unsqueeze(0), None
