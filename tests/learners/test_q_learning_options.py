"""Options of the DQN family: acting with the target, weight decay, resets, augmented images, IMPALA's encoder."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor, nn

from builders import make_batch, make_setup
from rl_training.algorithms.dqn import build_dqn
from rl_training.core.types import Batch
from rl_training.errors import ConfigError
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.hparams.schedules import is_reset, updates_since_reset
from rl_training.learners.augmentation import Augmentation, shifted
from rl_training.learners.optim import ClippedAdam
from rl_training.learners.q_learning import QLearner, q_policy
from rl_training.learners.q_networks import q_optimizer
from rl_training.models.encoders import Encoder, build_encoder
from state_comparison import assert_identical, clone

IMAGE = Box(0, 255, (8, 8, 1), np.uint8)
HEADS = ["dqn", "c51_dqn", "qr_dqn", "iqn", "fqf"]


def learner_of(algo: str = "dqn", **changes: Any) -> QLearner:
    learner = registry()[algo].build_algorithm(make_setup(algo=algo, **changes))
    assert isinstance(learner, QLearner)
    return learner


def image_batch(seed: int = 0, size: int = 8) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    pixels = {
        name: torch.randint(256, (size, 8, 8, 1), generator=generator).to(torch.uint8) for name in ("obs", "next_obs")
    }
    return make_batch(seed, size=size) | pixels


# --- Acting with the target network ----------------------------------------------------------------------------------


@pytest.mark.parametrize("algo", HEADS)
def test_actions_are_those_of_the_target_network(algo: str) -> None:
    learner = learner_of(algo, act_with_target=True, target_update_interval=100, learning_rate=0.1, num_actions=4)
    obs = np.random.default_rng(0).standard_normal((50, 3), np.float32)
    first = learner.act(obs).actions
    for seed in range(5):
        learner.update(make_batch(seed, num_actions=4))
    assert np.array_equal(learner.act(obs).actions, first)  # the target has not moved
    with torch.no_grad():
        online = learner.recipe.q_values(torch.from_numpy(obs)).argmax(1).numpy()
    assert not np.array_equal(online, first)
    assert np.array_equal(q_policy(learner)(torch.from_numpy(obs), None).actions.numpy(), first)  # as exported
    learner._state["target"].copy_(learner._state["params"])
    assert np.array_equal(learner.act(obs).actions, online)


def test_the_saved_policy_is_the_target_network_and_the_rest_is_saved_beside_it() -> None:
    learner, other = (learner_of(act_with_target=True, tau=0.1, target_update_interval=1, seed=s) for s in (0, 1))
    for seed in range(3):
        learner.update(make_batch(seed))
    policy = learner.policy_state_dict()
    assert torch.equal(torch.cat([value.reshape(-1) for value in policy.values()]), learner._state["target"])
    other.load_policy_state_dict(clone(policy))
    obs = np.random.default_rng(0).standard_normal((50, 3), np.float32)
    assert np.array_equal(other.act(obs).actions, learner.act(obs).actions)
    other.load_state_dict(clone(learner.state_dict()))
    assert_identical(other._state, learner._state)


def test_noise_has_no_part_in_acting_with_the_target() -> None:
    with pytest.raises(ConfigError, match="act_with_target: true acts without noise"):
        TrainConfig(algo="noisy_dqn", env_id="C-v0", total_timesteps=9, algo_kwargs={"act_with_target": True})


# --- Weight decay ----------------------------------------------------------------------------------------------------


def test_matrices_decay_as_in_adamw_and_vectors_do_not() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    setup = make_setup(weight_decay=0.1, learning_rate=0.01, max_grad_norm=None)
    optimizer = q_optimizer(network, setup)
    state = optimizer.state(torch.cat([p.detach().reshape(-1) for p in network.parameters()]))
    groups = [
        {"params": [p for p in network.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in network.parameters() if p.ndim == 1], "weight_decay": 0.0},
    ]
    theirs = torch.optim.AdamW(groups, lr=0.01, eps=1e-8)
    for _ in range(5):
        gradient = torch.randn(len(state["params"]))
        parts = torch.split(gradient, [p.numel() for p in network.parameters()])
        for parameter, part in zip(network.parameters(), parts, strict=True):
            parameter.grad = part.view_as(parameter).clone()
        theirs.step()
        state |= optimizer.step(gradient, state)[0]
    expected = torch.cat([p.detach().reshape(-1) for p in network.parameters()])
    torch.testing.assert_close(state["params"], expected, rtol=1e-5, atol=1e-6)


def test_one_step_of_decay_by_hand() -> None:
    # Gradient 0: Adam moves nothing; 2 becomes 2 - 0.5 * 0.1 * 2, the second parameter stays.
    optimizer = ClippedAdam(learning_rate=0.5, eps=1e-8, max_grad_norm=None, decay=torch.tensor([0.1, 0.0]))
    state = optimizer.state(torch.tensor([2.0, 3.0]))
    assert optimizer.step(torch.zeros(2), state)[0]["params"].tolist() == pytest.approx([1.9, 3.0])


def test_the_proposals_of_fqf_do_not_decay() -> None:
    still, decaying = learner_of("fqf"), learner_of("fqf", weight_decay=0.5)
    for learner in (still, decaying):
        learner.update(make_batch())
    before, after = still.policy_state_dict(), decaying.policy_state_dict()
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert changed == [name for name in before if before[name].ndim > 1 and not name.startswith("fraction")]


# --- Resets ----------------------------------------------------------------------------------------------------------


def test_a_reset_shrinks_the_encoder_and_draws_the_rest_anew_for_both_networks() -> None:
    hparams: dict[str, Any] = {"reset_interval": 3, "reset_share": 0.25, "tau": 0.5, "target_update_interval": 1}
    learner, plain = (
        learner_of(observation=IMAGE, **hparams),
        learner_of(observation=IMAGE, **hparams | {"reset_interval": None}),
    )
    for seed in range(3):
        learner.update(image_batch(seed))
        plain.update(image_batch(seed))
    new = {which: learner._network.named(learner._state[which]) for which in ("params", "target")}
    old = {which: learner._network.named(plain._state[which]) for which in ("params", "target")}
    draws = {}
    for which in ("params", "target"):
        conv = next(name for name in new[which] if name.endswith("weight"))  # of the encoder
        draws[which] = (new[which][conv] - 0.25 * old[which][conv]) / 0.75
        bound = 1.0 / 3.0  # PyTorch's: one channel, 3x3 pixels
        assert draws[which].abs().max() <= bound + 1e-5
        assert draws[which].abs().max() > 0.8 * bound
    assert not torch.allclose(draws["params"], draws["target"])
    last = list(new["params"])[-1]
    assert not torch.allclose(new["params"][last], old["params"][last], atol=1e-3)
    assert not torch.allclose(new["params"][last], new["target"][last], atol=1e-3)
    for name in ("adam_mean", "adam_square", "adam_count"):
        assert not learner._state[name].any()


def test_resets_leave_an_interval_to_learn_and_have_a_fixed_period() -> None:
    hparams: Any = make_setup(reset_interval=40).hparams
    assert [updates for updates in range(1, 201) if is_reset(hparams, updates, 200)] == [40, 80, 120, 160]
    assert [updates for updates in range(1, 200) if is_reset(hparams, updates, 199)] == [40, 80, 120]


def test_resets_fall_on_the_env_steps_on_which_they_would_fall_without_a_warm_up() -> None:
    # Two updates every 4 steps; 100 steps without learning leave out 50, so the first reset at 40 is left out as well.
    warm_up: Any = make_setup(reset_interval=40, learning_starts=100, train_frequency=4, gradient_steps=2).hparams
    assert [updates for updates in range(1, 151) if is_reset(warm_up, updates, 150)] == [30, 70, 110]
    assert [updates_since_reset(warm_up, updates, 150) for updates in (0, 29, 30, 69, 70, 149)] == [0, 29, 0, 39, 0, 39]
    assert [updates for updates in range(1, 150) if is_reset(warm_up, updates, 149)] == [30, 70]


@pytest.mark.parametrize("algo", HEADS)
def test_a_resumed_run_resets_to_the_same_weights(algo: str) -> None:
    whole = learner_of(algo, reset_interval=2, noisy=algo == "dqn", dueling=True)
    first, resumed = (learner_of(algo, reset_interval=2, noisy=algo == "dqn", dueling=True) for _ in range(2))
    for seed in range(5):
        whole.update(make_batch(seed))
    for seed in range(3):
        first.update(make_batch(seed))
    resumed.load_policy_state_dict(clone(first.policy_state_dict()))
    resumed.load_state_dict(clone(first.state_dict()))
    for seed in range(3, 5):
        resumed.update(make_batch(seed))
    assert_identical(resumed._state, whole._state)


@pytest.mark.parametrize("algo", HEADS)
def test_a_reset_gives_simba_its_first_weights_again(algo: str) -> None:
    setup = make_setup(algo=algo, hidden_sizes=(8, 8), reset_interval=1)
    setup = replace(setup, hparams=setup.hparams.model_copy(update={"network": "simba"}))
    learner = registry()[algo].build_algorithm(setup)
    assert isinstance(learner, QLearner)
    first = clone(learner.policy_state_dict())
    learner.update(make_batch())  # and resets
    new = learner.policy_state_dict()
    zeros = [name for name, values in first.items() if not values.any()]  # the biases of dense layers and norms
    assert [name for name in zeros if new[name].any()] == []
    # Orthogonal columns of length 1 outside of blocks; inside, normal with deviation sqrt(2 / 8), cut off at two of
    # 0.5 / 0.8796, so that the largest of 256 numbers is close to 1.137. PyTorch's bound would be 1 / sqrt(8) = 0.354.
    before = next(name for name, values in first.items() if values.shape == (8, 3))
    torch.testing.assert_close(new[before].T @ new[before], torch.eye(3))
    assert not torch.allclose(new[before], first[before], atol=0.1)
    widest = next(name for name, values in first.items() if values.shape == (32, 8))
    assert 0.7 < new[widest].abs().max() <= 0.5 * 2.0 / 0.8796 + 1e-5


def test_a_layer_that_cannot_draw_new_weights_is_named() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.factor

    network = nn.Sequential(nn.Linear(3, 2), Scale())
    with pytest.raises(ConfigError, match=r"reset_interval needs layers .* but 1 \(Scale\) has no method"):
        build_dqn(make_setup(network=network, reset_interval=5))


# --- Augmentation ----------------------------------------------------------------------------------------------------


def test_a_shift_by_hand() -> None:
    # A 1x3 image (1, 2, 3). Nine places: 0 moves the crop 4 to the left, where the edge is repeated; 4.5 / 9 is the
    # middle, which moves nothing; 5.5 / 9 moves it by one to the right.
    image = torch.tensor([[[1, 2, 3]]] * 3, dtype=torch.uint8)
    places = torch.tensor([[0.5] * 3, [0.0, 4.5 / 9, 5.5 / 9]])
    assert shifted(image, places, (-2, -1))[:, 0].tolist() == [[1, 1, 1], [1, 2, 3], [2, 3, 3]]


def test_shifts_equal_padding_by_the_edge_and_cropping() -> None:
    generator = torch.Generator().manual_seed(0)
    images, places = torch.rand(20, 3, 9, 7, generator=generator), torch.rand(2, 20, generator=generator)
    padded = torch.nn.functional.pad(images, (4, 4, 4, 4), mode="replicate")
    found = shifted(images, places, (-2, -1))
    for row in range(20):
        top, left = (int(float(place) * 9) for place in places[:, row])
        torch.testing.assert_close(found[row], padded[row, :, top : top + 9, left : left + 7])
    last = shifted(images.movedim(1, -1), places, (-3, -2))  # channels last
    torch.testing.assert_close(last.movedim(-1, 1), found)


@pytest.mark.parametrize("space", [IMAGE, Box(0, 255, (3, 9, 9), np.uint8), Box(0, 255, (9, 9), np.uint8)], ids=str)
def test_both_observations_are_changed_apart_from_each_other(space: Box) -> None:
    augment = Augmentation(space, intensity=True)
    inputs = augment.random_inputs(64)
    rng = np.random.default_rng(0)
    arrays = {name: np.zeros(draw.shape, draw.dtype) for name, draw in inputs.items()}
    for name, draw in inputs.items():
        draw.fill(rng, arrays[name])
    pixels = torch.from_numpy(rng.integers(1, 256, (64, *space.shape), dtype=np.uint8))
    batch = {"obs": pixels, "next_obs": pixels} | {name: torch.from_numpy(array) for name, array in arrays.items()}
    seen = augment(batch)
    assert seen["obs"].shape == pixels.shape
    assert not torch.equal(seen["obs"], seen["next_obs"])
    factors = 1.0 + 0.05 * batch["intensity"][:64].clamp(-2.0, 2.0)
    assert factors.min() >= 0.9 - 1e-6
    moved = seen["obs"] / factors.reshape(-1, *(1,) * len(space.shape))
    torch.testing.assert_close(moved, moved.round(), rtol=0, atol=1e-3)  # pixels again


@pytest.mark.parametrize("algo", HEADS)
def test_a_step_with_changed_images_can_be_taken(algo: str) -> None:
    learner = learner_of(algo, observation=IMAGE, augmentation="shift_and_intensity")
    result = learner.update(image_batch())
    assert all(torch.isfinite(value) for value in result.metrics.values())


def test_only_images_are_changed() -> None:
    assert learner_of(augmentation="shift")._augment is None
    assert learner_of(observation=IMAGE, augmentation="shift")._augment is not None


# --- IMPALA's encoder ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "width", "features"), [((4, 84, 84), 1, 32 * 11 * 11), ((12, 12, 3), 4, 128 * 2 * 2)]
)
def test_the_encoder_halves_an_image_three_times(shape: tuple[int, ...], width: int, features: int) -> None:
    encoder, found = build_encoder(Box(0, 255, shape, np.uint8), impala_width=width)
    assert isinstance(encoder, Encoder)
    assert found == features
    assert encoder(torch.zeros(2, *shape, dtype=torch.uint8)).shape == (2, features)
    convolutions = [part for part in encoder.modules() if isinstance(part, nn.Conv2d)]
    assert [conv.out_channels // width for conv in convolutions] == [16] * 5 + [32] * 10
    assert all(not conv.bias.any() for conv in convolutions if conv.bias is not None)


def test_the_encoder_is_a_setting_of_the_family() -> None:
    wide = learner_of("c51_dqn", observation=IMAGE, encoder="impala", encoder_width=2, reset_interval=1)
    assert sum(isinstance(part, nn.Conv2d) for part in wide.recipe.network.modules()) == 15
    wide.update(image_batch())
    assert all(torch.isfinite(value).all() for value in wide._state.values())
