"""Matrix products in compiled steps: which are rounded to bfloat16, when, and how small the error is."""

import logging
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from rl_training.acceleration import matmul_rewrites

WIDE = matmul_rewrites.MIN_WIDTH


@pytest.fixture
def medium(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(matmul_rewrites, "has_bfloat16", lambda: True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision(before)


def traced(function: Callable[..., Tensor], *inputs: Tensor) -> torch.fx.GraphModule:
    return make_fx(function, matmul_rewrites.decompositions(), tracing_mode="real")(*inputs)


def rounds(function: Callable[..., Tensor], *inputs: Tensor) -> bool:
    graph = traced(function, *inputs)
    return any(getattr(node.meta.get("val"), "dtype", None) == torch.bfloat16 for node in graph.graph.nodes)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(WIDE, WIDE), (WIDE, WIDE)]),
        (torch.addmm, [(WIDE,), (WIDE, WIDE), (WIDE, WIDE)]),
        (torch.bmm, [(2, WIDE, WIDE), (2, WIDE, WIDE)]),
        (torch.baddbmm, [(2, 1, WIDE), (2, WIDE, WIDE), (2, WIDE, WIDE)]),
        (torch.nn.functional.linear, [(WIDE, WIDE), (WIDE, WIDE), (WIDE,)]),
    ],
)
@pytest.mark.usefixtures("medium")
def test_wide_products_are_rounded_with_a_small_error(
    function: Callable[..., Tensor], shapes: list[tuple[int]]
) -> None:
    inputs = [numbers(*shape) for shape in shapes]
    assert rounds(function, *inputs)
    result, exact = traced(function, *inputs)(*inputs), function(*inputs)
    assert result.dtype == torch.float32
    assert 0.0 < (result - exact).abs().max() < 0.02 * exact.abs().max()


@pytest.mark.parametrize("side", range(3))
@pytest.mark.usefixtures("medium")
def test_products_with_a_short_side_such_as_that_of_a_first_layer_are_not_rounded(side: int) -> None:
    sides = [WIDE] * 3
    sides[side] = WIDE - 1
    rows, inner, columns = sides
    left, right = numbers(rows, inner), numbers(inner, columns)
    assert not rounds(torch.mm, left, right)
    assert torch.equal(traced(torch.mm, left, right)(left, right), left @ right)


@pytest.mark.usefixtures("medium")
def test_other_dtypes_and_scaled_products_are_not_rounded() -> None:
    double, single = numbers(WIDE, WIDE).double(), numbers(WIDE, WIDE)
    assert not rounds(torch.mm, double, double)
    assert not rounds(lambda bias, x: torch.addmm(bias, x, x, beta=0.5), single[0], single)
    assert not rounds(lambda bias, x: torch.addmm(bias, x, x, alpha=2), single[0], single)


@pytest.mark.parametrize("precision", ["highest", "high"])
def test_nothing_is_rounded_unless_the_precision_is_medium(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matmul_rewrites, "has_bfloat16", lambda: True)
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
    assert not rounds(torch.mm, numbers(WIDE, WIDE), numbers(WIDE, WIDE))


@pytest.mark.usefixtures("medium")
def test_a_processor_without_bfloat16_rounds_nothing_and_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(matmul_rewrites, "has_bfloat16", lambda: False)
    with caplog.at_level(logging.WARNING):
        assert not rounds(torch.mm, numbers(WIDE, WIDE), numbers(WIDE, WIDE))
    assert "matmul_precision: medium" in caplog.text


def test_a_product_of_few_columns_is_computed_transposed() -> None:
    left, right = numbers(40, 30), numbers(30, 3)
    graph = traced(torch.mm, left, right)
    (product,) = [node for node in graph.graph.nodes if node.target is torch.ops.aten.mm.default]
    assert product.meta["val"].shape == (3, 40)
    torch.testing.assert_close(graph(left, right), left @ right)


def test_whether_a_processor_has_bfloat16_is_what_pytorch_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in matmul_rewrites.BFLOAT16_CHECKS:
        monkeypatch.setattr(torch.cpu, name, lambda: False, raising=False)
    assert not matmul_rewrites.has_bfloat16()
    monkeypatch.setattr(torch.cpu, matmul_rewrites.BFLOAT16_CHECKS[-1], lambda: True)
    assert matmul_rewrites.has_bfloat16()
    for name in matmul_rewrites.BFLOAT16_CHECKS:
        monkeypatch.delattr(torch.cpu, name)
    assert not matmul_rewrites.has_bfloat16()  # the checks are private: another release of PyTorch may lack them
