"""RLPD: exactly half of every minibatch from the dataset, and what differs from REDQ."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.redq import build_redq
from rl_training.algorithms.rlpd import build_rlpd
from rl_training.algorithms.sac import SAC
from rl_training.core.setup import Setup
from rl_training.data.mixed_source import MixedSource, build_online_and_dataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.learners.actor_critic import ActorCritic
from state_comparison import assert_identical, clone
from test_iql_update import make_dataset

ROWS = 8


def rlpd_setup(seed: int = 0, **hparams: Any) -> Setup[Any]:
    """The rewards of the dataset are 100 and 101, those of the replay buffer below 10."""
    return replace(make_box_setup("rlpd", seed=seed, **hparams), dataset=make_dataset(returns=(200.0, 202.0)))


def filled_source(seed: int = 0, **hparams: Any) -> MixedSource:
    source = build_online_and_dataset(rlpd_setup(seed, **hparams))
    source.add({name: values.numpy() for name, values in make_box_batch(size=30).items()})
    return source


@pytest.mark.parametrize(("share", "expected"), [(0.5, 4), (0.25, 2), (0.0, 0), (1.0, 8)])
def test_each_minibatch_has_exactly_its_share_of_rows_of_the_dataset(share: float, expected: int) -> None:
    source = filled_source(offline_ratio=share)
    sampler = source.sampler(20 * ROWS)
    for _ in range(5):
        minibatches = sampler()["rewards"].view(20, ROWS)
        assert ((minibatches > 50.0).sum(1) == expected).all()


def test_both_halves_are_drawn_independently_and_evenly() -> None:
    rewards = torch.cat([filled_source(seed).sample(20 * ROWS)["rewards"] for seed in range(20)])
    offline = rewards[rewards > 50.0]
    assert (offline == 100.0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    assert len(set(rewards[rewards < 50.0].tolist())) == 30


def test_a_checkpoint_holds_the_replay_buffer_and_only_the_digest_of_the_dataset() -> None:
    source, other = filled_source(), build_online_and_dataset(rlpd_setup(seed=1))
    saved = clone(source.state_dict())
    assert set(saved["model"]) == {"rows", "digest", "generator"}
    other.load_state_dict(saved)
    assert_identical(other.sample(20 * ROWS), source.sample(20 * ROWS))


def test_an_update_is_redqs_on_the_same_batch() -> None:
    settings: dict[str, Any] = {"target_entropy": -2.0, "layer_norm": True, "policy_delay": 2}
    rlpd, redq = build_rlpd(rlpd_setup(**settings)), build_redq(make_box_setup("redq", **settings))
    batch = make_box_batch(size=3 * ROWS)
    torch.testing.assert_close(rlpd.update(batch).metrics, redq.update(batch).metrics)
    torch.testing.assert_close(rlpd.state, redq.state)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (2.0 + 100.0) / 2),
        ({"reward_scale": 0.5, "reward_shift": -1.0}, (0.0 + 49.0) / 2),  # 0.5 * 2 - 1 and 0.5 * 100 - 1
        ({"reward_scale": "return"}, (1_000.0 + 50_000.0) / 2),  # returns of 200 and 202: 1000 / 2 times each reward
    ],
)
def test_rewards_of_both_halves_are_scaled_and_shifted(settings: dict[str, Any], expected: float) -> None:
    batch = make_box_batch(size=ROWS) | {"rewards": torch.tensor([2.0] * 4 + [100.0] * 4)}
    batch["terminated"] = torch.ones(ROWS, dtype=torch.bool)  # targets are the rewards alone
    learner = build_rlpd(rlpd_setup(**settings))
    assert learner.update(batch).metrics["target_mean"].item() == pytest.approx(expected)


def test_values_of_shifted_rewards_are_no_estimate_of_returns() -> None:
    obs, actions = np.zeros((2, 3), np.float32), np.zeros((2, 2), np.float32)
    assert build_rlpd(rlpd_setup()).estimated_returns(obs, actions) is not None
    assert build_rlpd(rlpd_setup(reward_shift=-1.0)).estimated_returns(obs, actions) is None


def test_a_resume_scales_rewards_as_the_run_did() -> None:
    learner, resumed = build_rlpd(rlpd_setup(reward_scale="return")), build_rlpd(rlpd_setup(reward_scale="return"))
    resumed.state["reward_scale"].fill_(1.0)
    resumed.load_state_dict(clone(learner.state_dict()))
    assert resumed.state["reward_scale"].item() == 500.0


def test_the_entropy_aims_at_half_of_sacs_and_may_be_left_out_of_the_target() -> None:
    learner = build_rlpd(rlpd_setup())
    assert isinstance(learner.recipe, SAC)
    assert learner.recipe._target_entropy == -1.0  # an action has two numbers

    def target_mean(alpha: float, *, entropy: bool) -> float:
        learner = build_rlpd(rlpd_setup(alpha=alpha, entropy_in_target=entropy))
        return float(learner.update(make_box_batch()).metrics["target_mean"])

    assert target_mean(0.1, entropy=False) == target_mean(50.0, entropy=False)
    assert target_mean(0.1, entropy=True) != pytest.approx(target_mean(50.0, entropy=True), abs=1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch_size": 5}, "offline_ratio must give a whole number of rows: 0.5 of batch_size 5 is 2.5"),
        ({"n_step": 3}, "n_step must be 1"),
        ({"prioritized": True}, "prioritized false"),
        ({"num_critics": 2, "subset_size": 3}, "subset_size must be at most num_critics, 2, got 3"),
    ],
)
def test_settings_that_cannot_be_mixed_are_refused(settings: dict[str, Any], message: str) -> None:
    kwargs = {"dataset_kind": "random", **settings}
    with pytest.raises(ValueError, match=message):
        TrainConfig(algo="rlpd", env_id="Pendulum-v1", total_timesteps=10, algo_kwargs=kwargs)


def test_the_registry_builds_it_from_its_row() -> None:
    learner = registry()["rlpd"].build_algorithm(rlpd_setup())
    assert isinstance(learner, ActorCritic)
    assert np.isfinite(learner.act(np.zeros((2, 3), np.float32)).actions).all()
