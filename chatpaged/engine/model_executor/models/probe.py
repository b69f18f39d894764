"""Learning from a few tokens what a model does, instead of trusting what its configuration says.

Two passes of two and three tokens through the whole model. They look at what each layer hands to attention: its shapes, its window, and
the mask that transformers would build for it, which has to show exactly the tokens that our attention shows. They make sure that tokens
meet in attention and nowhere else, and that they are placed by the positions that they are given, which are numbered as usual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from chatpaged.engine.model_executor.attention.base import AttentionOptions
from chatpaged.engine.model_executor.forward_context import current_attention, forward_context
from chatpaged.engine.model_executor.models.attention_hook import ATTENTION_NAME, chatpaged_attention
from chatpaged.engine.model_executor.models.geometry import KVGeometry
from chatpaged.engine.model_executor.models.support import refusal
from chatpaged.errors import ModelError

_PROBE_NAME = "chatpaged_probe"
_BEYOND_WINDOW = 64
_Forward = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
_MaskFunction = Callable[[int, int, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class _Layer:
    """What one layer asks of attention; `mask` is the number of its mask, or None where transformers builds none."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    options: AttentionOptions
    mask: int | None


class _NoNumbersError(Exception):
    """The model's logits are not numbers."""


class _EnoughError(Exception):
    """All masks are known: the rest of the pass is not needed."""


class _Probe:
    """Stands in for attention and notes what each layer hands over. Satisfies `PagedAttention`; a token attends to itself only.

    Attributes:
        layers: what each layer handed over.
        masks: functions that say who sees whom.
    """

    def __init__(self, *, only_masks: bool = False) -> None:
        self.layers: dict[int, _Layer] = {}
        self.masks: list[_MaskFunction] = []
        self._mask: int | None = None
        self._only_masks = only_masks

    def take_mask(self, attention_mask: torch.Tensor | None, name: str) -> None:
        """Notes the mask that comes with the next call: the number that `_make_mask` put in its place."""
        if self._only_masks:
            raise _EnoughError
        self._mask = None
        if attention_mask is not None:
            if attention_mask.numel() != 1 or attention_mask.is_floating_point() or int(attention_mask) >= len(self.masks):
                raise ModelError(f"{name} changes its attention mask")
            self._mask = int(attention_mask)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: AttentionOptions) -> torch.Tensor:
        """See `PagedAttention.attend`."""
        if layer in self.layers:
            raise ModelError("two attention layers of this model share one number")
        self.layers[layer] = _Layer(query, key, value, options, self._mask)
        return value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)

    def tensors(self) -> list[torch.Tensor]:
        """Queries, keys and values of all layers, in order."""
        return [part for layer in self.layers.values() for part in (layer.query, layer.key, layer.value)]


def _current_probe() -> _Probe:
    probe = current_attention()
    if not isinstance(probe, _Probe):
        raise TypeError(f"{type(probe).__name__} is no probe")
    return probe


def _make_mask(*_: object, mask_function: _MaskFunction, device: torch.device | str = "cpu", **__: object) -> torch.Tensor:
    """What transformers calls to build a mask: gives the number of the function that would fill it."""
    masks = _current_probe().masks
    masks.append(mask_function)
    return torch.full((1, 1, 1, 1), len(masks) - 1, device=device)


def _probe_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """What the layers call while they are probed."""
    _current_probe().take_mask(attention_mask, type(module).__name__)
    return chatpaged_attention(module, query, key, value, None, **others)


