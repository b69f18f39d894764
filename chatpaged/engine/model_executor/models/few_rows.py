"""Linear layers for the few rows of a decode step on a CPU.

`F.linear` computes `x W'`, for which the matrix library has no good kernel when x has few rows: measured in float32 it takes
1.3 to 6 times as long as the transposed product `W x'`, and one row takes longer than two. The result is the same sums in
another order of operations; from five rows on `F.linear` is as good.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

MAX_ROWS = 4


def few_rows_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """What `F.linear(x, weight, bias)` gives.

    Args:
        x: `[..., in]`.
        weight: `[out, in]`.
        bias: `[out]`.

    Returns:
        `[..., out]`, contiguous.
    """
    out_features, in_features = weight.shape
    num_rows = x.numel() // in_features
    if not 0 < num_rows <= MAX_ROWS:
        return F.linear(x, weight, bias)
    rows = x.reshape(num_rows, in_features)
    if num_rows == 1:
        rows = rows.repeat(2, 1)  # a single row would be handed to a slower, single-threaded kernel
    product = torch.mm(weight, rows.t())[:, :num_rows].t()
    result = product if bias is None else product + bias
    return result.reshape(*x.shape[:-1], out_features).contiguous()


def few_rows_linear(module: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """What `module(x)` gives. x is `[..., in_features]`; the result is `[..., out_features]`, contiguous."""
    return few_rows_product(x, module.weight, module.bias)


def use_few_rows_linear(model: nn.Module) -> None:
    """Gives all plain float32 linear layers of a model on the CPU the faster product.

    Not those whose weights are no plain ones, or whose product is somebody else's already: quantizers do both.
    """
    for module in model.modules():
        if type(module) is not nn.Linear or "forward" in vars(module) or type(module.weight) is not nn.Parameter:
            continue
        if module.weight.dtype == torch.float32 and module.weight.device.type == "cpu":
            setattr(module, "forward", partial(few_rows_linear, module))  # noqa: B010 - types forbid assigning to a method
