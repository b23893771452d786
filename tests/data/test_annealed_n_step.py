"""N-step returns that are summed when they are sampled: by hand, against windows of a fixed length, and resume."""

from typing import Any

import numpy as np
import pytest

from builders import make_setup
from rl_training.core.frame_space import FrameStackSpace
from rl_training.data.replay_buffer import build_replay_buffer
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.hparams.schedules import annealed_return, updates_since_reset

CONSTANT: dict[str, Any] = {"n_step": 3, "n_step_start": 3, "gamma": 0.5, "gamma_start": 0.5}


def memory_of(num_envs: int = 1, seed: int = 0, **hparams: Any) -> Any:
    return build_replay_buffer(make_setup(num_envs=num_envs, seed=seed, **{"buffer_capacity": 60, **hparams}))


def steps(count: int, num_envs: int, seed: int = 0, space: Any = None) -> list[dict[str, np.ndarray]]:
    """Steps of envs whose episodes terminate or are truncated now and then; observations are stacks if `space` is."""
    rng = np.random.default_rng(seed)
    shape, dtype = (space.shape, np.uint8) if space is not None else ((3,), np.float32)

    def fresh() -> np.ndarray:
        return rng.integers(256, size=shape).astype(dtype)

    obs = np.stack([fresh() for _ in range(num_envs)])
    taken = []
    for _ in range(count):
        terminated, truncated = rng.random(num_envs) < 0.15, rng.random(num_envs) < 0.15
        following = np.stack([fresh() for _ in range(num_envs)])
        if space is not None:
            layers = space.frame_shape[0]
            following[:, :-layers] = obs[:, layers:]
        step = {"obs": obs, "next_obs": following, "actions": rng.integers(2, size=num_envs)}
        step |= {"rewards": rng.normal(size=num_envs), "terminated": terminated, "truncated": truncated}
        taken.append(step)
        ended = terminated | truncated
        obs = np.where(ended.reshape(-1, *(1,) * len(shape)), np.stack([fresh() for _ in range(num_envs)]), following)
    return taken


def test_a_window_by_hand() -> None:
    # Rewards 1, 2, 4, 8 of one env, gamma 0.5, n = 3; step 2 is truncated. From step 0: 1 + 1 + 1 = 3, up to the
    # observation after step 2; from 1: 2 + 2 = 4, two steps; from 2: 4, one step; from 3, the newest: 8, one step.
    memory = memory_of(**CONSTANT)
    for number, reward in enumerate((1.0, 2.0, 4.0, 8.0)):
        memory.add(
            {
                "obs": np.full((1, 3), number, np.float32),
                "next_obs": np.full((1, 3), number + 0.5, np.float32),
                "actions": np.array([0]),
                "rewards": np.array([reward]),
                "terminated": np.array([False]),
                "truncated": np.array([number == 2]),
            }
        )
    batch = memory.sample(200)
    found = {
        float(obs[0]): (float(reward), float(after[0]), float(discount))
        for obs, reward, after, discount in zip(
            batch["obs"], batch["rewards"], batch["next_obs"], batch["discounts"], strict=True
        )
    }
    assert found == {0.0: (3.0, 2.5, 0.125), 1.0: (4.0, 2.5, 0.25), 2.0: (4.0, 2.5, 0.5), 3.0: (8.0, 3.5, 0.5)}


@pytest.mark.parametrize("space", [None, FrameStackSpace(3, (3, 6, 6))], ids=["vectors", "frames"])
@pytest.mark.parametrize("prioritized", [False, True])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_windows_of_a_constant_length_are_those_that_are_built_before_storing(
    num_envs: int, prioritized: bool, space: Any
) -> None:
    settings: dict[str, Any] = {"n_step": 3, "gamma": 0.5, "prioritized": prioritized, "observation": space}
    annealed, fixed = memory_of(num_envs, **{**settings, **CONSTANT}), memory_of(num_envs, **settings)
    for step in steps(40, num_envs, space=space):
        annealed.add(step)
        fixed.add(step)

    def rows(batch: Any) -> dict[bytes, tuple[Any, ...]]:
        names = ("rewards", "discounts", "terminated", "next_obs", "actions")
        parts = zip(batch["obs"], *(batch[name] for name in names), strict=True)
        return {obs.numpy().tobytes(): tuple(part.numpy().tolist() for part in rest) for obs, *rest in parts}

    ours, theirs = (rows(memory.sample(3_000)) for memory in (annealed, fixed))
    common = ours.keys() & theirs.keys()
    assert len(common) >= min(60, 40 * num_envs) - 3 * num_envs  # the fixed ones of the newest steps are not complete
    for row in common:
        assert ours[row][0] == pytest.approx(theirs[row][0], rel=1e-5)
        assert ours[row][1:] == theirs[row][1:]


