"""Networks as functions of numpy observations, without PyTorch's overhead where that is most of the time."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from rl_training.acceleration.cuda_graphs import capture_graph
from rl_training.models.layers import Dueling, Expectation, LearnedRow, MeanOfLast, NoisyLinear, Parallel, Residual

Forward = Callable[[np.ndarray], np.ndarray]
OnTensors = Callable[..., torch.Tensor]

# Rows times the weights of the largest layer. Above this, OpenBLAS packs its operands and starts threads, and PyTorch
# is faster (measured with 4-120-84-2, 8-256-256-4 and 17-512-512-6 units and 1 to 256 rows).
MAX_NUMPY_WORK = 2**18
MAX_CAPTURED_SHAPES = 8  # CUDA graphs kept per network: training and evaluation need one each


def act_function(module: nn.Module, device: torch.device, acceleration: str) -> Forward:
    """Return `module` as a function over numpy arrays, (rows, *obs) -> (rows, outputs), that reads live parameters.

    Small networks on the CPU skip PyTorch's overhead. With `cuda_graph`, all kernels are launched together.
    """
    if acceleration == "cuda_graph":
        return captured_function(module, device)
    return fast_forward(module, device) or _plain_forward(module, device)


def on_arrays(function: OnTensors, device: torch.device, acceleration: str) -> Callable[..., np.ndarray]:
    """Return a function of tensors as one of arrays. With `cuda_graph`, all kernels are launched together."""
    return (captured_function if acceleration == "cuda_graph" else _plain_forward)(function, device)


def _plain_forward(function: OnTensors, device: torch.device) -> Callable[..., np.ndarray]:
    def forward(*arrays: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            # A copy, because products round differently if their memory does not start at a multiple of 16 bytes, as
            # that of a checkpoint may not.
            tensors = [torch.tensor(array, device=device) for array in arrays]
            output: np.ndarray[Any, Any] = function(*tensors).cpu().numpy()
        return output

    return forward


def captured_function(function: OnTensors, device: torch.device) -> Callable[..., np.ndarray]:
    """Capture the function in a CUDA graph, one per shape of its first input: single launches cost more than kernels.

    The graph reads the memory of the parameters, which updates change in place.
    """
    captured: dict[tuple[int, ...], Callable[..., np.ndarray]] = {}

    def capture(arrays: Sequence[np.ndarray]) -> Callable[..., np.ndarray]:
        inputs = [pinned(torch.from_numpy(array), device) for array in arrays]
        places = [values.to(device, copy=True) for values in inputs]
        with torch.no_grad():
            outputs = pinned(function(*places), device)
            done = torch.cuda.Event()

            def run() -> None:
                for place, values in zip(places, inputs, strict=True):
                    place.copy_(values, non_blocking=True)
                outputs.copy_(function(*places), non_blocking=True)

            graph, _ = capture_graph(device, run, run)
        written, read = [values.numpy() for values in inputs], outputs.numpy()

        def forward(*arrays: np.ndarray) -> np.ndarray:
            for place, array in zip(written, arrays, strict=True):
                place[:] = array
            graph.replay()
            done.record()
            start_work()  # the device computes the outputs meanwhile
            done.synchronize()
            return read.copy()

        return forward

    def forward(*arrays: np.ndarray) -> np.ndarray:
        shape = arrays[0].shape
        if shape not in captured:
            if len(captured) == MAX_CAPTURED_SHAPES:
                captured.clear()
            captured[shape] = capture(arrays)
        return captured[shape](*arrays)

    return forward


def pinned(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a copy on the host, in memory that a CUDA device copies from and to without waiting."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=device.type == "cuda").copy_(tensor)


_work: list[Callable[[], object]] = []  # what the host does while the device computes actions


@contextlib.contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Call `work` once while the block acts: when the device has been asked for its actions, or else at the end."""
    _work.append(work)
    try:
        yield
        start_work()
    finally:
        _work.clear()


def start_work() -> None:
    while _work:
        _work.pop()()


_ZERO, _HALF = np.zeros((), np.float32), np.full((), 0.5, np.float32)  # numpy converts Python numbers on each call
_NUMPY_ACTIVATIONS: dict[type[nn.Module], Forward] = {
    nn.ReLU: lambda x: np.maximum(x, _ZERO),
    nn.Tanh: np.tanh,
    nn.SiLU: lambda x: x * (_HALF + _HALF * np.tanh(_HALF * x)),  # x * sigmoid(x), without overflow
    nn.Identity: lambda x: x,
    nn.Flatten: lambda x: x.reshape(len(x), -1),
    MeanOfLast: lambda x: x.mean(-1),
}


def fast_forward(module: nn.Module, device: torch.device | str) -> Forward | None:
    """Return `module` as a function of numpy arrays, (rows, inputs) to (rows, outputs); None if it is not simple.

    Simple is a (nested) `nn.Sequential` of linear layers and common activations on the CPU. The function reads the
    memory that the parameters use now. A `FlatModule` moves them into a vector, which updates change in place, so call
    this after creating it. For one row the function is four times as fast as the module, whose time is then mostly
    overhead.
    """
    layers = _flat_layers(module)
    weights = [layer.weight for layer in module.modules() if isinstance(layer, nn.Linear | NoisyLinear)]
    parameters_fit = all(p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters())
    if layers is None or not weights or not parameters_fit or torch.device(device).type != "cpu":
        return None
    function = _numpy_layers(layers)
    max_rows = MAX_NUMPY_WORK // max(weight.numel() for weight in weights)
    plain = _plain_forward(module, torch.device("cpu"))

    def forward(obs: np.ndarray) -> np.ndarray:
        if len(obs) > max_rows:
            return plain(obs)
        return function(obs)

    return forward


