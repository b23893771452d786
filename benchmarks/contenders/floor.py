"""The floor of an update: the time of its matrix products alone, one after another, each into a preallocated tensor.

No library can be faster than this with the same products. The rest of an update is activations, losses, the optimizer,
sampling and the library itself. Products that a clever program could merge are counted separately: the online network's
passes over a state and over its successor are two. On a GPU all products are one CUDA graph, so that launching them
takes no time.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from gymnasium.spaces import Box, Discrete
from harness import Build, Setting, Stopwatch, main
from torch import Tensor

REPEATS = 9
SECONDS = 0.02  # of one repeat, approximately
REPLAYS = 20  # of a CUDA graph, between two synchronizations


@dataclass(frozen=True)
class Layer:
    """x (rows, inputs) times the transposed weight (inputs, outputs), in each of `members` networks."""

    rows: int
    inputs: int
    outputs: int
    trained: bool = False  # then the gradient of the weight is a second product,
    passes_on: bool = False  # and the gradient of x a third
    members: int = 1

    @property
    def products(self) -> list[str]:
        return ["forward", *(["weight gradient"] if self.trained else []), *(["x gradient"] if self.passes_on else [])]

    @property
    def size(self) -> "Layer":
        return replace(self, trained=False, passes_on=False)


def dense(rows: int, sizes: Sequence[int], *, trained: bool, passes_on: bool = False) -> list[Layer]:
    """Return consecutive layers. `passes_on`: whether the input of the first one also has a gradient."""
    return [
        Layer(rows, inputs, outputs, trained, trained and (passes_on or place > 0))
        for place, (inputs, outputs) in enumerate(pairwise(sizes))
    ]


def ensemble(rows: int, sizes: Sequence[int], members: int, *, trained: bool = False) -> list[Layer]:
    """Return the layers of networks with the same input: their first layers are merged into one wide layer."""
    first, *rest = dense(rows, sizes, trained=trained)
    return [replace(first, outputs=members * first.outputs), *(replace(layer, members=members) for layer in rest)]


class Network:
    """The layers of a pass through one of our networks, for vector observations."""

    def __init__(self, algo: str, hparams: dict[str, Any], obs_size: int, num_actions: int) -> None:
        self.rows, self.hparams = hparams["batch_size"], hparams
        self.sizes = [obs_size, *hparams["hidden_sizes"]]
        self.num_actions = num_actions
        per_action = {"c51_dqn": "num_atoms", "rainbow_dqn": "num_atoms", "qr_dqn": "num_quantiles"}.get(algo)
        self.per_action = hparams[per_action] if per_action else 1

    def values(self, *, trained: bool = False) -> list[Layer]:
        """From observations to the outputs of each action; noisy weights are computed before, element by element."""
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
        """From cosines of fractions and from features to values. `same`: all rows have the same fractions."""
        size = self.sizes[-1]
        return [
            *dense(count if same else self.rows * count, [self.hparams["embedding_dim"], size], trained=trained),
            *dense(self.rows * count, [size, self.num_actions], trained=trained, passes_on=True),
        ]

    def proposal(self, *, trained: bool = False) -> list[Layer]:
        return dense(self.rows, [self.sizes[-1], self.hparams["num_quantiles"]], trained=trained)


def layers_of_actor_critic(algo: str, hparams: dict[str, Any], obs_size: int, action_size: int) -> list[Layer]:
    """Return all layers of `policy_delay` critic updates, the last of which also updates the actor."""
    rows, hidden, delay = hparams["batch_size"], hparams["hidden_sizes"], hparams["policy_delay"]
    actor = [obs_size, *hidden, action_size * (1 if algo == "td3" else 2)]
    critic = [obs_size + action_size, *hidden, 1]
    all_critics = hparams.get("num_critics", 2)
    in_target, for_actor = hparams.get("subset_size", 2), 1 if algo == "td3" else all_critics
    learn_critics = [
        *dense(rows, actor, trained=False),
        *ensemble(rows, critic, in_target),
        *ensemble(rows, critic, all_critics, trained=True),
    ]
    # The critics' weights are fixed; the gradient passes through them to the action.
    judge = [replace(layer, passes_on=True) for layer in ensemble(rows, critic, for_actor)]
    return [*(learn_critics * delay), *dense(rows, actor, trained=True), *judge]


def layers_of_iql(hparams: dict[str, Any], obs_size: int, action_size: int) -> list[Layer]:
    rows, hidden = hparams["batch_size"], hparams["hidden_sizes"]
    critic, value = [obs_size + action_size, *hidden, 1], [obs_size, *hidden, 1]
    return [
        *ensemble(rows, critic, 2),
        *dense(rows, value, trained=True),
        *dense(2 * rows, value, trained=False),  # of states and of their successors, after the update of V
        *dense(rows, [obs_size, *hidden, action_size], trained=True),
        *ensemble(rows, critic, 2, trained=True),
    ]


def layers_of_updates(algo: str, hparams: dict[str, Any], obs_size: int, num_actions: int) -> list[Layer]:
    """Return all layers of `updates_of(hparams)` updates, as our losses evaluate them.

    `num_actions`: the number of discrete actions, or the size of a continuous one.
    """
    if algo in ("sac", "td3", "redq"):
        return layers_of_actor_critic(algo, hparams, obs_size, num_actions)
    if algo == "iql":
        return layers_of_iql(hparams, obs_size, num_actions)
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


def updates_of(hparams: dict[str, Any]) -> int:
    return int(hparams.get("policy_delay", 1))


def operands(layer: Layer, name: str, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the operands of a product; weights are laid out as in `nn.Linear`: (outputs, inputs)."""
    random = partial(torch.randn, *([layer.members] if layer.members > 1 else []), device=device)
    x, y = random(layer.rows, layer.inputs), random(layer.rows, layer.outputs)
    weight = random(layer.outputs, layer.inputs)
    return {"forward": (x, weight.mT), "weight gradient": (y.mT, x), "x gradient": (y, weight)}[name]


