"""What actor-critics with `network: simba` have of the paper: sizes, weight decay, first temperature, normalization."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

from builders import make_box_batch, make_box_setup, make_setup
from rl_training.core.setup import Setup
from rl_training.core.spaces import pack_space
from rl_training.errors import SpaceError
from rl_training.experiment.registry import registry
from rl_training.hparams.sac import SACHParams
from rl_training.hparams.td3 import TD3HParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.random_inputs import RandomInputs
from rl_training.models.layers import Residual, StackedLinear
from state_comparison import assert_identical

FAMILY = ["sac", "td3", "redq", "tqc", "rlpd"]
SIZES: dict[str, Any] = {"hidden_sizes": (8,), "critic_hidden_sizes": (16, 16)}


def build(algo: str, *, network: str = "simba", **settings: Any) -> ActorCritic:
    setup = make_box_setup(algo, **{**SIZES, **settings})
    setup = replace(setup, hparams=setup.hparams.model_copy(update={"network": network}))
    learner = registry()[algo].build_algorithm(setup)
    assert isinstance(learner, ActorCritic)
    return learner


def limit_of(learner: ActorCritic) -> float | None:
    assert learner.scaling.normalizer is not None
    return learner.scaling.normalizer.limit


# --- Sizes -----------------------------------------------------------------------------------------------------------


def block_sizes(network: nn.Module) -> list[int]:
    """Return the units of each block: what its norm, the first of its parts, has last."""
    return [next(part.parameters()).shape[-1] for part in network.modules() if isinstance(part, Residual)]


@pytest.mark.parametrize("algo", FAMILY)
def test_critics_have_sizes_of_their_own(algo: str) -> None:
    learner = build(algo)
    assert block_sizes(learner.recipe.actor.module) == [8]
    assert block_sizes(learner.recipe.critics.module) == [16, 16]


@pytest.mark.parametrize("algo", ["sac", "td3", "redq", "rlpd"])
def test_without_sizes_of_their_own_critics_have_the_actors(algo: str) -> None:
    learner = build(algo, hidden_sizes=(8, 8), critic_hidden_sizes=None)
    assert block_sizes(learner.recipe.critics.module) == [8, 8]


def test_critics_without_hidden_layers_are_not_the_actors() -> None:
    assert [*build("sac", network="mlp", critic_hidden_sizes=()).recipe.critics.shapes] == [(2, 5, 1), (2, 1, 1)]


def test_dropped_units_are_those_of_the_critics() -> None:
    learner = build("redq", network="mlp", critic_hidden_sizes=(16, 4), dropout=0.1)
    assert learner.random_inputs("whole", 1)["critic_masks"].shape[-1] == 20
    learner.update(make_box_batch())


def test_blocks_of_critics_with_unequal_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"network: simba needs critic_hidden_sizes that are all alike, got \[8, 16\]"):
        SACHParams(network="simba", critic_hidden_sizes=(8, 16))
    with pytest.raises(ValueError, match="critic_hidden_sizes that are all alike"):
        TD3HParams(network="simba", critic_hidden_sizes=())


# --- Weight decay ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", FAMILY)
def test_a_step_decays_matrices_by_the_learning_rate_and_nothing_else(algo: str) -> None:
    rates: dict[str, Any] = {"learning_rate": 0.1, "actor_learning_rate": None}
    # Adam's part of a step from the same state is the same: what is left is -0.1 * 0.5 * w of every matrix w.
    plain, decaying = (build(algo, weight_decay=decay, **rates) for decay in (0.0, 0.5))
    drawn = RandomInputs(plain.random_inputs("whole", 1), torch.device("cpu")).fill(np.random.default_rng(0))
    state, batch = plain.state, plain.scaling.scaled(make_box_batch(), plain.state) | drawn
    state = {**state, **{name: state[name] + 0.01 for name in ("actor.params", "critic.params")}}  # biases begin at 0
    for name, network in (("actor", plain.recipe.actor), ("critic", plain.recipe.critics)):
        learn = "learn_actor" if name == "actor" else "learn_critics"
        (new, _), (decayed, _) = (getattr(learner.recipe, learn)(state, batch) for learner in (plain, decaying))
        change = network.named(decayed.pop(f"{name}.params") - new.pop(f"{name}.params"))
        layers = (nn.Linear, StackedLinear)
        matrices = {f"{key}.weight" for key, part in network.module.named_modules() if isinstance(part, layers)}
        assert matrices < change.keys()
        for key, before in network.named(state[f"{name}.params"]).items():
            expected = -0.05 * before if key in matrices else torch.zeros_like(before)
            torch.testing.assert_close(change[key], expected, atol=1e-6, rtol=0)
        others = [key for key in new if key.startswith("temperature.") or ".adam_" in key]
        assert_identical({key: decayed[key] for key in others}, {key: new[key] for key in others})


# --- First temperature -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["sac", "redq", "tqc", "rlpd", "cql", "crossq", "simbav2"])
def test_a_learned_temperature_starts_where_the_setting_says(algo: str) -> None:
    assert first_temperature(algo, make_box_setup(algo, alpha="auto", initial_alpha=0.02)) == pytest.approx(0.02)
    assert first_temperature(algo, make_box_setup(algo, alpha=0.5, initial_alpha=0.02)) == pytest.approx(0.5)


def test_so_does_that_of_discrete_sac() -> None:
    assert first_temperature("discrete_sac", make_setup(algo="discrete_sac", initial_alpha=0.02)) == pytest.approx(0.02)


def first_temperature(algo: str, setup: Setup[Any]) -> float:
    learner = registry()[algo].build_algorithm(setup)
    assert isinstance(learner, ActorCritic)
    return float(learner.state["temperature.params"].exp())


# --- Normalization ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", ["sac", "td3", "redq"])
def test_simba_does_not_clip_observations_unless_told_to(algo: str) -> None:
    assert limit_of(build(algo)) is None
    assert limit_of(build(algo, observation_clip=3.0)) == 3.0
    assert limit_of(build(algo, network="mlp", normalize_observations=True)) == 10.0
    assert limit_of(build(algo, network="mlp", normalize_observations=True, observation_clip=None)) is None


def test_dict_observations_with_vectors_are_refused_until_the_setting_says_no() -> None:
    vectors = pack_space(Dict({"position": Box(-1.0, 1.0, (2,), np.float32), "door": Discrete(2)}))
    with pytest.raises(
        SpaceError, match=r"network: simba normalizes vectors, but not those inside of Dict\(.*FlattenObs"
    ):
        build("sac", observation=vectors)
    assert build("sac", observation=vectors, normalize_observations=False).scaling.normalizer is None
    choices = pack_space(Dict({"door": Discrete(2), "key": Discrete(3)}))
    assert build("sac", observation=choices).scaling.normalizer is None
    assert build("sac", network="mlp", observation=vectors).scaling.normalizer is None
