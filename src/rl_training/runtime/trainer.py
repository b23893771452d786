"""`train` and `resume`: from a config, or a checkpoint, to a finished run."""

import contextlib
import logging
import shutil
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rl_training.algorithms.base import Algorithm, Setup
from rl_training.data.schema import Spaces, check_spaces
from rl_training.envs.factory import EnvFactory, make_env_factory, make_envs
from rl_training.envs.resumable import check_replay
from rl_training.errors import CheckpointError, ConfigError, TrainingError
from rl_training.experiment.checkpointing import (
    MEMORY,
    POLICY,
    TRAINING,
    Checkpoint,
    checkpoint_name,
    checkpoint_names,
    copy_checkpoint,
    find_checkpoint,
    forget_end,
    open_checkpoint,
    remove_checkpoint,
    resumable_names,
    step_of,
    write_pointer,
)
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.metrics import read_json_lines
from rl_training.experiment.run_dir import (
    RESULT,
    RunDir,
    create_run_dir,
    locked,
    read_result,
    read_run_config,
    write_metadata,
    write_result,
)
from rl_training.experiment.seeding import Streams
from rl_training.runtime.acceleration import resolve_acceleration
from rl_training.runtime.callbacks import Callback, Checkpointing, EpisodeLog, Evaluation, MetricsLog
from rl_training.runtime.collector import Collector
from rl_training.runtime.evaluation import EvalEpisode, mean_return
from rl_training.runtime.loops import run_off_policy
from rl_training.runtime.progress import Progress
from rl_training.runtime.run import Run

LOOPS: dict[str, Callable[..., None]] = {"off_policy": run_off_policy}
SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("rl_training")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended and where it lies."""

    run_dir: Path
    checkpoint: Path
    step: int
    gradient_step: int
    wall_s: float
    stop_reason: str
    interrupted: bool  # by a signal, before its end; `resume` continues
    metrics: dict[str, float]
    eval_episodes: list[EvalEpisode]
    algorithm: Algorithm

    @property
    def eval_return(self) -> float | None:
        """Mean return of the final evaluation; None if the run was interrupted before it."""
        return mean_return(self.eval_episodes) if self.eval_episodes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What Python users may bring that a config file cannot hold."""

    env_factory: EnvFactory | None = None  # in place of gym.make(env_id)
    network: nn.Module | None = None  # in place of the algorithm's own
    callbacks: Sequence[Callback] = ()
    show_progress: bool = True


def train(config: TrainConfig, extras: Extras | None = None, *, run_dir: Path | None = None) -> TrainResult:
    """Train from the beginning in a new run folder (or in `run_dir`)."""
    extras = extras or Extras()
    config = resolve(config)
    if run_dir is not None and resumable_names(run_dir / "checkpoints"):
        raise ConfigError(f"{run_dir} holds a run already: resume it, or train in another folder")
    factory = extras.env_factory or make_env_factory(config.env_id, config.env_kwargs)
    replayable = check_replay(factory, Streams(config.seed).integer("replay_check"))
    path = create_run_dir(config, run_dir)
    with locked(path):
        _abandon(path, checkpoint_names(path / "checkpoints"))
        setup, collector = prepare(config, extras, factory, replayable, crash_dir=path / "crash")
        with contextlib.closing(collector):
            return _run(config, extras, factory, setup, collector, path, None)


