"""DroQ, which is REDQ with dropout: the masks, where they act, that each forward has its own, and updates with them."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from builders import make_box_batch, make_box_setup
from rl_training.algorithms.redq import build_redq
from rl_training.algorithms.sac import sac_critic_loss
from rl_training.core.types import Batch
from rl_training.hparams.redq import REDQHParams
from rl_training.learners.actor_critic import ActorCritic
from rl_training.learners.random_inputs import RandomInputs
from rl_training.models.continuous import CriticEnsemble
from rl_training.models.layers import Dropout, StackedLayerNorm, StackedLinear
from rl_training.models.mlp_redq import MLPREDQModel

DROQ: dict[str, Any] = {"num_critics": 2, "subset_size": 2, "dropout": 0.25, "layer_norm": True}


def build(**changes: Any) -> ActorCritic:
    return build_redq(make_box_setup("redq", **{**DROQ, **changes}))


def drawn_masks(learner: ActorCritic, rounds: int, *, rows: int = 8, actor: bool = True) -> Batch:
    random_inputs = RandomInputs(learner.recipe.random_inputs(rounds, rows, actor=actor), torch.device("cpu"))
    drawn = random_inputs.fill(np.random.default_rng(0))
    return {name: values for name, values in drawn.items() if name.endswith("_masks")}


# --- The network -----------------------------------------------------------------------------------------------------


def critics_of(rate: float = 0.25, **style: Any) -> CriticEnsemble:
    torch.manual_seed(0)
    return CriticEnsemble(lambda: (nn.Flatten(), 3), 2, (4, 6), num_critics=2, dropout=rate, **style)


def test_a_hidden_layer_is_linear_dropout_norm_activation() -> None:
    kinds = [type(layer) for layer in critics_of(layer_norm=True).layers]
    hidden = [StackedLinear, Dropout, StackedLayerNorm, nn.ReLU]
    assert kinds == [*hidden, *hidden, StackedLinear]
    assert [type(layer) for layer in critics_of(0.0).layers] == [StackedLinear, nn.ReLU] * 2 + [StackedLinear]


def test_masked_units_are_zero_and_the_others_grow_to_keep_the_mean() -> None:
    critics = critics_of(layer_norm=True)
    obs, actions = torch.randn(5, 3), torch.randn(5, 2)
    masks = torch.randint(0, 2, (2, 5, 4 + 6), dtype=torch.uint8)
    first, _, norm, _, second, _, other_norm, _, last = critics.layers
    x = first(torch.cat((obs, actions), 1)) * masks[:, :, :4] / 0.75
    x = second(F.relu(norm(x))) * masks[:, :, 4:] / 0.75
    expected = last(F.relu(other_norm(x))).squeeze(2)
    torch.testing.assert_close(critics(obs, actions, None, masks), expected)
    chosen = torch.tensor([1, 0])
    torch.testing.assert_close(critics(obs, actions, chosen, masks.flip(0)), expected.flip(0))


def test_without_masks_nothing_is_dropped() -> None:
    obs, actions = torch.randn(5, 3), torch.randn(5, 2)
    torch.testing.assert_close(critics_of()(obs, actions), critics_of(0.0)(obs, actions))
    everything = torch.ones(2, 5, 10, dtype=torch.uint8)
    assert not torch.allclose(critics_of()(obs, actions, None, everything), critics_of()(obs, actions))


# --- The masks -------------------------------------------------------------------------------------------------------


def test_masks_drop_units_at_the_rate_and_independently_of_each_other() -> None:
    learner = build(hidden_sizes=(16, 8))
    masks = drawn_masks(learner, 40)
    assert masks.keys() == {"target_masks", "critic_masks", "actor_masks"}
    assert {values.dtype for values in masks.values()} == {torch.uint8}
    assert {tuple(values.shape) for values in masks.values()} == {(40 * 2, 8, 24)}
    flat = torch.stack([values.flatten() for values in masks.values()]).double()
    assert set(flat.unique().tolist()) == {0.0, 1.0}
    np.testing.assert_allclose(flat.mean(1), 0.75, atol=0.02)
    alike = np.corrcoef(flat.numpy()) - np.eye(3)  # the three forwards of an update
    assert np.abs(alike).max() < 0.03
    critics = masks["critic_masks"].view(40, 2, -1).transpose(0, 1).reshape(2, -1).double()
    assert abs(np.corrcoef(critics.numpy())[0, 1]) < 0.04  # the two critics
    rounds = masks["critic_masks"].view(40, -1)
    assert not torch.equal(rounds[0], rounds[1])


def test_masks_are_drawn_for_the_actor_only_where_it_learns_and_for_none_at_a_rate_of_zero() -> None:
    assert drawn_masks(build(), 3, actor=False).keys() == {"target_masks", "critic_masks"}
    assert drawn_masks(build(dropout=0.0), 3) == {}


def test_a_subset_has_masks_of_its_own_size() -> None:
    masks = drawn_masks(build(num_critics=4, subset_size=3), 5)
    assert {name: len(values) for name, values in masks.items()} == {
        "target_masks": 15,
        "critic_masks": 20,
        "actor_masks": 20,
    }


# --- Losses and updates ----------------------------------------------------------------------------------------------


def test_each_forward_of_an_update_uses_its_own_masks() -> None:
    learner, seen = build(), []
    module = learner.recipe.critics.module
    plain = module.forward

    def noting(obs: Tensor, actions: Tensor, members: Tensor | None = None, masks: Tensor | None = None) -> Tensor:
        assert masks is not None
        seen.append(masks.clone())
        values: Tensor = plain(obs, actions, members, masks)
        return values

    module.forward = noting
    for seed in range(20):  # the actor learns once in 20 updates
        learner.update(make_box_batch(seed))
    assert len(seen) == 2 * 20 + 1
    assert len({mask.numpy().tobytes() for mask in seen}) == len(seen)


def test_the_loss_is_that_of_the_thinned_critics() -> None:
    learner = build()
    batch = make_box_batch() | {"next_noise": torch.zeros(8, 2), "subset": torch.tensor([0, 1])}
    masks = drawn_masks(learner, 1)
    recipe: Any = learner.recipe
    shared = {"gamma": 0.0, "policy": recipe.policy, "apply_actor": recipe.actor.apply}
    state = learner.state

    def loss(batch: Batch) -> float:
        metrics = sac_critic_loss(
            state["critic.params"],
            state["target_critic"],
            state["actor.params"],
            torch.tensor(0.1),
            batch,
            apply_critics=recipe.critics.apply,
            estimate=recipe._target_estimate,
            **shared,
        )
        return float(metrics["loss"])

    # With gamma 0 the target is the reward, so that only the masks of the critics themselves count.
    values = recipe.critics.apply(state["critic.params"], batch["obs"], batch["actions"], None, masks["critic_masks"])
    expected = (values - batch["rewards"]).square().sum(0).mean()
    assert loss(batch | masks) == pytest.approx(float(expected), rel=1e-5)
    others = {name: 1 - values for name, values in masks.items()}
    assert loss(batch | masks | {"target_masks": others["target_masks"]}) == loss(batch | masks)
    assert loss(batch | masks | {"critic_masks": others["critic_masks"]}) != loss(batch | masks)


def test_estimates_of_returns_have_no_dropout() -> None:
    learner = build()
    obs, actions = np.ones((4, 3), np.float32), np.ones((4, 2), np.float32)
    first, again = (learner.estimated_returns(obs, actions) for _ in range(2))
    assert first is not None
    assert again is not None
    assert np.array_equal(first, again)


def test_a_network_of_ones_own_has_no_dropout_of_ours() -> None:
    network = MLPREDQModel(lambda: (nn.Flatten(), 3), 2, (8,), num_critics=2)
    learner = build(network=network)
    assert drawn_masks(learner, 2) == {}
    learner.update(make_box_batch())


def test_settings_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="dropout"):
        REDQHParams(dropout=1.0)
    with pytest.raises(ValueError, match=r"network: simba has no dropout, got dropout 0\.1; set it to 0"):
        REDQHParams(network="simba", dropout=0.1)
