"""The ladder of tiny problems tells settings that learn from settings that cannot."""

import pytest

from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.probing.ladder import RUNGS, _shortened, climb


def config(algo: str, **algo_kwargs: object) -> TrainConfig:
    return TrainConfig(algo=algo, env_id="rl_training/Chain-v0", total_timesteps=10, algo_kwargs=algo_kwargs)


@pytest.mark.learning
def test_ppo_climbs_the_whole_ladder() -> None:
    climbed = list(climb(config("ppo")))
    assert [one.rung.env_id for one in climbed] == [rung.env_id for rung in RUNGS if rung.actions == "discrete"]
    assert all(one.solved for one in climbed)


@pytest.mark.learning
def test_an_agent_without_learning_rate_stops_at_the_first_rung_that_needs_it() -> None:
    *solved, failed = climb(config("ppo", learning_rate=1e-12))
    assert not failed.solved
    assert len(solved) < 2  # an untrained policy may prefer the better arm by chance, but not copy its observation


def test_a_rollout_is_cut_with_minibatches_that_divide_it() -> None:
    """8 envs of 30 steps are 240 rows, cut to 64; a minibatch of 48 rows shares the divisor 16 with them."""
    long = TrainConfig(
        algo="ppo",
        env_id="rl_training/Chain-v0",
        total_timesteps=10,
        num_envs=8,
        algo_kwargs={"num_steps": 30, "minibatch_size": 48},
    )
    cut = _shortened(long)
    assert (cut["num_steps"], cut["minibatch_size"]) == (64, 16)


def test_every_algorithm_that_learns_in_environments_has_rungs() -> None:
    kinds = {rung.actions for rung in RUNGS}
    assert all(kinds & spec.actions for spec in registry().values())


def test_an_offline_algorithm_is_rejected() -> None:
    with pytest.raises(ConfigError, match="bc learns from a dataset"):
        next(climb(TrainConfig(algo="bc", total_timesteps=10, algo_kwargs={"dataset_path": "data.npz"})))