def probe_model(
    model: nn.Module, forward: _Forward, *, num_layers: int, max_model_len: int, dtype: torch.dtype | None = None
) -> KVGeometry:
    """Finds out what the layers of a model store, and refuses a model that this engine would run wrongly.

    A model without weights (device "meta") has no values to compare; it is asked for shapes only.

    Args:
        model: a transformers model.
        forward: `HFModel.forward`.
        num_layers: how many layers it should have.
        max_model_len: longest sequence; what happens beyond it does not matter.
        dtype: type that keys and values are stored in; None if that is not known.

    Raises:
        ModelError: says what is not supported.
        RuntimeError: a model without weights looks at values all the same.
    """
    device = next(model.parameters()).device
    try:
        if device.type == "meta":
            probe = _shapes_only(forward, device)
            _check_numbers(probe, num_layers)
        else:
            probe = _hand_over(model, min(2, max_model_len))
            _check_numbers(probe, num_layers)
            _check_types(probe, dtype)
            _check_layers(model, probe, max_model_len)
            _check_tokens(forward, probe, device)
    except torch.OutOfMemoryError:
        raise
    except _NoNumbersError as error:
        name = type(model).__name__
        raise ModelError(f"this {name} computes no numbers (NaN or infinity): damaged weights, or a --dtype that is too narrow") from error
    except Exception as error:  # whatever a model's own code makes of being run like this
        if device.type == "meta" and not isinstance(error, ModelError):
            raise RuntimeError(f"{type(model).__name__} cannot be looked at without its weights") from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise refusal(type(model).__name__, f"is not supported: {reason}") from error
    shapes = {tuple(part.shape[1:]) for layer in probe.layers.values() for part in (layer.key, layer.value)}
    return KVGeometry(
        num_layers,
        max(heads for heads, _ in shapes),
        max(dim for _, dim in shapes),
        uniform=len(shapes) == 1,
        softcap=any(layer.options.softcap is not None for layer in probe.layers.values()),
    )


def _hand_over(model: nn.Module, length: int, *, only_masks: bool = False) -> _Probe:
    """What each layer hands to attention, and the masks that belong to them. The model numbers the tokens 0, 1, ... itself."""
    probe = _Probe(only_masks=only_masks)
    transformers.AttentionInterface.register(_PROBE_NAME, _probe_attention)
    transformers.AttentionMaskInterface.register(_PROBE_NAME, _make_mask)
    tokens = torch.arange(length, device=next(model.parameters()).device) % 2
    with _attention_of(model, _PROBE_NAME), forward_context(probe), suppress(_EnoughError):
        model(input_ids=tokens.unsqueeze(0), use_cache=False)
    return probe


def _shapes_only(forward: _Forward, device: torch.device) -> _Probe:
    """What each layer hands to attention, without the masks, which transformers cannot make without values."""
    probe = _Probe()
    token = torch.zeros(1, dtype=torch.int64, device=device)
    with forward_context(probe):
        forward(token, token, token)
    return probe


@contextmanager
def _attention_of(model: nn.Module, name: str) -> Iterator[None]:
    """Exchanges the attention of one model; other models, which may be running, keep theirs."""
    configs = {id(config): config for module in model.modules() if (config := getattr(module, "config", None)) is not None}
    configs = {key: config for key, config in configs.items() if getattr(config, "_attn_implementation", None) == ATTENTION_NAME}
    try:
        for config in configs.values():
            config._attn_implementation = name  # noqa: SLF001 - the public way asks the Hub about names that it does not know
        yield
    finally:
        for config in configs.values():
            config._attn_implementation = ATTENTION_NAME  # noqa: SLF001


def _check_numbers(probe: _Probe, num_layers: int) -> None:
    if sorted(probe.layers) != list(range(num_layers)):
        raise ModelError(f"attention was reached in {len(probe.layers)} of {num_layers} layers")


def _check_types(probe: _Probe, dtype: torch.dtype | None) -> None:
    """Attention reads what it is given as numbers of one type, some of it without torch, which would notice another."""
    others = {tensor.dtype for tensor in probe.tensors()} - {dtype}
    if dtype is not None and others:
        kinds = ", ".join(sorted(str(kind).removeprefix("torch.") for kind in others))
        raise ModelError(f"its layers compute keys, values or queries as {kinds} where {str(dtype).removeprefix('torch.')} was asked for")


