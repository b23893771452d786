"""Environment steps per second of processor time, by environment and execution backend: no policy, no learning.

    taskset -c 1 python -m benchmarks env_speed

Random actions, resets included. All threads and processes are counted, so that the figures hardly depend on other load;
wall time would measure that as well.
"""

import argparse
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.command_line import add_out, check_names, result_folder
from benchmarks.machine import describe_run
from benchmarks.results import Session, named
from benchmarks.spread import spread
from rl_training.envs.factory import Backend, make_env_factory, make_envs

BACKENDS: list[Backend] = ["local_sync", "local_async", "envpool"]
GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
# Steps of the whole group, enough for about a second.
CASES: dict[str, tuple[int, list[Backend]]] = {
    "CartPole-v1": (2_000, BACKENDS),
    "HalfCheetah-v5": (1_000, BACKENDS),
    "PongNoFrameskip-v4": (150, BACKENDS),
    **{f"MinAtar/{game}-v1": (2_000, ["local_sync"]) for game in GAMES},
}
TICKS = os.sysconf("SC_CLK_TCK")


def processor_time() -> float:
    """Return the processor seconds of this process and of all processes that it has started and that still run."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        parents[int(folder.name)] = int(fields[1])
        used[int(folder.name)] = (int(fields[11]) + int(fields[12])) / TICKS
    total, waiting = time.process_time(), [os.getpid()]
    while waiting:
        parent = waiting.pop()
        children = [pid for pid, of in parents.items() if of == parent]
        total += sum(used[pid] for pid in children)
        waiting += children
    return total


def measure(env_id: str, backend: Backend, *, num_envs: int, num_steps: int) -> float:
    """Return the environment steps of a group per second of processor time."""
    envs = make_envs(make_env_factory(env_id), num_envs, backend=backend)
    try:
        envs.action_space.seed(0)
        every = range(num_envs)
        envs.reset(every, every)
        rows = [np.stack([envs.action_space.sample() for _ in every]) for _ in range(64)]
        seed = num_envs
        started = processor_time()
        for step in range(num_steps):
            ended = envs.step(rows[step % len(rows)]).ended
            if ended:
                envs.reset(ended, range(seed, seed + len(ended)))
                seed += len(ended)
        return num_envs * num_steps / (processor_time() - started)
    finally:
        envs.close()


def summarize_env_speed(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return median and range over the rounds, by environment and backend."""
    return {
        env_id: {
            backend: asdict(spread([line["steps_per_s"] for line in named(lines, env_id=env_id, backend=backend)]))
            for backend in dict.fromkeys(line["backend"] for line in named(lines, env_id=env_id))
        }
        for env_id in dict.fromkeys(line["env_id"] for line in lines)
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="ENV", help="such as CartPole-v1 (default: all)")
    parser.add_argument("--envs", type=int, default=8, help="environments (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=6, help="measurements of each, in turn (default: %(default)s)")
    add_out(parser)


def run(args: argparse.Namespace) -> int:
    chosen = check_names(args.names, list(CASES), "environment")
    facts = {"num_envs": args.envs, "cores": len(os.sched_getaffinity(0))}
    session = Session(result_folder(args) / "env_speed.jsonl", describe_run() | facts)
    for number in range(args.rounds):
        for env_id in chosen:
            steps, backends = CASES[env_id]
            for backend in backends:
                found = round(measure(env_id, backend, num_envs=args.envs, num_steps=steps), 1)
                session.add({"env_id": env_id, "backend": backend, "round": number, "steps_per_s": found})
                print(f"  {env_id}, {backend}: {found:,.0f}", flush=True)
    return 0
