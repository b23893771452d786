"""Gymnasium's classic control tasks as tensor environments.

The formulas and their order are Gymnasium's, so that one step in float64 from the same state is equal up to the last
digit. They run in float32, where a trajectory parts from Gymnasium's after some steps. Start states are drawn from the
same distributions by other random numbers.
"""

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from torch import Tensor

from rl_training.core.counters import Keys
from rl_training.core.types import State

_FLOAT = torch.float32


def _symmetric_box(*high: float) -> Box:
    bounds = np.array(high, np.float32)
    return Box(-bounds, bounds, dtype=np.float32)


class CartPole:
    """CartPole-v1: balance a pole on a cart; reward 1 per step."""

    max_episode_steps: int | None = 500
    _FORCE, _GRAVITY, _TAU = 10.0, 9.8, 0.02
    _POLE_MASS, _TOTAL_MASS, _HALF_LENGTH = 0.1, 1.1, 0.5
    _POLE_MASS_LENGTH = 0.05
    _X_LIMIT, _ANGLE_LIMIT = 2.4, 12 * 2 * math.pi / 360

    def __init__(self, dtype: torch.dtype = _FLOAT) -> None:
        self.observation_space: gym.Space[Any] = _symmetric_box(
            2 * self._X_LIMIT, np.inf, 2 * self._ANGLE_LIMIT, np.inf
        )
        self.action_space: gym.Space[Any] = Discrete(2)
        self._dtype = dtype

    def first(self, keys: Keys) -> State:
        drawn = (keys.uniform(0, 4).to(self._dtype) * 0.1 - 0.05).unbind(1)
        return dict(zip(("x", "x_dot", "theta", "theta_dot"), drawn, strict=True))

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        x, x_dot, theta, theta_dot = (state[name] for name in ("x", "x_dot", "theta", "theta_dot"))
        force = torch.where(actions == 1, self._FORCE, -self._FORCE).to(x.dtype)
        cos, sin = theta.cos(), theta.sin()
        push = (force + self._POLE_MASS_LENGTH * theta_dot.square() * sin) / self._TOTAL_MASS
        theta_acc = (self._GRAVITY * sin - cos * push) / (
            self._HALF_LENGTH * (4.0 / 3.0 - self._POLE_MASS * cos.square() / self._TOTAL_MASS)
        )
        x_acc = push - self._POLE_MASS_LENGTH * theta_acc * cos / self._TOTAL_MASS
        new = {
            "x": x + self._TAU * x_dot,
            "x_dot": x_dot + self._TAU * x_acc,
            "theta": theta + self._TAU * theta_dot,
            "theta_dot": theta_dot + self._TAU * theta_acc,
        }
        terminated = (new["x"].abs() > self._X_LIMIT) | (new["theta"].abs() > self._ANGLE_LIMIT)
        return new, torch.ones_like(x), terminated

    def observe(self, state: State) -> Tensor:
        return torch.stack([state[name] for name in ("x", "x_dot", "theta", "theta_dot")], 1).float()