def resume(
    path: str | Path,
    extras: Extras | None = None,
    *,
    total_timesteps: int | None = None,
    output_dir: Path | None = None,
) -> TrainResult:
    """Continue a run from its newest checkpoint, or a copy of it below `output_dir`, exactly as if never stopped.

    `total_timesteps` lengthens the run. A run that died before its first checkpoint begins again from its config; one
    that died after its last step is only brought to its end. A checkpoint that lies in no run folder, such as
    `agent.save` makes, continues in a new one.
    """
    extras = extras or Extras()
    path = Path(path)
    changes = {"total_timesteps": total_timesteps, "output_dir": output_dir}
    changes = {name: value for name, value in changes.items() if value is not None}
    if (path / "config.yaml").is_file() and not resumable_names(path / "checkpoints"):
        log.warning("%s holds no checkpoint yet: the run begins again from its config", path)
        config = read_run_config(path).updated(**changes)
        return train(config, extras, run_dir=None if output_dir else path)
    checkpoint = open_checkpoint(find_checkpoint(path))
    if not checkpoint.is_resumable:
        raise CheckpointError(f"{checkpoint.path} holds the policy only (a best evaluation): it cannot be resumed")
    run_dir = _run_dir_of(checkpoint)
    config = checkpoint.config
    if run_dir is not None and output_dir is None:  # an earlier resume may have lengthened it
        written = read_run_config(run_dir)
        config = config.updated(total_timesteps=written.total_timesteps, output_dir=written.output_dir)
    else:
        run_dir = None
    config = config.updated(**changes)
    ended = run_dir is None or read_result(run_dir) is not None
    if checkpoint.step >= config.total_timesteps and ended:
        raise ConfigError(
            f"{path} is finished: {checkpoint.step:,} of {config.total_timesteps:,} steps; "
            "give a larger --total-timesteps to train on"
        )
    factory = extras.env_factory or make_env_factory(config.env_id, config.env_kwargs)
    replayable = bool(checkpoint.manifest["counters"]["replayable"])
    run_dir = run_dir or fork(checkpoint, config)
    with locked(run_dir):
        setup, collector = prepare(config, extras, factory, replayable, crash_dir=run_dir / "crash")
        with contextlib.closing(collector):
            _take_over(run_dir, checkpoint, config)
            # If it died between its last checkpoint and its result, what ended it then ends it now.
            stop_reason = "" if ended else str(checkpoint.manifest["counters"].get("stop_reason", ""))
            if ended:
                _go_on(run_dir, checkpoint)
            return _run(config, extras, factory, setup, collector, run_dir, checkpoint, stop_reason)


def resolve(config: TrainConfig) -> TrainConfig:
    """Fill in everything that "auto" and defaults leave open: the result repeats the run."""
    device = resolve_device(config.device)
    updates = config.hparams.updates_until(config.total_timesteps)  # type: ignore[attr-defined]
    mode = resolve_acceleration(config.acceleration, device_type=device.type, expected_updates=updates)
    return config.resolved().updated(device=str(device), acceleration=mode)


def resolve_device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    device = torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device is {name!r}, but PyTorch sees {torch.cuda.device_count()} CUDA devices here")
    return device


def prepare(
    config: TrainConfig, extras: Extras, factory: EnvFactory, replayable: bool, crash_dir: Path | None
) -> tuple[Setup[Any], Collector]:
    """Make the environments, check that the algorithm can handle them, and note what building it needs."""
    streams = Streams(config.seed)
    envs = make_envs(
        factory,
        config.num_envs,
        backend=config.execution_backend,
        worker_timeout=config.worker_timeout,
        crash_dir=crash_dir,
    )
    try:
        spaces = Spaces(envs.observation_space, envs.action_space)
        check_spaces(config.spec, spaces, config.env_id)
    except BaseException:
        envs.close()
        raise
    setup = Setup(
        spaces=spaces,
        hparams=config.hparams,
        total_timesteps=config.total_timesteps,
        streams=streams,
        device=resolve_device(config.device),
        acceleration=config.acceleration,
        network=extras.network,
    )
    return setup, Collector(envs, streams, replayable=replayable)


