"""Speed, replay memory, GPU updates, exact resume and kills: counts, pairings and sums."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.gpu_cases import CASES
from benchmarks.launch import PPO_CONTENDERS
from benchmarks.measurements import (
    FIGURES,
    summarize_dynamics,
    summarize_end_to_end,
    summarize_exactness,
    summarize_gpu,
    summarize_kills,
    summarize_launchers,
    summarize_population_kills,
    summarize_probe,
    summarize_replay,
    summarize_speed,
    summarize_sweep_kills,
    summarize_tune_kills,
    summarize_tune_search,
)
from benchmarks.plot_cost import Tick, lost_seconds, phases, read_ticks, summarize_plot_cost, work_between
from benchmarks.results import Session, named, read_lines
from benchmarks.speed import cores_for, share_of_floor
from benchmarks.speed_tasks import TASKS
from gymnasium.spaces import Box, Discrete

from benchmarks import gpu, measurements
from builders import small_hparams
from rl_training import TrainConfig
from rl_training.core.spaces import Spaces
from rl_training.hparams.dreamer import DreamerHParams


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
        {"measurement": "run", "contender": name, "repeat": repeat, "threads": threads, **dict.fromkeys(FIGURES, rate)}
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


@pytest.mark.parametrize("name", TASKS)
def test_speed_settings_are_accepted_by_our_algorithm_and_the_reference_runs(name: str) -> None:
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


@pytest.mark.parametrize("name", ["sac-pendulum", "sac-halfcheetah", "td3-pendulum", "redq"])
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


def test_floor_is_put_beside_our_update() -> None:
    floor = {"us_per_update": 50.0, "products": [], "versions": {}}
    assert share_of_floor(floor, 200.0)["share_of_our_update"] == 0.25


def _not_here(*_: object) -> Any:
    raise ImportError("No module named 'broken'")


@pytest.mark.learning
@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("dqn", {"dqn_1": {"eager"}}),
        ("sac", {"sac_1": {"eager", "plain"}, "sac_20": {"eager", "plain"}, "redq_20": {"eager"}}),
        ("iql", {"iql_1": {"eager", "plain"}, "iql_10": {"eager", "plain"}}),
        ("tqc", {"tqc_1": {"eager"}}),
        ("crossq", {"crossq_1": {"eager"}}),
        ("simbav2", {"simbav2_2": {"eager"}}),
    ],
)
def test_gpu_times_ours_in_each_mode_beside_a_plain_loop(
    family: str, wanted: dict[str, set[str]], tmp_path: Path
) -> None:
    small = {"batch_size": 4, "hidden_sizes": (8,), "critic_hidden_sizes": (8,)}
    cases = {
        name: replace(
            case,
            hparams=case.hparams.model_copy(
                update={name: size for name, size in small.items() if name in type(case.hparams).model_fields}
            ),
            others={**case.others, "broken": _not_here},
            warm_up=20,
        )
        for name, case in CASES[family].items()
    }
    session = Session(tmp_path / "gpu.jsonl", {"task": family})
    gpu.measure(cases, session, target_s=0.0, repeats=2, device="cpu", modes=("eager",))
    summary = summarize_gpu(read_lines(session.path))
    # stable-baselines3 and d3rlpy are timed where they are installed.
    found = {case: {name for name in rates if name not in ("sb3", "d3rlpy")} for case, rates in summary.items()}
    assert found == wanted
    for case in cases:
        rates = named(session.lines, measurement="rate", case=case, contender="eager")
        assert [line["repeat"] for line in rates] == [0, 1]
        assert all(line["updates_per_s"] > 0.0 for line in rates)
        assert summary[case]["eager"]["over_eager"] == 1.0
    differences = named(session.lines, measurement="difference")
    assert {line["largest_difference_to_eager"] for line in differences} == {0.0}
    assert {line["after_updates"] for line in differences} == {20}


def test_gpu_compares_updates_of_dreamer_tensor_by_tensor(tmp_path: Path) -> None:
    spaces = Spaces(Box(0, 255, (8, 8, 1), np.uint8), Discrete(3))
    case = replace(
        CASES["dreamer"]["dreamer_12m"],
        spaces=spaces,
        hparams=DreamerHParams(**small_hparams("dreamer", buffer_capacity=20)),
        warm_up=1,
        unit=1,
    )
    session = Session(tmp_path / "gpu.jsonl", {"task": "dreamer"})
    gpu.measure({"tiny": case}, session, target_s=0.0, repeats=1, device="cpu", modes=("eager", "compile"))
    assert set(summarize_gpu(session.lines)["tiny"]) == {"eager", *case.others}  # without the compiler
    parity = {line["contender"]: line for line in named(session.lines, measurement="parity")}
    assert set(parity) == set(case.compared)
    assert {(line["largest_relative_difference"], line["after_updates"]) for line in parity.values()} == {(0.0, 2)}


def test_gpu_rates_are_put_beside_eager_and_the_floor() -> None:
    rates = {"eager": [10.0, 30.0, 20.0], "cuda_graph": [400.0, 200.0, 500.0]}
    lines = [
        {"measurement": "rate", "case": "sac_1", "algo": "sac", "contender": name, "updates_per_s": rate}
        for name, values in rates.items()
        for rate in values
    ]
    summary = summarize_gpu([*lines, {"measurement": "floor", "algo": "sac", "us_per_update": 1_000.0}])["sac_1"]
    assert summary["cuda_graph"] == {
        "median": 400.0,
        "min": 200.0,
        "max": 500.0,
        "over_eager": 20.0,
        "floor_share": 0.4,
    }


def test_dynamics_compares_cpu_times_on_a_cpu_and_wall_times_on_a_gpu() -> None:
    lines = [
        {"measurement": "fit", "device": device, "contender": name, "cpu_s": cpu, "wall_s": wall}
        for device in ("cpu", "cuda")
        for name, cpu, wall in (("ours-eager", 2.0, 1.0), ("loop", 6.0, 5.0))
    ]
    summary = summarize_dynamics(lines)
    assert summary["cpu"]["ours-eager"]["loop_over_this"] == 3.0
    assert summary["cuda"]["ours-eager"]["loop_over_this"] == 5.0


def test_exactness_and_kills_add_up_their_lines() -> None:
    lines = [{"resumes": 24, "differences": []}, {"resumes": 6, "differences": ["a", "b"]}]
    assert summarize_exactness(lines) == {"cases": 2, "resumes": 30, "differences": 2}
    runs: list[dict[str, Any]] = [
        {"kills": {"during a save": 3}, "differences": [], "checkpoints_not_whole": []},
        {"kills": {"during a save": 1, "between saves": 2}, "differences": ["a"], "checkpoints_not_whole": ["b"]},
        {"failed": "exit code 1"},
    ]
    assert summarize_kills(runs) == {
        "kills": 6,
        "places": {"during a save": 4, "between saves": 2},
        "checkpoints_not_whole": 1,
        "runs_lost": 1,
        "runs_that_differ": 1,
    }
    sweeps = [{"finished_at_kills": [0, 2], "runs": 12, "files_that_differ": each} for each in ([], ["table.csv"])]
    assert summarize_sweep_kills(sweeps) == {"kills": 4, "runs": 24, "files_that_differ": 1}
    stacks = [{"kills": 5, "populations": 3, "members": 4, "lost_members": ["0/001"], "differences": ["a", "b"]}]
    assert summarize_population_kills(stacks) == {"kills": 5, "members": 12, "members_lost": 1, "differences": 2}
    killed = {"worker": 3, "trainer": 2}
    line = {"launcher": "ray", "finished": 6, "kills": killed, "trained_by_at_most": 1, "differences": ["a"]}
    assert summarize_launchers([line]) == {"ray": {"runs": 6, "kills": 5, "trained_by_at_most": 1, "differences": 1}}
    studies = [
        {"finished_at_kills": [0, 2], "runs": 9, "run_again": [], "differences": each, "best_repeats": True}
        for each in ([], ["table.csv"])
    ]
    assert summarize_tune_kills(studies) == {
        "kills": 4,
        "runs": 18,
        "runs_again": 0,
        "differences": 1,
        "best_repeats": True,
    }


def test_the_newest_search_of_each_task_counts() -> None:
    figures = {"interval": [1, 2], "reference_iqm": 3, "reference_interval": [2, 4], "given_iqm": 0}
    lines = [{"task": "acrobot", "steps": 10, "trials": 4, "winner": 1, "iqm": iqm, **figures} for iqm in (1, 2)]
    assert summarize_tune_search(lines) == {"acrobot": {"steps": 10, "trials": 4, "iqm": 2, **figures}}


def test_the_summary_of_the_example_keeps_its_newest_run() -> None:
    counts = {"kills": 3, "starts": 26, "runs": 20, "finished": 20, "films": 4, "trials": 6}
    older = {**counts, "finished": 19, "policy": {"max_error": 1.0}}
    newer = {**counts, "policy": {"max_error": 4e-7}, "wall_s": 9.0}
    assert summarize_end_to_end([older, newer]) == {**counts, "largest_error": 4e-7}


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
    figures = summarize_replay(rows)["floats"]["add"]["sb3"]
    assert figures["cpu_us"] == {"median": 8.0, "min": 6.0, "max": 9.0}
    assert figures["wall_us"]["median"] == 16.0
    assert figures["over_ours"] == {"median": 2.5, "min": 2.0, "max": 3.0}  # 6 / 2 and 8 / 4; the third has no partner


def test_a_probe_counts_named_faults_and_false_alarms() -> None:
    lines: list[dict[str, Any]] = [
        {"fault": "a", "named": True},
        {"fault": "b", "named": False},
        {"alarm": True},
        {"alarm": False},
    ]
    assert summarize_probe(lines) == {"faults": 2, "named": 1, "healthy": 2, "false_alarms": 1}


def test_the_work_of_a_phase_lies_between_its_first_and_last_tick() -> None:
    # Clock 10 to 20: steps 100 to 400 in 6 - 3 = 3 s of processor time; the other ticks belong to other phases.
    ticks = [Tick(9.0, 2.0, 0), Tick(10.0, 3.0, 100), Tick(15.0, 4.0, 150), Tick(19.0, 6.0, 400), Tick(21.0, 7.0, 500)]
    assert work_between(ticks, 10.0, 20.0) == (300, 3.0)
    with pytest.raises(RuntimeError, match="1 ticks within a phase of 1 s"):
        work_between(ticks, 8.5, 9.5)


def test_an_unfinished_tick_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "ticks.jsonl").write_text("[1.0, 0.5, 20]\n[2.0, 0.9, 4")
    assert read_ticks(tmp_path / "ticks.jsonl") == [Tick(1.0, 0.5, 20)]


def test_either_kind_of_phase_may_be_first() -> None:
    assert list(phases(2)) == ["with", "without", "without", "with"]


def test_a_figure_costs_what_the_steps_beside_it_took_longer() -> None:
    # 100 steps/s alone: 90 steps need 0.9 s and took 1.0; 200 steps/s alone: 100 steps need 0.5 s and took 0.5.
    work = {"with": [(90, 1.0), (100, 0.5)], "without": [(100, 1.0), (200, 1.0)]}
    assert lost_seconds(work) == pytest.approx([0.1, 0.0])
    found = summarize_plot_cost([{"steps_and_cpu_s": work, "plot_cpu_s": [0.4, 0.6]}])
    assert found["figures"] == 2
    assert found["plot_cpu_s"] == {"median": 0.5, "min": 0.4, "max": 0.6}
    assert found["lost_s"] == pytest.approx(0.05)


def test_whole_runs_are_summarised_by_algorithm_without_failures() -> None:
    head = {"env_id": "CartPole-v1", "device": "gpu"}
    lines: list[dict[str, Any]] = [
        *({"algo": "dqn", **head, "updates_per_s": rate, "alone_per_s": 2 * rate} for rate in (5.0, 7.0, 6.0)),
        {"algo": "sac", "env_id": "x", "error": "broke"},
    ]
    assert measurements.summarize_whole_runs(lines) == {"dqn": {**head, "updates_per_s": 6.0, "alone_per_s": 12.0}}


def test_checks_on_a_gpu_name_the_cases_that_differ() -> None:
    found = [("captured", "a", []), ("captured", "b", ["compiled: obs"]), ("envs", "a", [])]
    lines = [{"check": check, "case": case, "differences": wrong} for check, case, wrong in found]
    assert measurements.summarize_gpu_checks(lines) == {
        "captured": {"cases": 2, "differ": ["b"]},
        "envs": {"cases": 1, "differ": []},
    }


def test_each_population_keeps_its_rates() -> None:
    line = {"algo": "iql", "members": 32, "run": "stacked", "matmul_precision": "high", "device": "gpu"}
    line |= {"updates": 9, "member_updates_per_s": 1.0, "ready_s": 3.0}
    assert measurements.summarize_populations([{**line, "wall_s": 9.0}, {"algo": "bc", "error": "broke"}]) == {
        "iql 32 stacked high": line
    }


def test_the_device_loop_keeps_the_rates_of_each_program_and_size() -> None:
    rates = {"steps_per_s": 2.0, "ms_per_iteration": 3.0, "ready_s": 4.0}
    line = {"contender": "jax", "setting": {"envs": 256, "members": 32}, **rates}
    expected = {"contender": "jax", "envs": 256, "members": 32, **rates}
    assert measurements.summarize_device_loop([line, {"error": "broke"}]) == {"jax 256 x 32": expected}
