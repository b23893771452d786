"""The progress of several runs: one line each."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from rl_training.experiment.run_dir import write_result
from rl_training.launching.progress import RunsProgress


class Display:
    def __init__(self, folder: Path, *, terminal: bool = False, runs: int = 3) -> None:
        self.now, self.file = 0.0, io.StringIO()
        self.folders = {seed: folder / f"seed{seed}" for seed in range(runs)}
        for path in self.folders.values():
            path.mkdir()
        console = Console(file=self.file, force_terminal=terminal, width=100)
        labels = {folder: f"seed {seed}" for seed, folder in self.folders.items()}
        self.progress = RunsProgress(labels, console, lambda: self.now)

    def log(self, seed: int, text: str) -> None:
        with (self.folders[seed] / "log.txt").open("a", encoding="utf-8") as file:
            file.write(text)

    def show(self, waiting: list[int], running: list[int], *, seconds: float = 0.0) -> list[str]:
        self.now += seconds
        before = len(self.file.getvalue())
        self.progress.show([self.folders[seed] for seed in waiting], [self.folders[seed] for seed in running])
        return self.file.getvalue()[before:].splitlines()


@pytest.fixture
def display(tmp_path: Path) -> Display:
    return Display(tmp_path)


def test_each_change_of_a_seed_is_one_line(display: Display) -> None:
    display.log(0, "")
    display.log(1, "")
    assert display.show([2], [0, 1]) == ["seed 0  running", "seed 1  running", "seed 2  waiting"]
    assert display.show([2], [0, 1]) == []
    write_result(display.folders[1], {"step": 60, "eval": [{"return": 100.0}, {"return": 300.0}]})
    assert display.show([2], [0]) == ["seed 1  finished: 200.0"]
    assert display.show([], []) == ["seed 0  not finished", "seed 2  not finished"]


def test_running_seeds_show_the_last_line_of_their_log_now_and_then(display: Display) -> None:
    display.log(0, "step 90/100  old\n")  # of an earlier process
    display.show([1, 2], [0])
    assert display.show([1, 2], [0], seconds=29.0) == []
    assert display.show([1, 2], [0], seconds=1.0) == ["seed 0  running"]
    display.log(0, "dqn on X\nstep 10/100  steps/s 7\x1b\n\n")
    assert display.show([1, 2], [0], seconds=30.0) == ["seed 0  step 10/100  steps/s 7"]


def test_a_terminal_shows_all_seeds_at_once(tmp_path: Path) -> None:
    display = Display(tmp_path, terminal=True)
    display.log(0, "")
    with display.progress:
        display.show([1, 2], [0])
        display.log(0, "step 10/100\n")
        shown = "\n".join(display.show([1, 2], [0], seconds=1.0))
    assert "seed 0  step 10/100" in shown
    assert "seed 1  waiting" in shown
    assert "seed 2  waiting" in shown


def test_of_many_runs_those_that_wait_are_only_counted(tmp_path: Path) -> None:
    (tmp_path / "lines").mkdir()
    lines = Display(tmp_path / "lines", runs=40)
    assert lines.show(list(range(1, 40)), [0]) == ["seed 0  running"]
    (tmp_path / "terminal").mkdir()
    display = Display(tmp_path / "terminal", terminal=True, runs=40)
    write_result(display.folders[7], {"step": 60, "eval": [{"return": 100.0}]})
    with display.progress:
        shown = "\n".join(display.show([seed for seed in range(1, 40) if seed != 7], [0]))
    assert "seed 0  running" in shown
    assert "1 running, 38 waiting, 1 finished" in shown
    assert "seed 39" not in shown


def test_a_run_without_an_evaluation_is_shown_as_finished(display: Display) -> None:
    write_result(display.folders[0], {"step": 60, "eval": []})
    assert display.show([1, 2], [])[0] == "seed 0  finished"
