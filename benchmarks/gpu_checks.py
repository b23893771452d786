"""What must hold on a CUDA device for stacks and tensor environments, and cannot be tested on a CPU.

    python -m benchmarks gpu_checks                      # all checks
    python -m benchmarks gpu_checks counters captured

    counters   random numbers are those of a CPU: eagerly, compiled (by Triton on a GPU) and captured
    captured   a captured step of each tensor environment equals the eager one bit for bit, a compiled one to 1e-6
    syncs      updates, steps and whole iterations do not wait for the device
    envs       the state of each tensor environment is saved inside episodes and continues in a new process
    runs       with `deterministic: true`, two runs of one config are equal bit for bit, and so is one that is stopped
               inside episodes and resumed in a new process; single runs and stacks

With `--device cpu` the same code runs without a GPU: `captured` then needs a stand-in for graphs.
"""

import argparse
import contextlib
import logging
import multiprocessing
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks import command_line
from benchmarks.exactness import StopAt, differences
from benchmarks.gpu import describe_device
from benchmarks.gpu_cases import CASES, build_learner
from benchmarks.machine import describe_run
from benchmarks.results import Session
from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import Keys
from rl_training.core.types import Batch, Metrics, State
from rl_training.envs.factory import make_env_factory
from rl_training.envs.tensor_env import TENSOR_ENVS, TensorEnvs, tensor_env_of, to_env_tensors
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.population import PopulationConfig, PopulationDir
from rl_training.experiment.state_files import read_tensors, write_tensors
from rl_training.launching.populations import train_population
from rl_training.runtime.device_collector import DeviceCollector
from rl_training.runtime.run import Run
from rl_training.runtime.setup import RunOptions, make_collector, prepare_run, resolve
from rl_training.runtime.stacked_work import join_memories, loop_of
from rl_training.runtime.trainer import resume, train

Found = Mapping[str, list[str]]  # by case: what is wrong
ENVS, STEPS, STOP = 64, 20, 10
EPISODE = 13  # steps at most, so that some end
TOLERANCE = 1e-6


def different(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], tolerance: float = 0.0) -> list[str]:
    """Name the tensors that differ: by any bit, or floats by more than `tolerance`, relative to numbers above 1."""
    wrong = []
    for name, value in expected.items():
        ours, theirs = found[name].cpu(), value.cpu()
        if tolerance and theirs.is_floating_point():
            is_same = torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance)
        else:
            is_same = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        wrong += [] if is_same else [f"{name} differs"]
    return wrong


