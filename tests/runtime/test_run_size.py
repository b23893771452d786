"""A run that cannot fit in memory is rejected before anything is allocated, with both figures."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from builders import make_setup, small_hparams
from rl_training.core import memory_limits
from rl_training.core.spaces import Spaces
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.learners.networks import build_seeded
from rl_training.runtime.run_size import check_run_size

CPU = torch.device("cpu")
NUMBERS = Box(-1.0, 1.0, (3,), np.float32)


@pytest.fixture(autouse=True)
def four_gib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 4 * 2**30)


def build(algo: str, *, observation: gym.Space[Any] = NUMBERS, **hparams: Any) -> None:
    action = Discrete(2) if "discrete" in registry()[algo].actions else NUMBERS
    registry()[algo].build_algorithm(make_setup(algo=algo, observation=observation, action=action, **hparams))


@pytest.mark.parametrize(
    ("algo", "hparams"),
    [
        ("dqn", {"hidden_sizes": [10**9]}),
        ("dqn", {"hidden_sizes": [10**12, 10**12]}),  # more than PyTorch can count
        ("c51_dqn", {"num_atoms": 10**9}),
        ("iqn", {"embedding_dim": 10**9}),
        ("ppo", {"hidden_sizes": [10**5, 10**5]}),
        ("gail", {"discriminator_hidden_sizes": [10**9]}),
        ("sac", {"hidden_sizes": [10**9]}),
        ("redq", {"num_critics": 10**12}),
        ("mbpo", {"model_hidden_sizes": [10**9]}),
        ("dreamer", {"deter_size": 8 * 10**8}),
    ],
)
def test_networks_that_do_not_fit_are_rejected_with_both_figures(algo: str, hparams: dict[str, Any]) -> None:
    expected = r"^training the networks needs [\d.]+ GiB, but only 4\.0 GiB of memory are available; lower the sizes"
    with pytest.raises(ConfigError, match=expected):
        build(algo, **hparams)


def test_network_for_an_observation_of_fifty_million_numbers_is_rejected() -> None:
    with pytest.raises(ConfigError, match="training the networks needs"):
        build("dqn", observation=Box(-1.0, 1.0, (50_000_000,), np.float32))


def test_needed_memory_is_five_times_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    # 6 weights and 2 biases of four bytes: 32 bytes, with gradient, two moments and the new weights 160.
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 160)
    build_seeded(0, lambda: torch.nn.Linear(3, 2), CPU)
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 159)
    with pytest.raises(ConfigError, match="training the networks needs"):
        build_seeded(0, lambda: torch.nn.Linear(3, 2), CPU)


def test_networks_that_cannot_be_measured_are_built() -> None:
    class NeedsValues(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.scale = self.weight.sum().item()  # the meta device has no values

    assert NeedsValues.__name__ == type(build_seeded(0, NeedsValues, CPU)).__name__


@pytest.mark.parametrize(
    ("algo", "settings", "hparams", "expected"),
    [
        ("dqn", {"num_envs": 10**18}, {}, r"a group of 1,000,000,000,000,000,000 environments .*; lower num_envs$"),
        (
            "dqn",
            {"num_envs": 2_000, "execution_backend": "local_async"},
            {},
            r"a group of 2,000 environments needs 7\.8",
        ),
        ("dqn", {"eval_episodes": 10**18}, {}, r"an evaluation of .* episodes .*; lower eval_episodes$"),
        ("dqn", {}, {"batch_size": 10**9}, r"a batch of 1,000,000,000 rows .*; lower algo_kwargs\.batch_size$"),
        (
            "iqn",
            {},
            {"num_tau_samples": 10**9},
            r"a batch of 8 x 6 x 1,000,000,000 rows .* or algo_kwargs\.num_tau_samples",
        ),
        ("mbpo", {}, {"rollout_batch_size": 10**9}, r"lower algo_kwargs\.rollout_batch_size$"),
        ("dreamer", {}, {"imagination_horizon": 10**9}, r"or algo_kwargs\.imagination_horizon$"),
        ("gail", {}, {"discriminator_updates": 10**9}, r"or algo_kwargs\.discriminator_updates$"),
    ],
)
def test_sizes_that_do_not_fit_are_rejected_with_the_setting(
    algo: str, settings: dict[str, Any], hparams: dict[str, Any], expected: str
) -> None:
    kwargs = {**small_hparams(algo), **hparams}
    if "expert_dataset_kind" in registry()[algo].hparams.model_fields:
        kwargs["expert_dataset_kind"] = "random"
    config = TrainConfig(algo=algo, env_id="Some-v0", total_timesteps=10, algo_kwargs=kwargs, **settings)
    action = Discrete(2) if "discrete" in registry()[algo].actions else NUMBERS
    with pytest.raises(ConfigError, match=expected):
        check_run_size(config, Spaces(NUMBERS, action))


@pytest.mark.parametrize("algo", registry())
def test_the_size_of_every_algorithms_networks_is_known_before_they_are_built(
    algo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_limits, "available_memory", lambda: 100)
    with pytest.raises(ConfigError, match="training the networks needs"):
        build(algo)


BUILD_ALL = """
import sys
import numpy as np
from gymnasium.spaces import Box, Discrete
from builders import make_setup
from rl_training.experiment.registry import registry
for name, spec in registry().items():
    action = Discrete(2) if "discrete" in spec.actions else Box(-1.0, 1.0, (2,), np.float32)
    observations = {"vector": Box(-1.0, 1.0, (3,), np.float32), "image": Box(0, 255, (3, 40, 40), np.uint8)}
    raw = {"normalize_observations": False} if "normalize_observations" in spec.hparams.model_fields else {}
    for kind in observations.keys() & spec.observations:
        spec.build_algorithm(make_setup(algo=name, observation=observations[kind], action=action, **raw))
        assert "sympy" not in sys.modules, (name, kind)
"""


@pytest.mark.process
def test_measuring_networks_does_not_import_the_compiler() -> None:
    # Operations of the meta device that are written in Python import sympy, which takes a second of every start.
    subprocess.run([sys.executable, "-c", BUILD_ALL], check=True, cwd=Path(__file__).parent.parent)
