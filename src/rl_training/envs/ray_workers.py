"""Worker processes on the machines of a Ray cluster: one actor per machine, which runs its share of the environments.

An actor steps its environments with `LocalWorkers`: in one process each, which it watches and ends as the training
process does with those of its own machine. One call per machine and step goes through Ray.
"""

import itertools
import pickle
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.extras import require
from rl_training.core.ray_cluster import connect_to_ray
from rl_training.envs.array_space import ArraySpace
from rl_training.envs.episode_tracker import describe, format_traceback
from rl_training.envs.local_workers import CLOSE_SECONDS, Failure, LocalWorkers, WorkerStart, check_importable
from rl_training.envs.slot import Env
from rl_training.envs.worker_process import Command, SharedArrays

BACKEND = "execution_backend: ray"
ANSWER_SECONDS = 60.0  # that a machine may take longer than worker_timeout: to start an actor, and to report a hang
RESULTS = ("obs", "rewards", "terminated", "truncated")


class EnvActor:
    """The worker processes of one machine; its methods are called through Ray."""

    def __init__(
        self,
        factory: bytes,
        num_envs: int,
        spaces: tuple[ArraySpace, ArraySpace],
        *,
        worker_timeout: float,
        worker_start: WorkerStart,
        import_path: Sequence[str],
    ) -> None:
        sys.path += [folder for folder in import_path if folder not in sys.path]  # as `spawn` does
        self._failure: Failure | None = None
        try:
            self._workers = LocalWorkers(
                pickle.loads(factory), num_envs, spaces, worker_timeout=worker_timeout, worker_start=worker_start
            )
        except Exception as cause:  # the module of the factory may be missing on this machine
            self._failure = Failure(0, describe(cause), format_traceback(cause), raised=True)

    def exchange(self, commands: dict[int, Command | None], actions: np.ndarray) -> tuple[bytes, dict[str, np.ndarray]]:
        """Return the pickled replies, and what the environments have written into the arrays.

        Arrays that Ray itself unpacks are read-only, which those of other backends are not.
        """
        if self._failure is not None:
            return pickle.dumps(self._failure), {}
        arrays = self._workers.arrays
        arrays.view("actions")[:] = actions
        replies = self._workers.exchange(commands)
        return pickle.dumps(replies), {name: arrays.view(name) for name in RESULTS}

    def pids(self) -> list[int]:
        return self._workers.pids

    def close(self) -> None:
        self._workers.close()


@dataclass(frozen=True, slots=True)
class Share:
    """The environments of one machine: those from `start` to before `stop`."""

    actor: Any
    address: str
    start: int
    stop: int


class RayWorkers:
    """One process per environment, on every machine of the cluster in proportion to its CPUs."""

    def __init__(
        self,
        factory: Callable[[], Env],
        num_envs: int,
        spaces: tuple[ArraySpace, ArraySpace],
        *,
        worker_timeout: float,
        worker_start: WorkerStart,
    ) -> None:
        sent = check_ray(factory)
        self._ray = connect_to_ray(BACKEND)
        self._timeout = worker_timeout + ANSWER_SECONDS
        self.arrays = SharedArrays(num_envs, *spaces)
        self._shares: list[Share] = []
        machines = [node for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        counts = divide(num_envs, [node["Resources"]["CPU"] for node in machines])
        start = 0
        for node, count in zip(machines, counts, strict=True):
            if count:
                actor = self._start_actor(
                    node["NodeID"],
                    sent,
                    count,
                    spaces,
                    worker_timeout=worker_timeout,
                    worker_start=worker_start,
                    import_path=[folder or str(Path.cwd()) for folder in sys.path],
                )
                self._shares.append(Share(actor, node["NodeManagerAddress"], start, start + count))
                start += count

    def _start_actor(self, node_id: str, *args: Any, **kwargs: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # No CPU is reserved: a run that is itself a task of the cluster would wait for CPUs that it holds.
        place = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "scheduling_strategy": place}
        return self._ray.remote(EnvActor).options(**options).remote(*args, **kwargs)

    @property
    def pids(self) -> list[int]:
        """The process ids of the workers, each on its machine; empty once closed."""
        return [pid for share in self._shares for pid in self._ray.get(share.actor.pids.remote())]

    def exchange(self, commands: Mapping[int, Command | None]) -> dict[int, Any] | Failure:
        """Send each machine the commands of its workers and wait for the replies of all, or for the first failure."""
        actions = self.arrays.view("actions")
        pending: dict[Any, Share] = {}
        for share in self._shares:
            theirs = {i - share.start: commands[i] for i in range(share.start, share.stop) if i in commands}
            if theirs:
                pending[share.actor.exchange.remote(theirs, actions[share.start : share.stop])] = share
        # A replay may take any time: the machine that plays it notices a hang.
        is_replay = any(command is not None and command[0] == "replay" for command in commands.values())
        deadline = None if is_replay else time.monotonic() + self._timeout
        values: dict[int, Any] = {}
        while pending:
            seconds = None if deadline is None else max(deadline - time.monotonic(), 0)
            ready, _ = self._ray.wait(list(pending), num_returns=1, timeout=seconds)
            if not ready:
                share = next(iter(pending.values()))
                what = f"gave no answer for {self._timeout:g} s: its machine {share.address} does not reply"
                return Failure(share.start, what)
            share = pending.pop(ready[0])
            replies = self._receive(ready[0], share)
            if isinstance(replies, Failure):
                return replies
            values |= replies
        return values

    def _receive(self, reference: Any, share: Share) -> dict[int, Any] | Failure:
        """Copy the arrays of one machine; return its replies by the index of the whole group."""
        try:
            sent, results = self._ray.get(reference)
        except self._ray.exceptions.RayActorError as cause:
            return Failure(share.start, f"was lost with the Ray actor on {share.address} that ran it", str(cause))
        replies: dict[int, Any] | Failure = pickle.loads(sent)
        if isinstance(replies, Failure):
            return replace(replies, index=share.start + replies.index)
        for name, rows in results.items():
            self.arrays.view(name)[share.start : share.stop] = rows
        return {share.start + index: value for index, value in replies.items()}

    def close(self) -> None:
        shares, self._shares = self._shares, []
        closing = [share.actor.close.remote() for share in shares]
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=2 * CLOSE_SECONDS)
        for share in shares:
            self._ray.kill(share.actor)


def divide(num_envs: int, cpus: Sequence[float]) -> list[int]:
    """Return how many of the environments each machine runs, in proportion to its CPUs."""
    ends = [round(num_envs * total / sum(cpus)) for total in itertools.accumulate(cpus)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def check_ray(factory: Callable[[], Env]) -> bytes:
    """Raise `ConfigError` if Ray is missing or cannot be sent the function that makes the environments.

    Return the bytes that are sent: names to import, and settings.
    """
    require("ray", extra="ray", what=BACKEND)
    who, instead = f"{BACKEND}: each machine", "use execution_backend: local_async"
    return check_importable(factory, who, instead, has_main=False)