class Pendulum:
    """Pendulum-v1: swing a pole up and hold it there; the reward is minus a cost, no episode terminates."""

    max_episode_steps: int | None = 200
    _MAX_SPEED, _MAX_TORQUE, _TAU, _GRAVITY = 8.0, 2.0, 0.05, 10.0

    def __init__(self, dtype: torch.dtype = _FLOAT) -> None:
        self.observation_space: gym.Space[Any] = _symmetric_box(1.0, 1.0, self._MAX_SPEED)
        self.action_space: gym.Space[Any] = Box(-self._MAX_TORQUE, self._MAX_TORQUE, (1,), np.float32)
        self._dtype = dtype

    def first(self, keys: Keys) -> State:
        theta, speed = (2.0 * keys.uniform(0, 2).to(self._dtype) - 1.0).unbind(1)
        return {"theta": math.pi * theta, "speed": speed}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        theta, speed = state["theta"], state["speed"]
        torque = actions[:, 0].to(theta.dtype).clamp(-self._MAX_TORQUE, self._MAX_TORQUE)
        angle = torch.remainder(theta + math.pi, 2 * math.pi) - math.pi
        cost = angle.square() + 0.1 * speed.square() + 0.001 * torque.square()
        new_speed = speed + (3 * self._GRAVITY / 2 * theta.sin() + 3.0 * torque) * self._TAU
        new_speed = new_speed.clamp(-self._MAX_SPEED, self._MAX_SPEED)
        new = {"theta": theta + new_speed * self._TAU, "speed": new_speed}
        return new, -cost, torch.zeros_like(theta, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        theta = state["theta"]
        return torch.stack((theta.cos(), theta.sin(), state["speed"]), 1).float()


class Acrobot:
    """Acrobot-v1: swing the end of two links above a line; reward -1 per step, 0 for the last one."""

    max_episode_steps: int | None = 500
    _MAX_SPEED_1, _MAX_SPEED_2 = 4 * math.pi, 9 * math.pi
    _TAU, _GRAVITY = 0.2, 9.8

    def __init__(self, dtype: torch.dtype = _FLOAT) -> None:
        self.observation_space: gym.Space[Any] = _symmetric_box(
            1.0, 1.0, 1.0, 1.0, self._MAX_SPEED_1, self._MAX_SPEED_2
        )
        self.action_space: gym.Space[Any] = Discrete(3)
        self._dtype = dtype

    def first(self, keys: Keys) -> State:
        drawn = (keys.uniform(0, 4).to(self._dtype) * 0.2 - 0.1).unbind(1)
        return dict(zip(("theta_1", "theta_2", "speed_1", "speed_2"), drawn, strict=True))

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        before = torch.stack([state[name] for name in ("theta_1", "theta_2", "speed_1", "speed_2")])
        torque = actions.to(before.dtype) - 1.0
        # Runge and Kutta's method of order 4.
        k1 = self._slope(before, torque)
        k2 = self._slope(before + self._TAU / 2 * k1, torque)
        k3 = self._slope(before + self._TAU / 2 * k2, torque)
        k4 = self._slope(before + self._TAU * k3, torque)
        theta_1, theta_2, speed_1, speed_2 = (before + self._TAU / 6.0 * (k1 + 2 * k2 + 2 * k3 + k4)).unbind()
        new = {
            "theta_1": _wrapped(theta_1),
            "theta_2": _wrapped(theta_2),
            "speed_1": speed_1.clamp(-self._MAX_SPEED_1, self._MAX_SPEED_1),
            "speed_2": speed_2.clamp(-self._MAX_SPEED_2, self._MAX_SPEED_2),
        }
        terminated = -new["theta_1"].cos() - (new["theta_2"] + new["theta_1"]).cos() > 1.0
        return new, torch.where(terminated, 0.0, -1.0), terminated

    def _slope(self, values: Tensor, torque: Tensor) -> Tensor:
        """Return the derivatives of angles and speeds, (4, rows): both links have mass and length 1."""
        theta_1, theta_2, speed_1, speed_2 = values.unbind()
        cos_2, sin_2 = theta_2.cos(), theta_2.sin()
        d1 = 0.25 + (1.25 + cos_2) + 1.0 + 1.0
        d2 = (0.25 + 0.5 * cos_2) + 1.0
        phi_2 = 0.5 * self._GRAVITY * (theta_1 + theta_2 - math.pi / 2.0).cos()
        phi_1 = (
            -0.5 * speed_2.square() * sin_2
            - speed_2 * speed_1 * sin_2
            + 1.5 * self._GRAVITY * (theta_1 - math.pi / 2).cos()
            + phi_2
        )
        acc_2 = (torque + d2 / d1 * phi_1 - 0.5 * speed_1.square() * sin_2 - phi_2) / (1.25 - d2.square() / d1)
        acc_1 = -(d2 * acc_2 + phi_1) / d1
        return torch.stack((speed_1, speed_2, acc_1, acc_2))

    def observe(self, state: State) -> Tensor:
        theta_1, theta_2 = state["theta_1"], state["theta_2"]
        parts = (theta_1.cos(), theta_1.sin(), theta_2.cos(), theta_2.sin(), state["speed_1"], state["speed_2"])
        return torch.stack(parts, 1).float()


def _wrapped(angle: Tensor) -> Tensor:
    """Return the angle in [-pi, pi], from which several turns may separate it after a step at high speeds."""
    turn = 2 * math.pi
    return angle - turn * (angle / turn).round()


class MountainCar:
    """MountainCar-v0: drive out of a valley with a weak motor; reward -1 per step."""

    max_episode_steps: int | None = 200
    _LEFT, _RIGHT, _MAX_SPEED, _GOAL = -1.2, 0.6, 0.07, 0.5

    def __init__(self, dtype: torch.dtype = _FLOAT) -> None:
        low, high = (np.array((x, speed), np.float32) for x, speed in ((self._LEFT, -0.07), (self._RIGHT, 0.07)))
        self.observation_space: gym.Space[Any] = Box(low, high, dtype=np.float32)
        self.action_space: gym.Space[Any] = Discrete(3)
        self._dtype = dtype

    def first(self, keys: Keys) -> State:
        position = keys.uniform(0, 1)[:, 0].to(self._dtype) * 0.2 - 0.6
        return {"position": position, "speed": torch.zeros_like(position)}

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        position, speed = state["position"], state["speed"]
        push = (actions.to(position.dtype) - 1.0) * 0.001
        new = self._drive(position, speed + (push + (3 * position).cos() * -0.0025))
        terminated = (new["position"] >= self._GOAL) & (new["speed"] >= 0.0)
        return new, torch.full_like(position, -1.0), terminated

    def _drive(self, position: Tensor, speed: Tensor) -> State:
        speed = speed.clamp(-self._MAX_SPEED, self._MAX_SPEED)
        position = (position + speed).clamp(self._LEFT, self._RIGHT)
        return {"position": position, "speed": torch.where((position == self._LEFT) & (speed < 0), 0.0, speed)}

    def observe(self, state: State) -> Tensor:
        return torch.stack((state["position"], state["speed"]), 1).float()


class MountainCarContinuous(MountainCar):
    """MountainCarContinuous-v0: the same valley; reward 100 at the goal, less a tenth of each squared force."""

    max_episode_steps: int | None = 999
    _GOAL = 0.45

    def __init__(self, dtype: torch.dtype = _FLOAT) -> None:
        super().__init__(dtype)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)

    def step(self, state: State, actions: Tensor, keys: Keys) -> tuple[State, Tensor, Tensor]:
        position, speed = state["position"], state["speed"]
        action = actions[:, 0].to(position.dtype)
        force = action.clamp(-1.0, 1.0)
        new = self._drive(position, speed + (force * 0.0015 - 0.0025 * (3 * position).cos()))
        terminated = (new["position"] >= self._GOAL) & (new["speed"] >= 0.0)
        return new, torch.where(terminated, 100.0, 0.0) - action.square() * 0.1, terminated
