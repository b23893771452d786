"""A study from its first trial to best.yaml, also after it was killed; runs are pretended or tiny."""

import csv
import json
import math
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml
from optuna.storages.journal import JournalFileBackend

from builders import small_hparams
from rl_training.errors import ConfigError, TrainingError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.run_dir import RunInUseError
from rl_training.launching.pool import Ended, LaunchOptions
from rl_training.launching.seed_runs import run_seeds
from rl_training.results import statistics
from rl_training.results.report_data import read_report
from rl_training.studies import tuning
from rl_training.studies.study_files import write_study_report
from rl_training.studies.trial_journal import TrialJournal
from rl_training.studies.tune_plan import Plan, continue_plan, make_plan, read_plan, write_plan
from rl_training.studies.tuning import Outcome, run_study
from study_pools import PretendPool, QueuePool, TrainingPool


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    """Do not wait, run two fresh seeds, draw few resamples, and leave the report out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "_POLL_SECONDS", 0.0)
        patch.setattr(tuning, "FRESH_SEEDS", 2)
        patch.setattr(tuning, "write_study_report", lambda *_: None)
        patch.setattr(statistics, "BOOTSTRAP_RESAMPLES", 100)
        yield


def make_config(**settings: Any) -> TrainConfig:
    defaults = {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "total_timesteps": 400,
        "eval_interval": 100,
        "eval_episodes": 1,
    }
    return TrainConfig(**{**defaults, "algo_kwargs": {"learning_rate": 0.1}, **settings})


def make_study(folder: Path, config: TrainConfig | None = None, **choices: Any) -> Plan:
    plan = make_plan(config or make_config(), choices.pop("params", ["learning_rate", "gamma"]), **choices)
    write_plan(folder, plan)
    return plan


def run(folder: Path, pool: QueuePool, *, trials: int = 6, hours: float = float("inf")) -> Outcome:
    launch = LaunchOptions(root=folder, jobs=pool.jobs, quiet=True)
    return run_study(folder, read_plan(folder), launch, trials=trials, hours=hours, make_pool=lambda _: pool)


def rows_of(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((folder / "table.csv").open()))


def closeness(settings: Mapping[str, Any], seed: int) -> list[float]:
    """Return four evaluations that rise to a score: the closer the learning rate to 1e-3, the higher."""
    score = 100.0 - 20.0 * abs(math.log10(settings["learning_rate"] / 1e-3)) + 0.1 * (seed % 10)
    return [score * part for part in (0.4, 0.6, 0.8, 1.0)]


# --- A study ---------------------------------------------------------------------------------------------------------


def test_a_study_begins_with_the_given_config_and_finds_a_clearly_better_one(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=2)
    pool = PretendPool(closeness)
    outcome = run(tmp_path, pool, trials=12)
    assert outcome.trials == 12
    assert outcome.verdict is not None
    assert outcome.verdict.clear
    rows = rows_of(tmp_path)
    assert [row["trial"] for row in rows] == [str(number) for number in range(12)]
    assert rows[0]["algo_kwargs.learning_rate"] == "0.1"
    assert float(rows[0]["value"]) == pytest.approx(60.05)  # 100 - 20 * 2 decades, seeds 1000 and 1001
    best = load_config(tmp_path / "best.yaml")
    number = outcome.verdict.best.number
    assert best.algo_kwargs["learning_rate"] == float(rows[number]["algo_kwargs.learning_rate"])
    assert float(rows[number]["fresh IQM"]) == pytest.approx(outcome.verdict.best.summary.iqm)
    text = (tmp_path / "best.yaml").read_text()
    assert f"# best trial {number}  " in text
    assert "# clearly better than the given config" in text


def test_trials_and_fresh_seeds_are_ordinary_run_folders(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=2)
    pool = PretendPool(closeness)
    run(tmp_path, pool, trials=5)
    assert sorted(path.name for path in (tmp_path / "trials" / "0003").iterdir()) == ["seed1000", "seed1001"]
    fresh = [f"seed{seed}" for seed in range(2000, 2002)]
    rescored = sorted((tmp_path / "rescore").iterdir())
    assert rescored[0].name == "0000"
    assert len(rescored) == 4  # the given config and the best three
    assert all(sorted(path.name for path in of_trial.iterdir()) == fresh for of_trial in rescored)
    assert len(set(pool.submitted)) == len(pool.submitted) == 5 * 2 + 4 * 2


def test_the_report_names_the_verdict_and_holds_the_runs_on_fresh_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tuning, "write_study_report", write_study_report)
    make_study(tmp_path, seeds=1)
    run(tmp_path, PretendPool(closeness), trials=3)
    page = (tmp_path / "report.html").read_text()
    assert "clearly better than the given config" in page
    assert "best so far" in page
    assert "given config" in {each["group"] for each in read_report(tmp_path / "report.html")["runs"]}
    assert len(read_report(tmp_path / "report.html")["runs"]) == 3 * 2


def test_poor_trials_are_pruned_and_their_runs_stopped(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=2)
    pool = PretendPool(closeness, jobs=2)
    run(tmp_path, pool, trials=14)
    pruned = [row for row in rows_of(tmp_path) if row["state"] == "pruned"]
    assert pruned
    assert all(int(row["trial"]) >= 8 and int(row["last step"]) in (100, 200, 300) for row in pruned)
    stopped = {folder.parent.name for folder in pool.stopped}
    assert stopped == {f"{int(row['trial']):04d}" for row in pruned}
    assert all(not (folder / "result.json").exists() for folder in pool.stopped)


def test_a_trial_that_reached_its_last_step_is_not_pruned(tmp_path: Path) -> None:
    rates: list[float] = []  # of the trials, in their order

    def returns(settings: Mapping[str, Any], seed: int) -> list[float]:
        """Return a late success for the first nine trials; the tenth is ahead of them until the last step."""
        rates.extend({settings["learning_rate"]} - set(rates))
        return [50.0] * 4 if rates.index(settings["learning_rate"]) == 9 else [10.0, 20.0, 30.0, 100.0]

    make_study(tmp_path, params=["learning_rate"], seeds=1)
    run(tmp_path, PretendPool(returns), trials=10)
    assert [row["state"] for row in rows_of(tmp_path)] == ["complete"] * 10


def test_without_pruning_all_trials_run_to_their_end(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=1, prune=False)
    run(tmp_path, PretendPool(closeness), trials=10)
    assert {row["state"] for row in rows_of(tmp_path)} == {"complete"}


def test_the_area_counts_each_evaluation_for_the_steps_before_it(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=1, objective="area")
    run(tmp_path, PretendPool(closeness), trials=1)
    assert float(rows_of(tmp_path)[0]["value"]) == pytest.approx(60.0 * (0.4 + 0.6 + 0.8 + 1.0) / 4)


def test_a_trial_of_which_a_run_fails_is_told_and_the_study_goes_on(tmp_path: Path) -> None:
    def returns(settings: Mapping[str, Any], seed: int) -> Sequence[float]:
        diverges = settings["learning_rate"] > 1e-2 and seed == 1001
        return closeness(settings, seed)[: 2 if diverges else 4]

    make_study(tmp_path, seeds=3)
    outcome = run(tmp_path, PretendPool(returns, jobs=3), trials=8)
    rows = rows_of(tmp_path)
    assert (rows[0]["state"], rows[0]["message"]) == ("failed", "seed1001: weights are not finite")
    assert rows[0]["value"] == ""
    assert outcome.verdict is not None
    assert outcome.verdict.given.tuned is None


def test_a_study_whose_trials_all_failed_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "write_study_report", write_study_report)
    make_study(tmp_path, seeds=1)
    pool = PretendPool(lambda settings, seed: closeness(settings, seed) if seed >= 2000 else [])
    assert run(tmp_path, pool, trials=2).verdict is not None
    assert "no trial beats the given config" in (tmp_path / "report.html").read_text()


def test_combinations_that_do_not_fit_are_recorded_and_others_asked_for(tmp_path: Path) -> None:
    config = make_config(algo="ppo", algo_kwargs={"num_steps": 32, "minibatch_size": 32})
    make_study(tmp_path, config, params=["num_steps=32,48", "minibatch_size=32,24,16"], seeds=1)
    run(tmp_path, PretendPool(lambda settings, seed: [1.0, 2.0, 3.0, 4.0]), trials=6)
    rows = rows_of(tmp_path)
    refused = [row for row in rows if row["state"] == "refused"]
    assert len(rows) == 6 + len(refused) > 6
    assert "minibatch_size must divide the rollout" in refused[0]["message"]
    assert not (tmp_path / "trials" / f"{int(refused[0]['trial']):04d}").exists()


def test_proposals_that_are_all_refused_end_the_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> TrainConfig:
        raise ConfigError("num_elites must be at most num_ensembles")

    make_study(tmp_path)
    monkeypatch.setattr(tuning, "config_with", refuse)
    monkeypatch.setattr(tuning, "_MAX_REFUSED", 3)
    with pytest.raises(ConfigError, match="3 proposals in a row were refused, the last one because num_elites must"):
        run(tmp_path, PretendPool(closeness))


def test_a_study_of_which_all_trials_fail_ends_early(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=1)
    with pytest.raises(TrainingError, match="all 5 trials failed; the last one: seed1000: weights are not finite"):
        run(tmp_path, PretendPool(lambda settings, seed: []), trials=40)


def test_after_the_hours_no_trial_begins(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=1)
    assert run(tmp_path, PretendPool(closeness), trials=9, hours=0.0).trials == 1  # the given config always runs


# --- Continued -------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends the coordinator as kill -9 does."""


