"""Fitting a dynamics ensemble: ours against a plain loop over its members, and how a run of MBPO spends its time.

    python -m benchmarks dynamics        (on one core of the CPU, and on a CUDA device if PyTorch finds one)

All contenders fit the same 5,000 random transitions of HalfCheetah-v5 for the same number of epochs, from new weights,
including bootstraps and held-out set. Contenders alternate. On the CPU, times are CPU times of this process, so that
other load on the machine counts little; wall times are in the result file as well.
"""

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import command_line
from benchmarks.machine import describe_run
from benchmarks.measurements import summarize_dynamics
from benchmarks.results import Session
from benchmarks.spread import Spread
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.mbpo import MBPOHParams
from rl_training.learners.dynamics import DynamicsEnsemble, build_ensemble, weight_decays
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.mbpo_trainer import train_mbpo
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions

ENV_ID = "HalfCheetah-v5"
TRANSITIONS = 5_000
EPOCHS = 5
HPARAMS = MBPOHParams(model_max_epochs=EPOCHS, model_patience=EPOCHS)
RUN_STEPS = 60  # after learning_starts

Fit = Callable[[dict[str, np.ndarray]], float]  # returns the error on held-out transitions


def random_transitions(count: int = TRANSITIONS) -> tuple[Spaces, dict[str, np.ndarray]]:
    env = gym.make(ENV_ID)
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    rows: list[tuple[Any, ...]] = []
    for _ in range(count):
        action = env.action_space.sample()
        next_obs, reward, terminated, truncated, _ = env.step(action)
        rows.append((obs, action, reward, next_obs, terminated))
        obs = env.reset()[0] if terminated or truncated else next_obs
    names = ("obs", "actions", "rewards", "next_obs", "terminated")
    columns = dict(zip(names, map(np.array, zip(*rows, strict=True)), strict=True))
    floats = {name: columns[name].astype(np.float32) for name in names[:4]}
    return Spaces(env.observation_space, env.action_space), floats | {"terminated": columns["terminated"]}


# --- Contenders ------------------------------------------------------------------------------------------------------


def build_ours(spaces: Spaces, device: torch.device, mode: str) -> Fit:
    def new_ensemble() -> DynamicsEnsemble:
        setup = Setup(
            spaces=spaces,
            hparams=HPARAMS,
            total_timesteps=1,
            total_updates=1,
            streams=Streams(0),
            device=device,
            acceleration=mode,
        )
        return build_ensemble(setup, learned_termination=False, identity=setup.identity)

    ensemble = new_ensemble()
    first = {name: value.clone() for name, value in ensemble.state.items()}

    def fit(transitions: dict[str, np.ndarray]) -> float:
        for name, value in ensemble.state.items():
            value.copy_(first[name])
        return float(ensemble.fit(transitions).metrics["holdout_mse"])

    return fit