def _run(
    config: TrainConfig,
    extras: Extras,
    factory: EnvFactory,
    setup: Setup[Any],
    collector: Collector,
    path: Path,
    checkpoint: Checkpoint | None,
    stop_reason: str = "",
) -> TrainResult:
    algorithm = config.spec.build_algorithm(setup)
    memory = config.spec.build_memory(setup)
    training = checkpoint.load(TRAINING) if checkpoint else {}
    folder = RunDir(path, training.get("log_positions"))
    run = Run(
        config=config,
        streams=setup.streams,
        folder=folder,
        env_factory=factory,
        algorithm=algorithm,
        memory=memory,
        collector=collector,
        stop_reason=stop_reason,
    )
    if checkpoint is None:
        collector.start()
    else:
        parts = {POLICY: checkpoint.load(POLICY), TRAINING: training, MEMORY: checkpoint.load(MEMORY)}
        run.load(checkpoint.manifest["counters"], parts)
    exactness = _exactness(collector)
    if collector.inexact_restores:
        log.warning("%s", exactness)
    write_metadata(path, config, {"device": str(setup.device), "step": run.step, "resume": exactness})
    evaluation = Evaluation()
    checkpointing = Checkpointing()
    progress = [Progress(evaluation)] if extras.show_progress else []
    callbacks = [EpisodeLog(), *extras.callbacks, MetricsLog(), evaluation, *progress, checkpointing]
    with contextlib.closing(folder), _signals_stop(run):
        _loop(run, config, callbacks, checkpointing)
    interrupted = run.interrupted and run.step < config.total_timesteps
    stop_reason = run.stop_reason if interrupted or not run.interrupted else ""
    result = TrainResult(
        run_dir=path,
        checkpoint=find_checkpoint(path),
        step=run.step,
        gradient_step=run.gradient_step,
        wall_s=run.wall_s,
        stop_reason=stop_reason or "all steps taken",
        interrupted=interrupted,
        metrics={name: float(value) for name, value in run.last_metrics.items()},
        eval_episodes=_evaluated_at(run.step, path),
        algorithm=algorithm,
    )
    if not result.interrupted:
        write_result(path, _result_record(result))
    return result


def _loop(run: Run, config: TrainConfig, callbacks: list[Callback], checkpointing: Checkpointing) -> None:
    for callback in callbacks:
        callback.on_start(run)
    try:
        LOOPS[config.spec.loop](run, config.hparams, callbacks)
        checkpointing.save(run)  # a signal may have come after the last callback had its turn
    except Exception as error:
        _keep_what_there_is(run, error, checkpointing)
        raise
    finally:
        with contextlib.ExitStack() as stack:  # one that fails does not keep the others from ending
            for callback in reversed(callbacks):
                stack.callback(callback.on_end, run)


