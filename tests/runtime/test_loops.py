"""The loop: updates are exact for any number of envs, each interval crossed counts once, runs stop when asked."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from builders import make_config
from rl_training.core.seeding import Streams
from rl_training.core.types import UpdateResult
from rl_training.errors import TrainingError
from rl_training.experiment.checkpointing import checkpoint_names, read_pointer
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.hparams.dqn import DQNHParams
from rl_training.hparams.schedules import q_learning_updates
from rl_training.launching.seed_runs import run_in
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import LOOPS, RunOptions, train
from state_comparison import assert_identical


class CountingParts:
    """Algorithm, memory and collector in one, which only count; batches are numbered."""

    def __init__(self, *, hidden: int = 0) -> None:
        self.collected_at: list[int] = []
        self.added = 0
        self.hidden = hidden  # rows that were added but cannot be drawn yet, as in a window of n steps
        self.batch_sizes: list[int] = []
        self.updates = 0
        self.priorities: list[Tensor] = []

    def step(self, algorithm: Any, *, step: int) -> dict[str, int]:
        assert algorithm is self
        self.collected_at.append(step)
        return {"rows": 1}

    def add(self, transitions: dict[str, int]) -> None:
        self.added += transitions["rows"]

    def __len__(self) -> int:
        return max(0, self.added - self.hidden)

    def sampler(self, batch_size: int) -> Callable[[], dict[str, int]]:
        def draw() -> dict[str, int]:
            self.batch_sizes.append(batch_size)
            return {"batch": len(self.batch_sizes)}

        return draw

    def update(self, batch: dict[str, int]) -> UpdateResult:
        self.updates += 1
        assert batch == {"batch": self.updates}
        return UpdateResult({}, num_gradient_steps=1, td_errors=torch.tensor([float(self.updates)]))

    def update_priorities(self, td_errors: Tensor) -> None:
        assert len(self.batch_sizes) == self.updates  # those of the batch drawn last
        self.priorities.append(td_errors)


class Recorder(Callback):
    """Notes (step, updates so far) after every round; may stop."""

    def __init__(self, parts: CountingParts, stop_at: int | None = None) -> None:
        self.parts, self.stop_at = parts, stop_at
        self.rounds: list[tuple[int, int]] = []

    def on_step(self, run: Run) -> None:
        self.rounds.append((run.step, self.parts.updates))
        assert run.gradient_step == self.parts.updates
        if self.stop_at is not None and run.step >= self.stop_at:
            run.stop_reason = "enough"


class CountingRollouts(CountingParts):
    """The same for the on-policy loop: its memory is full after `num_steps` steps."""

    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.num_steps, self.held = num_steps, 0

    def add(self, transitions: dict[str, int]) -> None:
        assert not self.full
        super().add(transitions)
        self.held += 1

    @property
    def full(self) -> bool:
        return self.held == self.num_steps

    def rollout(self) -> dict[str, int]:
        assert self.full
        self.held = 0
        return {"batch": self.updates + 1}


def loop(
    num_envs: int,
    total_timesteps: int,
    stop_at: int | None = None,
    *,
    algo: str = "dqn",
    hidden: int = 0,
    **hparams: Any,
) -> tuple[CountingParts, Recorder]:
    config = TrainConfig(algo=algo, env_id="x", total_timesteps=total_timesteps, num_envs=num_envs, algo_kwargs=hparams)
    parts = CountingRollouts(hparams["num_steps"]) if "num_steps" in hparams else CountingParts(hidden=hidden)
    recorder = Recorder(parts, stop_at)
    run = Run(
        config=config,
        streams=Streams(0),
        folder=None,  # type: ignore[arg-type]  # the loop writes no file
        env_factory=None,
        algorithm=parts,  # type: ignore[arg-type]
        memory=parts,  # type: ignore[arg-type]
        collector=parts,  # type: ignore[arg-type]
        spaces=None,  # type: ignore[arg-type]
    )
    LOOPS[config.spec.loop](run, config.hparams, [recorder])
    assert not run.mid_step
    return parts, recorder


@given(total_timesteps=st.integers(1, 120), log_interval=st.integers(1, 40), eval_interval=st.integers(0, 40))
def test_offline_updates_come_in_groups_that_end_at_every_interval(
    total_timesteps: int, log_interval: int, eval_interval: int
) -> None:
    settings = {"log_interval": log_interval, "eval_interval": eval_interval}
    parts, ends = run_groups(total_timesteps, **settings)
    due = {step for n in settings.values() if n for step in range(n, total_timesteps + 1, n)}
    assert {*due, *range(10, total_timesteps + 1, 10), total_timesteps} == set(ends)
    assert [size // 7 for size in parts.batch_sizes] == [end - start for start, end in pairwise([0, *ends])]
    first, before = run_groups(total_timesteps, stop_at=total_timesteps // 2, **settings)
    _, after = run_groups(total_timesteps, first=before[-1] if before else 0, **settings)
    assert before + after == ends  # a stopped run goes on with the same groups
    assert first.added == 0


def run_groups(
    total_timesteps: int, *, first: int = 0, stop_at: int | None = None, **settings: int
) -> tuple[CountingParts, list[int]]:
    """Run the offline loop from a step on; return the steps at which callbacks were called."""
    config = TrainConfig(
        algo="bc", env_id="x", total_timesteps=total_timesteps, algo_kwargs={"batch_size": 7}, **settings
    )
    parts, ends = CountingParts(), list[int]()
    run = Run(
        config=config,
        streams=Streams(0),
        folder=None,  # type: ignore[arg-type]
        env_factory=None,
        algorithm=parts,  # type: ignore[arg-type]
        memory=parts,  # type: ignore[arg-type]
        collector=NoCollector(),
        spaces=None,  # type: ignore[arg-type]
        step=first,
    )

    class Noting(Callback):
        def on_step(self, run: Run) -> None:
            ends.append(run.step)
            if stop_at is not None and run.step >= stop_at:
                run.stop_reason = "enough"

    LOOPS[config.spec.loop](run, config.hparams, [Noting()])
    return parts, ends


@given(
    num_envs=st.integers(1, 7),
    total_timesteps=st.integers(1, 120),
    train_frequency=st.integers(1, 30),
    gradient_steps=st.sampled_from([-1, 1, 2, 5]),
    learning_starts=st.integers(0, 60),
)
def test_updates_are_exact_after_every_step_for_any_number_of_envs(
    num_envs: int, total_timesteps: int, train_frequency: int, gradient_steps: int, learning_starts: int
) -> None:
    hparams: dict[str, Any] = {
        "train_frequency": train_frequency,
        "gradient_steps": gradient_steps,
        "learning_starts": learning_starts,
        "batch_size": 17,
    }
    parts, recorder = loop(num_envs, total_timesteps, **hparams)
    rounds = -(-total_timesteps // num_envs)
    owed = partial(q_learning_updates, DQNHParams(**hparams))
    assert recorder.rounds == [(k * num_envs, owed(k * num_envs)) for k in range(1, rounds + 1)]
    assert parts.collected_at == [k * num_envs for k in range(rounds)]  # env steps taken before, as acting needs them
    assert parts.added == rounds
    assert set(parts.batch_sizes) <= {17}


@given(frequency=st.integers(1, 9), gradient_steps=st.sampled_from([-1, 1, 3]), starts=st.integers(0, 20))
def test_one_env_updates_at_every_multiple_of_the_frequency_after_the_start(
    frequency: int, gradient_steps: int, starts: int
) -> None:
    hparams: dict[str, Any] = {
        "train_frequency": frequency,
        "gradient_steps": gradient_steps,
        "learning_starts": starts,
    }
    _, recorder = loop(1, 60, **hparams)
    per_round = frequency if gradient_steps == -1 else gradient_steps
    counts = [0, *(updates for _, updates in recorder.rounds)]
    for step in range(1, 61):
        is_due = step > starts and (step - starts) % frequency == 0
        assert counts[step] - counts[step - 1] == (per_round if is_due else 0)


def test_the_errors_of_each_batch_go_back_to_the_memory_before_the_next_is_drawn() -> None:
    parts, _ = loop(2, 20, train_frequency=4, gradient_steps=3, learning_starts=0)
    assert [errors.tolist() for errors in parts.priorities] == [[k] for k in range(1, 16)]  # 5 rounds of 3 updates


def test_no_update_is_made_while_no_transition_is_complete() -> None:
    # Two rows wait in windows: of the six updates owed, one per step, those of the first two steps are left out.
    _, recorder = loop(1, 6, hidden=2, train_frequency=1, gradient_steps=1, learning_starts=0)
    assert [updates for _, updates in recorder.rounds] == [0, 0, 1, 2, 3, 4]


def test_a_callback_can_stop_the_loop() -> None:
    _, recorder = loop(3, 100, stop_at=10)
    assert [step for step, _ in recorder.rounds] == [3, 6, 9, 12]


@given(num_envs=st.integers(1, 7), num_steps=st.integers(1, 9), total_timesteps=st.integers(1, 120))
def test_on_policy_learns_once_from_each_full_rollout_and_never_from_a_part_of_one(
    num_envs: int, num_steps: int, total_timesteps: int
) -> None:
    parts, recorder = loop(
        num_envs,
        total_timesteps,
        algo="ppo",
        num_steps=num_steps,
        minibatch_size=num_steps * num_envs,
        normalize_advantages=False,
    )
    rounds = -(-total_timesteps // num_envs)
    assert recorder.rounds == [(k * num_envs, k // num_steps) for k in range(1, rounds + 1)]
    assert parts.collected_at == [k * num_envs for k in range(rounds)]
    assert parts.added == rounds


def test_a_callback_can_stop_the_on_policy_loop_within_a_rollout() -> None:
    _, recorder = loop(3, 100, stop_at=10, algo="ppo", num_steps=3, minibatch_size=9)
    assert recorder.rounds == [(3, 0), (6, 0), (9, 1), (12, 1)]


# --- Whole runs ------------------------------------------------------------------------------------------------------


def crossings(interval: int, total: int, num_envs: int) -> list[int]:
    """The steps, multiples of `num_envs`, at which a multiple of `interval` is first reached; and the last step."""
    steps = {-(-multiple // num_envs) * num_envs for multiple in range(interval, total + 1, interval)}
    return sorted(steps | {total})


def test_with_three_envs_every_interval_that_is_crossed_happens_once(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, num_envs=3, log_interval=10, eval_interval=20, checkpoint_interval=25, keep_checkpoints=9
    )
    result = train(config, RunOptions(show_progress=False))
    records = read_json_lines(result.run_dir / "metrics.jsonl")
    assert [record["step"] for record in records] == crossings(10, 60, 3) == [12, 21, 30, 42, 51, 60]
    evaluations = read_json_lines(result.run_dir / "eval.jsonl")
    expected_steps = crossings(20, 60, 3)
    assert [record["step"] for record in evaluations] == [step for step in expected_steps for _ in range(2)]
    saved = {int(name.removeprefix("step_")) for name in checkpoint_names(result.run_dir / "checkpoints")}
    best = read_pointer(result.run_dir / "checkpoints", "best")
    assert best is not None
    assert saved == {*crossings(25, 60, 3), int(best.removeprefix("step_"))}
    assert result.gradient_step == records[-1]["gradient_step"] == config.spec.updates_until(config.hparams, 60)


def test_an_evaluation_that_reaches_stop_return_ends_the_run(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        env_id="rl_training/TwoArmedBandit-v0",
        env_kwargs={"means": [0.5, 0.5], "noise": 0.0},
        eval_interval=20,
        stop_return=0.5,
    )
    result = train(config, RunOptions(show_progress=False))
    assert result.step == 20
    assert result.stop_reason == "evaluation reached 0.5 (stop_return 0.5)"
    assert result.checkpoint.name == "step_000000020"
    assert result.eval_return == pytest.approx(0.5)
    missed = train(config.updated(stop_return=0.51), RunOptions(show_progress=False))
    assert (missed.step, missed.stop_reason) == (60, "all steps taken")


class StopAfterEpisodes(Callback):
    def __init__(self, count: int) -> None:
        self.count = count
        self.calls: list[str] = []

    def on_start(self, run: Run) -> None:
        self.calls.append(f"start at {run.step}")

    def on_step(self, run: Run) -> None:
        if run.num_episodes >= self.count:
            run.stop_reason = f"{self.count} episodes"

    def on_end(self, run: Run) -> None:
        self.calls.append(f"end at {run.step}")


def test_a_users_callback_sees_the_run_and_can_end_it(tmp_path: Path) -> None:
    config = make_config(tmp_path, env_id="rl_training/Identity-v0", env_kwargs={"length": 8})
    callback = StopAfterEpisodes(3)
    result = train(config, RunOptions(show_progress=False, callbacks=[callback]))
    assert (result.step, result.stop_reason, result.interrupted) == (24, "3 episodes", False)
    assert callback.calls == ["start at 0", "end at 24"]
    assert result.checkpoint.name == "step_000000024"
    assert len(read_json_lines(result.run_dir / "episodes.jsonl")) == 3


def test_a_run_that_a_callback_ends_is_evaluated_for_its_result_alone(tmp_path: Path) -> None:
    config = make_config(
        tmp_path, env_id="rl_training/TwoArmedBandit-v0", env_kwargs={"means": [0.5, 0.5], "noise": 0.0}
    )
    options = RunOptions(show_progress=False, callbacks=[StopAfterEpisodes(7)])
    assert run_in(tmp_path / "run", config, options) == pytest.approx(0.5)
    assert run_in(tmp_path / "run", config) == pytest.approx(0.5)  # read back
    assert read_json_lines(tmp_path / "run" / "eval.jsonl") == []  # a resumed run's log is as if it never stopped


class Raises(Callback):
    def on_step(self, run: Run) -> None:
        if run.step == 30:
            raise RuntimeError("by the user")


def test_an_error_in_a_callback_leaves_a_traceback_and_a_checkpoint_of_that_step(tmp_path: Path) -> None:
    watcher = StopAfterEpisodes(10**9)
    with pytest.raises(RuntimeError, match="by the user"):
        train(make_config(tmp_path), RunOptions(show_progress=False, callbacks=[Raises(), watcher]))
    (run_dir,) = tmp_path.iterdir()
    assert "by the user" in (run_dir / "crash" / "traceback.txt").read_text()
    assert read_pointer(run_dir / "checkpoints", "latest") == "step_000000030"
    assert watcher.calls == ["start at 0", "end at 30"]


class RaisesAtStart(Callback):
    def on_start(self, run: Run) -> None:
        raise RuntimeError("before the first step")


def test_an_error_before_the_first_step_leaves_a_traceback_and_ends_what_has_begun(tmp_path: Path) -> None:
    earlier, later = StopAfterEpisodes(10**9), StopAfterEpisodes(10**9)
    with pytest.raises(RuntimeError, match="before the first step"):
        train(make_config(tmp_path), RunOptions(show_progress=False, callbacks=[earlier, RaisesAtStart(), later]))
    (run_dir,) = tmp_path.iterdir()
    assert "before the first step" in (run_dir / "crash" / "traceback.txt").read_text()
    assert not checkpoint_names(run_dir / "checkpoints")
    assert (earlier.calls, later.calls) == (["start at 0", "end at 0"], [])


def test_a_loss_that_is_not_finite_ends_the_run_with_a_remedy(tmp_path: Path) -> None:
    config = make_config(
        tmp_path,
        env_id="rl_training/TwoArmedBandit-v0",
        env_kwargs={"means": [1e30, 1e30]},
        log_interval=20,
        checkpoint_interval=15,
        algo_kwargs={"loss": "mse"},
    )
    with pytest.raises(TrainingError, match=r"loss is inf at env step 20 .*smaller learning_rate"):
        train(config, RunOptions(show_progress=False))


@pytest.mark.learning
@pytest.mark.parametrize(
    ("algo", "hparams"),
    [("dqn", {}), ("ppo", {"normalize": "both"}), ("ppo", {"normalize": "both", "sampled_evaluation": True})],
)
def test_evaluating_more_often_does_not_change_training(algo: str, hparams: dict[str, Any], tmp_path: Path) -> None:
    def run(folder: str, eval_interval: int) -> Any:
        config = make_config(tmp_path / folder, algo=algo, eval_interval=eval_interval, algo_kwargs=hparams)
        return train(config, RunOptions(show_progress=False))

    rare, often = run("rare", 0), run("often", 7)
    ours, theirs = often.algorithm.policy_state_dict(), rare.algorithm.policy_state_dict()
    assert_identical(ours, theirs)
    assert often.metrics == rare.metrics
