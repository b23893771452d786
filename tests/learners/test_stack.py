"""A stack of learners on fixed data: it computes what each member does alone, with the settings of each."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rl_training.core.types import Batch, State
from rl_training.experiment.registry import registry
from rl_training.learners.stack import Stack, stack_states
from rl_training.runtime.run import Run
from rl_training.runtime.stacked_work import learner_of
from small_runs import advance, make_run

STACKABLE = sorted(name for name, spec in registry().items() if spec.stackable and spec.loop != "on_policy")
VALUES: dict[str, tuple[float, float]] = {
    "learning_rate": (1e-3, 1e-2),
    "gamma": (0.5, 0.9),
    "tau": (0.01, 0.5),
    "expectile": (0.5, 0.9),
    "beta": (0.5, 4.0),
    "reward_scale": (0.5, 2.0),
    "reward_shift": (-1.0, 1.0),
    "policy_learning_rate": (1e-3, 1e-2),
}
OF_ROLLOUTS = {"penalty_coef"}  # no update reads it
PER_MEMBER = [
    (name, setting)
    for name in STACKABLE
    for setting in sorted(registry()[name].per_member)
    if setting not in OF_ROLLOUTS
]


def begun_run(name: str, seed: int, **hparams: Any) -> Run:
    """Return a run that has stored some transitions, and made its first updates."""
    run = make_run(name, seed=seed, **hparams)
    advance(run, 12)
    return run


def batches_of(run: Run, count: int) -> list[Batch]:
    sample = run.memory.sampler(run.config.hparams.batch_size)  # type: ignore[attr-defined]
    return [{name: values.clone() for name, values in sample().items()} for _ in range(count)]


def update_stack(runs: list[Run], batches: list[list[Batch]]) -> State:
    """Return the stacked state after these updates; `batches`: those of each member."""
    stack = Stack([learner_of(run.algorithm) for run in runs], runs[0].config.spec.per_member, "eager")
    for members in zip(*batches, strict=True):
        stack.update(stack_states(members), 1)
    assert stack.alive() == [True] * len(runs)
    return stack.state


def distance(found: Tensor, expected: Tensor) -> float:
    """Return the difference as a share of what is expected."""
    return float((found.double() - expected.double()).norm() / (expected.double().norm() + 1.0))


@pytest.mark.parametrize("name", STACKABLE)
def test_members_stay_within_a_ten_thousandth_of_single_runs_for_a_hundred_updates(name: str) -> None:
    seeds = (0, 1, 2)
    runs, alone = ([begun_run(name, seed) for seed in seeds] for _ in range(2))
    batches = [batches_of(run, 100) for run in runs]
    state = update_stack(runs, batches)
    for number, run in enumerate(alone):
        algorithm: Any = learner_of(run.algorithm)
        before = {key: value.clone() for key, value in algorithm.state.items()}
        for batch in batches[number]:
            algorithm.update(batch)
        assert any(not torch.equal(before[key], value) for key, value in algorithm.state.items())
        for key, value in algorithm.state.items():
            assert distance(state[key][number], value) <= 1e-4, key


@pytest.mark.parametrize(("name", "setting"), PER_MEMBER)
def test_a_stack_with_two_values_equals_two_stacks_with_one(name: str, setting: str) -> None:
    runs, alone = ([begun_run(name, 0, **{setting: value}) for value in VALUES[setting]] for _ in range(2))
    batches = batches_of(runs[0], 20)
    both = update_stack(runs, [batches, batches])
    for number, run in enumerate(alone):
        for key, value in update_stack([run], [batches]).items():
            assert distance(both[key][number], value[0]) <= 1e-5, key
    params = [key for key in both if key.endswith("params")]
    assert any(distance(both[key][0], both[key][1]) > 1e-4 for key in params)
