"""Transitions sampled with what followed them: by hand, at the ends of episodes, in a ring, and after a resume."""

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box

from builders import make_setup
from rl_training.core.frame_space import FrameStackSpace
from rl_training.data.replay_buffer import build_replay_buffer

STEPS = 3
SPACES = {"images": Box(0, 255, (5, 5, 1), np.uint8), "frames": FrameStackSpace(3, (3, 5, 5))}


def memory_of(space: Any, num_envs: int = 1, **hparams: Any) -> Any:
    settings = {"algo": "c51_dqn", "observation": space, "self_prediction_steps": STEPS, "buffer_capacity": 30}
    return build_replay_buffer(make_setup(num_envs=num_envs, **{**settings, **hparams}))


def episodes(count: int, num_envs: int, space: Any, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Steps whose shade is their number within the env: 0, 1, 2, ...; three numbers are left out between episodes."""
    rng, numbers, taken = np.random.default_rng(seed), np.zeros(num_envs, np.int64), []

    def observed(shown: np.ndarray) -> np.ndarray:
        stacked = isinstance(space, FrameStackSpace)
        recent = shown[:, None] - np.arange(2, -1, -1) if stacked else shown[:, None]
        frames = np.maximum(recent, 0)[..., None, None] + np.zeros((5, 5), np.int64)  # one shade per frame
        images: np.ndarray = (frames if stacked else frames[:, 0, ..., None]).astype(np.uint8)
        return images

    for _ in range(count):
        terminated, truncated = rng.random((2, num_envs)) < 0.12
        step = {"obs": observed(numbers), "next_obs": observed(numbers + 1), "actions": numbers % 2}
        taken.append(step | {"rewards": numbers * 1.0, "terminated": terminated, "truncated": truncated})
        numbers = np.where(terminated | truncated, numbers + 4, numbers + 1)
    return taken


@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("kind", SPACES)
def test_observations_and_actions_follow_within_an_episode_alone(kind: str, num_envs: int, prioritized: bool) -> None:
    space = SPACES[kind]
    memory, taken = memory_of(space, num_envs, prioritized=prioritized), episodes(40, num_envs, space)
    for step in taken:
        memory.add(step)
    batch = memory.sample(400)
    assert batch["future_obs"].shape == (400, STEPS, *space.shape)
    # An env shows each number once, and the numbers of an episode are consecutive: those of the other env are the
    # same ones, with other ends.
    ends: dict[int, dict[int, bool]] = {env: {} for env in range(num_envs)}
    for step in taken[-(30 // num_envs) :]:
        for env in range(num_envs):
            ends[env][int(step["obs"][env].max())] = bool(step["terminated"][env] | step["truncated"][env])

    def following(number: int, env: int) -> list[bool]:
        flags, goes_on = [], True
        for k in range(STEPS):
            goes_on = goes_on and not ends[env].get(number + k, True) and number + k + 1 in ends[env]
            flags.append(goes_on)
        return flags

    for row in range(400):
        number = int(batch["obs"][row].max())
        follows = batch["follows"][row].tolist()
        assert follows in [following(number, env) for env in range(num_envs) if number in ends[env]]
        for k in range(STEPS):
            if follows[k]:
                assert int(batch["future_obs"][row, k].max()) == number + k + 1
            if k == 0 or follows[k - 1]:
                assert int(batch["future_actions"][row, k]) == (number + k) % 2
    assert 0.2 < batch["follows"].float().mean() < 0.9


def test_whole_stacks_follow() -> None:
    memory, taken = memory_of(SPACES["frames"]), episodes(12, 1, SPACES["frames"], seed=3)
    for step in taken:
        memory.add(step)
    batch = memory.sample(50)
    assert batch["follows"].all(1).any()
    stacks = {int(step["obs"].max()): step["obs"][0] for step in taken}
    for obs, future, follows in zip(batch["obs"], batch["future_obs"], batch["follows"], strict=True):
        for k in range(STEPS):
            if follows[k]:
                assert np.array_equal(future[k].numpy(), stacks[int(obs.max()) + k + 1])


def test_a_sampler_fills_the_same_tensors_and_a_sample_keeps_its_own() -> None:
    memory = memory_of(SPACES["frames"])
    for step in episodes(20, 1, SPACES["frames"]):
        memory.add(step)
    sampler = memory.sampler(8)
    first, second = sampler(), sampler()
    assert all(second[name] is first[name] for name in ("future_obs", "future_actions", "follows"))
    kept = memory.sample(8)
    before = kept["future_obs"].clone()
    memory.sample(8)
    assert kept["future_obs"].equal(before)


@pytest.mark.parametrize("kind", SPACES)
def test_a_resumed_memory_samples_the_same_batches(kind: str) -> None:
    whole, first, resumed = (memory_of(SPACES[kind], 2, prioritized=True) for _ in range(3))
    taken = episodes(30, 2, SPACES[kind])
    for step in taken[:20]:
        whole.add(step)
        first.add(step)
    for memory in (whole, first):
        memory.sample(8)
    resumed.load_state_dict(first.state_dict())
    for step in taken[20:]:
        whole.add(step)
        resumed.add(step)
    expected, found = whole.sample(64), resumed.sample(64)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(values) for name, values in expected.items())
