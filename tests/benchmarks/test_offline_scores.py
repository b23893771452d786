"""Datasets and the rows that learn from them: small ones of our own agents, recorded and learned from for real."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.datasets import (
    EPISODE,
    KINDS,
    RECIPES,
    DatasetError,
    DatasetFolder,
    Policy,
    Recipe,
    all_kinds,
    dataset_facts,
    expert_among,
    make_datasets,
    nearest_to_share,
    normalised,
    spread_out,
)
from benchmarks.engine import RowRuns, run_scores
from benchmarks.launch import SCRIPTS, Contender, ContenderError, FreeCores
from benchmarks.results import read_lines
from benchmarks.rows import ROWS
from benchmarks.summaries import summarize_scores

import test_cli
from benchmarks import datasets
from rl_training.datasets.files import read_transitions
from rl_training.datasets.transition_dataset import TransitionDataset

TINY = Recipe(
    config="sac/pendulum.yaml",
    interval=100,
    eval_episodes=1,
    expert_episodes=2,
    rows=800,
    changes=(
        "total_timesteps=300",
        "acceleration=eager",
        "algo_kwargs.learning_starts=150",
        "algo_kwargs.hidden_sizes=[8]",
        "algo_kwargs.batch_size=8",
    ),
)
TINY_EXPERT = Recipe(
    config="ppo/cartpole.yaml",
    interval=256,
    eval_episodes=1,
    expert_episodes=2,
    rows=50,
    changes=("total_timesteps=256", "acceleration=eager", "algo_kwargs.update_epochs=1"),
    kinds=("random", EPISODE),
    expert="best",
)
BESIDE_D3RLPY = [name for name, row in ROWS.items() if any(peer.contender.peer == "d3rlpy" for peer in row.peers)]


class CalledHere:
    """Calls `rl-training` in this process, which takes a tenth of the time, and notes how."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, *arguments: str, on_cpu: bool = False) -> str:
        self.commands.append(arguments)
        result = test_cli.call(*arguments)
        if result.exit_code != 0:
            raise DatasetError(result.output)
        return str(result.stdout)


@pytest.fixture(scope="module")
def called(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CalledHere]:
    """The tiny datasets, all of them made; and how they were."""
    called = CalledHere()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets, "DATASETS", tmp_path_factory.mktemp("datasets"))
        patch.setattr(datasets, "call", called)
        patch.setitem(RECIPES, "pendulum", TINY)
        patch.setitem(RECIPES, "cartpole", TINY_EXPERT)
        patch.syspath_prepend(str(SCRIPTS))  # the scripts import each other from their own folder
        make_datasets(all_kinds(["pendulum"]), device="cpu", jobs=1)
        yield called


@pytest.fixture
def folder(called: CalledHere) -> DatasetFolder:
    return DatasetFolder("pendulum")


# --- Datasets --------------------------------------------------------------------------------------------------------


def test_medium_is_the_policy_nearest_to_a_share_of_the_way() -> None:
    policies = [Policy(step, ret, "") for step, ret in ((1, -100.0), (2, -30.0), (3, -52.0), (4, 0.0))]
    assert nearest_to_share(policies, -100.0, 20.0, 0.4).step == 3  # -52 is wanted
    assert nearest_to_share(policies, -100.0, 20.0, 1.0).step == 4


def test_the_best_expert_is_the_last_policy_with_the_highest_evaluation() -> None:
    policies = [Policy(step, ret, "") for step, ret in ((1, 3_100.0), (2, 1_200.0), (3, 3_100.0), (4, 1_700.0))]
    assert [expert_among(policies, which).step for which in ("final", "best")] == [4, 3]


@pytest.mark.parametrize(
    ("available", "steps"),
    [(1, [1]), (3, [2, 3]), (7, [1, 3, 4, 6, 7]), (10, list(range(1, 11))), (20, list(range(2, 21, 2)))],
)
def test_mixed_policies_are_spread_evenly_up_to_the_last(available: int, steps: list[int]) -> None:
    assert [policy.step for policy in spread_out([Policy(step + 1, 0.0, "") for step in range(available)])] == steps


