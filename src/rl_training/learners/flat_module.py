"""A module whose parameters are one flat vector, which optimizers and target updates work on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from rl_training.errors import CheckpointError


class FlatModule:
    """An `nn.Module` whose parameters are views on one flat float32 vector, `self.params`.

    Writing into `self.params` changes the module. `apply` runs the module with any other vector of that length (a
    target network, the argument of a loss). Move the module to its device first: `module.to` would replace the views by
    separate parameters. Buffers (e.g. the atoms of C51) are constants.
    """

    def __init__(self, module: nn.Module) -> None:
        named = dict(module.named_parameters(remove_duplicate=False))
        _check(module, named)
        self.module = module
        self.names = tuple(named)
        self.shapes = tuple(parameter.shape for parameter in named.values())
        self.sizes = [parameter.numel() for parameter in named.values()]
        self.params = torch.cat([parameter.detach().reshape(-1) for parameter in named.values()])
        for parameter, view in zip(named.values(), self.named(self.params).values(), strict=True):
            parameter.requires_grad_(False)  # the gradient is taken of the vector, so acting records no graph
            parameter.data = view

    def use(self, params: Tensor) -> None:
        """Make the parameters views on another vector, such as a row of a stacked one, in place of `self.params`."""
        self.params = params
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        for name, view in self.named(params).items():
            parameters[name].data = view

    def apply(self, params: Tensor, *inputs: Any, buffers: Mapping[str, Tensor] | None = None) -> Any:
        """Return `module(*inputs)` with the parameters in the flat vector `params`, and these buffers if given."""
        return torch.func.functional_call(self.module, {**self.named(params), **(buffers or {})}, inputs)

    def apply_part(self, name: str, params: Tensor, *inputs: Any) -> Any:
        """Apply the submodule `name` alone, as `apply` does the whole module."""
        start = f"{name}."
        own = {key.removeprefix(start): value for key, value in self.named(params).items() if key.startswith(start)}
        return torch.func.functional_call(self.module.get_submodule(name), own, inputs)

    def named(self, params: Tensor) -> dict[str, Tensor]:
        """Return views on the flat vector under the module's own names, as `module.state_dict()` has them."""
        parts = torch.split(params, self.sizes)  # one split: its backward is one concatenation
        return {name: part.view(shape) for name, part, shape in zip(self.names, parts, self.shapes, strict=True)}

    def per_parameter(self, value: Callable[[str, torch.Size], float]) -> Tensor:
        """Return a vector with one number for all entries of a parameter, by its name and shape."""
        parts = [
            torch.full((size,), value(name, shape), device=self.params.device)
            for name, shape, size in zip(self.names, self.shapes, self.sizes, strict=True)
        ]
        return torch.cat(parts)

    def load(self, params: Tensor, named: Mapping[str, Tensor]) -> None:
        """Copy the tensors in `named` into the flat vector; names and shapes must be exactly the module's."""
        views = self.named(params)
        if views.keys() != named.keys():
            raise CheckpointError(
                f"the saved parameters belong to another network: missing {_listed(views.keys() - named.keys())}, "
                f"unexpected {_listed(named.keys() - views.keys())}"
            )
        for name, view in views.items():
            if view.shape != (found := named[name].shape):
                raise CheckpointError(
                    f"the saved parameter {name} has shape {tuple(found)}, the network's has {tuple(view.shape)}"
                )
        for name, view in views.items():
            view.copy_(named[name])


def _check(module: nn.Module, named: Mapping[str, nn.Parameter]) -> None:
    kind = type(module).__name__
    if not named:
        raise ValueError(f"{kind} has no parameters to train")
    if len({id(parameter) for parameter in named.values()}) < len(named):
        raise ValueError(f"{kind} uses one parameter under two names (tied weights), which is not supported")
    wrong = [f"{name} ({parameter.dtype})" for name, parameter in named.items() if parameter.dtype != torch.float32]
    if wrong:
        raise TypeError(f"{kind}: all parameters must be float32, found {_listed(wrong)}")
    devices = {str(parameter.device) for parameter in named.values()}
    if len(devices) > 1:
        raise ValueError(f"{kind}: all parameters must be on one device, found {_listed(devices)}")
    tracking = [
        name for name, part in module.named_modules() if isinstance(part, _NormBase) and part.running_mean is not None
    ]
    if tracking:
        raise TypeError(
            f"{kind}: layers with running statistics change while training, which is not supported: "
            f"{_listed(tracking)}; use LayerNorm, or track_running_stats=False"
        )


def _listed(names: Sequence[str] | set[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
