"""Rewrites of matrix products for compiled steps on a CPU: a trace contains them in place of PyTorch's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

MAX_NARROW = 8  # columns of a product that is computed transposed
MIN_WIDTH = 65  # each side of a product that may be rounded: first layers then see exact observations
BFLOAT16_CHECKS = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")

log = logging.getLogger("rl_training.acceleration")


def decompositions() -> dict[OpOverload, Callable[..., Any]]:
    """Return the functions that `make_fx` traces in place of matrix products.

    A function that returns `NotImplemented` leaves the product as it is.

    With `torch.set_float32_matmul_precision("medium")`, on a processor that has bfloat16 instructions, wide products
    round their inputs to bfloat16, which halves their time. Sums are float32, and the result is rounded again.
    """
    aten = torch.ops.aten
    if torch.get_float32_matmul_precision() == "medium":
        if has_bfloat16():
            return {
                aten.mm.default: _mm,
                aten.bmm.default: _bmm,
                aten.addmm.default: _addmm,
                aten.baddbmm.default: _addmm,
            }
        log.warning("matmul_precision: medium: this processor has no bfloat16 products; they stay float32")
    return {aten.mm.default: _narrow_mm}


def has_bfloat16() -> bool:
    """Return whether the processor has instructions for products of bfloat16 numbers."""
    checks = (getattr(torch.cpu, name, None) for name in BFLOAT16_CHECKS)  # private functions of PyTorch
    return any(check is not None and check() for check in checks)


def _narrow_mm(left: Tensor, right: Tensor) -> Any:
    """Compute a product of few columns transposed: MKL is then four times faster (the gradient of a first layer)."""
    if right.shape[1] > MAX_NARROW or left.shape[0] <= MAX_NARROW:
        return NotImplemented
    return (right.t() @ left.t()).t().contiguous()


def _is_wide(left: Tensor, right: Tensor) -> bool:
    return left.dtype == torch.float32 and min(*left.shape[-2:], right.shape[-1]) >= MIN_WIDTH


def _bfloat16_product(left: Tensor, right: Tensor) -> Tensor:
    return (left.bfloat16() @ right.bfloat16()).float()


def _mm(left: Tensor, right: Tensor) -> Any:
    return _bfloat16_product(left, right) if _is_wide(left, right) else _narrow_mm(left, right)


def _bmm(left: Tensor, right: Tensor) -> Any:
    return _bfloat16_product(left, right) if _is_wide(left, right) else NotImplemented


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1) -> Any:
    return bias + _bfloat16_product(left, right) if beta == alpha == 1 and _is_wide(left, right) else NotImplemented
