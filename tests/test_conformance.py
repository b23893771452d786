"""What every registered algorithm must do. A new row of the registry gets these tests by being there."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import rl_training
from conftest import assert_identical, clone
from rl_training.algorithms.base import Setup
from rl_training.data.schema import Spaces, check_spaces, to_env_actions
from rl_training.envs.factory import make_env_factory, make_envs
from rl_training.experiment.checkpointing import open_checkpoint, save_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.manifest import MEMORY, POLICY, TRAINING
from rl_training.experiment.registry import AlgorithmSpec, registry
from rl_training.experiment.seeding import Streams
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import LOOPS

ALGORITHMS = sorted(registry())
ACTIONS = [(name, kind) for name in ALGORITHMS for kind in sorted(registry()[name].actions)]
EXAMPLES = Path(__file__).parent.parent / "examples"
NUM_ENVS = 2
# The loops differ in what a step does; each of these settings makes it learn within a few.
SMALL = {
    "hidden_sizes": [16],
    "batch_size": 8,
    "buffer_capacity": 50,
    "learning_starts": 0,
    "target_update_interval": 3,
    "num_steps": 4,
    "minibatch_size": 4,
}


def config_of(spec: AlgorithmSpec, actions: str | None = None) -> TrainConfig:
    """A small run on an env of a kind of action that the algorithm takes."""
    return TrainConfig(
        algo=spec.name,
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": actions or max(spec.actions, key=lambda kind: kind == "discrete")},
        total_timesteps=200,
        num_envs=NUM_ENVS,
        algo_kwargs={name: value for name, value in SMALL.items() if name in spec.hparams.model_fields},
    )


def make_run(name: str, seed: int = 0, actions: str | None = None) -> Run:
    """A run of the algorithm with its memory and envs, which writes no file."""
    config = config_of(registry()[name], actions)
    factory = make_env_factory(config.env_id, config.env_kwargs)
    envs, streams = make_envs(factory, NUM_ENVS), Streams(seed)
    setup = Setup(
        spaces=Spaces(envs.observation_space, envs.action_space),
        hparams=config.hparams,
        total_timesteps=config.total_timesteps,
        streams=streams,
        num_envs=NUM_ENVS,
    )
    run = Run(
        config=config,
        streams=streams,
        folder=SimpleNamespace(positions=dict),  # type: ignore[arg-type]
        env_factory=factory,
        algorithm=config.spec.build_algorithm(setup),
        memory=config.spec.build_memory(setup),
        collector=Collector(envs, streams),
    )
    run.collector.start()
    return run


class Watch(Callback):
    """Ends the loop after some steps of every env; notes the metrics after each."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.metrics: list[dict[str, float]] = []

    def on_step(self, run: Run) -> None:
        self.metrics.append({name: float(value) for name, value in run.last_metrics.items()})
        if len(self.metrics) == self.steps:
            run.stop_reason = "enough"


def advance(run: Run, steps: int) -> list[dict[str, float]]:
    """Let the algorithm's own loop take some steps of every env."""
    watch = Watch(steps)
    run.stop_reason = ""
    LOOPS[run.config.spec.loop](run, run.config.hparams, [watch])
    return watch.metrics


def some_obs(run: Run) -> np.ndarray:
    space = run.collector.envs.observation_space
    space.seed(0)
    return np.stack([space.sample() for _ in range(30)])


@pytest.mark.parametrize(("name", "actions"), ACTIONS)
@pytest.mark.parametrize("explore", [False, True])
def test_acts_in_its_space(name: str, actions: str, explore: bool) -> None:
    run = make_run(name, actions=actions)
    envs = run.collector.envs
    check_spaces(run.config.spec, Spaces(envs.observation_space, envs.action_space), run.config.env_id)
    for step in (0, 100, 10**6):
        chosen = run.algorithm.act(some_obs(run), step=step, explore=explore).actions
        for_env = to_env_actions(envs.action_space)(chosen).astype(envs.action_space.dtype)
        assert len(for_env) == 30
        assert all(envs.action_space.contains(action) for action in for_env)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_greedy_acting_repeats_itself_and_leaves_the_state_alone(name: str) -> None:
    run = make_run(name)
    advance(run, 5)
    obs, before = some_obs(run), clone(run.parts())
    first, again = run.algorithm.act(obs).actions, run.algorithm.act(obs).actions
    assert np.array_equal(first, again)
    assert_identical(run.parts(), before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_updates_learn_and_give_finite_named_scalars(name: str) -> None:
    run = make_run(name)
    before = clone(run.algorithm.policy_state_dict())
    advance(run, 8)
    assert run.gradient_step >= 1
    assert run.last_metrics
    assert all(value.shape == () and not value.requires_grad for value in run.last_metrics.values())
    assert all(torch.isfinite(value) for value in run.last_metrics.values())
    assert all(np.isfinite(value) for value in run.algorithm.status(run.step).values())
    after = run.algorithm.policy_state_dict()
    assert any(not torch.equal(after[key], before[key]) for key in before)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_state_loads_into_another_one(name: str) -> None:
    run, other = make_run(name), make_run(name, seed=1)
    advance(run, 5)
    other.load(run.counters(), clone(run.parts()))
    assert_identical(other.parts(), run.parts())


@pytest.mark.parametrize(("name", "actions"), ACTIONS)
def test_ten_steps_saved_and_loaded_and_ten_more_equal_twenty(name: str, actions: str, tmp_path: Path) -> None:
    unbroken = make_run(name, actions=actions)
    expected = advance(unbroken, 20)

    first = make_run(name, actions=actions)
    metrics = advance(first, 10)
    path = save_checkpoint(tmp_path, config=first.config, counters=first.counters(), parts=first.parts())
    resumed, checkpoint = make_run(name, actions=actions), open_checkpoint(path)
    parts = {part: checkpoint.load(part) for part in (POLICY, TRAINING, MEMORY)}
    resumed.load(checkpoint.manifest["counters"], parts)
    metrics += advance(resumed, 10)

    assert metrics == expected
    assert resumed.gradient_step == unbroken.gradient_step >= 1
    assert_identical(resumed.parts(), unbroken.parts())


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_policy_alone_acts_like_the_whole(name: str) -> None:
    run, other = make_run(name), make_run(name, seed=1)
    advance(run, 10)
    other.algorithm.load_policy_state_dict(clone(run.algorithm.policy_state_dict()))
    obs = some_obs(run)
    assert np.array_equal(other.algorithm.act(obs).actions, run.algorithm.act(obs).actions)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_its_reference_config_class_and_example_are_there(name: str) -> None:
    spec = registry()[name]
    assert load_config(f"configs/{spec.reference_config}").algo == name
    assert getattr(rl_training, spec.class_name).algo_name == name
    assert list(EXAMPLES.glob(f"{name}_*_reference.py"))