def _keep_what_there_is(run: Run, error: Exception, checkpointing: Checkpointing) -> None:
    """After an error: leave its traceback in the run folder and save the run as it was, if it can be continued."""
    with contextlib.suppress(OSError):
        run.folder.crash.mkdir(exist_ok=True)
        (run.folder.crash / "traceback.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    if isinstance(error, TrainingError | CheckpointError) or run.step == 0:
        return
    if run.mid_step:
        log.warning(
            "the error came in the middle of step %d, which is not saved; earlier checkpoints are whole", run.step
        )
        return
    try:
        checkpointing.save(run)
        log.warning("the run was saved at step %d; `rl-training resume %s` continues it", run.step, run.folder.path)
    except Exception as another:
        log.warning("the run could not be saved after the error: %s", another)


@contextlib.contextmanager
def _signals_stop(run: Run) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run after the current step; a second one ends it at once."""
    received: list[int] = []

    def stop(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        if not run.stop_reason:
            run.stop_reason, run.interrupted = f"signal {signal.Signals(number).name}", True

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exactness(collector: Collector) -> str:
    if collector.inexact_restores:
        envs = ", ".join(map(str, collector.inexact_restores))
        return f"resumed at an episode boundary in envs {envs}: they could not be brought back into their episode"
    if not collector.exact:
        return "at an episode boundary: this environment does not repeat itself from its seed and actions"
    return "exact"


def _run_dir_of(checkpoint: Checkpoint) -> Path | None:
    """The run's folder that a checkpoint lies in; None for one that was saved or copied elsewhere."""
    folder = checkpoint.path.parent
    if folder.name != "checkpoints":  # as for the path "."
        folder = checkpoint.path.resolve().parent
    in_run = folder.name == "checkpoints" and (folder.parent / "config.yaml").is_file()
    return folder.parent if in_run else None


def fork(checkpoint: Checkpoint, config: TrainConfig) -> Path:
    """Begin a new run folder with the logs, which the run cuts back, the best checkpoint until then, and this one."""
    path = create_run_dir(config)
    folder = path / "checkpoints"
    old = _run_dir_of(checkpoint)
    for log_file in old.glob("*.jsonl") if old else ():
        try:
            shutil.copyfile(log_file, path / log_file.name)
        except OSError as error:
            raise CheckpointError(f"{log_file} could not be copied to {path}: {error}") from error
    if old and (best := _best_before(checkpoint)):
        write_pointer(folder, "best", copy_checkpoint(open_checkpoint(best), folder).name)
    copied = copy_checkpoint(checkpoint, folder)
    forget_end(copied)
    write_pointer(folder, "latest", copied.name)
    return path


def _best_before(checkpoint: Checkpoint) -> Path | None:
    """The checkpoint of the best evaluation until then, if it still lies beside this one."""
    step = checkpoint.manifest["counters"].get("best_step")
    best = checkpoint.path.parent / checkpoint_name(step) if isinstance(step, int) else None
    return best if best is not None and best.is_dir() else None


def _take_over(run_dir: Path, checkpoint: Checkpoint, config: TrainConfig) -> None:
    """Bring a run's folder to the state of the checkpoint from which it continues; refuse to lose a newer one."""
    folder = run_dir / "checkpoints"
    newer = [name for name in checkpoint_names(folder) if step_of(name) > checkpoint.step]
    for name in newer:
        with contextlib.suppress(CheckpointError):
            if open_checkpoint(folder / name).is_resumable:
                raise ConfigError(
                    f"{checkpoint.path} is not the newest checkpoint of its run ({name} is); "
                    "give --output-dir to continue from it in a new run folder"
                )
    write_pointer(folder, "latest", checkpoint_name(checkpoint.step))
    if best := _best_before(checkpoint):  # a death may have come between a checkpoint and its pointers
        write_pointer(folder, "best", best.name)
    create_run_dir(config, run_dir)
    _abandon(run_dir, newer)


def _go_on(run_dir: Path, checkpoint: Checkpoint) -> None:
    """Forget that the run had ended: should this process die at once, the next one is to continue, too."""
    forget_end(run_dir / "checkpoints" / checkpoint_name(checkpoint.step))
    (run_dir / RESULT).unlink(missing_ok=True)


def _abandon(run_dir: Path, names: Sequence[str]) -> None:
    """Remove checkpoints that the run will write anew, and the note that it had ended with them."""
    for name in names:
        (run_dir / RESULT).unlink(missing_ok=True)
        remove_checkpoint(run_dir / "checkpoints" / name)


def _evaluated_at(step: int, path: Path) -> list[EvalEpisode]:
    """What eval.jsonl says of the evaluation at `step`, be it of this process or of one before."""
    records = [record for record in read_json_lines(path / "eval.jsonl") if record["step"] == step]
    return [EvalEpisode(r["episode"], r["seed"], r["return"], r["length"]) for r in records]


def _result_record(result: TrainResult) -> dict[str, Any]:
    return {
        "step": result.step,
        "gradient_step": result.gradient_step,
        "wall_s": round(result.wall_s, 3),
        "stop_reason": result.stop_reason,
        "checkpoint": result.checkpoint.name,
        "metrics": result.metrics,
        "eval": [episode.record() for episode in result.eval_episodes],
    }


def load_policy(
    path: str | Path, extras: Extras | None = None, *, pointer: str = "latest"
) -> tuple[Checkpoint, Algorithm]:
    """Build the algorithm of a checkpoint and give it the trained policy; the memory is not read."""
    extras = extras or Extras()
    checkpoint = open_checkpoint(find_checkpoint(path, pointer), parts=(POLICY,))
    config = checkpoint.config
    factory = extras.env_factory or make_env_factory(config.env_id, config.env_kwargs)
    env = factory()
    try:
        spaces = Spaces(env.observation_space, env.action_space)
    finally:
        env.close()
    check_spaces(config.spec, spaces, config.env_id)
    setup = Setup(
        spaces=spaces,
        hparams=config.hparams,
        total_timesteps=config.total_timesteps,
        streams=Streams(config.seed),
        device=resolve_device(config.device if torch.cuda.is_available() else "cpu"),
        acceleration="eager",
        network=extras.network,
    )
    algorithm = config.spec.build_algorithm(setup)
    algorithm.load_policy_state_dict(checkpoint.load(POLICY))
    return checkpoint, algorithm
