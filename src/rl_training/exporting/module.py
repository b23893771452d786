"""`PolicyModule`: a policy from the observations that an environment returns to the actions that it takes."""

import copy
from typing import Any, Literal

import numpy as np
import torch
from gymnasium import spaces as gym_spaces
from torch import Tensor, nn

from rl_training.core.packed_space import PackedSpace
from rl_training.core.spaces import Spaces, action_bounds, mask_size, observation_field
from rl_training.core.types import Algorithm, Decision, GreedyPolicy
from rl_training.experiment.registry import AlgorithmSpec
from rl_training.exporting.contract import Port
from rl_training.models.layers import NoisyLayers


class PolicyModule(nn.Module):
    """Observations in, the actions of the environment out. `inputs` names what it is called with, in this order.

    An observation with parts is one input per part. An action mask follows if the environment has one, then the carry
    of a recurrent policy: zeros at the start of an episode, then what the last call returned behind the action.
    """

    def __init__(self, policy: GreedyPolicy, spaces: Spaces, *, has_mask: bool) -> None:
        super().__init__()
        self.policy, self.to_env = policy, ToEnv(spaces.action)
        self.observation_space, self.has_mask = spaces.observation, has_mask
        self.inputs = _input_ports(spaces, policy, has_mask=has_mask)
        self.outputs = _output_ports(spaces, policy)
        self.decision, self.choices = _decision(spaces.action)
        self._dtypes = [dtype_of(port) for port in self.inputs]

    def forward(self, *inputs: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the actions, (batch, *action); with a carry, a tuple of them and the next carry."""
        decision = self.decide(*inputs)
        actions: Tensor = self.to_env(decision.actions)
        return (actions, *decision.carry) if decision.carry else actions

    def decide(self, *inputs: Tensor) -> Decision:
        """Return the actions as the library counts and scales them, the scores of choices and the next carry."""
        if len(inputs) != len(self.inputs):
            expected = ", ".join(port.name for port in self.inputs)
            raise TypeError(f"this policy takes {len(self.inputs)} inputs ({expected}), got {len(inputs)}")
        rows = [values.to(dtype) for values, dtype in zip(inputs, self._dtypes, strict=True)]
        carry = [rows.pop() for _ in self.policy.carry][::-1]
        mask = rows.pop() if self.has_mask else None
        has_parts = isinstance(self.observation_space, PackedSpace)
        return self.policy(tuple(rows) if has_parts else rows[0], mask, *carry)

    def all_outputs(self, decision: Decision) -> tuple[Tensor, ...]:
        """Return what `outputs` names: the actions of the environment, the scores of choices, the next carry."""
        scores = () if decision.scores is None else (decision.scores,)
        return (self.to_env(decision.actions), *scores, *decision.carry)

    @property
    def inside(self) -> tuple[str, ...]:
        """What the policy computes in addition to its network."""
        parts = {
            "observation_normalizer": self.policy.normalizes,
            "mask": self.has_mask,
            self.decision: self.decision != "numbers",
            "action_scaling": self.to_env.scaled,
            "action_offset": self.to_env.offset,
        }
        return tuple(name for name, present in parts.items() if present)


class ToEnv(nn.Module):
    """The last step of acting, `core.spaces.to_env_actions`, for tensors; in the dtype of the action space."""

    low: Tensor
    half_range: Tensor
    bounds: Tensor  # (2, *shape), in the dtype of the action space

    def __init__(self, space: gym_spaces.Space[Any]) -> None:
        super().__init__()
        self._dtype = _torch_dtype(str(np.dtype(space.dtype)))
        self.is_box = isinstance(space, gym_spaces.Box)
        low, high = action_bounds(space)
        self.offset = not self.is_box and bool(np.any(low))
        self.register_buffer("low", torch.tensor(low, dtype=torch.float32 if self.is_box else torch.int64))
        if self.is_box:
            self.register_buffer("half_range", torch.tensor((high - low) / 2.0, dtype=torch.float32))
            self.register_buffer("bounds", torch.tensor(np.stack([low, high]), dtype=self._dtype))
        self.scaled = self.is_box and not (np.all(low == -1.0) and np.all(high == 1.0))

    def forward(self, actions: Tensor) -> Tensor:
        if self.is_box:
            actions = actions.clamp(-1.0, 1.0)
            if not self.scaled:
                return actions.to(self._dtype)
            # Clipped again, because rounding may exceed a bound.
            scaled = (self.low + (actions + 1.0) * self.half_range).to(self._dtype)
            return torch.maximum(torch.minimum(scaled, self.bounds[1]), self.bounds[0])
        return (actions + self.low if self.offset else actions).to(self._dtype)


def build_module(algorithm: Algorithm, spaces: Spaces, spec: AlgorithmSpec) -> PolicyModule:
    """Return a copy of the algorithm's policy as it is now, on the CPU. `spaces`: those of the environment."""
    policy: Any = spec.build_policy_module(algorithm)
    module = PolicyModule(copy.deepcopy(policy), spaces, has_mask=spaces.action_mask and spec.action_masks)
    noisy = NoisyLayers(module)
    if noisy.size:
        noisy.set(torch.zeros(noisy.size))  # the noise of the last step would become a part of the weights
    return module.cpu().eval().requires_grad_(False)


def _input_ports(spaces: Spaces, policy: GreedyPolicy, *, has_mask: bool) -> tuple[Port, ...]:
    space = spaces.observation
    ports = (
        [_obs_port(f"obs.{leaf.name}", leaf.space) for leaf in space.leaves]
        if isinstance(space, PackedSpace)
        else [_obs_port("obs", space)]
    )
    if has_mask:
        meaning = "which choices are allowed; at least one of each"
        ports.append(Port(name="action_mask", shape=("batch", mask_size(spaces.action)), dtype="bool", meaning=meaning))
    return (*ports, *_carry_ports(policy, "", "the state of the episode; zeros at its first step"))


def _output_ports(spaces: Spaces, policy: GreedyPolicy) -> tuple[Port, ...]:
    low, high = action_bounds(spaces.action)
    action = Port(
        name="action",
        shape=("batch", *(spaces.action.shape or ())),
        dtype=str(np.dtype(spaces.action.dtype)),  # type: ignore[arg-type]
        low=_bound(low),
        high=_bound(high),
        meaning="what the environment takes",
    )
    count = sum(_decision(spaces.action)[1])
    scores = (
        [Port(name="scores", shape=("batch", count), dtype="float32", meaning="Q-values or logits")] if count else []
    )
    return (action, *scores, *_carry_ports(policy, "next_", "the state of the episode for its next step"))


def _carry_ports(policy: GreedyPolicy, prefix: str, meaning: str) -> list[Port]:
    return [
        Port(name=f"{prefix}{name}", shape=("batch", size), dtype="float32", meaning=meaning)
        for name, size in policy.carry.items()
    ]


def _decision(space: gym_spaces.Space[Any]) -> tuple[Literal["argmax", "threshold", "numbers"], tuple[int, ...]]:
    """Return how actions follow from scores, and how many scores each choice has; see `Contract`."""
    if isinstance(space, gym_spaces.Box):
        return "numbers", ()
    if isinstance(space, gym_spaces.MultiBinary):
        return "threshold", (int(np.prod(space.shape)),)
    return "argmax", tuple(np.ravel(getattr(space, "nvec", getattr(space, "n", 0))).tolist())


def _obs_port(name: str, space: gym_spaces.Space[Any]) -> Port:
    field = observation_field(space)
    low, high = (space.low, space.high) if isinstance(space, gym_spaces.Box) else action_bounds(space)
    return Port(
        name=name,
        shape=("batch", *field.shape),
        dtype=str(field.dtype),  # type: ignore[arg-type]
        low=_bound(low),
        high=_bound(high),
        meaning=f"observations of {space}".replace("\n", " "),
    )


def _bound(values: np.ndarray) -> Any:
    """Return a bound as JSON: one number if all entries have the same, null where there is none."""
    entries = np.where(np.isfinite(values), values, np.array(None))
    flat = set(entries.ravel().tolist())
    return flat.pop() if len(flat) == 1 else entries.tolist()


def dtype_of(port: Port) -> torch.dtype:
    return _torch_dtype(port.dtype)


def _torch_dtype(name: str) -> torch.dtype:
    return torch.from_numpy(np.empty(0, name)).dtype