def _flat_layers(module: nn.Module) -> list[nn.Module] | None:
    """Return the layers of nested sequences in order, or None if the exact type of any is not known."""
    if type(module).forward is nn.Sequential.forward:
        parts = [_flat_layers(part) for part in module.children()]
        return None if None in parts else [layer for part in parts for layer in part or ()]
    if type(module) in (Parallel, Dueling, Residual):
        return None if None in [_flat_layers(part) for part in module.children()] else [module]
    known = type(module) in (nn.Linear, NoisyLinear, LearnedRow, Expectation, nn.Unflatten, *_NUMPY_ACTIVATIONS) or (
        type(module) is nn.LayerNorm and len(module.normalized_shape) == 1 and module.bias is not None
    )
    per_row = (type(module) is not nn.Flatten or (module.start_dim, module.end_dim) == (1, -1)) and (
        type(module) is not nn.Unflatten or module.dim == 1
    )
    return [module] if known and per_row else None


def _numpy_layer_norm(layer: nn.LayerNorm) -> Forward:
    scale, shift = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    share, eps = np.float32(1.0 / scale.size), np.float32(layer.eps)

    def forward(x: np.ndarray) -> np.ndarray:
        centred = x - np.add.reduce(x, 1, keepdims=True) * share
        variance = np.add.reduce(centred * centred, 1, keepdims=True) * share
        output: np.ndarray = centred / np.sqrt(variance + eps) * scale + shift
        return output

    return forward


def _numpy_dueling(layer: Dueling) -> Forward:
    value, advantages = (_numpy_layers(_flat_layers(part) or ()) for part in (layer.value, layer.advantages))

    def forward(x: np.ndarray) -> np.ndarray:
        per_action = advantages(x).reshape(len(x), layer.action_dim, -1)
        centred = per_action - np.add.reduce(per_action, 1, keepdims=True) * np.float32(1.0 / layer.action_dim)
        output: np.ndarray = (centred + value(x)[:, None]).reshape(len(x), -1)
        return output

    return forward


def _numpy_noisy_linear(layer: NoisyLinear) -> Forward:
    weight, bias, weight_sigma, bias_sigma = (parameter.detach().numpy() for parameter in layer.parameters())

    def forward(x: np.ndarray) -> np.ndarray:
        noise = layer.noise.numpy()  # replaced at each step
        noise_in, noise_out = noise[..., : layer.in_features], noise[..., layer.in_features :]
        noisy = noise_out * ((x * noise_in).dot(weight_sigma.T) + bias_sigma)
        output: np.ndarray = x.dot(weight.T) + bias + noisy
        return output

    return forward


def _numpy_expectation(layer: Expectation) -> Forward:
    atoms = layer.atoms.numpy()

    def forward(logits: np.ndarray) -> np.ndarray:
        shares = np.exp(logits - np.maximum.reduce(logits, -1, keepdims=True))
        means: np.ndarray = shares.dot(atoms) / np.add.reduce(shares, -1)
        return means

    return forward


def _numpy_layers(layers: Sequence[nn.Module]) -> Forward:
    functions = [_numpy_layer(layer) for layer in layers]

    def forward(x: np.ndarray) -> np.ndarray:
        for function in functions:
            x = function(x)
        return x

    return forward


def _numpy_layer(layer: nn.Module) -> Forward:
    if isinstance(layer, Parallel):
        parts = [_numpy_layers(_flat_layers(part) or ()) for part in layer]
        return parts[0] if len(parts) == 1 else lambda x: np.concatenate([part(x) for part in parts], 1)
    if isinstance(layer, Dueling):
        return _numpy_dueling(layer)
    if isinstance(layer, Residual):
        change = _numpy_layers(_flat_layers(nn.Sequential(*layer)) or ())
        return lambda x: x + change(x)
    if isinstance(layer, NoisyLinear):
        return _numpy_noisy_linear(layer)
    if isinstance(layer, Expectation):
        return _numpy_expectation(layer)
    if isinstance(layer, nn.Unflatten):
        shape: tuple[int, ...] = tuple(layer.unflattened_size)
        return lambda x: x.reshape(len(x), *shape)
    if isinstance(layer, LearnedRow):
        row = layer.row.detach().numpy()
        return lambda x: np.broadcast_to(row, (len(x), row.size))
    if isinstance(layer, nn.LayerNorm):
        return _numpy_layer_norm(layer)
    if not isinstance(layer, nn.Linear):
        return _NUMPY_ACTIVATIONS[type(layer)]
    weight, *bias = (parameter.detach().numpy() for parameter in layer.parameters())
    transposed = weight.T
    if not bias:
        return lambda x: x.dot(transposed)
    (offset,) = bias
    return lambda x: x.dot(transposed) + offset
