"""What every registered algorithm must do. A new row of the registry gets these tests by being there."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from rl_training.algorithms.base import Algorithm, Memory, Setup
from rl_training.data.schema import Spaces, check_spaces
from rl_training.envs.factory import make_env_factory, make_envs
from rl_training.experiment.checkpointing import open_checkpoint, save_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.registry import AlgorithmSpec, registry
from rl_training.experiment.seeding import Streams
from rl_training.runtime.collector import Collector

ALGORITHMS = sorted(registry())
EXAMPLES = Path(__file__).parent.parent / "examples"
SMALL = {
    "hidden_sizes": [16],
    "batch_size": 8,
    "buffer_capacity": 50,
    "learning_starts": 0,
    "target_update_interval": 3,
}


def config_of(spec: AlgorithmSpec) -> TrainConfig:
    """A small run on an env of the first kind of action that the algorithm takes."""
    return TrainConfig(
        algo=spec.name,
        env_id="rl_training/Identity-v0",
        env_kwargs={"continuous": "discrete" not in spec.actions},
        total_timesteps=200,
        algo_kwargs={name: value for name, value in SMALL.items() if name in spec.hparams.model_fields},
    )


@dataclasses.dataclass
class Parts:
    """An algorithm with its memory and envs, stepped without any loop."""

    config: TrainConfig
    spaces: Spaces
    algorithm: Algorithm
    memory: Memory
    collector: Collector
    step: int = 0

    def advance(self, steps: int) -> list[dict[str, float]]:
        metrics = []
        for _ in range(steps):
            self.memory.add(self.collector.step(self.algorithm, step=self.step))
            self.step += 2
            result = self.algorithm.update(self.memory.sample(8))
            metrics.append({name: float(value) for name, value in result.metrics.items()})
        return metrics

    def state(self) -> dict[str, Any]:
        return {
            "policy": self.algorithm.policy_state_dict(),
            "training": {"algorithm": self.algorithm.state_dict(), "collector": self.collector.state_dict()},
            "memory": self.memory.state_dict(),
        }

    def load(self, state: dict[str, Any]) -> None:
        self.algorithm.load_policy_state_dict(state["policy"])
        self.algorithm.load_state_dict(state["training"]["algorithm"])
        self.collector.load_state_dict(state["training"]["collector"])
        self.memory.load_state_dict(state["memory"])


def make_parts(name: str, seed: int = 0) -> Parts:
    config = config_of(registry()[name])
    envs = make_envs(make_env_factory(config.env_id, config.env_kwargs), 2)
    spaces = Spaces(envs.observation_space, envs.action_space)
    streams = Streams(seed)
    setup = Setup(spaces=spaces, hparams=config.hparams, total_timesteps=200, streams=streams)
    algorithm, memory = config.spec.build_algorithm(setup), config.spec.build_memory(setup)
    parts = Parts(config, spaces, algorithm, memory, Collector(envs, streams))
    parts.collector.start()
    return parts


def assert_identical(ours: Any, theirs: Any, path: str = "") -> None:
    """Compare nested state leaf by leaf, bit for bit."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), path
        for key in theirs:
            assert_identical(ours[key], theirs[key], f"{path}/{key}")
    elif isinstance(theirs, torch.Tensor | np.ndarray):
        assert np.asarray(ours).dtype == np.asarray(theirs).dtype, path
        assert np.array_equal(np.asarray(ours), np.asarray(theirs)), path
    else:
        assert ours == theirs, path


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("explore", [False, True])
def test_acts_in_its_space(name: str, explore: bool) -> None:
    parts = make_parts(name)
    check_spaces(parts.config.spec, parts.spaces, parts.config.env_id)
    obs = np.stack([parts.spaces.observation.sample() for _ in range(30)])
    for step in (0, 100, 10**6):
        actions = parts.algorithm.act(obs, step=step, explore=explore).actions
        assert len(actions) == 30
        assert all(parts.spaces.action.contains(action) for action in actions)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_greedy_acting_repeats_itself_and_leaves_the_state_alone(name: str) -> None:
    parts = make_parts(name)
    obs = np.stack([parts.spaces.observation.sample() for _ in range(30)])
    before = clone(parts.state())
    first, again = parts.algorithm.act(obs).actions, parts.algorithm.act(obs).actions
    assert np.array_equal(first, again)
    assert_identical(parts.state(), before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_update_learns_and_gives_finite_named_scalars(name: str) -> None:
    parts = make_parts(name)
    before = clone(parts.algorithm.policy_state_dict())
    parts.memory.add(parts.collector.step(parts.algorithm, step=0))
    result = parts.algorithm.update(parts.memory.sample(8))
    assert result.num_gradient_steps >= 1
    assert result.metrics
    assert all(value.shape == () and not value.requires_grad for value in result.metrics.values())
    assert all(torch.isfinite(value) for value in result.metrics.values())
    after = parts.algorithm.policy_state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_state_loads_into_another_one(name: str) -> None:
    parts, other = make_parts(name), make_parts(name, seed=1)
    parts.advance(5)
    other.load(clone(parts.state()))
    assert_identical(other.state(), parts.state())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ten_steps_saved_and_loaded_and_ten_more_equal_twenty(name: str, tmp_path: Path) -> None:
    unbroken = make_parts(name)
    expected = unbroken.advance(20)

    first = make_parts(name)
    metrics = first.advance(10)
    path = save_checkpoint(tmp_path, config=first.config, counters={"step": first.step}, parts=first.state())
    resumed = make_parts(name)
    checkpoint = open_checkpoint(path)
    resumed.load({part: checkpoint.load(part) for part in ("policy", "training", "memory")})
    resumed.step = checkpoint.step
    metrics += resumed.advance(10)

    assert metrics == expected
    assert_identical(resumed.state(), unbroken.state())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_policy_alone_acts_like_the_whole(name: str) -> None:
    parts, other = make_parts(name), make_parts(name, seed=1)
    parts.advance(5)
    other.algorithm.load_policy_state_dict(clone(parts.algorithm.policy_state_dict()))
    obs = np.stack([parts.spaces.observation.sample() for _ in range(30)])
    assert np.array_equal(other.algorithm.act(obs).actions, parts.algorithm.act(obs).actions)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_reference_config_class_and_example_are_there(name: str) -> None:
    spec = registry()[name]
    assert load_config(f"configs/{spec.reference_config}").algo == name
    assert getattr(rl_training, spec.class_name).algo_name == name
    assert list(EXAMPLES.glob(f"{name}_*_reference.py"))


def clone(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: clone(value) for key, value in state.items()}
    return state.clone() if isinstance(state, torch.Tensor) else state.copy() if hasattr(state, "copy") else state
