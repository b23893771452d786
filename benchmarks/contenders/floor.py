"""The floor of an update: the time of its matrix products alone, one after another, each into a tensor that is there.

No library can be faster than this with the same products; what lies above it is activations, losses, the optimizer,
drawing and the library itself. Nothing is shared between products that a clever program could share: the online
network's passes over a state and over its successor are two.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from gymnasium.spaces import Box, Discrete
from harness import Build, Setting, Stopwatch, main
from torch import Tensor

REPEATS = 9
SECONDS = 0.02  # of one repeat, about


@dataclass(frozen=True)
class Layer:
    """x (rows, inputs) times the weight's transpose, (inputs, outputs)."""

    rows: int
    inputs: int
    outputs: int
    trained: bool = False  # then the gradient of the weight is another product,
    passes_on: bool = False  # and the gradient of x a third

    @property
    def products(self) -> list[str]:
        return ["forward", *(["weight gradient"] if self.trained else []), *(["x gradient"] if self.passes_on else [])]


def dense(rows: int, sizes: Sequence[int], *, trained: bool, passes_on: bool = False) -> list[Layer]:
    """Give layers one after another; `passes_on`: whether the first one's input has a gradient, too."""
    return [
        Layer(rows, inputs, outputs, trained, trained and (passes_on or place > 0))
        for place, (inputs, outputs) in enumerate(pairwise(sizes))
    ]


class Network:
    """The layers that a pass through one of our networks takes, for observations that are vectors."""

    def __init__(self, algo: str, hparams: dict[str, Any], obs_size: int, num_actions: int) -> None:
        self.rows, self.hparams = hparams["batch_size"], hparams
        self.sizes = [obs_size, *hparams["hidden_sizes"]]
        self.num_actions = num_actions
        per_action = {"c51_dqn": "num_atoms", "rainbow_dqn": "num_atoms", "qr_dqn": "num_quantiles"}.get(algo)
        self.per_action = hparams[per_action] if per_action else 1

    def values(self, *, trained: bool = False) -> list[Layer]:
        """From observations to the numbers of each action; noisy weights are made before, element by element."""
        outputs = self.num_actions * self.per_action
        if not self.hparams.get("dueling", False):
            return dense(self.rows, [*self.sizes, outputs], trained=trained)
        *shared, last = self.sizes
        stream = partial(dense, self.rows, trained=trained, passes_on=True)
        value, advantages = (stream([shared[-1], last, width]) for width in (self.per_action, outputs))
        return [*dense(self.rows, shared, trained=trained), *value, *advantages]

    def features(self, *, trained: bool = False) -> list[Layer]:
        return dense(self.rows, self.sizes, trained=trained)

    def at_fractions(self, count: int, *, trained: bool = False, same: bool = False) -> list[Layer]:
        """From cosines of fractions and from features to values; `same`: all rows have the same fractions."""
        size = self.sizes[-1]
        return [
            *dense(count if same else self.rows * count, [self.hparams["embedding_dim"], size], trained=trained),
            *dense(self.rows * count, [size, self.num_actions], trained=trained, passes_on=True),
        ]

    def proposal(self, *, trained: bool = False) -> list[Layer]:
        return dense(self.rows, [self.sizes[-1], self.hparams["num_quantiles"]], trained=trained)


def layers_of_update(algo: str, hparams: dict[str, Any], obs_size: int, num_actions: int) -> list[Layer]:
    """Give every layer that one update passes, as our losses ask for them."""
    network, double = Network(algo, hparams, obs_size, num_actions), hparams.get("double_q", False)
    if algo == "iqn":
        samples, selection = hparams["num_tau_samples"], hparams["num_quantiles"]
        trained = [*network.features(trained=True), *network.at_fractions(samples, trained=True)]
        target = [*network.features(), *network.at_fractions(samples), *network.at_fractions(selection, same=True)]
        return [*trained, *target, *(network.features() if double else [])]
    if algo == "fqf":
        count = hparams["num_quantiles"]
        trained = [
            *network.features(trained=True),
            *network.proposal(trained=True),
            *network.at_fractions(count, trained=True),
            *network.at_fractions(count - 1),  # at the edges, for the fractions' loss
        ]
        target = [*network.features(), *network.at_fractions(count)]
        proposal = [*network.features(), *network.proposal(), *(network.at_fractions(count) if double else [])]
        return [*trained, *target, *proposal]
    return [*network.values(trained=True), *network.values(), *(network.values() if double else [])]


def operands(layer: Layer, name: str) -> tuple[Tensor, Tensor]:
    """Give what is multiplied; weights lie as in `nn.Linear`, (outputs, inputs)."""
    x, y = torch.randn(layer.rows, layer.inputs), torch.randn(layer.rows, layer.outputs)
    weight = torch.randn(layer.outputs, layer.inputs)
    return {"forward": (x, weight.T), "weight gradient": (y.T, x), "x gradient": (y, weight)}[name]


def seconds_of_product(a: Tensor, b: Tensor) -> float:
    """Give the time of a @ b or of its transpose, whichever is faster: either will do for a layer."""
    return min(
        seconds_of(partial(torch.mm, left, right, out=torch.empty(left.shape[0], right.shape[1])))
        for left, right in ((a, b), (b.T, a.T))
    )


def seconds_of(function: Callable[[], Any]) -> float:
    """Give the time of one call: the smallest of some repeats, for a floor is what is never undercut."""

    def repeat(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    calls = max(10, round(SECONDS / statistics.median(repeat(1) for _ in range(5))))
    return min(repeat(calls) for _ in range(REPEATS))


def run_floor(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    torch.set_num_threads(setting.threads)
    env = gym.make(setting.env_id)
    assert setting.algo is not None
    assert isinstance(env.observation_space, Box)
    assert isinstance(env.action_space, Discrete)
    obs_size, num_actions = env.observation_space.shape[0], int(env.action_space.n)
    layers = layers_of_update(setting.algo, setting.hparams, obs_size, num_actions)
    counts: dict[tuple[Layer, str], int] = {}
    for layer in layers:
        for name in layer.products:
            key = (Layer(layer.rows, layer.inputs, layer.outputs), name)
            counts[key] = counts.get(key, 0) + 1
    products: list[dict[str, Any]] = [
        {
            "product": name,
            "rows": layer.rows,
            "inputs": layer.inputs,
            "outputs": layer.outputs,
            "count": count,
            "us": 1e6 * seconds_of_product(*operands(layer, name)),
        }
        for (layer, name), count in counts.items()
    ]
    return {"us_per_update": sum(row["count"] * row["us"] for row in products), "products": products}


def no_learner(setting: Setting, training: Any) -> Any:
    raise RuntimeError("the floor has nothing that learns")


if __name__ == "__main__":
    main(no_learner, ["torch", "gymnasium"], modes={"floor": run_floor})
