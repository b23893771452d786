"""Populations: each member is an ordinary run, stacked members learn as single runs do, and kills lose none."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.exactness import differences

import rl_training
from builders import make_config
from first_policies import FirstPolicy
from recorded_streams import RecordedStreams
from rl_training.acceleration import steps
from rl_training.core import memory_limits
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import resumable_names
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.json_lines import read_json_lines
from rl_training.experiment.manifest import MEMORY, POLICY
from rl_training.experiment.population import PopulationConfig, PopulationDir, group_by_structure
from rl_training.experiment.registry import registry
from rl_training.experiment.run_dir import read_run_config
from rl_training.experiment.saved_checkpoint import find_checkpoint, open_checkpoint
from rl_training.launching import populations
from rl_training.launching.populations import PopulationResult, resume_population, train_population
from rl_training.learners import stack
from rl_training.runtime import stacked_members, stacked_runs
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import RunOptions, resume, train
from state_comparison import assert_identical

QUIET = RunOptions(show_progress=False)


def base_config(folder: Path, **changes: Any) -> TrainConfig:
    """IQL on 60 random transitions: 40 updates, two evaluations, two checkpoints."""
    values: dict[str, Any] = {
        "algo": "iql",
        "env_id": "rl_training/Identity-v0",
        "env_kwargs": {"actions": "box"},
        "total_timesteps": 40,
        "log_interval": 10,
        "eval_interval": 20,
        "checkpoint_interval": 20,
    }
    return make_config(folder, **{**values, **changes})


def train_members(
    folder: Path,
    seeds: Sequence[int] = (0, 1),
    *,
    run: str = "stacked",
    vary: dict[str, tuple[Any, ...]] | None = None,
    options: RunOptions = QUIET,
    **changes: Any,
) -> PopulationResult:
    config = PopulationConfig(
        base=base_config(folder, **changes),
        seeds=tuple(seeds),
        vary=vary or {},
        run=run,  # type: ignore[arg-type]
    )
    return train_population(config, options)


def member(result: PopulationResult, number: int) -> Path:
    return result.folder / "members" / f"{number:03d}"


def saved(folder: Path, part: str = POLICY) -> dict[str, Any]:
    return open_checkpoint(find_checkpoint(folder)).load(part)


def assert_close_policies(ours: Path, theirs: Path, tolerance: float) -> None:
    found, expected = saved(ours), saved(theirs)
    torch.testing.assert_close(found.pop("obs_moments", {}), expected.pop("obs_moments", {}), rtol=0.0, atol=0.0)
    for name, values in found.items():
        assert float((values - expected[name]).norm()) <= tolerance * float(expected[name].norm() + 1.0), name


# --- One member after the other --------------------------------------------------------------------------------------


def test_a_looped_member_equals_the_single_run(tmp_path: Path) -> None:
    result = train_members(tmp_path, vary={"algo_kwargs.expectile": (0.6, 0.9)}, run="looped")
    assert [state.state for state in result.states.values()] == ["done"] * 4
    single = base_config(tmp_path, seed=1, algo_kwargs={"expectile": 0.9})
    alone = train(single, QUIET)
    assert differences(member(result, 3), alone.run_dir) == []
    assert contents(member(result, 3)) == contents(alone.run_dir)
    assert result.scores["003"] == alone.eval_return


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_any_algorithm_can_be_looped_which_is_the_default_on_a_cpu(algo: str, tmp_path: Path) -> None:
    config = make_config(tmp_path, algo=algo, log_interval=20, checkpoint_interval=20)
    result = train_population(PopulationConfig(base=config, seeds=(3, 4)), QUIET)
    alone = train(config.updated(seed=4), QUIET)
    assert differences(member(result, 1), alone.run_dir) == []
    assert contents(member(result, 1)) == contents(alone.run_dir)


def contents(run_dir: Path) -> dict[str, Any]:
    """Return what each file of a run folder holds, without times and what follows from them; no metadata."""
    found = {str(path.relative_to(run_dir)): path for path in run_dir.rglob("*") if path.is_file()}
    del found["metadata.json"]
    return {name: _content(path) for name, path in found.items()}


TIMES = {"wall_s", "steps_per_s"}
OF_TIMES = {"log_positions|metrics", "checksum", "seal"}  # a length and hashes of texts with times


def _content(path: Path) -> Any:
    def without(values: Any) -> Any:
        if not isinstance(values, dict):
            return [without(value) for value in values] if isinstance(values, list) else values
        return {name: without(value) for name, value in values.items() if name not in TIMES | OF_TIMES}

    if path.suffix == ".jsonl":
        return without(read_json_lines(path))
    return without(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


@pytest.mark.parametrize(
    ("algo", "device", "way"), [("iql", "cuda", "stacked"), ("iql", "cpu", "looped"), ("rlpd", "cuda", "looped")]
)
def test_auto_stacks_on_a_gpu_what_can_be_stacked(
    algo: str, device: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(populations, "resolve_device", lambda name: torch.device(device))
    assert populations.best_way(make_config(tmp_path, algo=algo)) == way


def test_a_population_goes_on_as_it_began_on_any_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = train_members(tmp_path, run="auto")
    monkeypatch.setattr(populations, "resolve_device", lambda name: torch.device("cuda"))
    again = train_members(tmp_path, run="auto")
    assert again.folder == result.folder
    assert PopulationDir(again.folder).way() == "looped"


@pytest.mark.parametrize(
    ("run", "place", "name", "found"),
    [
        ("looped", populations, "resume", [0, 1]),  # before each member
        ("stacked", stacked_runs, "end_run", [1, 1]),  # before each final evaluation
    ],
)
def test_the_summary_is_written_while_members_are_trained(
    run: str, place: ModuleType, name: str, found: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    real = getattr(place, name)

    def noted(*args: Any) -> Any:
        seen.append(len(list(tmp_path.rglob("summary.jsonl"))))
        return real(*args)

    monkeypatch.setattr(place, name, noted)
    train_members(tmp_path, run=run)
    assert seen == found


# --- Stacked ---------------------------------------------------------------------------------------------------------


# Those that learn from a dataset alone; mopo: test_stacked_models.py.
OFFLINE = sorted(name for name, spec in registry().items() if spec.loop == "offline" and not spec.intervals)
# The rates change, and where an actor learns at every third update, groups of ten end between two of them.
COSINE, DELAYED = {"learning_rate_schedule": "cosine"}, {"learning_rate_schedule": "linear", "policy_delay": 3}
SETTINGS = {"bc": COSINE, "iql": COSINE, "cql": {**DELAYED, "num_sampled_actions": 2, "calibrated": True}}


@pytest.mark.parametrize("algo", OFFLINE)
def test_stacked_members_learn_as_single_runs_do(algo: str, tmp_path: Path, recorded_streams: RecordedStreams) -> None:
    changes: dict[str, Any] = {"algo": algo, "total_timesteps": 100, "algo_kwargs": SETTINGS.get(algo, DELAYED)}
    first = FirstPolicy()
    options = RunOptions(show_progress=False, callbacks=[first])
    result = train_members(tmp_path, (0, 5), options=options, **changes)
    for number, seed in enumerate((0, 5)):
        drawn, policy = recorded_streams.take(seed), first.of.pop(seed)
        alone = train(base_config(tmp_path, seed=seed, **changes), options)
        assert recorded_streams.take(seed) == drawn
        assert_identical(first.of[seed], policy)
        assert read_run_config(member(result, number)) == read_run_config(alone.run_dir)
        assert_close_policies(member(result, number), alone.run_dir, 1e-4)
        # The same draws: both memories' generators are where 100 batches leave them.
        assert saved(member(result, number), MEMORY) == saved(alone.run_dir, MEMORY)
        ours, theirs = (read_json_lines(folder / "metrics.jsonl") for folder in (member(result, number), alone.run_dir))
        assert [record["step"] for record in ours] == [record["step"] for record in theirs]
        for name, value in theirs[-1]["metrics"].items():
            assert ours[-1]["metrics"][name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
        evaluations = [read_json_lines(folder / "eval.jsonl") for folder in (member(result, number), alone.run_dir)]
        for one, other in zip(*evaluations, strict=True):
            assert one == other | {"return": pytest.approx(other["return"], abs=1e-3)}


@pytest.mark.parametrize("algo", ["rebrac", "cql"])
def test_members_with_random_inputs_continue_as_if_never_stopped(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes: dict[str, Any] = {"algo": algo, "algo_kwargs": {"policy_delay": 3}}
    unbroken = train_members(tmp_path / "unbroken", **changes)
    with monkeypatch.context() as patch:
        kill_at_call(patch, stack.Stack, "update", 4)  # after the checkpoint of step 20, at which two updates wait
        with pytest.raises(Killed):
            train_members(tmp_path, **changes)
    result = train_members(tmp_path, **changes)
    for number in range(2):
        assert differences(member(result, number), member(unbroken, number)) == []


def test_a_member_does_not_depend_on_the_others(tmp_path: Path) -> None:
    first = train_members(tmp_path, (0, 1, 2))
    fewer = train_members(tmp_path, (2, 0))
    assert saved(member(fewer, 0), MEMORY) == saved(member(first, 2), MEMORY)
    assert_close_policies(member(fewer, 0), member(first, 2), 1e-5)
    assert_close_policies(member(fewer, 1), member(first, 0), 1e-5)


def test_a_member_does_not_depend_on_the_settings_of_the_others(tmp_path: Path) -> None:
    def with_expectiles(folder: Path, *values: float) -> Path:
        vary = {"algo_kwargs.expectile": values, "algo_kwargs.learning_rate": (1e-3, values[1] / 100)}
        config = PopulationConfig(base=base_config(folder), seeds=(0, 1), vary=vary, combine="zip", run="stacked")
        return member(train_population(config, QUIET), 0)

    assert differences(with_expectiles(tmp_path, 0.6, 0.9), with_expectiles(tmp_path / "other", 0.6, 0.8)) == []


@pytest.mark.parametrize("name", ["gamma", "reward_scale"])
def test_members_with_two_values_equal_two_stacks_with_one(name: str, tmp_path: Path) -> None:
    values = {"gamma": (0.5, 0.9), "reward_scale": (0.5, 2.0)}[name]
    both = train_members(tmp_path, (0,), vary={f"algo_kwargs.{name}": values}, total_timesteps=20)
    assert len(group_by_structure([base_config(tmp_path, algo_kwargs={name: v}) for v in values])) == 1
    for number, value in enumerate(values):
        alone = train_members(tmp_path, (0,), algo_kwargs={name: value}, total_timesteps=20)
        assert_close_policies(member(both, number), member(alone, 0), 1e-5)
    weights = [torch.cat([value.flatten() for value in saved(member(both, n)).values()]) for n in range(2)]
    assert not torch.equal(*weights)


def test_a_setting_that_a_stack_shares_gives_two_stacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "rl_training")
    result = train_members(tmp_path, vary={"algo_kwargs.batch_size": (4, 8)})
    assert "2 stacks, one after the other" in caplog.text
    assert [state.state for state in result.states.values()] == ["done"] * 4
    alone = train(base_config(tmp_path, seed=1, algo_kwargs={"batch_size": 4}), QUIET)
    assert_close_policies(member(result, 1), alone.run_dir, 1e-4)


@pytest.mark.parametrize(
    ("algo", "name", "values"),
    [("iql", "expectile", (0.6, 0.9)), ("rebrac", "reward_shift", (0.0, 1.0)), ("mopo", "penalty_coef", (0.5, 2.0))],
)
def test_captured_members_equal_eager_ones(
    algo: str,
    name: str,
    values: tuple[float, ...],
    tmp_path: Path,
    recorded_graphs: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    changes: dict[str, Any] = {"algo": algo, "vary": {f"algo_kwargs.{name}": values}}
    eager = train_members(tmp_path, **changes)
    real = steps.accelerate_rounds
    monkeypatch.setattr(stack, "accelerate_rounds", lambda step, mode, name: real(step, "cuda_graph", name))
    monkeypatch.setattr(steps, "_compile", lambda step, *_: steps._run_eagerly(step))  # a compiler takes a minute
    result = train_members(tmp_path / "captured", **changes)
    for number in range(4):
        assert_close_policies(member(result, number), member(eager, number), 1e-6)


# --- What becomes of a member ----------------------------------------------------------------------------------------


class Poison:
    """Makes the gradient of one member NaN from an update on."""

    def __init__(self, member: int, update: int) -> None:
        self.member, self.update = member, update

    def __call__(self, run: Any) -> Any:
        def poisoned(training: Any, step: int) -> int:
            if step == self.update:
                training._stack.state["critic.params"][self.member] = torch.nan
            end: int = run(training, step)
            return end

        return poisoned


def test_a_member_that_diverges_ends_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    healthy = train_members(tmp_path / "healthy", (0, 1, 2))
    training = stacked_runs.StackedTraining
    monkeypatch.setattr(training, "_advance", Poison(1, 20)(training._advance))
    result = train_members(tmp_path, (0, 1, 2))
    assert [state.state for state in result.states.values()] == ["done", "diverged", "done"]
    assert "member 001 ends" in caplog.text
    assert "smaller learning_rate" in result.states["001"].reason
    for number in (0, 2):  # bit for bit: the others do not notice
        assert differences(member(result, number), member(healthy, number)) == []
    assert resumable_names(member(result, 1) / "checkpoints") == ["step_000000020"]
    assert all(bool(values.isfinite().all()) for values in saved(member(result, 1)).values())
    again = resume_population(result.folder, QUIET)  # nothing is left to do
    assert again.states == result.states


class StopAt(Callback):
    """Stops the run of one seed at a step."""

    def on_step(self, run: Run) -> None:
        if run.config.seed == 1 and run.step >= 20:
            run.stop_reason = "enough"


def test_a_callback_ends_one_member_and_the_others_go_on(tmp_path: Path) -> None:
    options = RunOptions(show_progress=False, callbacks=[StopAt()])
    result = train_members(tmp_path, options=options)
    assert [(state.state, state.step) for state in result.states.values()] == [("done", 40), ("done", 20)]
    assert result.states["001"].reason == "enough"
    alone = train(base_config(tmp_path, seed=1), RunOptions(show_progress=False, callbacks=[StopAt()]))
    assert_close_policies(member(result, 1), alone.run_dir, 1e-5)


# --- Kills and resumes -----------------------------------------------------------------------------------------------


class Killed(KeyboardInterrupt):
    """The only exception that training lets through as it is."""


def kill_at_call(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> None:
    """Make the n-th call of a function raise, as a stand-in for a kill of the process."""
    real, calls = getattr(owner, name), [0]

    def dying(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise Killed
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, dying)


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (stacked_members, "create_run_dir", 2),  # the settings of one member are filled in, those of the others not
        (stacked_members.MemberCheckpoints, "write", 2),  # the first checkpoint: one member has it, the others not
        (stacked_members.MemberCheckpoints, "write", 5),  # the second one
        (PopulationDir, "write_states", 2),  # all members have the second one, but nothing says so
        (stacked_members.MemberCheckpoints, "remove_older", 5),
        (stack.Stack, "update", 3),
        (stacked_runs, "end_run", 2),
    ],
)
def test_a_population_that_is_killed_continues_as_if_it_never_was(
    owner: Any, name: str, call: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unbroken = train_members(tmp_path / "unbroken", (0, 1, 2))
    with monkeypatch.context() as patch:
        kill_at_call(patch, owner, name, call)
        with pytest.raises(Killed):
            train_members(tmp_path, (0, 1, 2))
    result = train_members(tmp_path, (0, 1, 2))  # the same call again
    assert [state.state for state in result.states.values()] == ["done"] * 3
    for number in range(3):
        assert differences(member(result, number), member(unbroken, number)) == []
    assert (result.folder / "summary.jsonl").read_text() == (unbroken.folder / "summary.jsonl").read_text()


def test_checkpoints_by_time_are_common_to_all_members_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_time: dict[str, Any] = {"checkpoint_interval": 0, "checkpoint_minutes": 1e-9}
    monkeypatch.setattr(stacked_runs, "MAX_SHARE_OF_SAVES", 1e9)  # after every group of updates
    unbroken = train_members(tmp_path / "unbroken", (0, 1, 2), **by_time)
    with monkeypatch.context() as patch:
        kill_at_call(patch, stacked_members.MemberCheckpoints, "write", 8)  # the third checkpoint
        with pytest.raises(Killed):
            train_members(tmp_path, (0, 1, 2), **by_time)
    (folder,) = tmp_path.glob("population__*")
    assert {state.step for state in PopulationDir(folder).states().values()} == {20}
    result = train_members(tmp_path, (0, 1, 2), **by_time)
    for number in range(3):
        assert differences(member(result, number), member(unbroken, number)) == []


def test_an_interrupted_population_is_saved_and_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unbroken = train_members(tmp_path / "unbroken", (0, 1))
    real = stacked_runs.StackedTraining._advance

    def interrupted(training: Any, step: int) -> int:
        for one in training._members if step == 10 else ():
            one.run.interrupted, one.run.stop_reason = True, "signal SIGTERM"
        return real(training, step)

    with monkeypatch.context() as patch:
        patch.setattr(stacked_runs.StackedTraining, "_advance", interrupted)
        result = train_members(tmp_path, (0, 1))
    assert result.interrupted
    assert [(state.state, state.step) for state in result.states.values()] == [("running", 20)] * 2
    result = resume_population(result.folder, QUIET)
    assert not result.interrupted
    for number in range(2):
        assert differences(member(result, number), member(unbroken, number)) == []


# --- A member is an ordinary run -------------------------------------------------------------------------------------


def test_a_member_evaluates_predicts_resumes_and_loads_alone(tmp_path: Path) -> None:
    result = train_members(tmp_path)
    folder = member(result, 0)
    agent = rl_training.IQL.load(folder, show_progress=False)
    obs = np.zeros((2, 3), np.float32)
    assert agent.predict(obs).shape[0] == 2
    episodes = [episode["return"] for episode in json.loads((folder / "result.json").read_text())["eval"]]
    assert [episode.ret for episode in agent.evaluate(episodes=len(episodes))] == pytest.approx(episodes)
    longer = resume(folder, QUIET, total_timesteps=60)
    assert longer.step == 60
    assert longer.run_dir == folder
    metadata = json.loads((folder / "metadata.json").read_text())
    assert metadata["starts"][0]["population"] == "member 0 of 2, stacked"


def test_the_summary_has_the_statistics_of_each_evaluation(tmp_path: Path) -> None:
    result = train_members(tmp_path, (0, 1, 2))
    lines = read_json_lines(result.folder / "summary.jsonl")
    assert [line["step"] for line in lines] == [20, 40]
    scores = list(result.scores.values())
    assert lines[-1]["mean"] == pytest.approx(sum(scores) / 3)
    assert (lines[-1]["min"], lines[-1]["max"], lines[-1]["members"]) == (min(scores), max(scores), 3)


# --- What is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": ()}, "seeds must be different"),
        ({"seeds": (1, 1)}, "seeds must be different"),
        ({"vary": {"algo_kwargs.gama": (0.9,)}}, "did you mean 'gamma'"),
        ({"vary": {"algo_kwargs.gamma": ()}}, "at least one"),
        ({"vary": {"algo_kwargs.gamma": (0.9, 1.5)}}, "gamma must be"),
        ({"vary": {"seed": (1, 2)}}, "give seeds"),
        ({"vary": {"algo_kwargs.gamma": (0.9, 0.8)}, "combine": "zip", "seeds": (1,)}, "as many values"),
    ],
)
def test_a_population_that_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        PopulationConfig(**{"base": base_config(tmp_path), "seeds": (0,), **changes})


def test_zip_pairs_seeds_and_values(tmp_path: Path) -> None:
    vary = {"algo_kwargs.gamma": (0.9, 0.8), "algo_kwargs.tau": (0.1, 0.2)}
    config = PopulationConfig(base=base_config(tmp_path), seeds=(4, 5), vary=vary, combine="zip")
    assert [(m.seed, m.hparams.gamma, m.hparams.tau) for m in config.members()] == [  # type: ignore[attr-defined]
        (4, 0.9, 0.1),
        (5, 0.8, 0.2),
    ]


def test_an_algorithm_that_cannot_be_stacked_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    base = make_config(tmp_path / "runs", algo="rlpd", env_id="Pendulum-v1")
    config = PopulationConfig(base=base, seeds=(0, 1), run="stacked")
    with pytest.raises(ConfigError, match="rlpd cannot be stacked, only bbf, bc, "):
        train_population(config, QUIET)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(("seeds", "members"), [((0, 1), "2 members"), ((3,), "1 member")])
def test_more_members_than_fit_are_refused_with_the_figures(
    seeds: tuple[int, ...], members: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = memory_limits.check_memory
    monkeypatch.setattr(stack, "check_memory", lambda *args, available: real(*args, available=1_000))
    with pytest.raises(
        ConfigError, match=rf"a stack of {members} \(.* MiB each, .* for all\) needs .*, but only 0.0 MiB"
    ):
        train_members(tmp_path, seeds)


def test_a_damaged_population_file_is_reported(tmp_path: Path) -> None:
    result = train_members(tmp_path)
    (result.folder / "population.json").write_text('{"members": {"000": {"state": "gone"}}}')
    with pytest.raises(CheckpointError, match=r"population\.json is damaged"):
        resume_population(result.folder, QUIET)


def test_a_damaged_population_plan_is_reported(tmp_path: Path) -> None:
    result = train_members(tmp_path)
    plan = (result.folder / "population.yaml").read_bytes()
    damaged = {
        b"\xff": r"population\.yaml cannot be read",
        b"#" * (2**24 + 1): r"population\.yaml cannot be read: .*16,777,217 bytes",
        plan.replace(b"stack: 0", b"stack: [0]"): r"population\.yaml is damaged",
    }
    for content, message in damaged.items():
        (result.folder / "population.yaml").write_bytes(content)
        with pytest.raises((CheckpointError, ConfigError), match=message):
            resume_population(result.folder, QUIET)
    (result.folder / "population.yaml").write_bytes(plan)
    (result.folder / "population.json").write_text('{"members": ' + "[" * 100_000)
    with pytest.raises(CheckpointError, match=r"population\.json is damaged"):
        resume_population(result.folder, QUIET)


def test_a_population_without_all_its_folders_is_completed_by_its_command_only(tmp_path: Path) -> None:
    result = train_members(tmp_path)
    (member(result, 1) / "config.yaml").rename(tmp_path / "config.yaml")  # killed while it created the folders
    with pytest.raises(CheckpointError, match="folders of 1 of its 2 members"):
        resume_population(result.folder, QUIET)
    assert [state.state for state in train_members(tmp_path).states.values()] == ["done", "done"]


def test_a_network_of_the_user_is_refused(tmp_path: Path) -> None:
    options = RunOptions(show_progress=False, network=torch.nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="takes no network"):
        train_members(tmp_path, options=options)
