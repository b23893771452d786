"""What the benchmarks decide themselves: counts, pairings and sums. The runs they start are not made here."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.launch import DQN_CONTENDERS, PPO_CONTENDERS
from benchmarks.pong import StopAfter, first_at, wall_at
from benchmarks.scores import ROWS, FreeCores, first_held, return_at
from benchmarks.speed import FIGURES, TASKS, cores_for, summarize_speed

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


def test_steady_part_begins_after_whole_rollouts_or_500_learning_steps() -> None:
    from harness import Setting

    ppo = Setting(mode="speed", env_id="X", steps=1, num_envs=8, hparams={"num_steps": 128})
    dqn = Setting(mode="speed", env_id="X", steps=1, hparams={"learning_starts": 1_000})
    assert (ppo.rollout, ppo.learning_starts, ppo.steady_from) == (1_024, 0, 4_096)
    assert (dqn.rollout, dqn.learning_starts, dqn.steady_from) == (0, 1_000, 1_500)


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
    summary = summarize_speed(measurements)
    ratios = {name: figures["steady_steps_per_s_over_sb3"] for name, figures in summary.items()}
    assert ratios["ours"] == {"median": 4.5, "min": 4.0, "max": 5.0}
    assert ratios["ours-2t"] == {"median": 3.0, "min": 2.0, "max": 4.0}
    assert ratios["sb3-2t"]["median"] == 1.0


def test_two_thread_contenders_are_the_same_scripts_on_two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    one, two = PPO_CONTENDERS["ours-envpool"], PPO_CONTENDERS["ours-envpool-2t"]
    assert (one.script, one.peer) == (two.script, two.peer)
    assert two.setting == {"execution_backend": "envpool", "threads": 2}
    assert (cores_for(one, 3), cores_for(two, 3), cores_for(two, None)) == ([3], [3, 0], [])


@pytest.mark.parametrize("contender", [*DQN_CONTENDERS.values(), *PPO_CONTENDERS.values()])
def test_scripts_and_requirements_exist(contender: Any) -> None:
    assert (CONTENDERS / contender.script).is_file()
    assert contender.peer is None or (CONTENDERS.parent / "requirements" / f"{contender.peer}.txt").is_file()


def test_every_row_has_its_config_and_tracks_the_step_its_target_names() -> None:
    from rl_training import load_config

    for name, row in ROWS.items():
        config = load_config(row.config)
        assert (config.env_id, config.total_timesteps) == (row.env_id, row.steps), name
        assert row.by is None or row.by % row.track_every == 0, name
        assert set(row.contenders) <= set(row.table), name


def test_settings_of_rows_with_one_env_are_those_of_runs_kept_from_before() -> None:
    assert "num_envs" not in ROWS["C1"].setting("sb3", 0, steps=1)
    assert ROWS["C8"].setting("sb3", 0, steps=1)["num_envs"] == 8
    assert "num_envs" not in ROWS["C8"].setting("ours", 0, steps=1)  # its config has its own


def test_first_held_wants_three_in_a_row() -> None:
    tracked = [{"step": step, "returns": [ret]} for step, ret in zip(range(1, 8), [9, 9, 1, 9, 9, 9, 1], strict=True)]
    assert first_held(tracked, 9.0) == 4
    assert first_held(tracked[:5], 9.0) is None
    assert (return_at(tracked, 3), return_at(tracked, 99)) == (1, None)


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


@pytest.mark.parametrize("algo", ["dqn", "ppo"])
def test_profiled_methods_exist(algo: str) -> None:
    from importlib import import_module

    from ours import ENVS, PARTS

    for path in (f"{ENVS}.step", f"{ENVS}.reset", *(path for paths in PARTS[algo].values() for path in paths)):
        module, _, name = path.partition(":")
        owner, _, method = name.partition(".")
        assert callable(getattr(getattr(import_module(module), owner), method)), path


@pytest.mark.parametrize(("algo", "env_id"), [("dqn", "CartPole-v1"), ("ppo", "CartPole-v1"), ("ppo", "Pendulum-v1")])
def test_ours_trains_and_plays_as_the_harness_asks(algo: str, env_id: str) -> None:
    from harness import Setting, Stopwatch, run_score
    from ours import OurLearner

    hparams = {
        "dqn": {"learning_starts": 16, "batch_size": 8, "hidden_sizes": [8]},
        "ppo": {"num_steps": 8, "minibatch_size": 16, "hidden_sizes": [8]},
    }[algo]
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


def test_pong_stops_only_between_rollouts() -> None:
    stop = StopAfter(seconds=-1.0)
    run: Any = SimpleNamespace(memory=[1], stop_reason="", interrupted=False)
    stop.on_step(run)
    assert not run.stop_reason
    run.memory = []
    stop.on_step(run)
    assert run.stop_reason
    assert run.interrupted


def test_pong_curve_names_the_first_evaluation_at_a_target() -> None:
    metrics = [{"step": 10, "wall_s": 1.0}, {"step": 20, "wall_s": 2.5}]
    curve = [{"step": 10, "wall_s": 1.0, "mean_return": 3.0}, {"step": 20, "wall_s": 2.5, "mean_return": 18.0}]
    assert (wall_at(metrics, 15), wall_at(metrics, 20), wall_at(metrics, 5)) == (1.0, 2.5, None)
    assert first_at(curve, 18.0) == {"step": 20, "wall_s": 2.5}
    assert first_at(curve, 20.9) is None
