"""`agent.module()`: observations of the environment in, actions of the environment out, as the agent chooses them."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from builders import make_config, make_setup
from rl_training import DQN
from rl_training.api.algorithms import managed_class
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces, observation_field, to_env_actions
from rl_training.core.types import Algorithm, act_on
from rl_training.envs.tiny import TinyDict
from rl_training.errors import ConfigError
from rl_training.experiment.registry import AlgorithmSpec, registry
from rl_training.exporting.module import PolicyModule, ToEnv, build_module
from rl_training.runtime.run_spaces import spaces_of

ACTION_SPACES: dict[str, gym.Space[Any]] = {
    "discrete": Discrete(3, start=2),
    "box": Box(np.array([-2.0, -0.5]), np.array([2.0, 0.1]), dtype=np.float64),
    "multidiscrete": MultiDiscrete([3, 2], start=[1, 0]),
    "multibinary": MultiBinary((2, 2)),
}
CASES = [(name, kind) for name, spec in sorted(registry().items()) for kind in sorted(spec.actions)]
OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "atari": Box(0, 255, (4, 36, 36), np.uint8),
    "minatar": Box(0, 1, (10, 10, 4), np.bool_),
    "bytes": Box(0, 9, (5,), np.uint8),
    "int64 image": Box(0, 6, (7, 7, 3), np.int64),
    "discrete": Discrete(4, start=-1),
    "multidiscrete": MultiDiscrete([2, 3]),
    "float64": Box(-np.inf, np.inf, (3,), np.float64),
}


def rows_of(space: gym.Space[Any], count: int) -> np.ndarray:
    """Observations as an algorithm gets them."""
    space.seed(0)
    return np.stack([space.sample() for _ in range(count)]).astype(observation_field(space).dtype)


def zeros(module: PolicyModule, rows: int) -> list[Tensor]:
    return [torch.zeros(rows, size) for size in module.policy.carry.values()]


def build(setup: Setup[Any], spec: AlgorithmSpec) -> tuple[Algorithm, PolicyModule]:
    algorithm = spec.build_algorithm(setup)
    return algorithm, build_module(algorithm, setup.spaces, spec)


def assert_same_actions(
    algorithm: Algorithm, module: PolicyModule, spaces: Spaces, obs: np.ndarray, inputs: list[Tensor], mask: Any = None
) -> None:
    """The module returns what the environment would receive from the algorithm, in the dtype of its action space."""
    expected = to_env_actions(spaces.action)(algorithm.act(obs, action_mask=mask).actions)
    outputs = module(*inputs, *zeros(module, len(obs)))
    found = (outputs if isinstance(outputs, Tensor) else outputs[0]).numpy()
    assert found.dtype == spaces.action.dtype
    assert found.shape == (len(obs), *(spaces.action.shape or ()))
    np.testing.assert_allclose(found, expected, rtol=0.0, atol=2e-6)
    assert all(spaces.action.contains(action) for action in found)


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_every_algorithm_acts_by_its_module(name: str, kind: str) -> None:
    spec = registry()[name]
    setup = make_setup(algo=name, action=ACTION_SPACES[kind])
    algorithm, module = build(setup, spec)
    for rows in (1, 2, 7):
        obs = np.random.default_rng(rows).uniform(-3.0, 3.0, (rows, 3)).astype(np.float32)
        assert_same_actions(algorithm, module, setup.spaces, obs, [torch.from_numpy(obs)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_actions_at_the_ends_are_within_the_bounds_of_the_space(dtype: Any) -> None:
    high = np.array([0.1, 0.7], dtype)  # float32 rounds the first one up and the second one down
    space = Box(-high, high, dtype=dtype)
    ends = torch.tensor([[-1.0, -1.0], [1.0, 1.0]])
    assert all(space.contains(action) for action in ToEnv(space)(ends).numpy())


@pytest.mark.parametrize("kind", OBSERVATIONS)
def test_observations_of_every_kind_come_as_the_environment_returns_them(kind: str) -> None:
    setup = make_setup(observation=OBSERVATIONS[kind], num_actions=4)
    algorithm, module = build(setup, registry()["dqn"])
    raw = np.stack([OBSERVATIONS[kind].sample() for _ in range(5)])
    obs = raw.astype(observation_field(OBSERVATIONS[kind]).dtype)
    assert module.inputs[0].dtype == obs.dtype
    assert_same_actions(algorithm, module, setup.spaces, obs, [torch.from_numpy(raw)])


def test_the_parts_of_a_dict_are_inputs_of_their_own() -> None:
    spaces = spaces_of(TinyDict)
    setup = make_setup(algo="ppo", observation=spaces.observation, action=spaces.action, shared_trunk="no")
    algorithm, module = build(setup, registry()["ppo"])
    obs = rows_of(spaces.observation, 5)
    parts = spaces.observation.views(obs)  # type: ignore[attr-defined]
    assert [port.name for port in module.inputs] == [f"obs.{leaf.name}" for leaf in spaces.observation.leaves]  # type: ignore[attr-defined]
    assert_same_actions(algorithm, module, spaces, obs, [torch.from_numpy(part.copy()) for part in parts])


@pytest.mark.parametrize("name", ["dqn", "ppo"])
def test_a_masked_choice_is_never_taken(name: str) -> None:
    spaces = Spaces(Box(-1.0, 1.0, (3,), np.float32), Discrete(4, start=1), action_mask=True)
    setup = make_setup(algo=name, observation=spaces.observation, action=spaces.action, action_mask=True)
    algorithm, module = build(setup, registry()[name])
    generator = np.random.default_rng(0)
    obs = generator.standard_normal((20, 3), np.float32)
    mask = generator.random((20, 4)) < 0.3
    mask[np.arange(20), generator.integers(4, size=20)] = True
    assert [port.name for port in module.inputs] == ["obs", "action_mask"]
    assert_same_actions(algorithm, module, spaces, obs, [torch.from_numpy(obs), torch.from_numpy(mask)], mask)
    assert mask[np.arange(20), module(torch.from_numpy(obs), torch.from_numpy(mask)) - 1].all()


def test_a_mask_that_the_algorithm_does_not_use_is_no_input() -> None:
    setup = make_setup(algo="dreamer", action_mask=True)
    _, module = build(setup, registry()["dreamer"])
    assert [port.name for port in module.inputs] == ["obs", "features", "previous"]


@pytest.mark.parametrize("kind", ["discrete", "box"])
def test_the_carry_leads_through_an_episode(kind: str) -> None:
    setup = make_setup(algo="dreamer", action=ACTION_SPACES[kind])
    algorithm, module = build(setup, registry()["dreamer"])
    own, carry = None, zeros(module, 2)
    for obs in np.random.default_rng(0).standard_normal((6, 2, 3), np.float32):
        chosen = act_on(algorithm, obs, own, step=0)
        action, *carry = module(torch.from_numpy(obs), *carry)
        own = chosen.carry
        assert own is not None
        np.testing.assert_allclose(action, to_env_actions(setup.spaces.action)(chosen.actions), atol=2e-6)
        for found, expected in zip(carry, own.values(), strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-6)


def test_the_noise_of_exploration_is_not_part_of_it() -> None:
    setup = make_setup(algo="noisy_dqn")
    spec, obs = registry()["noisy_dqn"], np.ones((1, 3), np.float32)
    algorithm = spec.build_algorithm(setup)
    before = build_module(algorithm, setup.spaces, spec).decide(torch.from_numpy(obs)).scores
    algorithm.act(obs, explore=True)
    after = build_module(algorithm, setup.spaces, spec).decide(torch.from_numpy(obs)).scores
    assert before is not None
    assert torch.equal(before, after)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "env_id", "hparams", "inside"),
    [
        ("ppo", "CartPole-v1", {"normalize": "obs", "num_steps": 16, "minibatch_size": 16}, "argmax"),
        ("sac", "Pendulum-v1", {"normalize_observations": True}, "action_scaling"),
    ],
)
def test_observations_are_normalised_by_the_statistics_of_the_run(
    name: str, env_id: str, hparams: dict[str, Any], inside: str, tmp_path: Path
) -> None:
    config = make_config(tmp_path, algo=name, env_id=env_id, algo_kwargs=hparams)
    agent = managed_class(name)(config, show_progress=False)
    agent.learn()
    space = gym.make(env_id).observation_space
    obs = np.random.default_rng(0).normal(0.3, 0.3, (50, *(space.shape or ()))).astype(np.float32)
    np.testing.assert_allclose(agent.module()(torch.from_numpy(obs)), agent.predict(obs), rtol=0.0, atol=2e-6)
    assert agent.module().inside == ("observation_normalizer", inside)


def test_it_is_a_copy_that_training_does_not_change(tmp_path: Path) -> None:
    agent = DQN(make_config(tmp_path), show_progress=False)
    with pytest.raises(RuntimeError, match=r"call learn\(\) or load\(\) first"):
        agent.module()
    agent.learn()
    module, obs = agent.module(), torch.eye(5)
    assert isinstance(module, nn.Module)
    assert not any(parameter.requires_grad for parameter in module.parameters())
    before = module.decide(obs).scores
    agent.learn(120)
    assert torch.equal(module.decide(obs).scores, before)  # type: ignore[arg-type]
    np.testing.assert_array_equal(agent.module()(obs), agent.predict(obs.numpy()))


def test_a_wrong_number_of_inputs_is_named() -> None:
    setup = make_setup(algo="dreamer")
    _, module = build(setup, registry()["dreamer"])
    with pytest.raises(TypeError, match=r"takes 3 inputs \(obs, features, previous\), got 1"):
        module(torch.zeros(1, 3))


def test_an_algorithm_without_a_policy_module_is_refused_by_name() -> None:
    spec = dataclasses.replace(registry()["dqn"], policy_module=None)
    with pytest.raises(ConfigError, match="dqn cannot be exported: its row of the registry names no policy_module"):
        build(make_setup(), spec)
