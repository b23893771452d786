"""PPO on the tensor CartPole through `train`, with logs on: seconds until ready, then environment steps per second.

    python device_ours.py '{"envs": 4096, "steps": 128, "device": "cuda", "iterations": 200, ...}'

With `members`, that many are trained together by `train_population`, each with `envs` environments. Prints one JSON
line. `--profile` prints the time and the kernels of each phase instead.
"""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STARTED = time.perf_counter()

import torch  # noqa: E402 (its import is part of the time until ready)

from rl_training.experiment.config import TrainConfig  # noqa: E402
from rl_training.runtime.callbacks import Callback  # noqa: E402
from rl_training.runtime.run import Run  # noqa: E402
from rl_training.runtime.trainer import RunOptions, train  # noqa: E402

WARM_UP = 3  # iterations


def make_config(setting: dict[str, Any], folder: str) -> TrainConfig:
    rows = setting["envs"] * setting["steps"]
    return TrainConfig(
        algo="ppo",
        env_id=setting.get("env_id", "tensor/CartPole-v1"),
        execution_backend="tensor",
        num_envs=setting["envs"],
        total_timesteps=rows * (WARM_UP + setting["iterations"]),
        device=setting["device"],
        acceleration=setting.get("acceleration", "auto"),
        matmul_precision="high",
        deterministic=setting.get("deterministic", "auto"),
        output_dir=Path(folder),
        log_interval=rows * max(1, setting["iterations"] // 10),
        eval_episodes=1,
        algo_kwargs={
            "num_steps": setting["steps"],
            "minibatch_size": rows // setting["minibatches"],
            "update_epochs": setting["epochs"],
            "normalize": setting.get("normalize", "none"),
            "learning_rate": setting.get("learning_rate", 3e-4),
            "ent_coef": 0.01,
        },
    )


def synchronize(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


class Timer(Callback):
    """Notes when the first iteration ends, and the time of those after the warm-up."""

    def __init__(self) -> None:
        self.calls, self.ready_s, self.start, self.seconds = 0, 0.0, 0.0, 0.0

    def on_step(self, run: Run) -> None:
        self.calls += 1
        if self.calls == 1:
            synchronize(run.config.device)
            self.ready_s = time.perf_counter() - STARTED
        if self.calls == WARM_UP:
            synchronize(run.config.device)
            self.start = time.perf_counter()
        if run.step >= run.config.total_timesteps:
            synchronize(run.config.device)
            self.seconds = time.perf_counter() - self.start


def measure(setting: dict[str, Any]) -> dict[str, Any]:
    timer = Timer()
    with tempfile.TemporaryDirectory() as folder:
        result = train(make_config(setting, folder), RunOptions(show_progress=False, callbacks=[timer]))
        lines = (result.run_dir / "metrics.jsonl").read_text("utf-8").splitlines()
    return figures(setting, seconds=timer.seconds / setting["iterations"], ready_s=timer.ready_s, lines=lines)


def measure_stack(setting: dict[str, Any]) -> dict[str, Any]:
    """Measure between records of metrics, the last of which comes with checkpoints: a callback would be waited for."""
    from rl_training.experiment.population import PopulationConfig
    from rl_training.launching.populations import train_population

    imported_s = time.perf_counter() - STARTED
    with tempfile.TemporaryDirectory() as folder:
        seeds = tuple(range(setting["members"]))
        population = PopulationConfig(base=make_config(setting, folder), seeds=seeds, run="stacked")
        result = train_population(population, RunOptions(show_progress=False))
        lines = (result.folder / "members" / "000" / "metrics.jsonl").read_text("utf-8").splitlines()
    records = [record for record in map(json.loads, lines) if "steps_per_s" in record]
    first, last = records[0], records[-2]
    iterations = (last["step"] - first["step"]) / (setting["envs"] * setting["steps"])
    seconds = (last["wall_s"] - first["wall_s"]) / iterations
    return figures(setting, seconds=seconds, ready_s=imported_s + first["wall_s"], lines=lines)


def figures(setting: dict[str, Any], *, seconds: float, ready_s: float, lines: list[str]) -> dict[str, Any]:
    """Return what is reported; `seconds`: of one iteration."""
    last = json.loads(lines[-1])["metrics"]
    return {
        "steps_per_s": setting["envs"] * setting["steps"] * setting.get("members", 1) / seconds,
        "ms_per_iteration": 1e3 * seconds,
        "ready_s": ready_s,
        "log_lines": len(lines),
        "return_mean": last.get("return_mean"),
        "device_name": torch.cuda.get_device_name() if setting["device"].startswith("cuda") else "cpu",
        "versions": {"torch": torch.__version__, "python": sys.version.split()[0]},
    }


# --- Profile ---------------------------------------------------------------------------------------------------------


def profile(setting: dict[str, Any]) -> None:
    """Print, for each phase, its time when captured alone, and its kernels."""
    from rl_training.runtime.device_collector import DeviceCollector
    from rl_training.runtime.device_loop import DeviceLoop
    from rl_training.runtime.setup import make_collector, prepare_run, resolve
    from rl_training.runtime.torch_settings import torch_settings

    with tempfile.TemporaryDirectory() as folder:
        config = resolve(make_config(setting, folder))
        options = RunOptions(show_progress=False)
        prepared = prepare_run(config, options, options.factory_for(config))
        collector = make_collector(prepared, replayable=True, crash_dir=Path(folder))
        assert isinstance(collector, DeviceCollector)
        collector.start()
        with torch_settings(prepared.config):
            rollout: Any = prepared.memory
            algorithm: Any = prepared.algorithm
            loop = DeviceLoop([algorithm], [collector], [rollout], prepared.config)
            started = time.perf_counter()
            loop.iteration()
            synchronize(config.device)
            print(f"first iteration: {time.perf_counter() - started:.1f} s", flush=True)
            for name, phase in loop.phases().items():
                _show(name, phase, config.device)


def _show(name: str, phase: Any, device: str) -> None:
    from torch.profiler import ProfilerActivity, profile

    with torch.no_grad():
        if device.startswith("cuda"):
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                phase()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                phase()
            run = graph.replay
        else:
            run = phase
        run()
        synchronize(device)
        started = time.perf_counter()
        for _ in range(10):
            run()
        synchronize(device)
        ms = 100.0 * (time.perf_counter() - started)
        activities = {ProfilerActivity.CPU} | ({ProfilerActivity.CUDA} if device.startswith("cuda") else set())
        with profile(activities=activities) as recorded:
            run()
            synchronize(device)
    kernels = [event for event in recorded.key_averages() if event.device_type.name == "CUDA"]
    busy = sum(event.self_device_time_total for event in kernels)
    count = sum(event.count for event in kernels)
    print(f"\n{name}: {ms:.3f} ms, {count} kernels, {busy / 1e3:.3f} ms busy", flush=True)
    for event in sorted(kernels, key=lambda event: -event.self_device_time_total)[:14]:
        print(f"  {event.self_device_time_total:10.1f} us {event.count:6d} x  {event.key[:110]}", flush=True)


if __name__ == "__main__":
    chosen = json.loads(sys.argv[1])
    if "--profile" in sys.argv:
        profile(chosen)
    else:
        print(json.dumps(measure_stack(chosen) if "members" in chosen else measure(chosen)), flush=True)
