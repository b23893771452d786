"""Termination rules as functions of observations, with which rollouts through a learned model terminate, too.

They cover gymnasium's MuJoCo environments (v4 and v5), including the limits that `env_kwargs` set, and environments
that never terminate.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

Range = tuple[float, float]


class TerminationRule(Protocol):
    """A function; its `repr` must name everything that it depends on, because compiled code is cached under it."""

    def __call__(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        """Return which steps terminate: (..., numbers) each, actions in [-1, 1] -> (...) of bool."""
        ...


@dataclass(frozen=True, slots=True)
class Bound:
    """Entries `start` to `stop - 1` of an observation lie between `low` and `high`; `closed` includes the limits."""

    start: int
    stop: int | None
    low: float
    high: float
    closed: bool = False

    def holds(self, obs: Tensor) -> Tensor:
        part = obs[..., self.start : self.stop]
        inside = (part >= self.low) & (part <= self.high) if self.closed else (part > self.low) & (part < self.high)
        return inside.all(-1)


@dataclass(frozen=True, slots=True)
class Unless:
    """Terminates unless all bounds hold for the next observation; without bounds never. NaN violates every bound."""

    bounds: tuple[Bound, ...] = ()

    def __call__(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        healthy = torch.ones(next_obs.shape[:-1], dtype=torch.bool, device=next_obs.device)
        for bound in self.bounds:
            healthy = healthy & bound.holds(next_obs)
        return ~healthy


NEVER = Unless()
FINITE = Bound(0, None, -math.inf, math.inf)

_NEVER = re.compile(r"(HalfCheetah|Swimmer|Reacher|Pusher|HumanoidStandup)-v[45]|Pendulum-v1")
_HEALTHY = re.compile(r"(Hopper|Walker2d|Ant|Humanoid)-v[45]")
_INVERTED_PENDULUM = re.compile(r"InvertedPendulum-v[45]")


def termination_rule(env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> TerminationRule | None:
    """Return the rule of the environment `gym.make(env_id, **env_kwargs)`; None if it is not known here."""
    kwargs = env_kwargs or {}
    if _NEVER.fullmatch(env_id):
        return NEVER
    if "xml_file" in kwargs:  # another body: its observations mean something else
        return None
    if _INVERTED_PENDULUM.fullmatch(env_id):
        return Unless((FINITE, Bound(1, 2, -0.2, 0.2, closed=True)))
    match = _HEALTHY.fullmatch(env_id)
    if match is None:
        return None
    if not kwargs.get("terminate_when_unhealthy", True):
        return NEVER
    return Unless(_healthy_bounds(match[1], kwargs))


def _healthy_bounds(body: str, kwargs: Mapping[str, Any]) -> tuple[Bound, ...]:
    """Return the ranges of height (z), angle and, for the hopper, all other coordinates.

    An observation starts with the coordinates, without those along the ground unless `env_kwargs` ask for them.
    """

    def between(name: str, default: Range) -> Range:
        low, high = kwargs.get(name, default)
        return float(low), float(high)

    shows_ground = not kwargs.get("exclude_current_positions_from_observation", True)
    if body in ("Ant", "Humanoid"):
        z = 2 if shows_ground else 0
        if body == "Ant":
            return FINITE, Bound(z, z + 1, *between("healthy_z_range", (0.2, 1.0)), closed=True)
        return (Bound(z, z + 1, *between("healthy_z_range", (1.0, 2.0))),)
    z = 1 if shows_ground else 0
    if body == "Walker2d":
        height, angle = (0.8, 2.0), (-1.0, 1.0)
    else:
        height, angle = (0.7, math.inf), (-0.2, 0.2)
    upright = Bound(z + 1, z + 2, *between("healthy_angle_range", angle))
    bounds = (Bound(z, z + 1, *between("healthy_z_range", height)), upright)
    if body == "Walker2d":
        return bounds
    # Observed velocities are clipped at 10: beyond that the env checks values that an observation does not show.
    return *bounds, Bound(z + 1, None, *between("healthy_state_range", (-100.0, 100.0)))
