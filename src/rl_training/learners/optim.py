"""Optimizers as pure functions on one flat vector of parameters (flat_module.py).

With all parameters in one tensor, Adam, gradient clipping and the target update are single operations that fuse with
the loss and its gradient into one compiled graph (acceleration/steps.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from rl_training.core.transforms import is_transformed
from rl_training.core.types import Metrics, State
from rl_training.models.layers import StackedLayerNorm


def adam(
    params: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    *,
    learning_rate: float | Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the new `(params, mean, square, count)` after one step of Adam.

    `mean`, `square`: running moments, zero at first. `count`: 0-d int64, the steps taken so far. A learning rate that
    changes is passed as a 0-d tensor: a float becomes part of the compiled graph. Kingma and Ba 2015, algorithm 1.
    """
    count = count + 1
    mean = torch.lerp(mean, gradient, 1.0 - beta1)
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    # 1 - beta ** count by expm1: in float32 the subtraction would lose four of the seven digits at the first steps.
    mean_correction = -torch.expm1(count * math.log(beta1))
    square_correction = -torch.expm1(count * math.log(beta2))
    # Stacked, because the compiler then computes the two scalars once and not once per element (measured: 20 us).
    step_size, scale = torch.stack((learning_rate / mean_correction, square_correction.rsqrt())).unbind()
    params = params - step_size * mean / (square.sqrt() * scale + eps)
    return params, mean, square, count