def ways_to_multiply(a: Tensor, b: Tensor) -> list[Callable[[], Any]]:
    """Return a @ b and its transpose; with members, also as one product after another."""
    ways: list[Callable[[], Any]] = []
    for left, right in ((a, b), (b.mT, a.mT)):
        out = left.new_empty((*left.shape[:-1], right.shape[-1]))
        ways.append(partial(torch.bmm if left.ndim == 3 else torch.mm, left, right, out=out))
        if left.ndim == 3:
            ways.append(partial(_one_by_one, list(zip(left, right, out, strict=True))))
    return ways


def _one_by_one(members: list[tuple[Tensor, Tensor, Tensor]]) -> None:
    for left, right, out in members:
        torch.mm(left, right, out=out)


def seconds_of_product(a: Tensor, b: Tensor) -> float:
    """Return the time of the fastest way; any of them computes the layer."""
    return min(seconds_of(multiply) for multiply in ways_to_multiply(a, b))


def seconds_of(function: Callable[[], Any]) -> float:
    """Return the time of one call: the smallest of several repeats, since a floor is a lower bound."""

    def repeat(calls: int) -> float:
        start = time.perf_counter()
        for _ in range(calls):
            function()
        return (time.perf_counter() - start) / calls

    calls = max(10, round(SECONDS / statistics.median(repeat(1) for _ in range(5))))
    return min(repeat(calls) for _ in range(REPEATS))


def seconds_of_graph(products: Sequence[tuple[Layer, str]]) -> float:
    """Return the time of all products in one CUDA graph."""
    multiply = [ways_to_multiply(*operands(layer, name, "cuda"))[0] for layer, name in products]

    def all_of_them() -> None:
        for product in multiply:
            product()

    all_of_them()  # kernels and workspaces must be loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_of_them()

    def replay_often() -> None:
        for _ in range(REPLAYS):
            graph.replay()
        torch.cuda.synchronize()

    return seconds_of(replay_often) / REPLAYS


def run_floor(build: Build, setting: Setting, watch: Stopwatch) -> dict[str, Any]:
    torch.set_num_threads(setting.threads)
    env = gym.make(setting.env_id)
    assert setting.algo is not None
    assert isinstance(env.observation_space, Box)
    assert isinstance(env.action_space, Box | Discrete)
    actions = env.action_space
    num_actions = int(actions.n) if isinstance(actions, Discrete) else actions.shape[0]
    updates = updates_of(setting.hparams)
    layers = layers_of_updates(setting.algo, setting.hparams, env.observation_space.shape[0], num_actions)
    counts: dict[tuple[Layer, str], int] = {}
    for layer in layers:
        for name in layer.products:
            counts[layer.size, name] = counts.get((layer.size, name), 0) + 1
    products: list[dict[str, Any]] = [
        {
            "product": name,
            "members": layer.members,
            "rows": layer.rows,
            "inputs": layer.inputs,
            "outputs": layer.outputs,
            "count": count / updates,
            "us": 1e6 * seconds_of_product(*operands(layer, name)),
        }
        for (layer, name), count in counts.items()
    ]
    return {"us_per_update": sum(row["count"] * row["us"] for row in products), "products": products}


def no_learner(setting: Setting, training: Any) -> Any:
    raise RuntimeError("the floor has no learner")


if __name__ == "__main__":
    main(no_learner, ["torch", "gymnasium"], modes={"floor": run_floor})
