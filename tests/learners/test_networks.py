"""A user's network is tried with two observations before the first step, in every algorithm."""

import importlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import Tensor, nn

from builders import make_config, make_setup
from rl_training.core.setup import Setup
from rl_training.core.spaces import pack_space
from rl_training.experiment.registry import ROWS
from rl_training.learners import networks
from rl_training.learners.networks import check_output, trial_obs
from rl_training.runtime.trainer import RunOptions, train

BUILD_THEIR_OWN = ("dreamer", "recurrent_ppo", "crossq", "simbav2")
ALGOS = [spec.name for spec in ROWS if spec.name not in BUILD_THEIR_OWN]
ROW = {spec.name: spec for spec in ROWS}


def setup_of(algo: str, *, obs: int = 3, actions: int = 2) -> Setup[Any]:
    is_discrete = "discrete" in ROW[algo].actions
    action: gym.Space[Any] = Discrete(actions) if is_discrete else Box(-1.0, 1.0, (actions,), np.float32)
    noise: dict[str, Any] = {"noisy": False} if "noisy" in ROW[algo].hparams.model_fields else {}
    return make_setup(algo=algo, observation=Box(-1.0, 1.0, (obs,), np.float32), action=action, **noise)


class Built(Exception):  # noqa: N818  no error: it carries the network out of the algorithm's builder
    """Raised in place of the algorithm that would take the network."""


@pytest.fixture
def default_network(monkeypatch: pytest.MonkeyPatch) -> Callable[[Setup[Any], str], nn.Module]:
    """Return the function that builds the network which an algorithm would make itself, as a user might."""

    def stop(seed: int, build: Callable[[], nn.Module], device: torch.device) -> nn.Module:
        raise Built(build())

    def network_of(setup: Setup[Any], algo: str) -> nn.Module:
        importlib.import_module(ROW[algo].build.partition(":")[0])  # before the patch, which it would keep
        with monkeypatch.context() as patch:
            patch.setattr(networks, "build_seeded", stop)
            with pytest.raises(Built) as caught:
                ROW[algo].build_algorithm(setup)
        network: nn.Module = caught.value.args[0]
        return network

    return network_of


def refusal(algo: str, setup: Setup[Any], network: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as caught:
        ROW[algo].build_algorithm(replace(setup, network=network))
    return str(caught.value)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_network_is_accepted_for_its_spaces_and_refused_for_others(
    algo: str, default_network: Callable[[Setup[Any], str], nn.Module]
) -> None:
    setup = setup_of(algo)
    ROW[algo].build_algorithm(replace(setup, network=default_network(setup, algo)))
    others = default_network(setup_of(algo, actions=5), algo)
    assert "must return (" in refusal(algo, setup, others)
    wider = default_network(setup_of(algo, obs=7), algo)
    message = refusal(algo, setup, wider)
    assert "fails on 2 observations (inputs: (2, 3) torch.float32" in message
    assert "\n" not in message


@pytest.mark.parametrize("algo", ALGOS)
def test_what_is_no_instance_of_a_module_is_refused(algo: str) -> None:
    assert "network must be an instance, got the class Linear: pass network=Linear(...)" in refusal(
        algo, setup_of(algo), nn.Linear
    )
    assert "network must be a torch.nn.Module, got function" in refusal(algo, setup_of(algo), lambda obs: obs)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_network_that_returns_nan_is_refused(
    algo: str, default_network: Callable[[Setup[Any], str], nn.Module]
) -> None:
    setup = setup_of(algo)
    broken = default_network(setup, algo)
    for parameter in broken.parameters():
        nn.init.constant_(parameter, torch.nan)
    assert "returned NaN or infinity for finite observations" in refusal(algo, setup, broken)


def test_a_run_with_too_many_q_values_leaves_no_folder(tmp_path: Path) -> None:
    options = RunOptions(network=nn.Linear(5, 5), show_progress=False)  # the chain has two actions
    message = r"the network must return \(observations, actions\), shape \(2, 2\) .* but returned shape \(2, 5\)"
    with pytest.raises(ValueError, match=message):
        train(make_config(tmp_path / "runs"), options)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("algo", ["c51_dqn", "qr_dqn", "iqn"])
def test_one_number_per_action_does_not_describe_a_distribution(algo: str) -> None:
    network = nn.Sequential(nn.Linear(3, 2))
    assert "must return" in refusal(algo, setup_of(algo), Takes(network))


class Takes(nn.Module):
    """Ignores the fractions that IQN also passes."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, obs: Tensor, taus: Tensor | None = None) -> Tensor:
        q_values: Tensor = self.network(obs)
        return q_values


# --- The check itself ------------------------------------------------------------------------------------------------


def test_outputs_of_another_kind_are_refused() -> None:
    obs = torch.zeros(2, 3)
    with pytest.raises(TypeError, match="the network must return a float32 tensor, but returned tuple"):
        check_output(lambda obs: (obs, obs), (obs,), {"observations": 2, "numbers": 3})
    with pytest.raises(TypeError, match=r"but returned torch\.float64"):
        check_output(lambda obs: obs.double(), (obs,), {"observations": 2, "numbers": 3})


def test_trying_a_network_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    check_output(nn.Dropout(0.5), (torch.zeros(2, 3),), {"observations": 2, "numbers": 3})
    assert torch.equal(torch.get_rng_state(), before)


HUGE = float(np.finfo(np.float32).max)


@pytest.mark.parametrize(
    "space",
    [
        Box(-HUGE, HUGE, (3,), np.float32),
        Box(-np.inf, np.inf, (3,), np.float64),
        Box(2.0, 3.0, (4,), np.float32),
        Box(0, 255, (8, 8, 3), np.uint8),
        Discrete(4, start=3),
        pack_space(Dict({"a": Box(-1.0, 1.0, (2,), np.float32), "b": Discrete(3)})),
    ],
)
def test_two_different_observations_of_the_space_are_tried(space: gym.Space[Any]) -> None:
    obs = trial_obs(make_setup(observation=space)).numpy()
    again = trial_obs(make_setup(observation=space)).numpy()
    assert len(obs) == 2
    assert np.array_equal(obs, again)
    assert not np.array_equal(obs[0], obs[1])
    assert np.isfinite(obs).all()
    assert np.abs(obs.astype(np.float64)).max() < 256.0  # far from overflow
    if isinstance(space, Discrete):
        assert all(space.contains(int(value)) for value in obs)