def radam(
    params: Tensor,
    gradient: Tensor,
    mean: Tensor,
    square: Tensor,
    count: Tensor,
    *,
    learning_rate: float | Tensor,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the new `(params, mean, square, count)` after one step of RAdam; the arguments are those of `adam`.

    While the second moment rests on too few gradients, its steps are those of momentum. Liu et al. 2020, On the
    variance of the adaptive learning rate and beyond, algorithm 2.
    """
    count = count + 1
    mean = torch.lerp(mean, gradient, 1.0 - beta1)
    square = beta2 * square + (1.0 - beta2) * gradient * gradient
    steps = count.double()
    mean_correction = -torch.expm1(steps * math.log(beta1))
    square_correction = -torch.expm1(steps * math.log(beta2))
    longest = 2.0 / (1.0 - beta2) - 1.0  # length of the average, at most and now
    length = longest - 2.0 * steps * (1.0 - square_correction) / square_correction
    share = (length - 4.0) * (length - 2.0) * longest / ((longest - 4.0) * (longest - 2.0) * length)
    rectified = (square_correction * share.clamp(min=0.0)).sqrt()
    step_size, scale = torch.stack((learning_rate / mean_correction, rectified)).float().unbind()
    change = torch.where(length > 5.0, scale / (square.sqrt() + eps), 1.0)
    return params - step_size * mean * change, mean, square, count


def rmsprop(
    params: Tensor, gradient: Tensor, square: Tensor, *, learning_rate: float | Tensor, alpha: float, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the new `(params, square)` after one step of RMSprop; `square`: running mean of g^2, zero at first."""
    square = alpha * square + (1.0 - alpha) * gradient * gradient
    return params - learning_rate * gradient / (square.sqrt() + eps), square


def clip_by_global_norm(gradient: Tensor, max_norm: float) -> tuple[Tensor, Tensor]:
    """Scale `gradient` down to the Euclidean norm `max_norm`; return it and the norm before clipping."""
    norm = torch.linalg.vector_norm(gradient)
    return gradient * (max_norm / (norm + 1e-6)).clamp(max=1.0), norm  # 1e-6 as in torch.nn.utils.clip_grad_norm_


class Optimizer(Protocol):
    """What `descend` needs: first values of the state, and a pure step."""

    def state(self, params: Tensor) -> State:
        """Return the first values: `params`, `learning_rate`, which callers may change, and the optimizer's own."""
        ...

    def step(self, gradient: Tensor, state: State) -> tuple[State, Metrics]:
        """Return the entries of the state that change, and metrics."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedAdam:
    """Adam, or RAdam if `rectified`, on a gradient whose global norm is clipped unless `max_grad_norm` is None.

    `decay`: weight decay of each parameter, times the learning rate, apart from the gradient (Loshchilov and Hutter
    2019, Decoupled weight decay regularization); None: none.
    """

    learning_rate: float
    eps: float
    max_grad_norm: float | None
    beta1: float = 0.9
    rectified: bool = False
    decay: Tensor | None = None

    def state(self, params: Tensor) -> State:
        return {
            "params": params,
            "adam_mean": torch.zeros_like(params),
            "adam_square": torch.zeros_like(params),
            "adam_count": torch.zeros((), dtype=torch.int64, device=params.device),
            "learning_rate": torch.tensor(self.learning_rate, device=params.device),
        }

    def step(self, gradient: Tensor, state: State) -> tuple[State, Metrics]:
        metrics: Metrics = {}
        if self.max_grad_norm is not None:
            gradient, metrics["grad_norm"] = clip_by_global_norm(gradient, self.max_grad_norm)
        before = state["params"]
        if self.decay is not None:
            before = before - state["learning_rate"] * self.decay * before
        params, mean, square, count = (radam if self.rectified else adam)(
            before,
            gradient,
            state["adam_mean"],
            state["adam_square"],
            state["adam_count"],
            learning_rate=state["learning_rate"],
            beta1=self.beta1,
            eps=self.eps,
        )
        new_state = {"params": params, "adam_mean": mean, "adam_square": square, "adam_count": count}
        return new_state, metrics


class AdamSettings(Protocol):
    """The settings that `clipped_adam` reads."""

    @property
    def adam_eps(self) -> float: ...
    @property
    def max_grad_norm(self) -> float | None: ...


def clipped_adam(
    hparams: AdamSettings, learning_rate: float, *, beta1: float = 0.9, decay: Tensor | None = None
) -> ClippedAdam:
    return ClippedAdam(
        learning_rate=learning_rate, eps=hparams.adam_eps, max_grad_norm=hparams.max_grad_norm, beta1=beta1, decay=decay
    )


def matrix_decay(network: nn.Module, decay: float) -> Tensor | None:
    """Return the weight decay of every parameter in the network's order: 0 for biases and norms; None if all are 0.

    In a stack of networks these are not vectors, but have the dimensions of the stack's matrices.
    """
    if not decay:
        return None

    def of(part: nn.Module, name: str, parameter: Tensor) -> Tensor:
        is_vector = parameter.ndim == 1 or name == "bias" or isinstance(part, StackedLayerNorm)
        return torch.full((parameter.numel(),), 0.0 if is_vector else decay, device=parameter.device)

    parts = network.modules()
    return torch.cat([of(part, *named) for part in parts for named in part.named_parameters(recurse=False)])


def descend(loss: Callable[[Tensor], Metrics], state: State, optimizer: Optimizer) -> tuple[State, Metrics]:
    """Take one step down the gradient of `loss(params)["loss"]`; pure, so that it runs eagerly, compiled or captured,
    and for all members of a population at once (acceleration/stacking.py).

    Returns the entries of `state` that change, and the metrics of the loss and the optimizer.
    """
    gradient, metrics = gradient_of(lambda params: _loss_first(loss(params)), state["params"])
    new_state, more = optimizer.step(gradient, state)
    return new_state, {**{name: value.detach() for name, value in metrics.items()}, **more}


def _loss_first(metrics: Metrics) -> tuple[Tensor, Metrics]:
    return metrics["loss"], metrics


def gradient_of(
    function: Callable[[Tensor], tuple[Tensor, Metrics]], x: Tensor, *, differentiable: bool = False
) -> tuple[Tensor, Metrics]:
    """Return the gradient of the first result of `function` at `x`, and the second result.

    `differentiable`: a loss may depend on the gradient.
    """
    # Eagerly, the wrappers of torch.func.grad cost a third more than torch.autograd.grad; traced, both are the same
    # graph. A transform such as vmap accepts only the first.
    if is_transformed():
        gradient, more = torch.func.grad(function, has_aux=True)(x if differentiable else x.detach())
        return gradient, more
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        value, more = function(x)
    (gradient,) = torch.autograd.grad(value, x, create_graph=differentiable)
    return gradient, more


def descend_part(
    name: str, loss: Callable[[Tensor], Metrics], state: State, optimizer: Optimizer
) -> tuple[State, Metrics]:
    """Take a step of one of several parts that learn in turn; its entries of `state` are `<name>.params` etc."""
    new_state, metrics = descend(loss, part_of(name, state), optimizer)
    return named_part(name, new_state), {
        f"{name}_{key}" if key in ("loss", "grad_norm") else key: value for key, value in metrics.items()
    }


def descend_parts(
    loss: Callable[[Mapping[str, Tensor]], tuple[Tensor, Metrics]], state: State, optimizers: Mapping[str, Optimizer]
) -> tuple[State, Metrics]:
    """Take one step of all parts together, each by its optimizer; their entries are named as `descend_part` does.

    `loss(params)` takes the parameters of each part by its name, and returns the sum of all losses and the metrics.
    """
    lengths = [len(state[f"{name}.params"]) for name in optimizers]

    def of_all(params: Tensor) -> tuple[Tensor, Metrics]:
        return loss(dict(zip(optimizers, params.split(lengths), strict=True)))

    gradient, outputs = gradient_of(of_all, torch.cat([state[f"{name}.params"] for name in optimizers]))
    new_state: State = {}
    metrics = {name: value.detach() for name, value in outputs.items()}
    for (name, optimizer), part in zip(optimizers.items(), gradient.split(lengths), strict=True):
        new, more = optimizer.step(part, part_of(name, state))
        new_state |= named_part(name, new)
        metrics |= {f"{name}_{key}": value for key, value in more.items()}
    return new_state, metrics


def named_part(name: str, entries: State) -> State:
    """Name the entries of a part as `descend_part` finds them."""
    return {f"{name}.{key}": value for key, value in entries.items()}


def part_of(name: str, entries: State) -> State:
    """Return the entries that `named_part` named under their own names."""
    return {key.removeprefix(f"{name}."): value for key, value in entries.items() if key.startswith(f"{name}.")}


def polyak(target: Tensor, params: Tensor, tau: float | Tensor) -> Tensor:
    """Move `target` the fraction `tau` of the way to `params`; tau = 1 copies them."""
    return torch.lerp(target, params, tau)