def _check_layers(model: nn.Module, probe: _Probe, max_model_len: int) -> None:
    layers = probe.layers
    kinds = {(layer.mask, layer.options.window) for layer in layers.values()}
    device = layers[0].query.device
    try:
        for mask, window in kinds:
            _check_mask(_mask_function(probe.masks, mask), window, max_model_len, device)
    except IndexError:
        # A mask that looks up something about each token, such as the image it belongs to, needs as many as are asked about.
        length = min(max_model_len, max(window or 0 for _, window in kinds) + _BEYOND_WINDOW)
        masks = _hand_over(model, length, only_masks=True).masks
        for mask, window in kinds:
            _check_mask(_mask_function(masks, mask), window, length, device)


def _mask_function(masks: list[_MaskFunction], number: int | None) -> _MaskFunction:
    if number is None:
        raise ModelError("its attention mask cannot be compared with the one used here")
    return masks[number]


def _check_mask(mask: _MaskFunction, window: int | None, max_model_len: int, device: torch.device) -> None:
    """Compares the mask that transformers would have built with what our attention shows by its window."""
    # The last tokens see everything that limits the view, the first sees what lets it look ahead.
    queries = torch.tensor(sorted({0, max_model_len // 2, max(0, max_model_len - 2), max_model_len - 1}), device=device).unsqueeze(1)
    keys = torch.arange(max_model_len, device=device).unsqueeze(0)
    theirs = mask(0, 0, queries, keys).expand(len(queries), max_model_len)
    ours = keys <= queries
    if window is not None:
        ours = ours & (keys > queries - window)
    if torch.equal(theirs, ours):
        return
    if bool((theirs & (keys > queries)).any()):
        raise ModelError("its tokens attend to later tokens as well")
    shown = int(theirs[-1].sum())
    if window is None and torch.equal(theirs, (keys <= queries) & (keys > queries - shown)):
        raise ModelError(f"it does not pass its sliding window of {shown} tokens on; --max-model-len {shown} avoids it")
    raise ModelError("its attention mask shows other tokens than its window")


def _check_tokens(forward: _Forward, own: _Probe, device: torch.device) -> None:
    """Makes sure that tokens meet in attention only, and at the positions that they are given.

    `own` saw tokens 0 and 1 as the model numbers them by itself. Only what goes into the first layer is compared with it: further on two
    passes of different sizes may differ by rounding, and a little of that is enough to choose another expert.
    """
    last = len(own.layers[0].query) - 1
    given = _Probe()
    if not any(_are_apart(forward, probe, first, last, device) for first, probe in ((0, given), (2, _Probe()), (4, _Probe()))):
        raise ModelError("its tokens depend on each other outside attention, or not on the positions that they are given")
    ours, theirs = given.layers[0], own.layers[0]
    if not all(_almost_equal(one[: last + 1], other) for one, other in ((ours.query, theirs.query), (ours.key, theirs.key))):
        raise ModelError("it does not number positions from 0")


def _are_apart(forward: _Forward, probe: _Probe, first: int, last: int, device: torch.device) -> bool:
    """Runs one token twice, at one position, behind different tokens. Nothing but attention may tell the two apart.

    A convolution, a recurrent state or positions that are counted instead of taken as given would. Rounding should not, but in half types
    it might send the two to different experts once in a while, which is why there is more than one attempt.
    """
    tokens = torch.tensor([first, first + 1, first + 1], device=device)
    positions = torch.tensor([0, last, last], device=device)
    with forward_context(probe):
        logits = forward(tokens, positions, torch.tensor([1, 2], device=device))
    if not bool(logits.isfinite().all()):
        raise _NoNumbersError
    if len(logits) != 2:
        raise ModelError("it does not give the logits of just the tokens that it is asked for")
    return all(_almost_equal(tensor[-2], tensor[-1]) for tensor in (logits, *probe.tensors()))


def _almost_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    tolerance = torch.finfo(one.dtype).eps ** 0.5 * float(one.abs().max())
    return torch.allclose(one, other, rtol=0, atol=tolerance, equal_nan=True)