@pytest.mark.learning
def test_each_kind_is_recorded_by_its_policies(folder: DatasetFolder) -> None:
    facts = folder.facts()
    training = facts["training"]
    assert [policy["step"] for policy in training["policies"]] == [100, 200, 300]
    medium = training["medium_step"]
    players = {kind: [player["step"] for player in facts["datasets"][kind]["players"]] for kind in KINDS}
    assert players["random"] == []
    assert players["medium"] == [medium]
    assert players["expert"] == [300]
    assert players["medium-expert"] == [medium, 300]
    assert players["medium-replay"][-1] == medium
    assert len({facts["datasets"][kind]["seed"] for kind in KINDS}) == len(KINDS)


def test_facts_are_those_of_the_files(folder: DatasetFolder) -> None:
    for kind, facts in folder.facts()["datasets"].items():
        held = TransitionDataset.from_transitions(read_transitions(folder.file(kind)))
        returns = held.episode_returns()
        assert (facts["rows"], facts["episodes"], facts["truncated"]) == (800, 4, 4), kind
        assert (facts["mean_return"], facts["min_return"]) == pytest.approx((returns.mean(), returns.min())), kind
        assert len(facts["sha256"]) == 64
    assert folder.facts()["random_return"] == folder.facts()["datasets"]["random"]["mean_return"]
    assert -2_000.0 < folder.facts()["expert_return"] < 0.0


def test_policies_explore_as_in_training(called: CalledHere, folder: DatasetFolder) -> None:
    recorded = [command for command in called.commands if command[0] == "record"]
    assert ["--explore" in command for command in recorded] == [False, True, True, True, True]
    actions = TransitionDataset.from_transitions(read_transitions(folder.file("expert"))).actions
    assert actions.std() > 0.3  # hardly trained: the noise is most of it


def test_one_greedy_episode_is_recorded_to_be_imitated(called: CalledHere) -> None:
    before = len(called.commands)
    make_datasets(all_kinds(["cartpole"]), device="cpu", jobs=1)
    recorded = [command for command in called.commands[before:] if command[0] == "record"]
    assert ["--explore" in command for command in recorded] == [False, False]
    facts = dataset_facts(f"cartpole/{EPISODE}")
    assert (facts["episodes"], [player["step"] for player in facts["players"]]) == (1, [256])
    assert DatasetFolder("cartpole").missing() == []


def test_the_kinds_that_there_are_do_not_make_another_recipe() -> None:
    assert replace(TINY, kinds=("random",)).identity() == TINY.identity()


