"""The faster product equals the plain one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from chatpaged.engine.model_executor.models.few_rows import MAX_ROWS, few_rows_linear, use_few_rows_linear


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 24), (1, 2, 24), (3, 24), (2, 2, 24), (5, 24), (1, 9, 24), (24,), (1, 0, 24)])
def test_the_product_is_the_plain_one(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    module = nn.Linear(24, 17, bias=bias)
    x = torch.randn(shape)
    with torch.inference_mode():
        result = few_rows_linear(module, x)
        torch.testing.assert_close(result, F.linear(x, module.weight, module.bias))
    assert result.is_contiguous()


def test_rows_need_not_be_contiguous() -> None:
    module = nn.Linear(6, 4)
    x = torch.randn(6, 3).t()
    with torch.inference_mode():
        torch.testing.assert_close(few_rows_linear(module, x), F.linear(x, module.weight, module.bias))


def test_large_shapes_agree_to_rounding() -> None:
    torch.manual_seed(0)
    module = nn.Linear(1536, 576, bias=False)
    with torch.inference_mode():
        for rows in range(1, MAX_ROWS + 2):
            x = torch.randn(rows, 1536)
            exact = F.linear(x.double(), module.weight.double())
            assert (few_rows_linear(module, x) - exact).abs().max() < 1e-5


def test_only_plain_float32_layers_are_changed() -> None:
    class Special(nn.Linear):
        pass

    model = nn.ModuleDict({"plain": nn.Linear(2, 2), "float64": nn.Linear(2, 2, dtype=torch.float64), "special": Special(2, 2)})
    use_few_rows_linear(model)
    changed = {name for name, module in model.items() if "forward" in vars(module)}
    assert changed == {"plain"}
