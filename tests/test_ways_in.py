"""Every code block of the pages that lead newcomers in runs, in the order of the page, with shorter runs."""

import importlib
import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from typer.testing import CliRunner

from reference_scripts import EXAMPLES
from rl_training.api.algorithms import managed_class
from rl_training.cli import app
from rl_training.experiment.registry import registry
from rl_training.probing import ladder
from test_docs import DOCS, FENCE

pytestmark = pytest.mark.learning

NAMED_FILE = re.compile(r"# (\w+\.(?:py|yaml))\n")  # the first line of a block that the reader saves
ELSEWHERE = ("pip ", "source ", "make ")  # commands of other programs, which set the reader's machine up
SHORTER = {
    "50_000": "200",
    "50000": "200",
    "20_000": "200",
    "20000": "200",
    "5_000": "100",
    "eval_interval: 4_000": "eval_interval: 100",
    "--seeds 0-4 --jobs 2": "--seeds 0-1",
    "--seeds 0-2": "--seeds 0-1",
    "--episodes 20": "--episodes 2",
    "--max-steps 250": "--max-steps 20",
    "range(50)": "range(12)",
    "configs/dqn/cartpole.yaml --seeds": "configs/dqn/cartpole.yaml --total-timesteps 200 --seeds",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to work in; modules and environments of the page are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_envs", raising=False)  # another test's, which registered other environments
    modules, env_ids = set(sys.modules), set(gym.registry)
    yield tmp_path
    for module in set(sys.modules) - modules:
        if str(tmp_path) in str(getattr(sys.modules[module], "__file__", "")):
            del sys.modules[module]
    for env_id in set(gym.registry) - env_ids:
        del gym.registry[env_id]


def shortened(text: str) -> str:
    for written, short in SHORTER.items():
        text = text.replace(written, short)
    return text


def newest_run(folder: Path) -> Path:
    """The run of which the page says `<folder>/RUN`."""
    runs = [file.parent for file in folder.rglob("result.json")]
    return max(runs, key=lambda run: run.stat().st_mtime)


def run_command(line: str) -> None:
    words = shlex.split(line, comments=True)
    assert words[0] == "rl-training", line
    named = [re.fullmatch(r"(\w+)/RUN(/.*)?", word) for word in words]
    arguments = [
        f"{newest_run(Path(match[1]))}{match[2] or ''}" if match else word
        for match, word in zip(named, words, strict=True)
    ]
    answer = CliRunner().invoke(app, arguments[1:], catch_exceptions=False)
    assert answer.exit_code == 0, f"{line}\n{answer.output}"


def walk(page: str) -> dict[str, Any]:
    """Do what the page asks for, block by block; return the names that its Python blocks define."""
    names: dict[str, Any] = {}
    for language, body in FENCE.findall((DOCS / page).read_text("utf-8")):
        code = shortened(body)
        if match := NAMED_FILE.match(code):
            Path(match[1]).write_text(code)
        elif language == "python":
            importlib.invalidate_caches()
            exec(compile(code, page, "exec"), names)
        elif language == "sh":
            for line in code.replace("\\\n", " ").splitlines():
                if line and not line.startswith(ELSEWHERE):
                    run_command(line)
    return names


def test_your_first_agent(folder: Path) -> None:
    names = walk("first_agent.md")
    assert names["total"] > 0
    assert (folder / "agent.gif").stat().st_size > 1_000
    assert len(list((folder / "seeds").rglob("result.json"))) == 2


def test_your_own_environment(folder: Path) -> None:
    walk("own_environment.md")
    assert len(list((folder / "parking").rglob("result.json"))) == 4
    assert (folder / "parking.svg").is_file()
    assert (folder / "parking.gif").is_file()
    assert (folder / "policy" / "policy.onnx").is_file()


def test_your_own_data(folder: Path) -> None:
    names = walk("own_data.md")
    assert names["agent"].predict(names["arrays"]["observations"][:1]).shape == (1, 1)
    assert {file.parent.name.partition("__")[0] for file in folder.rglob("result.json")} == {"iql", "bc"}


def test_my_agent_does_not_learn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rungs_short(monkeypatch)
    gym.register("Maze-v0", gym.spec("CartPole-v1").entry_point, max_episode_steps=500)
    (folder / "my_envs.py").write_text("# the page takes an environment of the reader's as given\n")
    walk("not_learning.md")


def test_reproducibility(folder: Path) -> None:
    (folder / "runs").mkdir()
    run_command("rl-training train --algo dqn --env CartPole-v1 --total-timesteps 200")
    walk("reproducibility.md")
    assert (folder / "report.html").is_file()
    assert len(list((folder / "again").rglob("result.json"))) == 1


def make_rungs_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the training on every rung, and count each as solved."""
    short = tuple(replace(rung, steps=220, enough=-1e9) for rung in ladder.RUNGS)
    monkeypatch.setattr(ladder, "RUNGS", short)


@pytest.fixture
def own_algorithm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `pip install` leaves of the example: a package to import, and its entry point."""
    example = EXAMPLES / "own_algorithm"
    text = (example / "pyproject.toml").read_text("utf-8").partition('"rl_training.algorithms"]\n')[2]
    installed = folder / "site" / "mellow_dqn-0.1.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mellow-dqn\nVersion: 0.1.0\n")
    point = text.splitlines()[0].replace('"', "")
    (installed / "entry_points.txt").write_text(f"[rl_training.algorithms]\n{point}\n")
    sys.path += [str(example), str(folder / "site")]
    (folder / "examples").symlink_to(EXAMPLES)
    registry.cache_clear()
    managed_class.cache_clear()
    yield
    registry.cache_clear()
    managed_class.cache_clear()
    for module in [name for name in sys.modules if name.partition(".")[0] == "mellow_dqn"]:
        del sys.modules[module]


def test_your_own_algorithm(folder: Path, own_algorithm: None, monkeypatch: pytest.MonkeyPatch) -> None:
    make_rungs_short(monkeypatch)
    names = walk("own_algorithm.md")
    assert names["result"].step == 200
    assert {file.parent.name for file in folder.rglob("runs/*/seed*/result.json")} == {"seed0", "seed1"}
