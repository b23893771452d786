"""In a notebook: one output that is updated in place, and results as tables whose text cannot be code."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from builders import make_config
from rl_training.results.return_text import return_text
from rl_training.runtime.evaluation import EvalEpisode, EvalEpisodes
from rl_training.runtime.progress_views import LineView, NotebookView, find_view
from rl_training.runtime.result import TrainResult
from rl_training.runtime.trainer import RunOptions, train

EVIL = "<script>alert(1)</script>"


class Notebook:
    """Stands in for IPython in the kernel of a notebook, and keeps what its outputs show."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> None:
        self.outputs: list[list[str]] = []  # what each output showed, one after the other
        ipython: Any = ModuleType("IPython")
        ipython.get_ipython = lambda: SimpleNamespace(kernel=kernel)
        ipython.display = ModuleType("IPython.display")
        ipython.display.HTML, ipython.display.display = str, self.display
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)

    def display(self, page: str, *, display_id: bool) -> Any:
        assert display_id
        self.outputs.append([page])
        return SimpleNamespace(update=self.outputs[-1].append)


def test_a_run_has_one_output_that_is_updated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch, kernel=object())
    monkeypatch.setattr(NotebookView, "seconds", 0.0)
    train(make_config(tmp_path / "<b>", env_id="rl_training/Chain-v0", total_timesteps=64))
    (shown,) = notebook.outputs
    assert len(shown) > 5
    assert '<progress value="0.0000" max="1"' in shown[1]
    assert '<progress value="1.0000" max="1"' in shown[-1]
    assert "<td>64/64 (100 %)</td>" in shown[-1].replace('<th scope="row">', "<td>").replace("</th>", "</td>")
    assert "dqn on rl_training/Chain-v0, seed 0: " in shown[-1]
    assert "/&lt;b&gt;/" in shown[-1]
    assert "64/64" not in capfd.readouterr().err


def test_the_ipython_of_a_terminal_is_no_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    Notebook(monkeypatch, kernel=None)
    assert type(find_view(Console(force_terminal=False))) is LineView


def test_a_result_is_a_table(tmp_path: Path) -> None:
    folder = tmp_path / EVIL.replace("/", "")
    result = train(make_config(folder, env_id="rl_training/Chain-v0"), RunOptions(show_progress=False))
    html = result._repr_html_()
    assert isinstance(result, TrainResult)
    assert result.eval_return is not None
    assert f"<td>{return_text(result.eval_return)} ({len(result.eval_episodes)} episodes)</td>" in html
    assert f"<td>{result.step:,} ({result.gradient_step:,} gradient steps; all steps taken)</td>" in html
    assert "&lt;script&gt;" in html
    assert "<script" not in html


def test_evaluated_episodes_are_a_list_and_a_table() -> None:
    episodes = EvalEpisodes([EvalEpisode(0, 7, 1.0, 10), EvalEpisode(1, 8, 3.0, 2_000)])
    html = episodes._repr_html_()
    assert "<caption>2.000 ± 1.000 over 2 episodes</caption>" in html
    assert '<tr><th scope="row">1</th><td>8</td><td>3</td><td>2,000</td></tr>' in html
    assert "no episodes" in EvalEpisodes()._repr_html_()