class PlainMember(nn.Module):
    """One probabilistic network, written as in a tutorial."""

    def __init__(self, num_inputs: int, num_outputs: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in HPARAMS.model_hidden_sizes:
            layers += [nn.Linear(num_inputs, size), nn.SiLU()]
            num_inputs = size
        self.layers = nn.Sequential(*layers, nn.Linear(num_inputs, 2 * num_outputs))
        self.max_log_variance = nn.Parameter(torch.full((num_outputs,), 0.5))
        self.min_log_variance = nn.Parameter(torch.full((num_outputs,), -10.0))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_variance = self.layers(inputs).chunk(2, -1)
        log_variance = self.max_log_variance - nn.functional.softplus(self.max_log_variance - log_variance)
        return mean, self.min_log_variance + nn.functional.softplus(log_variance - self.min_log_variance)

    def loss(self, inputs: Tensor, targets: Tensor, decays: list[float]) -> Tensor:
        mean, log_variance = self(inputs)
        loss: Tensor = ((mean - targets).square() * (-log_variance).exp() + log_variance).mean()
        loss = loss + 0.01 * (self.max_log_variance.sum() - self.min_log_variance.sum())
        linears = [layer for layer in self.layers if isinstance(layer, nn.Linear)]
        for decay, layer in zip(decays, linears, strict=True):
            loss = loss + 0.5 * decay * layer.weight.square().sum()
        return loss


def build_loop(device: torch.device) -> Fit:
    """Build a fit of seven separate PyTorch networks and optimizers, one after the other."""

    def fit(transitions: dict[str, np.ndarray]) -> float:
        inputs = np.concatenate([transitions["obs"], transitions["actions"]], 1)
        delta = transitions["next_obs"] - transitions["obs"]
        targets = np.concatenate([delta, transitions["rewards"][:, None]], 1)
        rng = np.random.default_rng(0)
        order = rng.permutation(len(inputs))
        held_out = int(HPARAMS.model_holdout_ratio * len(inputs))
        x, y = (torch.from_numpy(values[order]).to(device) for values in (inputs, targets))
        x = (x - x[held_out:].mean(0)) / x[held_out:].std(0)
        x_train, y_train, x_test, y_test = x[held_out:], y[held_out:], x[:held_out], y[:held_out]
        decays, size = weight_decays(len(HPARAMS.model_hidden_sizes) + 1), HPARAMS.model_batch_size
        members = [PlainMember(x.shape[1], y.shape[1]).to(device) for _ in range(HPARAMS.num_ensembles)]
        optimizers = [torch.optim.Adam(member.parameters(), HPARAMS.model_learning_rate) for member in members]
        bootstraps = rng.integers(len(x_train), size=(len(members), len(x_train)))
        errors: list[float] = []
        for _ in range(EPOCHS):
            orders = torch.from_numpy(rng.permuted(bootstraps, axis=1)).to(device)
            for start in range(0, len(x_train), size):
                for member, optimizer, rows in zip(members, optimizers, orders[:, start : start + size], strict=True):
                    optimizer.zero_grad()
                    member.loss(x_train[rows], y_train[rows], decays).backward()
                    optimizer.step()
            with torch.no_grad():
                errors = [float((member(x_test)[0] - y_test).square().mean()) for member in members]
        return float(np.mean(sorted(errors)[: HPARAMS.num_elites]))

    return fit


# --- Measurements ----------------------------------------------------------------------------------------------------


def measure_fits(device: torch.device, repeats: int, session: Session) -> None:
    spaces, transitions = random_transitions()
    modes = ["eager", "compile", "cuda_graph"] if device.type == "cuda" else ["eager", "compile"]
    contenders: dict[str, Fit] = {f"ours-{mode}": build_ours(spaces, device, mode) for mode in modes}
    contenders["loop"] = build_loop(device)
    for fit in contenders.values():
        fit(transitions)  # compilation, capture and warm-up
    for repeat in range(repeats):
        for name, fit in contenders.items():
            wall, cpu = time.perf_counter(), time.process_time()
            error = fit(transitions)
            seconds = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
            head = {"measurement": "fit", "device": device.type, "contender": name, "repeat": repeat}
            session.add({**head, **seconds, "holdout_mse": error})


class Stopwatch(Callback):
    """Add up the time and the calls of each part of the algorithm, from the first fit on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.seconds = {"fit": 0.0, "rollouts": 0.0, "policy": 0.0, "all": 0.0}
        self.calls = dict.fromkeys(self.seconds, 0)
        self._start: float | None = None

    def on_start(self, run: Run) -> None:
        for method, part in (("update_model", "fit"), ("rollout", "rollouts"), ("update", "policy")):
            setattr(run.algorithm, method, self._timed(getattr(run.algorithm, method), part))

    def on_step(self, run: Run) -> None:
        if self._start is not None:  # the calls of the environment and of the models come before this
            self.seconds["all"] = self.clock() - self._start
            self.calls["all"] += 1

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start = self.clock()
            self._start = start if self._start is None else self._start
            result = function(*args, **kwargs)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.seconds[part] += self.clock() - start
            self.calls[part] += 1
            return result

        return timed


def measure_run(device: torch.device) -> dict[str, Any]:
    """Train MBPO on HalfCheetah for a short while and return the share of each part in an interval between fits.

    The rest is acting, stepping the environment and logging. A first run compiles.
    """
    settings = {"gradient_updates_per_step": 40, "target_entropy": -3, "model_max_epochs": EPOCHS}  # the paper's code
    changes = {"total_timesteps": MBPOHParams().learning_starts + RUN_STEPS, "eval_interval": 0, "eval_episodes": 1}
    mode = "cuda_graph" if device.type == "cuda" else "compile"
    run_config = TrainConfig(
        algo="mbpo",
        env_id="HalfCheetah-v5",
        algo_kwargs=settings,
        device=str(device),
        acceleration=mode,
        tensorboard=False,
        **changes,
    )
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    for _ in range(2):
        watch = Stopwatch(clock)
        with TemporaryDirectory() as folder:
            train_mbpo(run_config.updated(output_dir=Path(folder)), RunOptions(show_progress=False, callbacks=[watch]))
    rest = watch.seconds["all"] - sum(watch.seconds[part] for part in ("fit", "rollouts", "policy"))
    hparams = run_config.hparams
    assert isinstance(hparams, MBPOHParams)
    interval = hparams.model_train_frequency
    seconds = {
        "fit": watch.seconds["fit"] / watch.calls["fit"],
        "rollouts": watch.seconds["rollouts"] / watch.calls["rollouts"],
        "policy": watch.seconds["policy"] / RUN_STEPS * interval,
        "rest": rest / RUN_STEPS * interval,
    }
    return {
        "env_steps": interval,
        "seconds": seconds,
        "shares": {part: value / sum(seconds.values()) for part, value in seconds.items()},
        "ms_per_update": 1e3 * watch.seconds["policy"] / (RUN_STEPS * hparams.gradient_updates_per_step),
        "rollout_rows": hparams.rollout_batch_size,
    }


def run_dynamics(*, repeats: int, core: int | None, out: Path) -> None:
    """Measure on the CPU, and on a GPU if there is one; print, and write `out`."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    facts = {
        **describe_run(),
        "versions": {"torch": torch.__version__, "numpy": np.__version__, "gymnasium": gym.__version__},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "setting": {"env_id": ENV_ID, "transitions": TRANSITIONS, "epochs": EPOCHS, **HPARAMS.model_dump(mode="json")},
        "core": core,
    }
    session = Session(out, facts)
    for name in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        device = torch.device(name)
        measure_fits(device, repeats, session)
        session.add({"measurement": "run", "device": name, **measure_run(device)})
        figures = summarize_dynamics(session.lines)[name]
        run = figures.pop("run")
        for contender, fit in figures.items():
            seconds = Spread(fit["median"], fit["min"], fit["max"])
            print(f"{name:5} {contender:16} {seconds:.2f} s per fit, loop takes {fit['loop_over_this']:.2f} times")
        parts = ", ".join(f"{part} {run['seconds'][part]:.1f} s ({share:.0%})" for part, share in run["shares"].items())
        print(f"{name:5} {run['env_steps']} environment steps of a run: {parts}", flush=True)
    print(f"written: {out}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=5, help="rounds over all contenders (default: %(default)s)")
    command_line.add_core(parser)
    command_line.add_out(parser)


def run(args: argparse.Namespace) -> int:
    run_dynamics(repeats=args.repeats, core=args.core, out=command_line.result_folder(args) / "dynamics.jsonl")
    return 0