def test_n_and_gamma_move_exponentially_and_start_again_after_a_reset() -> None:
    # BBF: n from 10 to 3, 1 - gamma from 0.03 to 0.003, over 10,000 updates; half way: 10 sqrt(0.3), 0.03 sqrt(0.1).
    settings: dict[str, Any] = {"n_step": 3, "n_step_start": 10, "gamma": 0.997, "gamma_start": 0.97}
    hparams: Any = make_setup(reset_interval=40_000, **settings).hparams
    for updates, expected in {
        0: (10, 0.97),
        5_000: (round(10 * 0.3**0.5), 1.0 - 0.03 * 0.1**0.5),
        10_000: (3, 0.997),
        39_999: (3, 0.997),
        40_000: (10, 0.97),
        45_000: (5, 1.0 - 0.03 * 0.1**0.5),
    }.items():
        assert annealed_return(hparams, updates, 200_000) == pytest.approx(expected)
    assert updates_since_reset(hparams, 170_000, 200_000) == 10_000
    assert updates_since_reset(hparams, 170_000, 199_999) == 50_000  # the last reset would leave too little
    without: Any = make_setup(**settings).hparams
    assert annealed_return(without, 60_000, 200_000) == (3, 0.997)


def test_each_batch_has_the_n_of_its_update() -> None:
    memory = memory_of(n_step=1, n_step_start=4, anneal_updates=2, gamma=0.5)
    for step in steps(30, 1):
        memory.add({**step, "terminated": np.array([False]), "truncated": np.array([False])})
    longest = [round(-np.log2(memory.sample(200)["discounts"].numpy().min())) for _ in range(4)]
    assert longest == [4, 2, 1, 1]


def test_a_resumed_memory_samples_the_same_batches() -> None:
    hparams: dict[str, Any] = {"n_step": 1, "n_step_start": 4, "anneal_updates": 5, "prioritized": True}
    whole, first, resumed = (memory_of(2, **hparams) for _ in range(3))
    taken = steps(20, 2)
    for step in taken[:12]:
        whole.add(step)
        first.add(step)
    for memory in (whole, first):
        memory.sample(8)
    resumed.load_state_dict(first.state_dict())
    for step in taken[12:]:
        whole.add(step)
        resumed.add(step)
    expected, found = whole.sample(64), resumed.sample(64)
    assert found.keys() == expected.keys()
    assert all(found[name].equal(values) for name, values in expected.items())


def test_a_resume_that_starts_a_new_episode_ends_the_window_before_it() -> None:
    memory, resumed = memory_of(**CONSTANT), memory_of(**CONSTANT)
    calm = [{**step, "terminated": np.array([False]), "truncated": np.array([False])} for step in steps(4, 1)]
    for step in calm[:2]:
        memory.add(step)
    resumed.load_state_dict(memory.state_dict())
    resumed.add({**calm[2], "obs": calm[2]["obs"] + 1.0})  # does not follow
    resumed.add(calm[3])
    batch = resumed.sample(100)
    starts = {float(obs[0]): float(discount) for obs, discount in zip(batch["obs"], batch["discounts"], strict=True)}
    assert starts[float(calm[0]["obs"][0, 0])] == 0.25  # two steps, up to the resume
    assert starts[float(calm[1]["obs"][0, 0])] == 0.5


@pytest.mark.parametrize(
    ("hparams", "problem"),
    [
        ({"gamma_start": 0.9, "gamma": 1.0}, "gamma_start needs a gamma below 1"),
        ({"n_step_start": 5, "her": "future"}, "her replaces goals of single steps"),
    ],
)
def test_what_annealing_does_not_combine_with_is_refused(hparams: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        TrainConfig(algo="dqn", env_id="CartPole-v1", total_timesteps=10, algo_kwargs=hparams)
