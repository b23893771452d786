"""`import rl_training` is light and offers every public name, to type checkers too."""

import ast
import importlib
import pickle
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import mypy.api
import pytest

import rl_training
from rl_training.api.exports import homes
from rl_training.api.stubs import STUB, stub_text
from rl_training.experiment.registry import registry

PUBLIC = [
    "DQN",
    "PPO",
    "GAIL",
    "Dreamer",
    "TrainConfig",
    "load_config",
    "ManagedAlgorithm",
    "Callback",
    "EarlyStopping",
    "StopOnPlateau",
    "EvalEpisode",
    "Run",
    "RunOptions",
    "TrainResult",
    "ReplayBuffer",
    "RolloutBuffer",
    "RecurrentReplayBuffer",
    "TransitionDataset",
    "load_transition_dataset",
    "train",
    "resume",
    "PopulationConfig",
    "train_population",
    "train_dqn",
    "train_qr_dqn",
    "train_ppo",
    "train_iql",
    "train_bc",
]


def run_python(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


# --- Names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_listed_and_can_be_imported(name: str) -> None:
    assert name in dir(rl_training)
    value = getattr(rl_training, name)
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_a_star_import_brings_the_public_names() -> None:
    namespace: dict[str, object] = {}
    exec("from rl_training import *", namespace)
    assert namespace.keys() - {"__builtins__"} == homes().keys()
    assert set(PUBLIC) <= homes().keys()


@pytest.mark.parametrize("name", registry())
def test_every_algorithm_has_its_class(name: str) -> None:
    spec = registry()[name]
    managed = getattr(rl_training, spec.class_name)
    assert managed.algo_name == name
    assert managed.__name__ == spec.class_name
    assert issubclass(managed, rl_training.ManagedAlgorithm)
    assert managed is getattr(importlib.import_module("rl_training.api.algorithms"), spec.class_name)
    assert pickle.loads(pickle.dumps(managed)) is managed
    assert managed.__doc__.lower().startswith(f"{spec.summary.lower()}.\n\n{spec.paper.lower()}")


@pytest.mark.parametrize("name", registry())
def test_every_algorithm_has_its_entry_point(name: str) -> None:
    train = getattr(rl_training, f"train_{name}")
    assert train.__name__ == f"train_{name}"
    assert train.__doc__.startswith(f"Train {registry()[name].class_name}")
    assert pickle.loads(pickle.dumps(train)) is train


@pytest.mark.parametrize("name", ["dqn", "ppo", "iql", "bc", "mbpo", "gail", "dreamer", "mopo", "sac"])
def test_entry_points_are_also_found_in_the_modules_of_the_trainers(name: str) -> None:
    module = importlib.import_module(f"rl_training.runtime.{'iql' if name == 'bc' else name}_trainer")
    assert getattr(module, f"train_{name}") is getattr(rl_training, f"train_{name}")


def test_an_unknown_name_is_an_attribute_error_that_suggests_the_closest() -> None:
    with pytest.raises(AttributeError, match=r"^module 'rl_training' has no attribute 'Nothing'$"):
        _ = getattr(rl_training, "Nothing")  # noqa: B009
    with pytest.raises(AttributeError, match=r"no attribute 'QRDQM'; did you mean 'QRDQN'\?"):
        _ = getattr(rl_training, "QRDQM")  # noqa: B009
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from rl_training import Nothing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.process
def test_importing_and_reading_a_config_imports_neither_torch_nor_gymnasium() -> None:
    code = """
import sys, rl_training
dir(rl_training)
for algo in ("dqn", "ppo", "gail"):
    rl_training.load_config(f"configs/{algo}/cartpole.yaml").resolved().digest()
try:
    rl_training.TrainConfig(algo="dqn", env_id="x", total_timesteps=1, algo_kwargs={"gamma": 2})
except ValueError as error:
    print(error)
print([name for name in ("torch", "gymnasium", "tensorboard") if name in sys.modules])
"""
    assert run_python(code).splitlines() == ["dqn.algo_kwargs.gamma must be in [0, 1], got 2", "[]"]


def test_the_version_is_the_distributions() -> None:
    assert rl_training.__version__ == version("rl-training")


# --- Types -----------------------------------------------------------------------------------------------------------


def test_the_stub_is_fresh() -> None:
    assert STUB.read_text("utf-8") == stub_text(), "run `python -m rl_training.api.stubs`"


def test_the_stub_declares_the_public_names_and_the_package_is_marked_as_typed() -> None:
    declared = set[str]()
    for node in ast.parse(stub_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            declared.add(node.name)
        elif isinstance(node, ast.ImportFrom) and node.module != "typing":
            declared |= {alias.asname or "" for alias in node.names}
    assert declared == {*homes(), "__version__"}
    assert (STUB.parent / "py.typed").is_file()


USER_SCRIPT = """
from collections.abc import Sequence
from rl_training import DQN, PPO, Callback, EvalEpisode, Run, RunOptions, load_config, train_qr_dqn

class StopWhenGood(Callback):
    def on_evaluation(self, run: Run, episodes: Sequence[EvalEpisode]) -> None:
        run.log("my/best", max(episode.ret for episode in episodes))

    def on_step(self, run: Run) -> None:
        if run.best_return is not None and run.best_return > 400.0:
            run.stop_reason = "good"

agent = DQN.for_env("CartPole-v1", 1_000, seed=1, callbacks=[StopWhenGood()], algo_kwargs={"gamma": 0.98})
reveal_type(agent)
reveal_type(DQN("configs/dqn/cartpole.yaml"))
reveal_type(DQN.load("runs/run"))
reveal_type(DQN.algo_name)
reveal_type(agent.learn())
reveal_type(agent.evaluate(episodes=3))
reveal_type(agent.save("agent"))
reveal_type(train_qr_dqn(load_config("configs/qr_dqn/cartpole.yaml"), RunOptions(show_progress=False)).eval_return)
agent.predict([0.0, 0.0, 0.0, 0.0])
agent.player()([0.0, 0.0, 0.0, 0.0])
PPO("CartPole-v1").learn(1_000, on_signal="return")
agent.lern()
agent.predict([0.0], determinstic=False)
agent.learn(on_signal="stop")
PPO("MlpPolicy", "CartPole-v1")
DQN.for_env("CartPole-v1", 1_000, sed=1)
DQN.for_env("CartPole-v1", 1_000, seed="one")
"""

# What torch and others declare is not read: it takes mypy a quarter of a minute, and here only our own types count.
MYPY_SETTINGS = """
[mypy]
strict = True
[mypy-torch.*,gymnasium.*,numpy.*,pydantic.*,yaml.*,annotated_types.*,rich.*,safetensors.*]
follow_imports = skip
ignore_missing_imports = True
"""


def test_a_type_checker_knows_the_api_and_finds_misspelt_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script, settings = tmp_path / "user_script.py", tmp_path / "mypy.ini"
    script.write_text(USER_SCRIPT)
    settings.write_text(MYPY_SETTINGS)
    monkeypatch.setenv("MYPYPATH", str(STUB.parent.parent))
    out, problem, _ = mypy.api.run(
        ["--config-file", str(settings), "--cache-dir", str(tmp_path / "cache"), str(script)]
    )
    assert problem == ""
    assert re.findall(r'Revealed type is "(.*)"', out) == [
        "rl_training.DQN",
        "rl_training.DQN",
        "rl_training.DQN",
        "str",
        "rl_training.runtime.result.TrainResult",
        "rl_training.runtime.evaluation.EvalEpisodes",
        "pathlib.Path",
        "float | None",
    ]
    assert re.findall("error: (.*)", out) == [
        '"DQN" has no attribute "lern"  [attr-defined]',
        'Unexpected keyword argument "determinstic" for "predict" of "ManagedAlgorithm"; '
        'did you mean "deterministic"?  [call-arg]',
        'Argument "on_signal" to "learn" of "ManagedAlgorithm" has incompatible type "Literal[\'stop\']"; '
        "expected \"Literal['raise', 'return']\"  [arg-type]",
        'Argument 2 to "PPO" has incompatible type "str"; expected "Never"  [arg-type]',
        'Argument "sed" to "for_env" of "ManagedAlgorithm" has incompatible type "int"; expected "Never"  [arg-type]',
        'Argument "seed" to "for_env" of "ManagedAlgorithm" has incompatible type "str"; expected "int"  [arg-type]',
    ]
