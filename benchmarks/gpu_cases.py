"""What the GPU benchmark times: updates on random transitions, ours and those of other implementations."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

from benchmarks.speed import write_random_rows
from rl_training.algorithms.dreamer import Dreamer
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.data.recurrent_replay_buffer import RecurrentReplayBuffer
from rl_training.datasets.transition_dataset import TransitionDataset
from rl_training.experiment.registry import find_spec
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.dreamer import DreamerHParams, SizeName
from rl_training.hparams.iql import IQLHParams
from rl_training.hparams.redq import REDQHParams
from rl_training.hparams.sac import SACHParams
from rl_training.models.dreamer_rssm import sizes_of
from rl_training.runtime.loops import OFFLINE_UPDATES_AT_ONCE

MODES = ("eager", "compile", "cuda_graph")
TRANSITIONS = 10_000
HALF_CHEETAH = Spaces(Box(-np.inf, np.inf, (17,), np.float32), Box(-1.0, 1.0, (6,), np.float32))
CART_POLE = Spaces(Box(-np.inf, np.inf, (4,), np.float32), Discrete(2))
Seconds = Callable[[int], float]  # returns the time of that many updates
Learner: TypeAlias = tuple[Any, Callable[[], Batch]]  # an algorithm, and a function that samples its batches


@dataclass(frozen=True, kw_only=True)
class Case:
    """One of our algorithms, which learns from random transitions.

    `at_once`: updates per call. `others`: other implementations by name: from the case and the device to a timer.
    `modes`: those that are timed. `warm_up`: updates before, for compilation and capture. `unit`: updates of the
    shortest timing. `has_floor`: whether `contenders/floor.py` knows its matrix products. `compared`:
    learners whose updates are compared tensor by tensor with those of the first one.
    """

    algo: str
    spaces: Spaces
    hparams: Any  # the algorithm's, with a batch_size
    at_once: int = 1
    others: Mapping[str, "Callable[[Case, str], Seconds]"] = field(default_factory=dict)
    modes: Sequence[str] = MODES
    warm_up: int = 100
    unit: int = 20
    has_floor: bool = True
    compared: Mapping[str, "Callable[[Case, str], Learner]"] = field(default_factory=dict)

    @property
    def obs_size(self) -> int:
        return int(np.prod(self.spaces.observation.shape or ()))

    @property
    def action_size(self) -> int:
        """The number of discrete actions, or the size of a continuous one."""
        action = self.spaces.action
        return int(action.n) if isinstance(action, Discrete) else int(np.prod(action.shape or ()))


class OnlySpaces(gym.Env[np.ndarray, np.ndarray]):
    """The spaces that a learner is built for; it is never stepped."""

    observation_space, action_space = HALF_CHEETAH.observation, HALF_CHEETAH.action


def random_transitions(spaces: Spaces) -> dict[str, np.ndarray]:
    rng, shape = np.random.default_rng(0), (TRANSITIONS, *(spaces.observation.shape or ()))

    def draw_obs() -> np.ndarray:
        is_image = spaces.observation.dtype == np.uint8
        return rng.integers(256, size=shape, dtype=np.uint8) if is_image else rng.normal(size=shape)

    return {
        "obs": draw_obs(),
        "next_obs": draw_obs(),
        "actions": rng.integers(int(spaces.action.n), size=TRANSITIONS)
        if isinstance(spaces.action, Discrete)
        else rng.uniform(-1.0, 1.0, (TRANSITIONS, *(spaces.action.shape or ()))),
        "rewards": np.ones(TRANSITIONS),
        "terminated": rng.random(TRANSITIONS) < 0.05,
    }


def random_dataset(spaces: Spaces) -> TransitionDataset:
    """Return the random transitions in the form an offline algorithm learns from."""
    rows = random_transitions(spaces)
    single = {name: array.astype(np.float32) if array.dtype == np.float64 else array for name, array in rows.items()}
    truncated = np.zeros(TRANSITIONS, np.bool_)
    return TransitionDataset(**single, truncated=truncated, spaces=spaces, env_id="", source="random transitions")


def timed(call: Callable[[], object], device: str, at_once: int = 1) -> Seconds:
    """Return a function that times `call`, which makes `at_once` updates."""

    def seconds(updates: int) -> float:
        start = time.perf_counter()
        for _ in range(updates // at_once):
            call()
        if device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    return seconds


def repeated(update: Callable[[], object], case: Case, device: str) -> Seconds:
    """Return the timer of a learner that makes one update per call."""

    def call() -> None:
        for _ in range(case.at_once):
            update()

    return timed(call, device, case.at_once)


def random_sequences(case: Case, memory: RecurrentReplayBuffer) -> None:
    """Fill a memory of sequences with random steps, one after the other."""
    rows = random_transitions(case.spaces)
    rows["next_obs"][:-1] = rows["obs"][1:]
    rows["truncated"] = np.zeros(TRANSITIONS, np.bool_)
    for number in range(case.hparams.buffer_capacity):
        memory.add({name: values[number : number + 1] for name, values in rows.items()})


def build_updater(case: Case, mode: str, device: str) -> tuple[Seconds, Callable[[], torch.Tensor]]:
    """Return a function that times n updates of one mode, and one that returns the current parameters."""
    algorithm, sample = build_learner(case, mode, device)
    seconds = timed(lambda: algorithm.update(sample()), device, case.at_once)

    def parameters() -> torch.Tensor:
        values = algorithm.policy_state_dict().values()
        return torch.cat([value.flatten() for value in values if isinstance(value, torch.Tensor)]).cpu()

    return seconds, parameters


def build_learner(case: Case, mode: str, device: str) -> Learner:
    """Return one of our algorithms in a mode, and a function that samples batches from its memory."""
    spec = find_spec(case.algo)
    setup = setup_of(case, mode, device)
    algorithm = spec.build_algorithm(setup)
    return algorithm, build_sampler(case, setup)


def setup_of(case: Case, mode: str, device: str) -> Setup[Any]:
    spec = find_spec(case.algo)
    setup: Setup[Any] = Setup(
        spaces=case.spaces,
        hparams=case.hparams,
        total_timesteps=50_000,
        total_updates=spec.updates_until(case.hparams, 50_000),
        streams=Streams(0),
        device=torch.device(device),
        acceleration=mode,
    )
    offline = spec.loop == "offline"
    return replace(setup, dataset=random_dataset(case.spaces)) if offline else setup


def build_sampler(case: Case, setup: Setup[Any]) -> Callable[[], Batch]:
    spec = find_spec(case.algo)
    memory: Any = spec.build_memory(setup)
    if isinstance(memory, RecurrentReplayBuffer):
        random_sequences(case, memory)
    elif spec.loop != "offline":
        memory.add(random_transitions(case.spaces))
    sampler: Callable[[], Batch] = memory.sampler(case.hparams.batch_size * case.at_once)
    return sampler


# --- Other implementations -------------------------------------------------------------------------------------------


def sb3_sac(case: Case, device: str) -> Seconds:
    """Return the timer of stable-baselines3's SAC on the same transitions."""
    from stable_baselines3 import SAC
    from stable_baselines3.common.logger import Logger

    batch_size = case.hparams.batch_size
    model = SAC("MlpPolicy", OnlySpaces(), buffer_size=TRANSITIONS, batch_size=batch_size, device=device, seed=0)
    model.set_logger(Logger(None, []))
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        model.replay_buffer.add(obs, next_obs, action, reward, np.array([terminated]), [{}])
    return timed(lambda: model.train(case.at_once, batch_size), device, case.at_once)


