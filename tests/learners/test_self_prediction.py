"""Self-prediction (SPR): its loss by hand, what the network predicts, what gradients reach, and resets."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from builders import make_batch, make_setup
from rl_training.algorithms.c51_dqn import build_c51_dqn, c51_loss
from rl_training.core.types import Batch
from rl_training.errors import ConfigError
from rl_training.learners.q_learning import QLearner
from rl_training.learners.self_prediction import distances
from rl_training.models.self_prediction import SelfPredictiveNetwork, scale
from state_comparison import assert_identical, clone

IMAGE = Box(0, 255, (6, 6, 1), np.uint8)
STEPS, ROWS = 3, 4


def learner_of(**changes: Any) -> QLearner:
    settings = {"observation": IMAGE, "num_actions": 3, "self_prediction_steps": STEPS, "layer_norm": False, **changes}
    return build_c51_dqn(make_setup(algo="c51_dqn", **settings))


def future_batch(seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def pixels(*rows: int) -> Tensor:
        return torch.randint(256, (*rows, 6, 6, 1), generator=generator).to(torch.uint8)

    return make_batch(seed, size=ROWS, num_actions=3) | {
        "obs": pixels(ROWS),
        "next_obs": pixels(ROWS),
        "future_obs": pixels(ROWS, STEPS),
        "future_actions": torch.randint(3, (ROWS, STEPS), generator=generator),
        "follows": torch.tensor([[True] * 3, [True, True, False], [True, False, False], [False] * 3]),
    }


def gradient_and_metrics(learner: QLearner, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    params = learner.state["params"].clone().requires_grad_()
    with torch.enable_grad():
        metrics = c51_loss(params, learner.state["target"], batch, learner.hparams, learner.apply)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(metrics["loss"], params)
    return learner._network.named(gradient), metrics


# --- The loss --------------------------------------------------------------------------------------------------------


def test_distances_by_hand() -> None:
    # Normalised: the same direction 0, a right angle 2, the opposite 4. Means over two steps: 1, 2; masked: 0.
    predictions = torch.tensor([[[3.0, 0.0], [2.0, 0.0]], [[0.0, 1.0], [5.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    targets = torch.tensor([[[1.0, 0.0], [0.0, 7.0]], [[0.0, -2.0], [1.0, 1.0]], [[0.0, 1.0], [0.0, 1.0]]])
    follows = torch.tensor([[True, True], [True, False], [False, False]])
    assert distances(predictions, targets, follows).tolist() == pytest.approx([1.0, 2.0, 0.0])


def test_the_loss_is_added_to_that_of_the_values_and_priorities_stay_those_of_the_values() -> None:
    learner, batch = learner_of(self_prediction_coef=2.0), future_batch()
    without = {name: value for name, value in batch.items() if name not in ("future_obs", "future_actions", "follows")}
    plain = c51_loss(learner.state["params"], learner.state["target"], without, learner.hparams, learner.apply)  # type: ignore[arg-type]
    _, metrics = gradient_and_metrics(learner, batch)
    assert metrics["self_prediction_loss"] > 0.0
    torch.testing.assert_close(metrics["loss"], plain["loss"] + 2.0 * metrics["self_prediction_loss"])
    torch.testing.assert_close(metrics["td_errors"], plain["td_errors"])


def test_importance_weights_weigh_both_losses() -> None:
    learner, batch = learner_of(), future_batch()
    only = batch | {"weights": torch.tensor([0.0, 1.0, 0.0, 0.0])}
    row = {name: value[1:2] for name, value in batch.items()}
    torch.testing.assert_close(
        gradient_and_metrics(learner, only)[1]["loss"], gradient_and_metrics(learner, row)[1]["loss"] / ROWS
    )


def test_what_does_not_follow_has_no_part_in_the_gradient() -> None:
    learner, batch = learner_of(), future_batch()
    other = {name: value.clone() for name, value in batch.items()}
    other["future_obs"][~batch["follows"]] = 7
    other["future_actions"][:, 1:][~batch["follows"][:, 1:]] = 0  # lead to observations that do not follow
    assert_identical(gradient_and_metrics(learner, other)[0], gradient_and_metrics(learner, batch)[0])


# --- The network -----------------------------------------------------------------------------------------------------


def test_features_are_scaled_row_by_row() -> None:
    features = torch.tensor([[[[0.0, 4.0]], [[2.0, 1.0]]], [[[5.0, 5.0]], [[5.0, 5.0]]]])
    found = scale(features)
    torch.testing.assert_close(found[0], features[0] / 4.0, rtol=1e-4, atol=0)
    assert not found[1].any()


@pytest.mark.parametrize("dueling", [False, True])
def test_predictions_are_those_of_a_loop_over_the_steps(dueling: bool) -> None:
    network = learner_of(dueling=dueling, hidden_sizes=(5, 7) if not dueling else (7,)).recipe.network
    assert isinstance(network, SelfPredictiveNetwork)
    batch, first = future_batch(), network.head[0]
    values, predictions = network(batch["obs"], SelfPredictiveNetwork.predict, batch["future_actions"])
    torch.testing.assert_close(values, network(batch["obs"]))
    layers = [first.value[0], first.advantages[0]] if dueling else [first]  # type: ignore[index]
    assert predictions.shape == (ROWS, STEPS, 14 if dueling else 5)
    for row in range(ROWS):
        features = scale(network.encoder(batch["obs"][row : row + 1]))
        for step in range(STEPS):
            action = torch.zeros(1, 3, *features.shape[2:])
            action[:, int(batch["future_actions"][row, step])] = 1.0
            features = scale(network.transition(torch.cat((features, action), 1)))
            projected = torch.cat([layer(features.flatten(1)) for layer in layers], 1)  # type: ignore[operator]
            torch.testing.assert_close(predictions[row, step], network.predictor(projected)[0])
    projected = network(batch["obs"], SelfPredictiveNetwork.project)
    expected = torch.cat([layer(scale(network.encoder(batch["obs"])).flatten(1)) for layer in layers], 1)  # type: ignore[operator]
    torch.testing.assert_close(projected, expected)


def test_the_gradient_reaches_every_part_of_the_network_and_not_the_target() -> None:
    learner, batch = learner_of(), future_batch()
    silent = batch | {"follows": torch.zeros(ROWS, STEPS, dtype=torch.bool)}
    with_loss, without = (gradient_and_metrics(learner, each)[0] for each in (batch, silent))
    for name, gradient in with_loss.items():
        has_other_loss = not name.startswith(("transition", "predictor"))
        assert bool(without[name].any()) == has_other_loss, name
        is_changed = not torch.equal(gradient, without[name])
        assert is_changed == name.startswith(("encoder", "transition", "predictor", "head.0")), name
    target = learner.state["target"].clone().requires_grad_()
    with torch.enable_grad():
        params = learner.state["params"].clone().requires_grad_()
        loss = c51_loss(params, target, batch, learner.hparams, learner.apply)["loss"]  # type: ignore[arg-type]
    assert torch.autograd.grad(loss, (target,), allow_unused=True)[0] is None


# --- The learner -----------------------------------------------------------------------------------------------------


def test_every_future_image_is_augmented_by_a_draw_of_its_own() -> None:
    learner = learner_of(augmentation="shift_and_intensity")
    batch = future_batch()
    batch["future_obs"][:] = batch["obs"][:, None]  # the same image everywhere
    assert learner._augment is not None
    seen = learner._augment(batch | learner._draw(ROWS))
    images = [seen["obs"][0], *seen["future_obs"][0]]
    assert seen["future_obs"].shape == (ROWS, STEPS, 6, 6, 1)
    assert all(not torch.equal(one, other) for number, one in enumerate(images) for other in images[:number])


def test_a_reset_keeps_a_share_of_encoder_and_transition_alone() -> None:
    hparams: dict[str, Any] = {"reset_share": 1.0, "tau": 0.5, "target_update_interval": 1}
    learner, plain = learner_of(reset_interval=2, **hparams), learner_of(**hparams)
    for seed in range(2):
        learner.update(future_batch(seed))
        plain.update(future_batch(seed))
    for which in ("params", "target"):
        new, old = (each._network.named(each.state[which]) for each in (learner, plain))
        kept = {name.split(".")[0] for name in new if torch.equal(new[name], old[name])}
        assert kept == {"encoder", "transition"}


def test_a_resumed_learner_continues_exactly() -> None:
    whole, first, resumed = (learner_of(augmentation="shift", reset_interval=3) for _ in range(3))
    for seed in range(5):
        whole.update(future_batch(seed))
    for seed in range(2):
        first.update(future_batch(seed))
    resumed.load_policy_state_dict(clone(first.policy_state_dict()))
    resumed.load_state_dict(clone(first.state_dict()))
    for seed in range(2, 5):
        resumed.update(future_batch(seed))
    assert_identical(resumed.state, whole.state)


def test_predictions_of_a_known_world_are_learned() -> None:
    # The action decides the next shade, so that features after an action can be told apart.
    learner = learner_of(learning_rate=3e-3, hidden_sizes=(16,), tau=0.05, target_update_interval=1)
    losses = []
    for seed in range(120):
        batch = future_batch(seed)
        batch["future_obs"][:] = (100 * batch["future_actions"]).to(torch.uint8)[..., None, None, None]
        batch["future_obs"][..., 0, 0, 0] = 255  # an image of one shade would be scaled to zeros
        losses.append(float(learner.update(batch).metrics["self_prediction_loss"]))
    assert np.mean(losses[-10:]) < 0.1 * losses[0]


def test_only_images_are_predicted_and_only_by_the_librarys_network() -> None:
    assert not isinstance(learner_of(observation=None).recipe.network, SelfPredictiveNetwork)
    own = nn.Sequential(nn.Flatten(), nn.Linear(36, 33), nn.Unflatten(1, (3, 11)))
    with pytest.raises(ConfigError, match=r"self_prediction_steps needs the library's network"):
        learner_of(network=own)
    with pytest.raises(ValueError, match="self_prediction_steps must be 0"):
        learner_of(her="future")
