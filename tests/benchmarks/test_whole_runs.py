"""The benchmark of whole runs trains through the library and measures after the warm-up."""

from pathlib import Path

from benchmarks.whole_runs import CASES, measure


def test_a_run_is_measured_whole_and_its_updates_alone(tmp_path: Path) -> None:
    found = measure("dqn", device="cpu", acceleration="eager", updates=20, folder=tmp_path)
    assert sorted(found) == ["alone_per_s", "ready_s", "updates_per_s"]
    assert min(found.values()) > 0.0
    assert {env_id for env_id, _ in CASES.values()} == {"CartPole-v1", "HalfCheetah-v5"}