class Warnings(logging.Handler):
    """Collects the warnings of a block, such as that a compiled step was wrong and the eager one replaces it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("rl_training").addHandler(self)
        return self.found

    def __exit__(self, *error: object) -> None:
        logging.getLogger("rl_training").removeHandler(self)


# --- Random numbers --------------------------------------------------------------------------------------------------


def draw(state: State, batch: Batch) -> tuple[State, Metrics]:
    keys = Keys(batch["seed"], batch["env"], batch["episode"], batch["step"])
    return {"words": keys.words(2**15, 6)}, {
        "uniform": keys.uniform(1, 5),
        "below": keys.below(2, 7),
        "normal": keys.normal(3, 4),
    }


def check_counters(device: str, folder: Path) -> Found:
    words = torch.randint(2**32, (4, 100_000), generator=torch.Generator().manual_seed(0))
    batch = dict(zip(("seed", "env", "episode", "step"), words, strict=True)) | {"seed": words[0] << 31}
    expected = drawn("eager", batch)
    on_device = {name: values.to(device) for name, values in batch.items()}
    wrong = {}
    for mode in ("eager", "compile", *(["cuda_graph"] if device != "cpu" else [])):
        with Warnings() as warned:
            found = drawn(mode, on_device)
        close = different({"normal": found.pop("normal")}, {"normal": expected["normal"]}, TOLERANCE)
        wrong[mode] = warned + different(found, {name: expected[name] for name in found}) + close
    return wrong


def drawn(mode: str, batch: Batch) -> dict[str, Tensor]:
    rows = batch["seed"]
    state = {"words": torch.zeros(len(rows), 6, dtype=torch.int64, device=rows.device)}
    return accelerate(draw, mode, "draw")(state, batch) | state


# --- Steps of environments -------------------------------------------------------------------------------------------


def environments(env_id: str, device: str) -> TensorEnvs:
    env = tensor_env_of(make_env_factory(env_id))
    env.max_episode_steps = EPISODE
    return TensorEnvs(env, ENVS, seed=3, device=device)


def step_of(envs: TensorEnvs) -> Callable[[State, Batch], tuple[State, Metrics]]:
    """Return the step of these environments with the actions of a batch; its metrics are the transitions."""
    to_env = to_env_tensors(envs.env.action_space, envs.device)

    def step(state: State, batch: Batch) -> tuple[State, Metrics]:
        new, result = envs.step(state, to_env(batch["actions"]))
        return new, {field.name: getattr(result, field.name) for field in fields(result)}

    return step


def actions_of(envs: TensorEnvs, number: int) -> Batch:
    row = torch.arange(ENVS, device=envs.device)
    keys, choices = Keys(row, row, row, torch.full_like(row, number)), getattr(envs.env.action_space, "n", 0)
    return {"actions": keys.below(7, int(choices)) if choices else 2.0 * keys.uniform(7, 1) - 1.0}


def play(envs: TensorEnvs, state: State, steps: Sequence[int]) -> State:
    for number in steps:
        state, _ = step_of(envs)(state, actions_of(envs, number))
    return state


def check_captured(device: str, folder: Path) -> Found:
    wrong = {}
    for env_id in TENSOR_ENVS:
        envs = environments(env_id, device)
        begun = play(envs, started(envs), range(STOP))
        batch, results = actions_of(envs, STOP), {}
        with Warnings() as warned:
            for name, mode in (("eager", "eager"), ("captured", "cuda_graph"), ("compiled", "compile")):
                state = {key: value.clone() for key, value in begun.items()}
                step = accelerate(step_of(envs), mode, "environment step", capture_plain=True)
                results[name] = step(state, batch) | {f"state {key}": value for key, value in state.items()}
        wrong[env_id] = warned + [f"captured: {text}" for text in different(results["captured"], results["eager"])]
        wrong[env_id] += [f"compiled: {text}" for text in different(results["compiled"], results["eager"], TOLERANCE)]
    return wrong


def started(envs: TensorEnvs) -> State:
    collector = DeviceCollector(envs)
    collector.start()
    return collector.state


def check_envs(device: str, folder: Path) -> Found:
    expected = {}
    for env_id in TENSOR_ENVS:
        envs = environments(env_id, device)
        state = play(envs, started(envs), range(STOP))
        write_state(folder, env_id, "saved", state)
        expected[env_id] = play(envs, state, range(STOP, STEPS))
    in_new_process(continue_envs, device, folder)
    return {env_id: different(read_state(folder, env_id, "continued"), state) for env_id, state in expected.items()}


def continue_envs(device: str, folder: Path) -> None:
    for env_id in TENSOR_ENVS:
        state = {name: value.to(device) for name, value in read_state(folder, env_id, "saved").items()}
        write_state(folder, env_id, "continued", play(environments(env_id, device), state, range(STOP, STEPS)))


def write_state(folder: Path, env_id: str, kind: str, state: State) -> None:
    path = folder / f"{env_id.replace('/', '-')}.{kind}"
    write_tensors(path, {name: value.cpu().contiguous() for name, value in state.items()})


def read_state(folder: Path, env_id: str, kind: str) -> State:
    return read_tensors(folder / f"{env_id.replace('/', '-')}.{kind}")


def in_new_process(function: Callable[..., None], *arguments: Any) -> None:
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} ended with exit code {process.exitcode}")


# --- Waiting for the device ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def without_syncs(device: str) -> Iterator[None]:
    """Make any operation that waits for a CUDA device raise RuntimeError."""
    if device == "cpu":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def syncs_in(call: Callable[[], object], device: str) -> list[str]:
    """Call twice as a warm-up, then once while nothing may wait."""
    call()
    call()
    try:
        with without_syncs(device):
            call()
    except RuntimeError as error:
        return [str(error).partition("\n")[0]]
    return []


def check_syncs(device: str, folder: Path) -> Found:
    wrong: dict[str, list[str]] = {}
    for env_id in TENSOR_ENVS:
        envs = environments(env_id, device)
        wrong[env_id] = syncs_in(partial(step_of(envs), started(envs), actions_of(envs, 0)), device)
    for family in CASES.values():
        for name, case in family.items():
            if case.algo != "dreamer":
                algorithm, sample = build_learner(case, "eager", device)
                wrong[name] = syncs_in(partial(algorithm.update, sample()), device)
    for algo in SETTINGS:
        for members in (1, 2):
            iteration = iterations(config_of(algo, folder, device, acceleration="eager", deterministic=False), members)
            wrong[f"{algo}, {members} members"] = syncs_in(iteration, device)
    return wrong


def iterations(config: TrainConfig, members: int) -> Callable[[], object]:
    """Return a function that makes the next iteration of a stack on the device."""
    options, runs, collectors = RunOptions(show_progress=False), list[Run](), list[DeviceCollector]()
    for seed in range(members):
        settings = resolve(config.updated(seed=seed))
        prepared = prepare_run(settings, options, options.factory_for(settings))
        collector = cast(DeviceCollector, make_collector(prepared, replayable=True, crash_dir=config.output_dir))
        collector.start()
        collectors.append(collector)
        runs.append(cast(Run, prepared))  # of which the loop reads the algorithm and the memory
    join_memories([run.memory for run in runs])
    loop, step = loop_of(runs, collectors, config), [0]

    def iteration() -> None:
        loop.iteration(step[0])
        step[0] += loop.rows

    return iteration


# --- Whole runs ------------------------------------------------------------------------------------------------------

REPLAY: dict[str, Any] = {"buffer_capacity": 1_000, "batch_size": 32, "learning_starts": 16, "hidden_sizes": [32, 32]}
ROLLOUT: dict[str, Any] = {"num_steps": 16, "minibatch_size": 32, "update_epochs": 2, "hidden_sizes": [32, 32]}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("tensor/CartPole-v1", ROLLOUT | {"normalize": "both"}),
    "pqn": ("tensor/MinAtar-Breakout-v1", ROLLOUT),
    "dqn": ("tensor/CartPole-v1", REPLAY),
    "rainbow_dqn": ("tensor/CartPole-v1", REPLAY),
    "sac": ("tensor/Pendulum-v1", REPLAY),
}
RUNS = ("ppo", "dqn", "sac")  # each is trained by six processes
HALF, WHOLE = 256, 512  # env steps: whole iterations


def config_of(algo: str, folder: Path, device: str, **changes: Any) -> TrainConfig:
    env_id, hparams = SETTINGS[algo]
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": env_id,
        "execution_backend": "tensor",
        "num_envs": 8,
        "max_episode_steps": EPISODE,
        "total_timesteps": WHOLE,
        "log_interval": HALF // 2,
        "eval_interval": HALF,
        "checkpoint_interval": HALF,
        "eval_episodes": 2,
        "device": device,
        "deterministic": True,
        "acceleration": "auto" if device != "cpu" else "eager",
        "tensorboard": False,
        "output_dir": folder,
    }
    return TrainConfig(**{**values, **changes, "algo_kwargs": hparams})


def train_once(algo: str, run_dir: Path, device: str, stop: bool) -> None:
    options = RunOptions(show_progress=False, callbacks=[StopAt(HALF)] if stop else [])
    train(config_of(algo, run_dir.parent, device), options, run_dir=run_dir)


def resume_once(run_dir: Path) -> None:
    resume(run_dir, RunOptions(show_progress=False))


def train_stack_once(algo: str, folder: Path, device: str) -> None:
    config = PopulationConfig(base=config_of(algo, folder, device), seeds=(0, 1), run="stacked")
    train_population(config, RunOptions(show_progress=False))


def members_in(folder: Path) -> list[Path]:
    (population,) = folder.glob("population__*")
    return PopulationDir(population).members()


def check_runs(device: str, folder: Path) -> Found:
    wrong = {}
    for algo in RUNS:
        own = folder / algo
        for name in ("one", "two", "stopped"):
            in_new_process(train_once, algo, own / name, device, name == "stopped")
        in_new_process(resume_once, own / "stopped")
        for name in ("two", "stopped"):
            wrong[f"{algo}, {name}"] = differences(own / name, own / "one")
        for name in ("stack one", "stack two"):
            in_new_process(train_stack_once, algo, own / name, device)
        pairs = zip(members_in(own / "stack one"), members_in(own / "stack two"), strict=True)
        wrong[f"{algo}, stacks"] = [text for one, two in pairs for text in differences(two, one)]
    return wrong


# --- The command -----------------------------------------------------------------------------------------------------

CHECKS: dict[str, Callable[[str, Path], Found]] = {
    "counters": check_counters,
    "captured": check_captured,
    "syncs": check_syncs,
    "envs": check_envs,
    "runs": check_runs,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="CHECK", help=f"of {', '.join(CHECKS)} (default: all)")
    parser.add_argument("--device", default="cuda")
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    names = command_line.check_names(args.names, list(CHECKS), "check")
    facts = {**describe_run(), **describe_device(args.device)}
    session = Session(command_line.result_folder(args) / "gpu_checks.jsonl", facts)
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            for case, wrong in CHECKS[name](args.device, Path(folder)).items():
                session.add({"check": name, "case": case, "differences": wrong})
                print(f"{name}, {case}: {'; '.join(wrong) or 'no difference'}", flush=True)
    return int(any(line["differences"] for line in session.lines))
