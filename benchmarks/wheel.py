"""Build the wheel and use it as a stranger would: an empty environment per Python, outside of the repository.

    python -m benchmarks wheel --python python3.11 --python python3.12

Each interpreter gets a new virtual environment with the pinned versions of constraints.txt, installs the wheel from the
built file, and runs the smoke test: the command line, a config that the wheel ships, a run of two algorithms, its
evaluation and every public name. One line per interpreter goes to `build/wheel/wheel.jsonl`;
`--out benchmarks/results` makes it the result that `requires-python` rests on.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.command_line import UsageError
from benchmarks.machine import describe_run
from benchmarks.peers import ROOT
from benchmarks.results import Session

CONSTRAINTS = ROOT / "constraints.txt"
PUBLIC_NAMES = "import rl_training; [getattr(rl_training, name) for name in rl_training.__all__]"
LEARN = (
    "from rl_training import SAC; "
    "agent = SAC.for_env('Pendulum-v1', 300, algo_kwargs={'learning_starts': 100, 'hidden_sizes': [32]}); "
    "print(agent.learn().eval_return)"
)
VERSIONS = (
    "import json, platform; from importlib.metadata import version; "
    "print(json.dumps({'python': platform.python_version(), "
    "**{name: version(name) for name in ('rl-training', 'torch', 'gymnasium', 'numpy')}}))"
)


class StepError(RuntimeError):
    """A step of the smoke test ended with an error."""


def run_step(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command in a folder, without the repository on the path; return its output."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    answer = subprocess.run(
        [str(word) for word in command], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise StepError(f"{' '.join(map(str, command))} ended with {answer.returncode}:\n{answer.stderr[-3_000:]}")
    return answer.stdout


def create_environment(python: str, folder: Path) -> Path:
    """Create an empty virtual environment; return the folder of its programs."""
    run_step([python, "-m", "venv", folder], ROOT)
    return folder / "bin"


def build_wheel(folder: Path) -> Path:
    """Build sdist and wheel by `python -m build`; return the wheel."""
    programs = create_environment(sys.executable, folder / "builder")
    run_step([programs / "pip", "install", "--quiet", "build"], ROOT)
    run_step([programs / "python", "-m", "build", "--outdir", folder / "dist", ROOT], ROOT)
    (wheel,) = (folder / "dist").glob("*.whl")
    return wheel


def install(programs: Path, wheel: Path, folder: Path) -> None:
    """Install the wheel with the pinned versions, torch first as `make` does."""
    pip: list[str | Path] = [programs / "pip", "install", "--quiet", "--disable-pip-version-check", "-c", CONSTRAINTS]
    torch = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
    run_step([*pip, torch], folder)
    run_step([*pip, wheel], folder)


def smoke_test(programs: Path, folder: Path) -> None:
    """Use the installed package; raise `StepError` at the first step that fails."""
    command, python = programs / "rl-training", programs / "python"
    run_step([command, "--version"], folder)
    run_step([command, "list"], folder)
    run_step([python, "-c", PUBLIC_NAMES], folder)
    changes = ["total_timesteps=600", "eval_episodes=1", "output_dir=dqn", "acceleration=eager"]
    settings = [word for change in changes for word in ("--set", change)]
    run_step([command, "train", "--config", "configs/dqn/cartpole.yaml", *settings], folder)
    (trained,) = (folder / "dqn").iterdir()
    run_step([command, "evaluate", trained, "--episodes", "1"], folder)
    run_step([command, "compare", trained], folder)
    run_step([python, "-c", LEARN], folder)


def check_python(python: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """Return the line of one interpreter: its versions, times and what became of the smoke test."""
    started = time.perf_counter()
    try:
        programs = create_environment(python, folder / "venv")
        install(programs, wheel, folder)
        installed = time.perf_counter()
        (folder / "work").mkdir()
        smoke_test(programs, folder / "work")
    except StepError as error:
        return {"interpreter": python, "outcome": "failed", "message": str(error)}
    versions = json.loads(run_step([programs / "python", "-c", VERSIONS], folder))
    return {
        "interpreter": python,
        "outcome": "passed",
        "versions": versions,
        "install_s": round(installed - started, 1),
        "test_s": round(time.perf_counter() - installed, 1),
    }


def summarize_wheel(lines: list[dict[str, Any]]) -> dict[str, dict[str, str]]:
    """Return the outcome and the installed versions of each Python that the wheel was tried with."""
    return {
        line.get("versions", {}).get("python", line["interpreter"]): {
            "outcome": line["outcome"],
            **{name: version for name, version in line.get("versions", {}).items() if name != "python"},
        }
        for line in lines
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python", action="append", metavar="PROGRAM", help="an interpreter; several times for several (default: this)"
    )
    help_text = "folder of the result file (default: %(default)s)"
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "wheel", help=help_text)


def run(args: argparse.Namespace) -> int:
    pythons = args.python or [sys.executable]
    for python in pythons:
        if subprocess.run([python, "--version"], capture_output=True, check=False).returncode:
            raise UsageError(f"--python must be a program that starts Python, got {python!r}")
    session = Session(args.out / "wheel.jsonl", describe_run())
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        print(f"built {wheel.name}, {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        for number, python in enumerate(pythons):
            place = Path(folder) / f"python{number}"
            place.mkdir()
            line = {**check_python(python, wheel, place), "wheel": wheel.name}
            session.add(line)
            print(f"{python}: {line['outcome']} {line.get('message', '')}".rstrip(), flush=True)
            shutil.rmtree(place)  # an environment takes gigabytes
    return 0 if all(line["outcome"] == "passed" for line in session.lines) else 1