def kill_at(count: int) -> Callable[..., Any]:
    """Return a replacement of Optuna's write to the journal, which dies at one of the writes, with half a line."""
    left = iter(range(count))
    write = JournalFileBackend.append_logs

    def append_logs(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        if next(left, None) is not None:
            return write(self, logs)
        file = Path(self._file_path)
        file.write_bytes(file.read_bytes() + json.dumps(logs[0]).encode()[:20])
        file.with_name(f"{file.name}.lock").symlink_to(file)
        raise Killed

    return append_logs


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, str]], str]:
    """Return the table and the best settings of a study that nobody disturbs."""
    folder = tmp_path_factory.mktemp("undisturbed")
    make_study(folder, seeds=1)
    run(folder, PretendPool(closeness), trials=11)
    return rows_of(folder), load_config(folder / "best.yaml").to_yaml()


@pytest.mark.parametrize("count", [0, 2, 21, 44])
def test_a_study_that_was_killed_ends_as_if_it_was_not(
    count: int, tmp_path: Path, undisturbed: tuple[Any, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_study(tmp_path, seeds=1)
    with monkeypatch.context() as patch:
        patch.setattr(JournalFileBackend, "append_logs", kill_at(count))
        with pytest.raises(Killed):
            run(tmp_path, PretendPool(closeness), trials=11)
    finished = [file.parent for file in tmp_path.rglob("result.json")]
    pool = PretendPool(closeness)
    run(tmp_path, pool, trials=11)
    assert (rows_of(tmp_path), load_config(tmp_path / "best.yaml").to_yaml()) == undisturbed
    assert not set(finished) & set(pool.submitted)  # none is run twice


def test_more_trials_continue_a_study_and_reuse_its_runs(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=1)
    run(tmp_path, PretendPool(closeness), trials=4)
    pool = PretendPool(closeness)
    assert run(tmp_path, pool, trials=7).trials == 7
    again = [folder for folder in pool.submitted if folder.parent.name == "0000"]
    assert again == []


@pytest.mark.process
@pytest.mark.parametrize(("part", "number", "complete"), [("trials", 2, 2), ("rescore", 0, 6)])
def test_a_signal_ends_a_study_whose_trials_are_kept(part: str, number: int, complete: int, tmp_path: Path) -> None:
    class Signalled(PretendPool):
        def run(self, folder: Path) -> Ended | None:
            if folder.parent == tmp_path / part / f"{number:04d}":
                signal.raise_signal(signal.SIGTERM)
            return super().run(folder)

    make_study(tmp_path, seeds=1)
    assert run(tmp_path, Signalled(closeness), trials=6).verdict is None
    assert [row["state"] for row in rows_of(tmp_path)].count("complete") == complete
    assert not (tmp_path / "best.yaml").exists()
    assert run(tmp_path, PretendPool(closeness), trials=6).verdict is not None


def test_a_study_in_use_is_not_run_by_another_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def held(path: Path) -> NoReturn:
        raise RunInUseError

    make_study(tmp_path)
    monkeypatch.setattr(tuning, "locked", held)
    with pytest.raises(ConfigError, match="is in use: another process tunes in it now"):
        run(tmp_path, PretendPool(closeness))


def test_a_study_of_another_config_is_rejected(tmp_path: Path) -> None:
    plan = make_study(tmp_path)
    other = make_config(total_timesteps=500)
    with pytest.raises(ConfigError) as error:
        continue_plan(tmp_path, config=other, params=[], seeds=None)
    digests = f"digest {plan.config.digest()}, now {other.digest()}"
    assert str(error.value) == (
        f"{tmp_path / 'study.journal'} was made for another config ({digests}): give a new folder or the old config"
    )


def test_other_choices_for_a_study_are_rejected(tmp_path: Path) -> None:
    make_study(tmp_path, seeds=2)
    with pytest.raises(ConfigError, match="was begun with seeds 2, not 3: give a new folder"):
        continue_plan(tmp_path, config=None, params=[], seeds=3)
    with pytest.raises(ConfigError, match="searches other settings than --param names"):
        continue_plan(tmp_path, config=None, params=["gamma"], seeds=2)
    assert continue_plan(tmp_path, config=None, params=["learning_rate", "gamma"], seeds=2).seeds == 2


PLAN = "config: x\nobjective: final\nprune: true\nspace: {algo_kwargs.gamma: {low: 0.9, high: 1.0, given: 0.99}}\n"


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "config: x\nseeds: 1\nobjective: final\nprune: true\nspace: {seed: {}}"),
        *(f"{PLAN}seeds: {seeds}" for seeds in ("0", "-1", "1000000000", ".inf")),
    ],
)
def test_a_damaged_plan_is_reported(text: str, tmp_path: Path) -> None:
    make_study(tmp_path)
    (tmp_path / "space.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"space\.yaml is damaged"):
        read_plan(tmp_path)


def test_a_journal_of_another_space_is_rejected(tmp_path: Path) -> None:
    plan = make_study(tmp_path)
    run(tmp_path, PretendPool(closeness), trials=1)
    with pytest.raises(ConfigError, match="holds trials of other settings or ranges than now: give a new folder"):
        TrialJournal(tmp_path / "study.journal", plan.space[:1], warm_up_steps=0)


def test_a_damaged_journal_is_reported(tmp_path: Path) -> None:
    plan = make_study(tmp_path)
    (tmp_path / "study.journal").write_text('{"op_code": 99}\nno json\n')
    with pytest.raises(ConfigError, match=r"study\.journal is damaged"):
        TrialJournal(tmp_path / "study.journal", plan.space, warm_up_steps=0)


@pytest.mark.parametrize("kind", ["link", "link to a device", "pipe", "deep"])
def test_a_journal_that_is_no_journal_is_neither_read_nor_changed(kind: str, tmp_path: Path) -> None:
    plan = make_study(tmp_path / "study")
    journal, mine = tmp_path / "study" / "study.journal", tmp_path / "mine"
    mine.write_text("the last line has no end")
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "deep":
        journal.write_text("[" * 100_000 + "\n")
    else:
        journal.symlink_to("/dev/null" if kind == "link to a device" else mine)
    with pytest.raises(ConfigError, match=r"study\.journal (is damaged|cannot be used)"):
        TrialJournal(journal, plan.space, warm_up_steps=0)
    assert mine.read_text() == "the last line has no end"


# --- Refused at the door ---------------------------------------------------------------------------------------------


def test_pruning_needs_evaluations() -> None:
    config = make_config(eval_interval=0)
    with pytest.raises(ConfigError, match=r"^eval_interval is 0: nothing could be pruned; set it, or --no-prune$"):
        make_plan(config)
    assert not make_plan(config, prune=False).prune
    with pytest.raises(ConfigError, match="--objective area needs evaluations"):
        make_plan(config, prune=False, objective="area")


def test_a_run_without_an_environment_cannot_be_tuned() -> None:
    config = TrainConfig(
        algo="bc", total_timesteps=10, eval_interval=5, algo_kwargs={"dataset_kind": "npz", "dataset_path": "x.npz"}
    )
    with pytest.raises(ConfigError, match="env_id is empty"):
        make_plan(config)


# --- Real runs -------------------------------------------------------------------------------------------------------


def test_the_best_config_trains_to_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "FRESH_SEEDS", 1)
    config = make_config(
        total_timesteps=60,
        eval_interval=30,
        acceleration="eager",
        tensorboard=False,
        output_dir=tmp_path / "runs",
        algo_kwargs=small_hparams("dqn", learning_rate=0.1),
    )
    folder = tmp_path / "study"
    make_study(folder, config, params=["learning_rate", "hidden_sizes=[8],[16]"], seeds=1)
    outcome = run(folder, TrainingPool(), trials=3)
    assert outcome.verdict is not None
    again = run_seeds(load_config(folder / "best.yaml"), [2000])
    rescored = folder / "rescore" / f"{outcome.verdict.best.number:04d}" / "seed2000"
    names = ["policy.safetensors", "training.safetensors", "memory.safetensors"]
    for name in names:
        trained = again.folder / "seed2000" / "checkpoints" / "step_000000060" / name
        assert trained.read_bytes() == (rescored / "checkpoints" / "step_000000060" / name).read_bytes()
    assert yaml.safe_load((folder / "best.yaml").read_text())["total_timesteps"] == 60
