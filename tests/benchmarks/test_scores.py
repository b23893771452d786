"""Rows, the engine that runs them, and what is summarised about them. The runs themselves are not made here."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.command_line import UsageError
from benchmarks.engine import RowRuns, add_line, run_or_recall, score_line
from benchmarks.launch import FLOOR, PPO_CONTENDERS, SCRIPTS, Contender, FreeCores
from benchmarks.peers import REQUIREMENTS
from benchmarks.results import read_lines
from benchmarks.rows import ROWS, five_tasks, minatar, rows_named
from benchmarks.speed_tasks import TASKS
from benchmarks.summaries import first_held, median_step, return_at, summarize_scores
from benchmarks.tuning import parse_change, with_variants

from rl_training import TrainConfig, load_config

ALL_CONTENDERS = [
    FLOOR,
    *(contender for task in TASKS.values() for contender in task.contenders.values()),
    *(contender for row in ROWS.values() for contender in row.contenders.values()),
]


def test_scripts_and_requirements_exist() -> None:
    needed = {SCRIPTS / contender.script for contender in ALL_CONTENDERS}
    needed |= {REQUIREMENTS / f"{contender.peer}.txt" for contender in ALL_CONTENDERS if contender.peer is not None}
    assert sorted(path.name for path in needed if not path.is_file()) == []


def shares_mujoco_config(name: str) -> bool:
    """Whether the config of a row serves several MuJoCo tasks."""
    return name in five_tasks.ROWS or ROWS[name].config.endswith("/mujoco.yaml")


@pytest.mark.parametrize("name", ROWS)
def test_a_row_has_its_configs_and_tracks_the_step_its_target_names(name: str) -> None:
    row = ROWS[name]
    assert (row.config == "") == (row.algo is not None)
    for control in row.ours.values():
        if not control.config:  # the defaults of an algorithm, which must exist
            TrainConfig(algo=row.algo, env_id=row.env_id, total_timesteps=row.steps)
            continue
        config = load_config(control.config)
        assert config.algo == control.config.partition("/")[0]
        if config.algo != row.config.partition("/")[0]:  # another algorithm, with its settings for a similar task
            continue
        if shares_mujoco_config(name):  # the row names the environment and the budget
            continue
        # Nothing in the actor-critics depends on the length of the run: a row may end before its config does. Where a
        # dataset is learned from, the row decides on the length.
        cut_short = config.algo in ("sac", "td3", "redq", "tqc", "mbpo") and row.steps < config.total_timesteps
        assert config.total_timesteps == row.steps or cut_short or row.dataset
        # MinAtar's games share a config: the setting names the environment.
        assert config.env_id == row.env_id or config.env_id.startswith("MinAtar/")
    assert (row.dataset is None) == (row.threshold is not None)
    assert row.track_every > 0  # every row has a learning curve
    assert row.by is None or row.by % row.track_every == 0
    assert row.steps % row.track_every == 0
    assert row.window <= (row.by or row.steps) // row.track_every


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_named_after_its_algorithm_and_its_task(name: str) -> None:
    config = ROWS[name].config
    algo, _, task = name.partition("-")
    if not config:
        assert ROWS[name].algo == algo
        kind = (ROWS[name].dataset or "").partition("/")[2]
        env = ROWS[name].env_id.partition("-")[0].lower().replace("/", "-")
        assert task == "-".join(filter(None, (env, kind, "defaults")))
        return
    assert algo == config.partition("/")[0]
    if shares_mujoco_config(name):
        assert task.partition("-")[0] == ROWS[name].env_id.partition("-")[0].lower()
        return
    assert task.startswith(config.partition("/")[2].removesuffix(".yaml").split("_")[0])


def test_a_row_may_change_its_config() -> None:
    row = replace(ROWS["tqc-hopper"], hparams={"dropped_quantiles": 3})
    changed = row.contenders["ours"].apply(row.setting("ours", 0, steps=10))
    assert (changed["env_id"], changed["hparams"]) == ("Hopper-v5", {"dropped_quantiles": 3})


def test_every_head_of_the_dqn_family_plays_every_game_of_minatar() -> None:
    heads = ("dqn", "c51_dqn", "qr_dqn", "iqn", "fqf", "rainbow_dqn")
    assert {f"{head}-minatar-{game}" for head in heads for game in minatar.GAMES} <= minatar.ROWS.keys()


@pytest.mark.parametrize("name", [f"{algo}-minatar-{game}" for algo in ("dqn", "iqn") for game in minatar.GAMES])
def test_munchausen_targets_are_a_control_of_dqn_and_iqn_on_minatar(name: str) -> None:
    row = ROWS[name]
    assert list(row.contenders) == ["ours", "ours-munchausen"]
    plain, changed = (each.apply(row.setting(each.name, 0, steps=10)) for each in row.contenders.values())
    assert changed == {**plain, "hparams": {"munchausen": True}}
    config = load_config(changed["config"], ["algo_kwargs.munchausen=true"])
    assert config.env_id.startswith("MinAtar/")


def test_a_row_may_pass_arguments_to_its_environment() -> None:
    setting = ROWS["sac-ant-mujoco-as_v4"].setting("ours", 0, steps=10)
    assert setting["env_kwargs"] == {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}
    assert "env_kwargs" not in ROWS["sac-ant-mujoco"].setting("ours", 0, steps=10)  # so that kept runs are found


def test_a_name_stands_for_a_row_or_for_all_that_begin_with_it() -> None:
    assert rows_named(["sac-pendulum"]) == ["sac-pendulum"]
    assert rows_named(["iql-pendulum-medium"]) == ["iql-pendulum-medium"]  # though another begins with it
    kinds = ("random", "medium", "medium-replay", "medium-expert")
    assert rows_named(["iql-hopper"]) == [f"iql-hopper-{kind}" for kind in kinds]
    assert rows_named(["mopo-halfcheetah-medium", "mopo-halfcheetah"]) == [
        "mopo-halfcheetah-medium",
        "mopo-halfcheetah-medium-replay",
    ]
    assert rows_named([]) == list(ROWS)


@pytest.mark.parametrize(
    ("name", "close"), [("sac-pendulm", "sac-pendulum"), ("rainbow-cartpole", "rainbow_dqn-cartpole")]
)
def test_an_unknown_row_is_refused_with_the_closest_name(name: str, close: str) -> None:
    with pytest.raises(UsageError, match=f"unknown row '{name}'; did you mean '{close}'"):
        rows_named([name])


def test_a_row_gives_each_contender_its_own_config_or_values() -> None:
    row = ROWS["fqf-cartpole"]
    assert list(row.contenders) == ["ours", "tianshou"]
    settings = {name: row.setting(name, 3, steps=row.steps) for name in row.contenders}
    assert settings["ours"]["config"] == "fqf/cartpole.yaml"
    assert settings["ours"]["hparams"] == {}
    assert settings["tianshou"]["algo"] == "fqf"
    assert settings["tianshou"]["hparams"]["entropy_coef"] == 10.0
    assert settings["tianshou"]["config"] is None
    for name in ("mode", "env_id", "steps", "seed", "threads", "eval_seeds", "track_every", "track_seeds"):
        assert len({str(setting[name]) for setting in settings.values()}) == 1, name


def test_tianshou_collects_whole_rounds_of_its_envs() -> None:
    peers = [(row, peer) for row in ROWS.values() for peer in row.peers if peer.contender.peer == "tianshou"]
    assert len(peers) == 7
    for row, peer in peers:
        first = peer.hparams["learning_starts"]
        assert peer.num_envs == peer.hparams["train_frequency"]
        # As its examples begin.
        assert first == (1_000 if peer.algo == "redq" else peer.hparams["batch_size"] * peer.num_envs)
        assert first % peer.num_envs == (row.steps - first) % peer.num_envs == 0


@pytest.mark.parametrize(
    ("name", "peer", "algo"),
    [
        ("sac-pendulum", "sb3", "sac"),
        ("td3-pendulum", "sb3", "td3"),
        ("sac-halfcheetah-50k", "sb3", "sac"),
        ("sac-halfcheetah-50k", "sb3-td3", "td3"),
        ("tqc-pendulum", "sb3_contrib", "tqc"),
        ("crossq-pendulum", "sb3_contrib", "crossq"),
    ],
)
def test_stable_baselines3_receives_the_name_of_its_actor_critic(name: str, peer: str, algo: str) -> None:
    setting = ROWS[name].setting(peer, 0, steps=1)
    assert setting["algo"] == algo
    assert setting["hparams"]["learning_starts"] < ROWS[name].steps


def test_settings_hold_only_what_differs_from_the_defaults() -> None:
    assert not {"num_envs", "algo"} & ROWS["dqn-cartpole"].setting("sb3", 0, steps=1).keys()
    assert ROWS["ppo-cartpole"].setting("sb3", 0, steps=1)["num_envs"] == 8
    assert "num_envs" not in ROWS["ppo-cartpole"].setting("ours", 0, steps=1)  # its config has its own


def test_a_kept_run_is_found_again_until_its_setting_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.engine.KEPT_RUNS", tmp_path)
    runs: list[Any] = []

    def run(contender: Contender, setting: Any) -> dict[str, Any]:
        runs.append(setting)
        return {"returns": [len(runs)]}

    cores = SimpleNamespace(run=run)
    setting = {"seed": 0, "hparams": {}}
    one = Contender(name="one", script="one.py", peer="sb3")
    other = Contender(name="one", script="one.py", peer="sb3", hparams={"gamma": 0.5})
    calls = [(one, setting), (one, setting), (other, setting), (one, {**setting, "seed": 1})]
    results = [run_or_recall(contender, given, "dqn-cartpole", cores) for contender, given in calls]  # type: ignore[arg-type]
    assert [result["returns"] for result in results] == [[1], [1], [2], [3]]
    assert [bool(result["kept"]) for result in results] == [False, True, False, False]


def curve(*returns: float) -> dict[str, list[float]]:
    return {"steps": [10 * (i + 1) for i in range(len(returns))], "returns": list(returns)}


def test_first_held_wants_three_in_a_row() -> None:
    assert first_held(curve(9, 9, 1, 9, 9, 9, 1), 9.0) == 40
    assert first_held(curve(9, 9, 1, 9, 9), 9.0) is None


def test_a_window_is_the_mean_of_the_evaluations_up_to_its_end() -> None:
    tracked = curve(1.0, 2.0, 3.0, 8.0)
    assert (return_at(tracked, 30), return_at(tracked, 99)) == (3.0, None)
    assert (return_at(tracked, 30, window=2), return_at(tracked, 40, window=2)) == (2.5, 5.5)
    assert return_at(tracked, 10, window=2) is None
    row = replace(ROWS["mbpo-hopper"], by=30, window=2)
    lines = [line(seed=0, score=1.0, curve=tracked), line(seed=1, score=1.0, curve=tracked)]
    (summary,) = summarize_scores(lines, row)
    assert (summary["returns_at_30"], summary["final_window"]) == ([2.5, 2.5], [5.5, 5.5])
    (summary,) = summarize_scores(lines, replace(row, by=None, window=1))
    assert not {"returns_at_30", "final_window"} & summary.keys()


def test_median_step_counts_runs_that_never_held() -> None:
    assert median_step([8_000, None, 6_000]) == 8_000
    assert median_step([8_000, None, None]) is None
    assert median_step([2_000, 4_000]) == 3_000


def line(*, seed: int, score: float, **more: Any) -> dict[str, Any]:
    """A result line with what summaries need."""
    return {"contender": "ours", "seed": seed, "steps": 3_000, "score": score, "curve": curve(), **more}


def test_a_row_sums_up_each_contender_by_itself() -> None:
    held, lost = ({"steps": [1_000, 2_000, 3_000], "returns": [value] * 3} for value in (480.0, 0.0))
    lines = [
        line(seed=1, score=480.0, curve=lost),
        line(seed=0, score=500.0, curve=held),
        line(seed=0, score=490.0, curve=held, contender="tianshou"),
        {"row": "fqf-cartpole", "contender": "tianshou", "seed": 1, "failed": "exit code 1"},
    ]
    ours, tianshou = summarize_scores(lines, ROWS["fqf-cartpole"])
    assert (ours["seeds"], ours["scores"], ours["mean"]) == ([0, 1], [500.0, 480.0], 490.0)
    assert (ours["seeds_at_threshold"], ours["seeds_at_goal"]) == (2, 1)
    assert (ours["first_held"], ours["first_held_median"]) == ([1_000, None], None)
    assert (tianshou["contender"], tianshou["seeds"], tianshou["first_held_median"]) == ("tianshou", [0], 1_000)


def test_the_last_run_of_a_seed_counts_and_other_budgets_are_kept_apart() -> None:
    lines = [line(seed=0, score=1.0), line(seed=0, score=5.0, steps=100), line(seed=0, score=2.0)]
    full, short = summarize_scores(lines, ROWS["dqn-cartpole"])
    assert (full["steps"], full["scores"], short["steps"], short["scores"]) == (3_000, [2.0], 100, [5.0])


def test_jobs_get_one_core_each_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    seen: list[tuple[int, ...]] = []

    def fake(contender: Any, setting: Any, *, cores: tuple[int, ...]) -> dict[str, Any]:
        seen.append(cores)
        if setting == {"nested": True}:
            cores_of_two.run(contender, {})
        return {}

    monkeypatch.setattr("benchmarks.launch.run_contender", fake)
    cores_of_two = FreeCores(2)
    cores_of_two.run(PPO_CONTENDERS["sb3"], {"nested": True})
    cores_of_two.run(PPO_CONTENDERS["sb3"], {"nested": False})
    assert seen[:2] == [(0,), (1,)]
    assert seen[2] in seen[:2]


def test_a_line_says_what_ran_and_what_came_of_it(tmp_path: Path) -> None:
    wanted = RowRuns(
        name="dqn-cartpole", row=ROWS["dqn-cartpole"], contenders=["ours"], seeds=[3], steps=2_000, out=tmp_path
    )
    result = {
        "setting": wanted.setting("ours", 3, "cpu"),
        "resolved_config": {"algo": "dqn", "seed": 3},
        "returns": [1.0, 3.0],
        "tracked": [{"step": 1_000, "returns": [1.0, 2.0]}, {"step": 2_000, "returns": [4.0]}],
        **{"env_steps": 2_000, "updates": 10, "learn_s": 0.5, "date": "2026-01-01", "versions": {}, "code": "abc"},
    }
    facts = {"command": "python -m benchmarks scores", "machine": {}, "source": {"commit": "def"}}
    made = score_line(wanted, "ours", result, facts)
    assert (made["row"], made["contender"], made["seed"], made["steps"]) == ("dqn-cartpole", "ours", 3, 2_000)
    assert (made["score"], made["curve"]) == (2.0, {"steps": [1_000, 2_000], "returns": [1.5, 4.0]})
    assert (made["hparams"], made["code"], made["source"]) == ({"algo": "dqn"}, "abc", {"commit": "def"})
    add_line(wanted.file, made)
    add_line(wanted.file, made)  # a kept run, reported by a second command
    assert read_lines(tmp_path / "scores" / "dqn-cartpole.jsonl") == [made]


@pytest.mark.parametrize(
    ("precision", "name"), [(None, "sac-pendulum"), ("medium", "sac-pendulum-bfloat16"), ("high", "sac-pendulum-tf32")]
)
def test_another_precision_has_a_file_named_after_its_numbers(precision: str | None, name: str) -> None:
    row = ROWS["sac-pendulum"]
    runs = RowRuns(
        name="sac-pendulum", row=row, contenders=[], seeds=[], steps=1, out=Path("out"), matmul_precision=precision
    )
    assert runs.file == Path("out/scores") / f"{name}.jsonl"


def test_a_change_is_a_contender_with_these_settings() -> None:
    row = with_variants(ROWS["sac-hopper"], ["learning_rate=3e-4 layer_norm=true", "hidden_sizes=[64,64]"])
    contender = row.contenders["learning_rate=3e-4 layer_norm=true"]
    setting = contender.apply(row.setting(contender.name, 100, steps=1_000))
    assert setting["hparams"] == {"learning_rate": 3e-4, "layer_norm": True}
    assert setting["config"] == "sac/hopper.yaml"
    assert row.contenders["hidden_sizes=[64,64]"].hparams == {"hidden_sizes": [64, 64]}


@pytest.mark.parametrize("text", ["learning_rate", "=3", "learning_rate=3e-4 layer_norm"])
def test_a_change_without_a_value_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SETTING=VALUE"):
        parse_change(text)
