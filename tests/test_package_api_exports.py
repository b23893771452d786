"""`import rl_training` is light and offers every public name."""

import importlib
import subprocess
import sys

import pytest

import rl_training
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
    "TrainResult",
    "ReplayBuffer",
    "RolloutBuffer",
    "RecurrentReplayBuffer",
    "train_dqn",
    "train_ppo",
    "train_gail",
    "train_dreamer",
]


def run_python(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_listed_and_can_be_imported(name: str) -> None:
    assert name in dir(rl_training)
    value = getattr(rl_training, name)
    assert value.__name__ == name
    assert getattr(importlib.import_module(value.__module__), name) is value


@pytest.mark.parametrize("name", registry())
def test_every_algorithm_has_its_class(name: str) -> None:
    spec = registry()[name]
    managed = getattr(rl_training, spec.class_name)
    assert managed.algo_name == name
    assert managed.__name__ == spec.class_name
    assert issubclass(managed, rl_training.ManagedAlgorithm)
    assert managed is getattr(rl_training, spec.class_name)
    assert spec.summary in managed.__doc__


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'rl_training' has no attribute 'Nothing'"):
        _ = rl_training.Nothing
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        from rl_training import Nothing  # noqa: F401


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
    from importlib.metadata import version

    assert rl_training.__version__ == version("rl-training")
