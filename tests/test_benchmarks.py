"""What the benchmarks decide themselves: counts, pairings and sums. The runs they start are not made here."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.atari import AtariSetting, StopAfter, first_at, median_rate, shares_of, training_curve, wall_at
from benchmarks.launch import FLOOR, PPO_CONTENDERS, Contender
from benchmarks.replay import summarize
from benchmarks.scores import ROWS, FreeCores, collect, first_held, median_step, return_at, returns_at, run_or_recall
from benchmarks.speed import FIGURES, TASKS, cores_for, share_of_floor, summarize_speed, write_random_rows

from conftest import small_hparams

CONTENDERS = Path(__file__).parent.parent / "benchmarks" / "contenders"


@pytest.fixture(scope="module", autouse=True)
def _scripts_on_path() -> Any:
    """The scripts find each other by the folder they lie in."""
    sys.path.insert(0, str(CONTENDERS))
    yield
    sys.path.remove(str(CONTENDERS))


def test_steps_are_counted_over_all_envs() -> None:
    from harness import Setting, TrainingEnvs

    training = TrainingEnvs(Setting(mode="speed", env_id="CartPole-v1", steps=10, num_envs=3))
    called: list[int] = []
    training.counter.at = {4: lambda: called.append(training.counter.count)}
    envs = [factory() for factory in training.factories()]
    for env in envs:
        env.reset(seed=0)
    for _ in range(2):
        for env in envs:
            env.step(0)
    assert len(set(map(id, envs))) == 3
    assert training.counter.count == 6
    assert called == [4]


def test_steady_part_begins_after_whole_rollouts_or_so_many_learning_steps() -> None:
    from harness import Setting

    ppo = Setting(mode="speed", env_id="X", steps=1, num_envs=8, hparams={"num_steps": 128})
    dqn = Setting(mode="speed", env_id="X", steps=1, hparams={"learning_starts": 1_000})
    assert (ppo.rollout, ppo.learning_starts, ppo.steady_from) == (1_024, 0, 4_096)
    assert (dqn.rollout, dqn.learning_starts, dqn.steady_from) == (0, 1_000, 1_500)
    assert replace(dqn, warm_up=4).steady_from == 1_004


def test_speed_runs_are_whole_rollouts() -> None:
    assert TASKS["ppo"].whole(100_000) == 98 * 1_024
    assert TASKS["ppo"].whole(98 * 1_024) == 98 * 1_024
    assert TASKS["dqn"].whole(50_001) == 50_001


def test_ratios_pair_runs_of_the_same_repeat_and_threads() -> None:
    rates = {
        ("sb3", 1): [100.0, 50.0],
        ("ours", 1): [400.0, 250.0],
        ("sb3-2t", 2): [80.0, 80.0],
        ("ours-2t", 2): [160.0, 320.0],
    }
    measurements = [
        {"contender": name, "repeat": repeat, "threads": threads, "versions": {}, **dict.fromkeys(FIGURES, rate)}
        for (name, threads), values in rates.items()
        for repeat, rate in enumerate(values)
    ]
    summary = summarize_speed(measurements, "sb3")
    ratios = {name: figures["steady_steps_per_s_over_sb3"] for name, figures in summary.items()}
    assert ratios["ours"] == {"median": 4.5, "min": 4.0, "max": 5.0}
    assert ratios["ours-2t"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert ratios["sb3-2t"]["median"] == 1.0
    assert "steady_steps_per_s_over_sb3" not in summarize_speed(measurements, "ours")["ours"]
    assert summarize_speed(measurements, "ours")["sb3"]["steady_steps_per_s_over_ours"]["median"] == 0.225


def test_a_contender_may_change_single_hparams_of_the_setting() -> None:
    setting = {"hparams": {"double_q": False, "gamma": 0.9}, "threads": 1}
    changed = Contender(name="a", script="a.py", hparams={"double_q": True}).apply(setting)
    assert changed == {"hparams": {"double_q": True, "gamma": 0.9}, "threads": 1}
    assert Contender(name="a", script="a.py").apply(setting) == setting


@pytest.mark.parametrize("name", TASKS)
def test_speed_settings_are_accepted_by_our_algorithm_and_the_reference_runs(name: str) -> None:
    from rl_training import TrainConfig

    task = TASKS[name]
    ours = [contender for contender in task.contenders.values() if contender.script == "ours.py"]
    for contender in ours:
        TrainConfig(
            algo=task.algo,
            env_id=task.env_id,
            total_timesteps=task.steps,
            num_envs=task.num_envs,
            algo_kwargs=contender.apply({"hparams": task.hparams})["hparams"],
        )
    assert ours
    assert task.reference in task.contenders


@pytest.mark.parametrize("name", ["sac_pendulum", "sac_halfcheetah", "td3_pendulum", "redq"])
def test_actor_critics_have_a_steady_part_on_one_thread_and_on_two(name: str) -> None:
    task = TASKS[name]
    assert task.hparams["learning_starts"] + task.warm_up < task.steps
    assert task.hparams["learning_starts"] >= task.hparams["batch_size"]
    assert {name for name in task.contenders if name.endswith("-2t")} == {
        f"{name}-2t" for name in task.contenders if not name.endswith("-2t") and name != "plain"
    }
    assert task.updates_per_step == (20 if name == "redq" else 1)


def test_two_thread_contenders_are_the_same_scripts_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    one, two = PPO_CONTENDERS["ours-envpool"], PPO_CONTENDERS["ours-envpool-2t"]
    assert (one.script, one.peer) == (two.script, two.peer)
    assert two.setting == {"execution_backend": "envpool", "threads": 2}
    assert (cores_for(one, 3), cores_for(two, 3), cores_for(two, None)) == ([3], [3, 0], [])


ALL_CONTENDERS = [
    FLOOR,
    *(contender for task in TASKS.values() for contender in task.contenders.values()),
    *(contender for row in ROWS.values() for contender in row.contenders.values()),
]


@pytest.mark.parametrize("contender", ALL_CONTENDERS)
def test_scripts_and_requirements_exist(contender: Any) -> None:
    assert (CONTENDERS / contender.script).is_file()
    assert contender.peer is None or (CONTENDERS.parent / "requirements" / f"{contender.peer}.txt").is_file()


def test_every_row_has_its_configs_and_tracks_the_step_its_target_names() -> None:
    from rl_training import load_config

    for name, row in ROWS.items():
        for file in row.ours.values():
            config = load_config(file)
            assert config.algo == file.partition("/")[0], name
            # Nothing in the actor-critics depends on the length of the run: a row may end before its config does. Of
            # what is learnt from a dataset, the row says how long.
            cut_short = config.algo in ("sac", "td3", "redq", "mbpo") and row.steps < config.total_timesteps
            cut_short |= row.dataset is not None
            assert config.total_timesteps == row.steps or cut_short, name
            # MinAtar's games share a config: the setting names the env.
            assert config.env_id == row.env_id or config.env_id.partition("/")[0] == "MinAtar", name
        assert (row.dataset is None) == (row.threshold is not None) == (row.track_every > 0), name
        assert row.by is None or row.by % row.track_every == 0, name
        assert row.dataset or row.steps % row.track_every == 0, name
        assert row.dataset or row.window <= (row.by or row.steps) // row.track_every, name


def test_a_row_gives_each_contender_its_own_config_or_values() -> None:
    row = ROWS["C7"]
    assert list(row.contenders) == ["ours-iqn", "ours-fqf", "tianshou-iqn", "tianshou-fqf"]
    settings = {name: row.setting(name, 3, steps=row.steps) for name in row.contenders}
    assert settings["ours-fqf"]["config"] == "fqf/cartpole.yaml"
    assert settings["ours-fqf"]["hparams"] == {}
    assert (settings["tianshou-iqn"]["algo"], settings["tianshou-fqf"]["algo"]) == ("iqn", "fqf")
    assert settings["tianshou-fqf"]["hparams"]["entropy_coef"] == 10.0
    assert settings["tianshou-fqf"]["config"] is None
    for name in ("mode", "env_id", "steps", "seed", "threads", "eval_seeds", "track_every", "track_seeds"):
        assert len({str(setting[name]) for setting in settings.values()}) == 1, name


def test_a_contender_of_ours_may_differ_from_its_config() -> None:
    from harness import Setting, TrainingEnvs
    from ours import OurLearner

    row = ROWS["C24_pendulum_medium"]
    setting = {"mode": "score", "env_id": row.env_id, "steps": row.steps, "hparams": {}, "dataset": "medium.npz"}
    made = {}
    for name, contender in row.contenders.items():
        own = Setting(**contender.apply({**setting, "config": row.ours[name]}))
        made[name] = OurLearner(own, TrainingEnvs(own)).config.algo_kwargs
    assert made["ours-no-penalty"] == {**made["ours"], "penalty_coef": 0.0}
    assert made["ours"].get("penalty_coef") != 0.0


def test_tianshou_collects_whole_rounds_of_its_envs() -> None:
    peers = [(row, peer) for row in ROWS.values() for peer in row.peers if peer.contender.peer == "tianshou"]
    assert len(peers) == 7
    for row, peer in peers:
        first = peer.hparams["learning_starts"]
        assert peer.num_envs == peer.hparams["train_frequency"]
        # As its examples begin.
        assert first == (1_000 if peer.algo == "redq" else peer.hparams["batch_size"] * peer.num_envs)
        assert first % peer.num_envs == (row.steps - first) % peer.num_envs == 0


@pytest.mark.parametrize("name", ["C17", "C29"])
def test_stable_baselines3_is_told_which_actor_critic_it_is(name: str) -> None:
    settings = {peer: ROWS[name].setting(peer, 0, steps=1) for peer in ("sb3-sac", "sb3-td3")}
    assert {peer: setting["algo"] for peer, setting in settings.items()} == {"sb3-sac": "sac", "sb3-td3": "td3"}
    assert all(setting["hparams"]["learning_starts"] < ROWS[name].steps for setting in settings.values())


def test_settings_of_rows_with_one_env_are_those_of_runs_kept_from_before() -> None:
    assert not {"num_envs", "algo"} & ROWS["C1"].setting("sb3", 0, steps=1).keys()
    assert ROWS["C8"].setting("sb3", 0, steps=1)["num_envs"] == 8
    assert "num_envs" not in ROWS["C8"].setting("ours", 0, steps=1)  # its config has its own


def test_a_kept_run_is_found_again_until_its_setting_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.scores.KEPT_RUNS", tmp_path)
    runs: list[Any] = []
    cores = SimpleNamespace(run=lambda contender, setting: runs.append(setting) or {"returns": [len(runs)]})
    setting = {"seed": 0, "hparams": {}}
    one = Contender(name="one", script="one.py", peer="sb3")
    other = Contender(name="one", script="one.py", peer="sb3", hparams={"gamma": 0.5})
    calls = [(one, setting), (one, setting), (other, setting), (one, {**setting, "seed": 1})]
    results = [run_or_recall(contender, given, "C1", cores) for contender, given in calls]  # type: ignore[arg-type]
    assert [result["returns"] for result in results] == [[1], [1], [2], [3]]
    assert [bool(result["kept"]) for result in results] == [False, True, False, False]


def test_first_held_wants_three_in_a_row() -> None:
    tracked = [{"step": step, "returns": [ret]} for step, ret in zip(range(1, 8), [9, 9, 1, 9, 9, 9, 1], strict=True)]
    assert first_held(tracked, 9.0) == 4
    assert first_held(tracked[:5], 9.0) is None
    assert (return_at(tracked, 3), return_at(tracked, 99)) == (1, None)


def test_a_window_is_the_mean_of_the_evaluations_up_to_its_end() -> None:
    tracked = [{"step": 10 * (i + 1), "returns": [ret]} for i, ret in enumerate([1.0, 2.0, 3.0, 8.0])]
    assert (return_at(tracked, 30, window=2), return_at(tracked, 40, window=2)) == (2.5, 5.5)
    assert return_at(tracked, 10, window=2) is None
    row = replace(ROWS["M11"], by=30, window=2)
    runs = [{"tracked": tracked}, {"tracked": tracked}]
    assert returns_at(runs, row) == {"mean_returns_at_30": [2.5, 2.5], "final_window_means": [5.5, 5.5]}
    assert returns_at(runs, replace(row, by=None, window=1)) == {}


def test_median_step_counts_runs_that_never_held() -> None:
    assert median_step([8_000, None, 6_000]) == 8_000
    assert median_step([8_000, None, None]) is None
    assert median_step([2_000, 4_000]) == 3_000


def test_a_row_sums_up_each_contender_by_itself() -> None:
    def run(seed: int, final: float, held: bool) -> dict[str, Any]:
        return {
            "setting": {"seed": seed, "hparams": {"gamma": 0.9}},
            "returns": [final, final],
            "tracked": [{"step": step, "returns": [480.0 if held else 0.0]} for step in (1_000, 2_000, 3_000)],
            "versions": {},
            "code": None,
            **dict.fromkeys(("env_steps", "updates", "learn_s"), 1),
        }

    finished = {("ours-iqn", 0): run(0, 500.0, True), ("ours-fqf", 1): run(1, 480.0, False)}
    finished["ours-fqf", 0] = run(0, 500.0, True)
    rows = collect(finished, list(ROWS["C7"].contenders), ROWS["C7"])["contenders"]
    assert list(rows) == ["ours-iqn", "ours-fqf"]
    assert (rows["ours-fqf"]["count"], rows["ours-fqf"]["mean"]) == (2, 490.0)
    assert (rows["ours-fqf"]["seeds_at_threshold"], rows["ours-fqf"]["seeds_at_goal"]) == (2, 1)
    assert rows["ours-fqf"]["first_held_steps"] == [1_000, None]
    assert rows["ours-iqn"]["first_held_median"] == 1_000


def test_jobs_get_one_core_each_and_give_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1}, raising=False)
    seen: list[tuple[int, ...]] = []

    def fake(contender: Any, setting: Any, *, cores: tuple[int, ...]) -> dict[str, Any]:
        seen.append(cores)
        if setting == "nested":
            cores_of_two.run(contender, "other")
        return {}

    monkeypatch.setattr("benchmarks.scores.run_contender", fake)
    cores_of_two = FreeCores(2)
    cores_of_two.run(PPO_CONTENDERS["sb3"], "nested")  # type: ignore[arg-type]
    cores_of_two.run(PPO_CONTENDERS["sb3"], "alone")  # type: ignore[arg-type]
    assert seen[:2] == [(0,), (1,)]
    assert seen[2] in seen[:2]


def test_profile_counts_time_inside_a_called_method_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from ours import Profiler

    clock = SimpleNamespace(now=0.0)

    class Parts:
        def outer(self) -> None:
            clock.now += 1.0
            self.inner()
            clock.now += 2.0

        def inner(self) -> None:
            clock.now += 4.0

    monkeypatch.setitem(sys.modules, "profiled_parts", SimpleNamespace(Parts=Parts))  # type: ignore[arg-type]
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    profiler = Profiler({"update": ["profiled_parts:Parts.outer"], "advantages": ["profiled_parts:Parts.inner"]})
    parts = Parts()
    parts.outer()
    profiler.start()
    parts.outer()
    parts.inner()
    clock.now += 8.0
    profiler.stop()
    assert profiler.per_step_us(1) == {"update": 3e6, "advantages": 8e6, "rest": 8e6}


def test_profile_times_the_functions_that_a_method_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    from ours import Profiler

    clock = SimpleNamespace(now=0.0)

    class Memory:
        def sampler(self, seconds: float) -> Any:
            clock.now += 100.0  # making it is no part of a step

            def draw() -> str:
                clock.now += seconds
                return "batch"

            return draw

    monkeypatch.setitem(sys.modules, "profiled_memory", SimpleNamespace(Memory=Memory))  # type: ignore[arg-type]
    monkeypatch.setattr("time.perf_counter", lambda: clock.now)
    profiler = Profiler({"buffer": ["profiled_memory:Memory.sampler()"]})
    draw = Memory().sampler(2.0)
    profiler.start()
    assert [draw(), draw()] == ["batch", "batch"]
    profiler.stop()
    assert profiler.per_step_us(2) == {"buffer": 2e6, "rest": 0.0}


def test_floor_counts_the_products_of_an_update() -> None:
    from floor import layers_of_updates

    sizes = {"batch_size": 8, "hidden_sizes": [5, 6]}

    def count(algo: str, **hparams: Any) -> tuple[dict[str, int], int]:
        """Products by kind, and multiplications in all."""
        layers = layers_of_updates(algo, {**sizes, **hparams}, 4, 2)
        products = [name for layer in layers for name in layer.products]
        kinds = {name: products.count(name) for name in ("forward", "weight gradient", "x gradient")}
        work = sum(layer.rows * layer.inputs * layer.outputs * len(layer.products) for layer in layers)
        return kinds, work

    # DQN: 4 -> 5 -> 6 -> 2, twice forward; backward, the first layer has no gradient to pass on.
    assert count("dqn") == (
        {"forward": 6, "weight gradient": 3, "x gradient": 2},
        8 * (3 * 4 * 5 + 4 * 5 * 6 + 4 * 6 * 2),
    )
    assert count("dqn", double_q=True)[1] == 8 * (4 * 4 * 5 + 5 * 5 * 6 + 5 * 6 * 2)
    # QR-DQN with 3 quantiles: 6 outputs.
    assert count("qr_dqn", num_quantiles=3)[1] == 8 * (3 * 4 * 5 + 4 * 5 * 6 + 4 * 6 * 6)
    # Rainbow with 3 atoms: a stream of 3 outputs and one of 6, and a third pass to select.
    assert count("rainbow_dqn", num_atoms=3, dueling=True, double_q=True) == (
        {"forward": 15, "weight gradient": 5, "x gradient": 4},
        8 * (4 * 4 * 5 + 5 * (2 * 5 * 6 + 6 * 3 + 6 * 6)),
    )
    # IQN: 3 cosines; 2 fractions trained and 2 in the target; to select 7, the same for all rows, on a third pass.
    hidden, output = 4 * 5 + 5 * 6, 6 * 2
    passes = 4 * 4 * 5 + 5 * 5 * 6  # the first layer has no gradient to pass on
    fractions = {"embedding_dim": 3, "double_q": True}
    assert count("iqn", num_tau_samples=2, num_quantiles=7, **fractions) == (
        {"forward": 3 * 2 + 3 * 2, "weight gradient": 2 + 2, "x gradient": 1 + 1},
        8 * (passes + (2 + 2 + 2) * 3 * 6 + (3 * 2 + 2 + 7) * output) + 7 * 3 * 6,
    )
    without = count("iqn", num_tau_samples=2, num_quantiles=7, **{**fractions, "double_q": False})
    assert count("iqn", num_tau_samples=2, num_quantiles=7, **fractions)[1] - without[1] == 8 * hidden
    # FQF with 4 fractions: trained at 4, at the 3 edges between them, in the target at 4 and to select at 4.
    assert count("fqf", num_quantiles=4, **fractions)[1] == 8 * (
        passes + 3 * 6 * 4 + (2 * 4 + 3 + 4 + 4) * 3 * 6 + (3 * 4 + 3 + 4 + 4) * output
    )


def test_floor_counts_the_products_of_actor_critics() -> None:
    from floor import layers_of_updates, updates_of

    def work(algo: str, **hparams: Any) -> int:
        """Multiplications of `policy_delay` updates: 4 numbers observed, actions of 2, hidden layers of 5 and 6."""
        values = {"batch_size": 8, "hidden_sizes": [5, 6], **hparams}
        layers = layers_of_updates(algo, values, 4, 2)
        return sum(each.members * each.rows * each.inputs * each.outputs * len(each.products) for each in layers)

    # Forward passes; backward, a layer has two products, but the first one has no gradient to pass on.
    gaussian, critic = 4 * 5 + 5 * 6 + 6 * 4, 6 * 5 + 5 * 6 + 6 * 1
    gaussian_back, critic_back = 2 * gaussian - 4 * 5, 2 * critic - 6 * 5
    learn_critics = gaussian + 2 * critic + 2 * (critic + critic_back)
    # Through the resting critics only the gradient passes, to the action.
    learn_actor = gaussian + gaussian_back + 2 * (critic + critic)
    assert work("sac", policy_delay=1) == 8 * (learn_critics + learn_actor)
    # TD3: the actor has half as many outputs, and learns by one critic, at every second update.
    actor = 4 * 5 + 5 * 6 + 6 * 2
    td3_critics = actor + 2 * critic + 2 * (critic + critic_back)
    assert work("td3", policy_delay=2) == 8 * (2 * td3_critics + actor + 2 * actor - 4 * 5 + critic + critic)
    # REDQ: two of ten critics in the target, all of them for the actor.
    redq_critics = gaussian + 2 * critic + 10 * (critic + critic_back)
    redq_actor = gaussian + gaussian_back + 10 * (critic + critic)
    redq = {"policy_delay": 20, "num_critics": 10, "subset_size": 2}
    assert work("redq", **redq) == 8 * (20 * redq_critics + redq_actor)
    assert (updates_of(redq), updates_of({})) == (20, 1)
    # IQL: V learns and is asked again about states and successors; the policy has one number per action.
    value = 4 * 5 + 5 * 6 + 6 * 1
    iql_critics = 2 * critic + 2 * (critic + critic_back)
    iql_actor = actor + 2 * actor - 4 * 5
    assert work("iql") == 8 * (iql_critics + value + 2 * value - 4 * 5 + 2 * value + iql_actor)


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("name", ["forward", "weight gradient", "x gradient"])
def test_floor_multiplies_what_a_layer_multiplies(name: str, members: int) -> None:
    from floor import Layer, operands, ways_to_multiply

    a, b = operands(Layer(8, 4, 5, members=members), name)
    sizes = {"forward": (8, 4, 5), "weight gradient": (5, 8, 4), "x gradient": (8, 5, 4)}[name]
    assert (*a.shape[-2:], b.shape[-1]) == sizes
    assert len(ways_to_multiply(a, b)) == (2 if members == 1 else 4)
    for multiply in ways_to_multiply(a, b):
        multiply()


def test_floor_is_put_beside_our_update() -> None:
    floor = {"us_per_update": 50.0, "products": [], "versions": {}}
    assert share_of_floor(floor, 200.0)["share_of_our_update"] == 0.25


@pytest.mark.parametrize("algo", ["dqn", "ppo", *(task.algo for task in TASKS.values())])
def test_profiled_methods_exist(algo: str) -> None:
    from importlib import import_module

    from ours import ENVS, PARTS

    for path in (f"{ENVS}.step", f"{ENVS}.reset", *(path for paths in PARTS[algo].values() for path in paths)):
        module, _, name = path.partition(":")
        owner, _, method = name.partition(".")
        assert callable(getattr(getattr(import_module(module), owner), method.removesuffix("()"))), path


@pytest.mark.parametrize(
    ("algo", "env_id"),
    [
        ("dqn", "CartPole-v1"),
        ("rainbow_dqn", "CartPole-v1"),
        ("fqf", "MinAtar/Breakout-v0"),
        ("ppo", "CartPole-v1"),
        ("ppo", "Pendulum-v1"),
        ("sac", "Pendulum-v1"),
        ("td3", "Pendulum-v1"),
    ],
)
def test_ours_trains_and_plays_as_the_harness_asks(algo: str, env_id: str) -> None:
    from harness import Setting, Stopwatch, run_score
    from ours import OurLearner

    off_policy = {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8]}
    hparams = {"num_steps": 8, "minibatch_size": 16, "hidden_sizes": [8]} if algo == "ppo" else off_policy
    setting = Setting(
        mode="score",
        env_id=env_id,
        steps=64,
        algo=algo,
        num_envs=4,
        hparams=hparams,
        acceleration="eager",
        eval_seeds=[1, 2],
        track_every=30,  # between two rounds of env steps
        track_seeds=[3],
    )
    result = run_score(OurLearner, setting, Stopwatch())
    assert result["env_steps"] == 64
    assert [evaluation["step"] for evaluation in result["tracked"]] == [30, 60]
    assert len(result["returns"]) == 2
    assert np.isfinite(result["returns"]).all()


def test_episodes_that_go_on_keep_what_ours_remembers_of_them() -> None:
    """Played side by side, episodes of a recurrent policy that end at different times are as if played alone."""
    from harness import Setting, TrainingEnvs, play
    from ours import OurLearner

    hparams = small_hparams("dreamer", learning_starts=100)
    setting = Setting(
        mode="score", env_id="CartPole-v1", steps=4, algo="dreamer", hparams=hparams, acceleration="eager"
    )
    learner = OurLearner(setting, TrainingEnvs(setting))
    learner.learn()
    assert learner.counter.run is not None
    policy = learner.counter.run.algorithm
    list(policy._parts["actor"].named(policy.state["actor.params"]).values())[-2].mul_(1_000.0)  # type: ignore
    seeds = list(range(8))
    together = play(learner, "CartPole-v1", seeds)
    assert len(set(together)) > 1
    assert together == [play(learner, "CartPole-v1", [seed])[0] for seed in seeds]


def test_plain_iql_trains_and_plays_as_the_harness_asks(tmp_path: Path) -> None:
    from harness import Setting, Stopwatch, run_score
    from plain_iql import PlainLearner

    write_random_rows(tmp_path / "random.npz", 2_000)
    setting = Setting(
        mode="score",
        env_id="HalfCheetah-v5",
        steps=12,
        hparams={**TASKS["iql"].hparams, "hidden_sizes": [8], "reward_scale": "return"},
        eval_seeds=[1],
        dataset=str(tmp_path / "random.npz"),
    )
    result = run_score(PlainLearner, setting, Stopwatch())
    assert result["updates"] == result["env_steps"] == 12
    assert np.isfinite(result["returns"]).all()


def test_plain_sac_trains_and_plays_as_the_harness_asks() -> None:
    from harness import Setting, Stopwatch, run_score
    from plain_sac import PlainLearner

    sizes = {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8], "buffer_capacity": 50}
    hparams = {**TASKS["sac_pendulum"].hparams, **sizes}
    setting = Setting(mode="score", env_id="Pendulum-v1", steps=64, hparams=hparams, eval_seeds=[1, 2])
    result = run_score(PlainLearner, setting, Stopwatch())
    assert (result["env_steps"], result["updates"]) == (64, 48)
    assert np.isfinite(result["returns"]).all()


def _not_here(*_: object) -> Any:
    raise ImportError("No module named 'broken'")


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("gpu_sac", {"sac_1 eager", "sac_1 plain", "sac_20 eager", "sac_20 plain", "redq_20 eager"}),
        ("gpu_iql", {"iql_1 eager", "iql_1 plain", "iql_10 eager", "iql_10 plain"}),
    ],
)
def test_gpu_times_ours_in_each_mode_beside_a_plain_loop(
    name: str, wanted: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import gpu_beside

    monkeypatch.setattr(gpu_beside, "WARM_UP", 20)
    family = import_module(f"benchmarks.{name}").FAMILY
    small = {"batch_size": 4, "hidden_sizes": (8,)}
    cases = {
        name: replace(case, hparams=case.hparams.model_copy(update=small), others={**case.others, "broken": _not_here})
        for name, case in family.cases.items()
    }
    modes = ("eager",)
    steps = list(gpu_beside.measure(replace(family, cases=cases), target_s=0.0, repeats=2, device="cpu", modes=modes))
    assert len(steps) == len(cases)  # what is known is given after each
    results, last = steps[-1], list(cases)[-1]
    assert wanted <= set(results["updates_per_s"])
    assert not any(name.endswith("broken") for name in results["updates_per_s"])
    assert all(len(row["all"]) == 2 and row["min"] > 0.0 for row in results["updates_per_s"].values())
    assert results["ratio_to_eager"][last]["eager"] == 1.0
    assert results["largest_difference_to_eager_after_20"][last] == {"eager": 0.0}


@pytest.mark.parametrize(("loop", "stops_at_once"), [("on_policy", False), ("off_policy", True)])
def test_atari_stops_between_rollouts_where_there_are_any(loop: str, stops_at_once: bool) -> None:
    stop = StopAfter(seconds=-1.0)
    config = SimpleNamespace(spec=SimpleNamespace(loop=loop))
    run: Any = SimpleNamespace(config=config, memory=[1], stop_reason="", interrupted=False)
    stop.on_step(run)
    assert bool(run.stop_reason) == stops_at_once
    run.memory = []
    stop.on_step(run)
    assert run.stop_reason
    assert run.interrupted


def test_atari_results_are_named_by_game_and_algorithm() -> None:
    names = {
        AtariSetting(run=Path(), seconds=1.0, algo=algo, game=game).result_name
        for algo, game in (("ppo", "pong"), ("iqn", "pong"), ("iqn", "breakout"))
    }
    assert names == {"gpu_pong.json", "gpu_pong_iqn.json", "gpu_breakout_iqn.json"}


def test_cores_are_dealt_out_evenly_or_not_at_all() -> None:
    assert shares_of([2, 3, 5, 7, 8], 2) == [[2, 3], [5, 7, 8]]
    assert shares_of([0, 1], 3) == [(), (), ()]


def test_training_returns_are_averaged_per_million_frames() -> None:
    # With 4 frames a step, a million frames are 250,000 steps; an episode that ends at their last step is theirs.
    episodes = [{"step": step, "return": ret} for step, ret in ((100_000, -21), (250_000, -19), (250_001, 3))]
    metrics = [{"step": 250_000, "wall_s": 40.0}, {"step": 300_000, "wall_s": 50.0}]
    assert training_curve(episodes, metrics, 4) == [
        {"frames": 1_000_000, "complete": True, "wall_s": 40.0, "episodes": 2, "mean_return": -20.0},
        {"frames": 2_000_000, "complete": False, "wall_s": 50.0, "episodes": 1, "mean_return": 3.0},
    ]
    assert training_curve([], [], 4) == []


def test_median_rate_leaves_out_the_interval_with_an_evaluation() -> None:
    metrics = [{"gradient_step": 10 * i, "wall_s": wall} for i, wall in enumerate([0.0, 1.0, 2.0, 9.0, 10.0])]
    assert median_rate(metrics, "gradient_step") == 10.0
    assert median_rate(metrics[:1], "gradient_step") is None


def test_atari_curve_names_the_first_evaluation_at_a_target() -> None:
    metrics = [{"step": 10, "wall_s": 1.0}, {"step": 20, "wall_s": 2.5}]
    curve = [{"step": 10, "wall_s": 1.0, "mean_return": 3.0}, {"step": 20, "wall_s": 2.5, "mean_return": 18.0}]
    assert (wall_at(metrics, 15), wall_at(metrics, 20), wall_at(metrics, 5)) == (1.0, 2.5, None)
    assert first_at(curve, 18.0) == {"step": 20, "wall_s": 2.5}
    assert first_at(curve, 20.9) is None


def test_replay_times_are_compared_with_ours_of_the_same_repeat() -> None:
    def row(contender: str, repeat: int, microseconds: float) -> dict[str, Any]:
        times = {"add": {"cpu_us": microseconds, "wall_us": 2 * microseconds}}
        return {
            "contender": contender,
            "case_name": "floats",
            "repeat": repeat,
            "times": times,
            "versions": {},
        }

    rows = [row("ours", 0, 2.0), row("sb3", 0, 6.0), row("ours", 1, 4.0), row("sb3", 1, 8.0), row("sb3", 2, 9.0)]
    figures = summarize(rows)["floats"]["add"]["sb3"]
    assert figures["cpu_us"] == {"median": 8.0, "min": 6.0, "max": 9.0}
    assert figures["wall_us"]["median"] == 16.0
    assert figures["over_ours"] == {"median": 2.5, "min": 2.0, "max": 3.0}  # 6 / 2 and 8 / 4; the third has no partner


def test_replay_steps_follow_on_each_other() -> None:
    from replay_harness import FRAMES, Transitions

    for kind, shape in (("floats", (17,)), ("images", (FRAMES, 84, 84))):
        steps = Transitions(kind, length=10)
        assert steps.obs(0).shape == steps.obs(10).shape == shape
        assert steps.obs(3).flags.c_contiguous
    assert np.array_equal(steps.obs(3)[1:], steps.obs(4)[:-1])