def plain_sac(case: Case, device: str) -> Seconds:
    """Return the timer of SAC as a plain eager loop on the same transitions."""
    from harness import CountedSteps, Setting, TrainingEnvs
    from plain_sac import PlainLearner

    hparams = case.hparams.model_dump(mode="json")
    setting = Setting(mode="speed", env_id="HalfCheetah-v5", steps=0, hparams=hparams, device=device)
    training = TrainingEnvs(setting)
    training.envs = [CountedSteps(OnlySpaces(), training.counter)]
    learner = PlainLearner(setting, training)
    rows = random_transitions(case.spaces)
    for obs, next_obs, action, reward, terminated in zip(*rows.values(), strict=True):
        learner.buffer.add(obs, action, reward, next_obs, terminated)
    return repeated(learner.update, case, device)


def offline_contender(build: Callable[..., Any], case: Case, device: str) -> Seconds:
    """Return the timer of a contender's offline learner, on random transitions of the same number and sizes."""
    from harness import Setting, TrainingEnvs

    hparams = case.hparams.model_dump(mode="json")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "random.npz"
        write_random_rows(file, TRANSITIONS)
        setting = Setting(
            mode="speed",
            env_id="HalfCheetah-v5",
            algo=case.algo,
            steps=50_000,
            hparams=hparams,
            device=device,
            dataset=str(file),
        )
        learner = build(setting, TrainingEnvs(setting))
    return repeated(learner.update, case, device)


def d3rlpy_offline(case: Case, device: str) -> Seconds:
    """Return the timer of d3rlpy's algorithm with its defaults: without its compiled CUDA graphs (`compile_graph`)."""
    from d3rlpy_offline import D3RLPyLearner

    return offline_contender(D3RLPyLearner, case, device)


