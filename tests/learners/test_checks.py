"""Every loss refuses a batch whose ranks or dtypes would broadcast or cast silently."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from builders import make_batch, make_box_batch, make_setup
from rl_training.algorithms.bc import bc_loss
from rl_training.algorithms.dreamer import actor_loss, critic_loss, world_model_loss
from rl_training.algorithms.gail import discriminator_loss
from rl_training.algorithms.iql import expectile_loss, iql_actor_loss, iql_critic_loss, iql_value_loss
from rl_training.algorithms.ppo import ppo_loss
from rl_training.algorithms.sac import sac_actor_loss, sac_critic_loss
from rl_training.algorithms.td3 import td3_actor_loss, td3_critic_loss
from rl_training.core.types import Batch
from rl_training.experiment.registry import registry
from rl_training.learners.checks import ANY, FLAGS, FLOATS, INDICES, Expected, check_tensors
from rl_training.learners.dynamics import ensemble_loss
from rl_training.learners.q_learning import QLearner
from rl_training.learners.targets import critic_metrics
from rl_training.models.distributions import Gaussian, SquashedGaussian
from rl_training.models.dreamer_actions import Choices

EMPTY = torch.zeros(0)
NO_ACTIONS = Choices([2], (), unimix=0.0)


def never(*_: Any, **__: Any) -> Tensor:
    """Stand in for a network: a check comes before any network is called."""
    raise AssertionError("the network was called before the batch was checked")


# --- The check itself ------------------------------------------------------------------------------------------------


def test_dimensions_of_one_name_have_one_size() -> None:
    expected = {"a": Expected(FLOATS, "batch n"), "b": Expected(FLOATS, "batch")}
    check_tensors("some_loss", {"a": torch.zeros(3, 2), "b": torch.zeros(3)}, expected)
    with pytest.raises(ValueError, match=r"some_loss: b must have the shape \(batch\) with batch = 3, got \(2,\)"):
        check_tensors("some_loss", {"a": torch.zeros(3, 2), "b": torch.zeros(2)}, expected)


def test_a_wrong_rank_is_refused() -> None:
    with pytest.raises(ValueError, match=r"some_loss: rewards must have the shape \(batch\), got \(4, 1\)"):
        check_tensors("some_loss", {"rewards": torch.zeros(4, 1)}, {"rewards": Expected(FLOATS, "batch")})


def test_dots_stand_for_further_dimensions() -> None:
    expected = {"obs": Expected(ANY, "batch ..."), "rewards": Expected(FLOATS, "batch")}
    for shape in [(4,), (4, 3), (4, 2, 8, 8)]:
        check_tensors("some_loss", {"obs": torch.zeros(shape), "rewards": torch.zeros(4)}, expected)
    with pytest.raises(ValueError, match="rewards must have the shape"):
        check_tensors("some_loss", {"obs": torch.zeros(4, 3), "rewards": torch.zeros(3)}, expected)


@pytest.mark.parametrize(
    ("dtype", "right", "wrong"),
    [
        (FLOATS, torch.float32, torch.int64),
        (FLOATS, torch.float64, torch.bool),
        (INDICES, torch.int64, torch.int32),
        (FLAGS, torch.bool, torch.float32),
        (ANY, torch.uint8, None),
    ],
)
def test_dtypes_are_checked(dtype: str, right: torch.dtype, wrong: torch.dtype | None) -> None:
    expected = {"entry": Expected(dtype, "batch")}
    check_tensors("some_loss", {"entry": torch.zeros(2, dtype=right)}, expected)
    if wrong is not None:
        with pytest.raises(TypeError, match=f"some_loss: entry must be {dtype}, got {wrong}"):
            check_tensors("some_loss", {"entry": torch.zeros(2, dtype=wrong)}, expected)


def test_entries_that_a_batch_lacks_are_not_checked() -> None:
    check_tensors("some_loss", {}, {"weights": Expected(FLOATS, "batch")})


# --- The losses ------------------------------------------------------------------------------------------------------

ROWS = torch.zeros(4)


def q_loss(algo: str) -> Callable[[Batch], Any]:
    learner = registry()[algo].build_algorithm(make_setup(algo=algo))
    assert isinstance(learner, QLearner)
    params = learner._state["params"]
    fractions = {name: torch.rand(4, count) for name, count in learner.recipe.random_inputs.items()}
    return lambda batch: learner.recipe.loss(params, params, batch | fractions, learner.hparams, learner.apply)


@pytest.mark.parametrize("algo", ["dqn", "c51_dqn", "qr_dqn", "iqn", "fqf"])
@pytest.mark.parametrize(
    ("name", "wrong", "error"),
    [
        ("rewards", torch.zeros(4, 1), ValueError),  # would give TD errors of shape (4, 4)
        ("terminated", torch.zeros(4), TypeError),
        ("actions", torch.zeros(4, 1, dtype=torch.int64), ValueError),
        ("weights", torch.ones(4, 1), ValueError),
        ("discounts", torch.ones(4, 1), ValueError),
    ],
)
def test_the_losses_of_the_dqn_family(algo: str, name: str, wrong: Tensor, error: type[Exception]) -> None:
    loss, batch = q_loss(algo), make_batch(size=4)
    loss(batch)
    with pytest.raises(error, match=f"_loss: {name} must"):
        loss(batch | {name: wrong})


POLICY = SquashedGaussian((2,))
APPLY: Any = {"apply_actor": never, "apply_critics": never}
HPARAMS: Any = {algo: spec.hparams() for algo, spec in registry().items()}
NO_NETWORKS: Any = None
WRONG_ROWS = torch.zeros(4, 1)
SEQUENCE = {
    "obs": torch.zeros(2, 3, 5),
    "actions": torch.zeros(2, 3, dtype=torch.int64),
    "rewards": torch.zeros(2, 3),
    "terminated": torch.zeros(2, 3, dtype=torch.bool),
    "is_first": torch.zeros(2, 3, dtype=torch.bool),
    "posterior_noise": torch.zeros(2, 3, 4),
}
IMAGINED = {
    "features": torch.zeros(3, 4, 5),
    "actions": torch.zeros(3, 4, dtype=torch.int64),
    "advantages": torch.zeros(3, 4),
    "returns": torch.zeros(3, 4),
    "weights": torch.zeros(3, 4),
}
PAIRS = {"obs": torch.zeros(4, 3), "actions": torch.zeros(4, 2), "mix": torch.zeros(4)}
PAIRS |= {f"expert_{name}": PAIRS[name] for name in ("obs", "actions")}

# Each loss as a function of a batch, and entries that it must refuse before it calls a network.
LOSSES: dict[str, tuple[Callable[[Batch], Any], Batch, dict[str, Tensor]]] = {
    "ppo_loss": (
        lambda batch: ppo_loss(EMPTY, batch, HPARAMS["ppo"], never, Gaussian((2,)), EMPTY),
        make_box_batch(size=4),
        dict.fromkeys(("log_probs", "values", "advantages", "returns"), WRONG_ROWS),
    ),
    "sac_critic_loss": (
        lambda batch: sac_critic_loss(EMPTY, EMPTY, EMPTY, EMPTY, batch, gamma=0.9, policy=POLICY, **APPLY),
        make_box_batch(size=4),
        {"rewards": WRONG_ROWS, "terminated": torch.zeros(4), "weights": WRONG_ROWS},
    ),
    "sac_actor_loss": (
        lambda batch: sac_actor_loss(EMPTY, EMPTY, EMPTY, batch, policy=POLICY, **APPLY),
        make_box_batch(size=4),
        {"noise": torch.zeros(4)},
    ),
    "td3_critic_loss": (
        lambda batch: td3_critic_loss(EMPTY, EMPTY, EMPTY, batch, HPARAMS["td3"], **APPLY),
        make_box_batch(size=4),
        {"rewards": WRONG_ROWS, "terminated": torch.zeros(4), "next_noise": torch.zeros(4)},
    ),
    "td3_actor_loss": (
        lambda batch: td3_actor_loss(EMPTY, EMPTY, batch, **APPLY),
        make_box_batch(size=4),
        {"obs": torch.zeros(())},
    ),
    "iql_value_loss": (
        lambda batch: iql_value_loss(EMPTY, batch["q_values"], batch, HPARAMS["iql"], NO_NETWORKS),
        make_box_batch(size=4),
        {"q_values": WRONG_ROWS},
    ),
    "iql_actor_loss": (
        lambda batch: iql_actor_loss(EMPTY, batch["advantages"], batch, HPARAMS["iql"], NO_NETWORKS),
        make_box_batch(size=4),
        {"advantages": WRONG_ROWS},
    ),
    "iql_critic_loss": (
        lambda batch: iql_critic_loss(EMPTY, batch["next_values"], batch, HPARAMS["iql"], NO_NETWORKS),
        make_box_batch(size=4) | {"next_values": ROWS},
        {"next_values": WRONG_ROWS, "rewards": WRONG_ROWS, "terminated": torch.zeros(4)},
    ),
    "expectile_loss": (
        lambda batch: expectile_loss(batch["values"], batch["targets"], 0.7),
        {"values": ROWS, "targets": ROWS},
        {"values": WRONG_ROWS, "targets": WRONG_ROWS},
    ),
    "critic loss": (
        lambda batch: critic_metrics(batch["values"], batch["targets"], {}),
        {"values": torch.zeros(2, 4), "targets": ROWS},
        {"values": ROWS, "targets": torch.zeros(4, 1)},
    ),
    "bc_loss": (
        lambda batch: bc_loss(EMPTY, batch, HPARAMS["bc"], apply_actor=never, policy=Gaussian((2,))),
        make_box_batch(size=4),
        {"actions": torch.zeros(4, dtype=torch.int64)},
    ),
    "discriminator_loss": (
        lambda batch: discriminator_loss(EMPTY, batch, HPARAMS["gail"], inputs=never, logits=never),
        PAIRS,
        {"mix": WRONG_ROWS, "absorbing": torch.zeros(4), "expert_absorbing": torch.zeros(4)},
    ),
    "ensemble_loss": (
        lambda batch: ensemble_loss(EMPTY, batch, NO_NETWORKS, (), {}),
        {"obs": torch.zeros(2, 4, 3), "actions": torch.zeros(2, 4, 1), "targets": torch.zeros(2, 4, 4)},
        {"terminated": torch.zeros(2, 4, 1), "targets": torch.zeros(4, 4)},
    ),
    "world_model_loss": (
        lambda batch: world_model_loss(EMPTY, batch, HPARAMS["dreamer"], never, EMPTY),
        SEQUENCE,
        {"rewards": torch.zeros(2, 3, 1), "terminated": torch.zeros(2, 3), "is_first": torch.zeros(2, 3)},
    ),
    "actor_loss": (
        lambda batch: actor_loss(EMPTY, batch, HPARAMS["dreamer"], never, NO_ACTIONS),
        IMAGINED,
        {"advantages": torch.zeros(3, 4, 1), "weights": torch.zeros(3), "actions": torch.zeros(3, 5)},
    ),
    "critic_loss": (
        lambda batch: critic_loss(EMPTY, EMPTY, batch, never, EMPTY, slow=1.0),
        IMAGINED,
        {"returns": torch.zeros(3, 4, 1), "weights": torch.zeros(3)},
    ),
}
CASES = [(loss, name) for loss, (_, _, wrong) in LOSSES.items() for name in wrong]


@pytest.mark.parametrize(("loss", "name"), CASES)
def test_a_loss_refuses_a_wrong_entry_before_it_calls_a_network(loss: str, name: str) -> None:
    compute, batch, wrong = LOSSES[loss]
    with pytest.raises((ValueError, TypeError), match=rf"^{loss}: \w+ must "):
        compute(batch | {name: wrong[name]})
