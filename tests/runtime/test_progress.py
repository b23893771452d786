"""Progress: an honest speed and time left, compilation named as such, and plain text outside of a terminal."""

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from builders import make_config
from rl_training.acceleration.compile_watch import compiling, seconds_compiling
from rl_training.runtime.callbacks import Checkpointing, Evaluation
from rl_training.runtime.progress import Progress, SpeedMeter


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Display:
    """Shows the progress of a run whose steps and time a test sets."""

    def __init__(self, folder: Path, *, terminal: bool = False, total: int = 100_000) -> None:
        self.clock, self.file = Clock(), io.StringIO()
        console = Console(file=self.file, force_terminal=terminal, width=100)
        self.progress = Progress(Evaluation(Checkpointing()), console, self.clock)
        config = make_config(folder, total_timesteps=total)
        algorithm = SimpleNamespace(status=lambda step: {})
        run: Any = SimpleNamespace(
            config=config, folder=SimpleNamespace(path=folder), unit="env step", algorithm=algorithm, collector=None,
            recent=[], num_episodes=0, last_metrics={}, step=0, gradient_step=0,
        )  # fmt: skip
        self.run = run
        self.progress.on_start(self.run)

    def step(self, *, seconds: float, steps: int, updates: int = 0) -> str:
        """Take steps in this time and return what is shown then."""
        self.clock.now += seconds
        self.run.step += steps
        self.run.gradient_step += updates
        before = len(self.file.getvalue())
        for _ in range(64):  # the clock is not read in each round
            self.progress.on_step(self.run)
        return self.file.getvalue()[before:]


def test_speed_is_that_of_the_last_seconds() -> None:
    meter = SpeedMeter()
    meter.restart(0.0, 0)
    meter.add(100.0, 1_000)  # 10 per second
    meter.add(110.0, 2_000)  # 100 per second
    assert meter.speed(10.0) == pytest.approx(100.0)
    assert meter.speed(110.0) == pytest.approx(2_000 / 110)


def test_speed_without_time_is_unknown_and_forgets_what_came_before_a_restart() -> None:
    meter = SpeedMeter()
    meter.restart(0.0, 0)
    assert meter.speed(10.0) is None
    meter.add(20.0, 10)
    meter.restart(21.0, 10)
    meter.add(22.0, 60)
    assert meter.speed(10.0) == pytest.approx(50.0)


def test_time_left_does_not_count_compilation(tmp_path: Path) -> None:
    # 10,000 quick random steps, 30 s of compilation, then 1,000 steps per second: 80,000 steps take 80 s.
    display = Display(tmp_path)
    assert "left" not in display.step(seconds=5.0, steps=9_999)
    with compiling("update"):
        display.clock.now += 30.0
    assert "left" not in display.step(seconds=0.0, steps=1, updates=1)
    shown = display.step(seconds=10.0, steps=10_000, updates=100)
    assert "steps/s 1,000  left 0:01:20" in shown
    assert "compiling the update" in display.file.getvalue()
    assert "compiled the update in 30 s" in display.file.getvalue()


def test_time_left_waits_for_the_first_update(tmp_path: Path) -> None:
    display = Display(tmp_path)
    assert "steps/s 2,000" in display.step(seconds=5.0, steps=10_000)  # random actions
    assert "left" not in display.step(seconds=0.0, steps=0, updates=1)
    # (100,000 - 10,500) steps / 100 per second = 895 s.
    assert "steps/s 100  left 0:14:55" in display.step(seconds=5.0, steps=500, updates=500)


def test_a_resumed_run_learns_from_its_first_step(tmp_path: Path) -> None:
    display = Display(tmp_path)
    display.run.step = display.run.gradient_step = 50_000
    display.progress.on_start(display.run)
    assert "steps/s 1,000  left 0:00:45" in display.step(seconds=5.0, steps=5_000, updates=5_000)


def test_a_compilation_that_fails_is_not_called_done(tmp_path: Path) -> None:
    display = Display(tmp_path)
    with pytest.raises(RuntimeError), compiling("update"):
        raise RuntimeError
    assert "compiled the update" not in display.file.getvalue()


def test_nothing_is_shown_of_a_run_that_ended(tmp_path: Path) -> None:
    display = Display(tmp_path)
    display.progress.on_end(display.run)
    before = display.file.getvalue()
    with compiling("update"):
        pass
    assert display.file.getvalue() == before


def test_the_last_step_is_shown_once(tmp_path: Path) -> None:
    display = Display(tmp_path, total=100)
    display.step(seconds=5.0, steps=100, updates=1)
    display.progress.on_end(display.run)
    assert display.file.getvalue().count("step 100/100 (100 %)") == 1


def test_lines_outside_of_a_terminal_hold_no_control_characters(tmp_path: Path) -> None:
    display = Display(tmp_path)
    with compiling("update"):
        display.clock.now += 1.0
    display.step(seconds=5.0, steps=100, updates=1)
    display.progress.on_end(display.run)
    assert all(character.isprintable() or character == "\n" for character in display.file.getvalue())


def test_the_time_of_compilations_adds_up() -> None:
    before = seconds_compiling()
    with compiling("update"):
        assert seconds_compiling() == before
    assert seconds_compiling() > before


def test_the_live_view_names_the_compilation_while_it_lasts(tmp_path: Path) -> None:
    display = Display(tmp_path, terminal=True)
    before = len(display.file.getvalue())
    with compiling("update"):
        assert "compiling the update" in display.file.getvalue()[before:]
        before = len(display.file.getvalue())
    assert "compiled the update" in display.file.getvalue()[before:]
    assert "compiling" not in display.file.getvalue()[before:]
    display.progress.on_end(display.run)