def plain_iql(case: Case, device: str) -> Seconds:
    from plain_iql import PlainLearner

    return offline_contender(PlainLearner, case, device)


# --- Dreamer in other ways -------------------------------------------------------------------------------------------


def captured_mode(device: str) -> str:
    return "eager" if device == "cpu" else "cuda_graph"


def eager_learner(case: Case, device: str) -> Learner:
    return build_learner(case, "eager", device)


def captured_learner(case: Case, device: str) -> Learner:
    return build_learner(case, captured_mode(device), device)


def plain_cells_learner(case: Case, device: str) -> Learner:
    """Return Dreamer captured without compiled cells: the kernels of the eager update."""
    setup = setup_of(case, captured_mode(device), device)
    return Dreamer(sizes_of(setup.hparams), setup), build_sampler(case, setup)


def plain_cells(case: Case, device: str) -> Seconds:
    algorithm, sample = plain_cells_learner(case, device)
    return timed(lambda: algorithm.update(sample()), device)


def tf32(case: Case, device: str) -> Seconds:
    """Return the timer of Dreamer captured with TF32 products, as with `matmul_precision: high`."""
    before = torch.get_float32_matmul_precision()
    seconds, _ = build_updater(case, captured_mode(device), device)

    def with_tf32(updates: int) -> float:
        torch.set_float32_matmul_precision("high")
        try:
            return seconds(updates)
        finally:
            torch.set_float32_matmul_precision(before)

    return with_tf32


# --- Cases -----------------------------------------------------------------------------------------------------------

DQN_HPARAMS = DQNHParams(
    batch_size=128,
    hidden_sizes=(120, 84),
    target_update_interval=500,
    learning_rate=2.5e-4,
    learning_rate_schedule="constant",
    layer_norm=False,
)
SAC_CASE = Case(
    algo="sac",
    spaces=HALF_CHEETAH,
    hparams=SACHParams(buffer_capacity=TRANSITIONS),
    others={"sb3": sb3_sac, "plain": plain_sac},
)
REDQ_CASE = Case(algo="redq", spaces=HALF_CHEETAH, hparams=REDQHParams(buffer_capacity=TRANSITIONS), at_once=20)
IQL_CASE = Case(
    algo="iql", spaces=HALF_CHEETAH, hparams=IQLHParams(), others={"d3rlpy": d3rlpy_offline, "plain": plain_iql}
)


def with_large_critics(algo: str, at_once: int = 1) -> Case:
    """Return an actor-critic with its defaults, alone."""
    hparams = find_spec(algo).hparams.model_validate({"buffer_capacity": TRANSITIONS})
    return Case(algo=algo, spaces=HALF_CHEETAH, hparams=hparams, at_once=at_once, has_floor=False)


PIXELS = Spaces(Box(0, 255, (64, 64, 3), np.uint8), Discrete(18))  # of Atari, as in configs/dreamer/breakout_atari.yaml
SEQUENCE_ROWS = 2_000  # of random pictures


def dreamer_case(size: SizeName) -> Case:
    """Return Dreamer on 16 sequences of 64 pictures; the compiler would take minutes for the whole update."""
    return Case(
        algo="dreamer",
        spaces=PIXELS,
        hparams=DreamerHParams(size=size, buffer_capacity=SEQUENCE_ROWS),
        others={"captured, plain cells": plain_cells, "cuda_graph, matmul_precision high": tf32},
        modes=("eager", "cuda_graph"),
        warm_up=5,
        unit=5,
        has_floor=False,
        compared={"eager": eager_learner, "captured, plain cells": plain_cells_learner, "cuda_graph": captured_learner},
    )


# By family, the unit of one command. The number in a name is that of updates per call.
CASES: dict[str, dict[str, Case]] = {
    "dqn": {"dqn_1": Case(algo="dqn", spaces=CART_POLE, hparams=DQN_HPARAMS)},
    "sac": {"sac_1": SAC_CASE, "sac_20": replace(SAC_CASE, at_once=20), "redq_20": REDQ_CASE},
    "tqc": {"tqc_1": with_large_critics("tqc")},
    "crossq": {"crossq_1": with_large_critics("crossq")},
    "simbav2": {"simbav2_2": with_large_critics("simbav2", at_once=2)},
    "iql": {
        f"iql_{OFFLINE_UPDATES_AT_ONCE}": replace(IQL_CASE, at_once=OFFLINE_UPDATES_AT_ONCE),
        "iql_1": IQL_CASE,
    },
    "dreamer": {"dreamer_12m": dreamer_case("12m"), "dreamer_25m": dreamer_case("25m")},
}
