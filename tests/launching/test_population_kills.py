"""Populations ended by SIGKILL at random moments; `python -m benchmarks population_kills` makes many more kills."""

import random
from pathlib import Path

import pytest
from benchmarks.population_kills import CASES, MEMBERS, found, kill_populations, population_in, train

from rl_training.experiment.population import PopulationDir


@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
def test_a_killed_population_loses_no_member_and_ends_as_an_undisturbed_one(case: str, tmp_path: Path) -> None:
    report = kill_populations(tmp_path, case, 3, random.Random(0))
    assert report["kills"] == len(report["steps_at_kills"]) == 3
    assert (report["members"], report["lost_members"], report["differences"]) == (MEMBERS, [], [])


def test_the_comparison_sees_a_lost_member_and_another_result(tmp_path: Path) -> None:
    train(tmp_path / "whole", "device")
    train(tmp_path / "disturbed" / "0", "device")
    folder = PopulationDir(population_in(tmp_path / "disturbed" / "0", "device").folder())
    (folder.members()[1] / "result.json").unlink()
    (folder.path / "population.json").unlink()
    report = found(tmp_path / "disturbed", tmp_path / "whole", "device", 1)
    assert report["lost_members"] == ["0/001"]
    assert [text.partition(":")[0] for text in report["differences"]] == ["0/001"]