def test_what_is_there_is_made_once_until_the_recipe_changes(
    called: CalledHere, folder: DatasetFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = len(called.commands)
    make_datasets(all_kinds(["pendulum"]), device="cpu", jobs=1)
    assert len(called.commands) == before
    monkeypatch.setitem(RECIPES, "pendulum", replace(TINY, medium=0.5))
    assert DatasetFolder("pendulum").missing() == list(KINDS)
    monkeypatch.setitem(RECIPES, "pendulum", replace(TINY, changes=(*TINY.changes, "algo_kwargs.gamma=0.9")))
    assert DatasetFolder("pendulum").missing() == list(KINDS)


def test_a_file_without_facts_is_recorded_again(called: CalledHere, folder: DatasetFolder) -> None:
    facts_file, before = folder.path / "facts.json", folder.file("medium").read_bytes()
    facts = json.loads(facts_file.read_text())
    del facts["datasets"]["medium"]
    facts_file.write_text(json.dumps(facts))
    count = len(called.commands)
    make_datasets(["pendulum/medium"], device="cpu", jobs=1)
    assert [command[0] for command in called.commands[count:]] == ["record"]
    assert folder.file("medium").read_bytes() == before
    assert not folder.missing()


def test_recipes_have_whole_checkpoints_in_the_middle_and_at_the_end() -> None:
    from rl_training import load_config

    for recipe in RECIPES.values():
        config = load_config(recipe.config, recipe.settings())
        assert config.total_timesteps % recipe.interval == 0
        assert config.checkpoint_interval == config.eval_interval == recipe.interval
        assert config.keep_checkpoints >= config.total_timesteps // recipe.interval
        # The first part of medium-replay is by random actions, as training begins.
        starts = getattr(config.hparams, "learning_starts", 0)
        assert "medium-replay" not in recipe.kinds or recipe.interval <= starts


def test_recipe_takes_its_environment_from_its_changes() -> None:
    assert RECIPES["hopper-crossq"].env_id == "Hopper-v5"  # the config's own is HalfCheetah


def test_scores_are_normalised_between_random_and_expert() -> None:
    facts = {"random_return": -1_000.0, "expert_return": -200.0}
    assert [normalised(value, facts) for value in (-1_000.0, -200.0, -400.0)] == [0.0, 100.0, 75.0]


# --- Rows ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BESIDE_D3RLPY)
def test_d3rlpy_gets_the_values_of_our_config(name: str) -> None:
    from rl_training import load_config

    row = ROWS[name]
    ours = load_config(row.config).hparams.model_dump(mode="json") | dict(row.hparams)
    (peer,) = row.peers
    assert peer.hparams == {key: ours[key] for key in peer.hparams}
    assert ours.keys() - peer.hparams.keys() == {*(key for key in ours if key.startswith("dataset_")), "held_out"}


def test_rebrac_has_the_penalties_its_authors_chose_for_each_dataset() -> None:
    datasets = ("halfcheetah-random", "hopper-medium", "hopper-medium-replay", "walker2d-random", "walker2d-medium")
    rows = [ROWS[f"rebrac-{name}"] for name in datasets]
    names = ("actor_penalty", "critic_penalty")
    chosen = [(0.001, 0.1), (0.01, 0.01), (0.05, 0.5), (0.01, 0.0), (0.05, 0.1)]
    assert [tuple(row.hparams[name] for name in names) for row in rows] == chosen
    assert [tuple(row.peers[0].hparams[name] for name in names) for row in rows] == chosen


class RunHere(FreeCores):
    """Runs our script in this process."""

    settings: list[dict[str, Any]]

    def run(self, contender: Contender, setting: Any) -> dict[str, Any]:
        self.settings.append(setting)
        return run_here(contender, setting)


def run_here(contender: Contender, setting: Any) -> dict[str, Any]:
    from harness import Setting, Stopwatch, run_score
    from ours import our_learner, run_population

    mode = {"score": run_score, "population": run_population}[setting["mode"]]
    result = mode(our_learner, Setting(**setting), Stopwatch())
    record: dict[str, Any] = json.loads(json.dumps({**result, "setting": setting, "versions": {}}))
    return record


@pytest.fixture
def settings(called: CalledHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    settings: list[dict[str, Any]] = []
    monkeypatch.setattr(RunHere, "settings", settings, raising=False)
    monkeypatch.setattr("benchmarks.engine.FreeCores", RunHere)
    monkeypatch.setattr("benchmarks.engine.KEPT_RUNS", tmp_path / "kept")
    return settings


def runs_of(name: str, out: Path, *, steps: int = 1, contenders: Sequence[str] = ("ours",)) -> RowRuns:
    row = replace(ROWS[name], eval_episodes=2)
    return RowRuns(name=name, row=row, contenders=contenders, seeds=[0], steps=steps, out=out)


@pytest.mark.learning
def test_rows_share_a_command_and_each_has_its_results(settings: list[dict[str, Any]], tmp_path: Path) -> None:
    names = [f"{algo}-pendulum-{kind}" for algo in ("iql", "bc") for kind in ("medium", "medium-replay")]
    wanted = [runs_of(name, tmp_path, steps=20) for name in names]
    assert run_scores(wanted, jobs=1)
    assert run_scores(wanted, jobs=1)  # all kept
    assert len(settings) == 4
    for runs in wanted:
        (line,) = read_lines(tmp_path / "scores" / f"{runs.name}.jsonl")
        facts = dataset_facts(runs.row.dataset or "")
        assert line["dataset"] == {name: value for name, value in facts.items() if name != "path"}
        assert {setting["dataset_sha256"] for setting in settings} >= {facts["sha256"]}
        assert (line["row"], line["seed"], line["updates"], len(line["returns"])) == (runs.name, 0, 20, 2)
        assert np.isfinite(line["returns"]).all()
        (summary,) = summarize_scores([line], runs.row)
        assert summary["normalised_mean"] == pytest.approx(normalised(summary["mean"], facts))
        trained = line["hparams"]["algo_kwargs"]
        assert (trained["dataset_kind"], trained["held_out"], trained["dataset_size"]) == ("npz", 0.0, None)
        assert trained["dataset_path"] == facts["path"]


def test_stacked_seeds_are_trained_together_and_scored_as_single_runs(
    settings: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    populations: list[dict[str, Any]] = []
    monkeypatch.setattr("benchmarks.engine.run_contender", lambda c, s: populations.append(run_here(c, s)))
    alone = replace(runs_of("td3_bc-pendulum-medium-replay", tmp_path / "alone", steps=20), seeds=[0, 5])
    alone = replace(alone, row=replace(alone.row, track_every=10))
    together = replace(alone, out=tmp_path / "together", stacked=True)
    for wanted in (alone, together, together):  # at last, all kept
        assert run_scores([wanted], jobs=1)
    assert [(each["setting"]["seeds"], list(each["states"].values())) for each in populations] == [
        ([0, 5], ["done"] * 2)
    ]
    assert not list((tmp_path / "kept").glob("*/*/population_*"))  # nobody needs the checkpoints any more
    lines, expected = read_lines(together.file), read_lines(alone.file)
    assert [(line["seed"], line["stacked"]) for line in lines] == [(0, 2), (5, 2)]
    for line, other in zip(lines, expected, strict=True):
        assert line["returns"] == pytest.approx(other["returns"], rel=1e-3)
        assert line["curve"]["steps"] == other["curve"]["steps"] == [10, 20]
        assert line["curve"]["returns"] == pytest.approx(other["curve"]["returns"], rel=1e-3)
        assert [line[name] for name in ("env_steps", "updates", "dataset")] == [
            other[name] for name in ("env_steps", "updates", "dataset")
        ]
        assert line["hparams"]["algo_kwargs"] == other["hparams"]["algo_kwargs"]


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_seeds_that_learn_in_a_tensor_environment_are_played_in_the_ordinary_one(
    algo: str, settings: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.engine.run_contender", lambda c, s: run_here(c, c.apply(s)))
    hparams = {"dqn": {"learning_starts": 32, "batch_size": 4}, "ppo": {"num_steps": 8, "minibatch_size": 8}}[algo]
    row = replace(
        ROWS[f"{algo}-cartpole"],
        hparams={**hparams, "hidden_sizes": [4]},
        tensor_env_id="tensor/CartPole-v1",
        track_every=64,
        eval_episodes=2,
        track_episodes=1,
    )
    runs = RowRuns(
        name=f"{algo}-cartpole", row=row, contenders=["ours"], seeds=[3, 4], steps=128, out=tmp_path, stacked=True
    )
    assert run_scores([runs], jobs=1)
    lines = read_lines(runs.file)
    assert [(line["seed"], line["stacked"]) for line in lines] == [(3, 2), (4, 2)]
    for line in lines:
        assert (line["hparams"]["env_id"], line["hparams"]["execution_backend"]) == ("tensor/CartPole-v1", "tensor")
        assert line["curve"]["steps"] == [64, 128]
        assert len(line["returns"]) == 2
        assert line["env_steps"] >= 128
        assert line["updates"] > 0
    assert {setting["env_id"] for setting in settings} == {"CartPole-v1"}


def test_a_population_that_fails_leaves_a_line_for_each_seed(
    settings: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(contender: Contender, setting: Any) -> dict[str, Any]:
        raise ContenderError("dqn cannot be stacked")

    monkeypatch.setattr("benchmarks.engine.run_contender", fail)
    runs = replace(runs_of("iql-pendulum-medium", tmp_path), seeds=[0, 1], stacked=True)
    assert not run_scores([runs], jobs=1)
    assert [(line["seed"], line["failed"]) for line in read_lines(runs.file)] == [
        (0, "dqn cannot be stacked"),
        (1, "dqn cannot be stacked"),
    ]


def test_an_episode_is_imitated_beside_a_control(settings: list[dict[str, Any]], tmp_path: Path) -> None:
    runs = runs_of("gail-cartpole", tmp_path, steps=100, contenders=["ours", "ours-shuffled"])
    assert run_scores([runs], jobs=1)
    lines, facts = read_lines(runs.file), dataset_facts(f"cartpole/{EPISODE}")
    assert [line["contender"] for line in lines] == ["ours", "ours-shuffled"]
    assert {line["expert"]["sha256"] for line in lines} == {facts["sha256"]}
    assert {setting["dataset_sha256"] for setting in settings} == {facts["sha256"]}
    ours, control = (line["hparams"]["algo_kwargs"] for line in lines)
    assert (ours["expert_dataset_kind"], Path(ours["expert_dataset_path"]).name) == ("npz", f"{EPISODE}.npz")
    assert control == {**ours, "expert_shuffle": "labels"}
    assert ours["expert_shuffle"] == "none"


def test_a_failed_run_leaves_a_line_and_does_not_stop_the_others(
    called: CalledHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(contender: Contender, setting: Any, *, cores: Any) -> dict[str, Any]:
        raise ContenderError("sb3 ended with exit code 1")

    monkeypatch.setattr("benchmarks.launch.run_contender", fail)
    monkeypatch.setattr("benchmarks.engine.KEPT_RUNS", tmp_path / "kept")
    runs = replace(runs_of("dqn-cartpole", tmp_path), contenders=["sb3"], seeds=[0, 1])
    assert not run_scores([runs], jobs=1)
    assert [(line["seed"], line["failed"]) for line in read_lines(runs.file)] == [
        (0, "sb3 ended with exit code 1"),
        (1, "sb3 ended with exit code 1"),
    ]


def test_only_contenders_that_can_choose_train_on_the_device(called: CalledHere, tmp_path: Path) -> None:
    offline, online = runs_of("iql-pendulum-medium", tmp_path), runs_of("sac-pendulum", tmp_path)
    assert offline.setting("ours", 0, "cuda")["device"] == offline.setting("d3rlpy", 0, "cuda")["device"] == "cuda"
    assert online.setting("ours", 0, "cuda")["device"] == "cuda"
    assert "device" not in online.setting("sb3", 0, "cuda")
    assert "device" not in offline.setting("ours", 0, "cpu")


def test_only_ours_multiplies_in_the_requested_precision(called: CalledHere, tmp_path: Path) -> None:
    runs = replace(runs_of("iql-pendulum-medium", tmp_path), matmul_precision="medium")
    assert runs.setting("ours", 0, "cpu")["matmul_precision"] == "medium"
    assert "matmul_precision" not in runs.setting("d3rlpy", 0, "cpu")
    assert "matmul_precision" not in replace(runs, matmul_precision=None).setting("ours", 0, "cpu")  # the config's
