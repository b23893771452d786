"""Environment steps per second of a slow simulator, by execution backend: what a step through each backend costs.

    python -m benchmarks slow_simulator --backends local_sync local_async ray

The simulator sleeps, so that the cores stay free and the figures show the backend alone. Nothing learns.
"""

import argparse
import time
from importlib import metadata
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from benchmarks.command_line import add_out, check_names, result_folder
from benchmarks.machine import describe_run
from benchmarks.results import Session
from rl_training.envs.factory import Backend, OwnEnv, make_envs

BACKENDS: list[Backend] = ["local_sync", "local_async", "ray"]


class Sleeper(gym.Env[np.ndarray, np.int64]):
    """An environment whose step takes `seconds`; its episodes do not end."""

    observation_space, action_space = Box(-1, 1, (17,), np.float32), Discrete(4)

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._obs = np.zeros(17, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._obs, {}

    def step(self, action: np.int64) -> Any:
        time.sleep(self._seconds)
        return self._obs, 0.0, False, False, {}


def measure(backend: Backend, *, num_envs: int, seconds: float, num_steps: int) -> dict[str, float]:
    """Return how long the group takes to start, and its environment steps per second."""
    start = time.perf_counter()
    envs = make_envs(OwnEnv(Sleeper, {"seconds": seconds}), num_envs, backend=backend)
    envs.reset(range(num_envs), range(num_envs))
    actions = np.zeros(num_envs, np.int64)
    envs.step(actions)
    started = time.perf_counter()
    for _ in range(num_steps):
        envs.step(actions)
    per_second = num_envs * num_steps / (time.perf_counter() - started)
    envs.close()
    return {"start_s": round(started - start, 2), "steps_per_s": round(per_second, 1)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--backends", nargs="*", help=f"of {', '.join(BACKENDS)}")
    parser.add_argument("--envs", type=int, default=16, help="environments (default: %(default)s)")
    parser.add_argument("--milliseconds", type=float, default=5.0, help="that a step takes (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="steps of the whole group (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each backend (default: %(default)s)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    chosen = check_names(args.backends, BACKENDS, "backend")
    facts = {"num_envs": args.envs, "step_ms": args.milliseconds, "num_steps": args.steps}
    if "ray" in chosen:
        facts["ray"] = metadata.version("ray")
    session = Session(result_folder(args) / "slow_simulator.jsonl", describe_run() | facts)
    for number in range(args.rounds):
        for backend in [each for each in BACKENDS if each in chosen]:
            found = measure(backend, num_envs=args.envs, seconds=args.milliseconds / 1_000, num_steps=args.steps)
            session.add({"backend": backend, "round": number, **found})
            print(f"  {backend}: {found}", flush=True)
    return 0
