"""How a run ended: `TrainResult` for the caller, result.json in the run folder."""

from dataclasses import dataclass, fields
from datetime import timedelta
from pathlib import Path
from signal import Signals
from typing import Any, NoReturn

from rl_training.core.counted import counted
from rl_training.core.types import Algorithm
from rl_training.experiment.run_dir import write_result
from rl_training.experiment.saved_checkpoint import find_checkpoint
from rl_training.results.course import describe_course
from rl_training.results.html import table
from rl_training.results.return_text import return_text
from rl_training.runtime.callbacks import evaluate_policy, read_evaluation
from rl_training.runtime.evaluation import EvalEpisode, EvaluationInterrupted, mean_return
from rl_training.runtime.run import Run


@dataclass(frozen=True, slots=True)
class _LeftOut:
    """Stands for the algorithm in the copy of a result."""

    run_dir: Path

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a copied result does not have its algorithm: load the agent from {self.run_dir}")


@dataclass(frozen=True, slots=True)
class TrainResult:
    """How a run ended and where its folder is."""

    run_dir: Path
    checkpoint: Path
    step: int
    gradient_step: int
    wall_s: float
    stop_reason: str
    interrupted: bool  # by a signal, before its end; `resume` continues
    signal: Signals | None  # that asked the run to end, also in its last step
    metrics: dict[str, float]
    eval_episodes: list[EvalEpisode]
    algorithm: Algorithm

    @property
    def eval_return(self) -> float | None:
        """Mean return of the final evaluation; None if the run was interrupted before it."""
        return mean_return(self.eval_episodes) if self.eval_episodes else None

    def _repr_html_(self) -> str:
        score = "not evaluated" if self.eval_return is None else return_text(self.eval_return)
        rows = [
            ("score", f"{score} ({counted(len(self.eval_episodes), 'episode')})"),
            ("course", describe_course(self.run_dir, encoding="utf-8") or "-"),
            ("steps", f"{self.step:,} ({counted(self.gradient_step, 'gradient step')}; {self.stop_reason})"),
            ("wall time", str(timedelta(seconds=round(self.wall_s)))),
            ("run folder", str(self.run_dir)),
        ]
        return table("Result of the run", ("", "result"), rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave the algorithm out of pickles and copies: its functions read the memory of this process."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return TrainResult, tuple({**values, "algorithm": _LeftOut(self.run_dir)}.values())

    def record(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "gradient_step": self.gradient_step,
            "wall_s": round(self.wall_s, 3),
            "stop_reason": self.stop_reason,
            "checkpoint": self.checkpoint.name,
            "metrics": self.metrics,
            "eval": [episode.record() for episode in self.eval_episodes],
        }


def end_run(run: Run) -> TrainResult:
    """Collect the result of the run; unless it was interrupted, evaluate it and write result.json."""
    path = run.folder.path
    eval_episodes = read_evaluation(run)
    complete = run.step >= run.config.total_timesteps and bool(eval_episodes or run.env_factory is None)
    interrupted = run.interrupted and not complete
    if not (eval_episodes or interrupted):
        # Stopped between two evaluations. Only the result has this one: the log must be as if the run never stopped.
        try:
            eval_episodes = evaluate_policy(run)
        except EvaluationInterrupted:
            interrupted = True
    stop_reason = run.stop_reason if interrupted or not run.interrupted else ""
    result = TrainResult(
        run_dir=path,
        checkpoint=find_checkpoint(path),
        step=run.step,
        gradient_step=run.gradient_step,
        wall_s=run.wall_s,
        stop_reason=stop_reason or "all steps taken",
        interrupted=interrupted,
        signal=run.signal,
        metrics={name: float(value) for name, value in run.last_metrics.items()},
        eval_episodes=eval_episodes,
        algorithm=run.algorithm,
    )
    if not interrupted:
        write_result(path, result.record())
    return result
