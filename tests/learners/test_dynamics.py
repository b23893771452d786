"""The ensemble learns mean and noise of known systems, stops when it should, and keeps what was best."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from torch import Tensor

from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.core.types import Batch
from rl_training.hparams.mbpo import MBPOHParams
from rl_training.learners.dynamics import (
    HOLDOUT_ROWS,
    DynamicsEnsemble,
    build_ensemble,
    ensemble_loss,
    weight_decays,
)
from rl_training.learners.flat_module import FlatModule
from rl_training.models.mlp_mopo import MLPMOPOEnsembleModel, is_member_parameter, pick_members
from state_comparison import assert_identical, clone


def make_ensemble(
    *, seed: int = 0, learned_termination: bool = False, acceleration: str = "eager", **hparams: Any
) -> DynamicsEnsemble:
    """Two observed numbers, one action; three small members, two of them elites."""
    small = {
        "num_ensembles": 3,
        "num_elites": 2,
        "model_hidden_sizes": (16,),
        "model_batch_size": 32,
        "model_max_epochs": 3,
    }
    setup = Setup(
        spaces=Spaces(Box(-5.0, 5.0, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)),
        hparams=MBPOHParams(**{**small, **hparams}),
        total_timesteps=1_000,
        total_updates=1_000,
        streams=Streams(seed),
        acceleration=acceleration,
    )
    return build_ensemble(setup, learned_termination=learned_termination)


STD = np.array([0.1, 0.2, 0.3])  # of the noise on both observed numbers and the reward


def expected(obs: np.ndarray, actions: np.ndarray) -> np.ndarray:
    """The linear system's mean of (next_obs - obs, reward)."""
    return np.stack([0.5 * obs[:, 1], actions[:, 0] - obs[:, 0], obs[:, 0] + 2.0 * obs[:, 1]], 1)


def transitions(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs, actions = rng.normal(size=(count, 2)), rng.uniform(-1.0, 1.0, (count, 1))
    outcome = expected(obs, actions) + STD * rng.normal(size=(count, 3))
    rows = {"obs": obs, "actions": actions, "next_obs": obs + outcome[:, :2], "rewards": outcome[:, 2]}
    return {name: values.astype(np.float32) for name, values in rows.items()} | {"terminated": obs[:, 0] > 0.5}


def weights_of(ensemble: DynamicsEnsemble, member: int) -> Tensor:
    named = ensemble.model.named(ensemble.model.params)
    return torch.cat([value[member].flatten() for name, value in named.items() if is_member_parameter(name)]).clone()


# --- The model -------------------------------------------------------------------------------------------------------


def test_members_side_by_side_equal_members_one_by_one() -> None:
    torch.manual_seed(0)
    model = MLPMOPOEnsembleModel(2, 1, (8, 8), num_members=3, learned_termination=True)
    model.input_mean.copy_(torch.tensor([1.0, -1.0, 0.5]))
    model.input_std.copy_(torch.tensor([2.0, 3.0, 0.5]))
    obs, actions = torch.randn(5, 2), torch.randn(5, 1)
    shared = model(obs, actions)
    own = model(obs.expand(3, -1, -1), actions.expand(3, -1, -1))
    for member in range(3):
        x = (torch.cat((obs, actions), 1) - model.input_mean) / model.input_std
        for layer in model.layers:
            named = dict(layer.named_parameters())
            x = x @ named["weight"][member] + named["bias"][member] if named else layer(x)
        upper, lower = model.max_log_variance, model.min_log_variance
        log_variance = upper - torch.log1p(torch.exp(upper - x[:, 3:6]))
        log_variance = lower + torch.log1p(torch.exp(log_variance - lower))
        for prediction in (shared, own):
            torch.testing.assert_close(prediction.mean[member], x[:, :3])
            torch.testing.assert_close(prediction.log_variance[member], log_variance)
            assert prediction.termination_logit is not None
            torch.testing.assert_close(prediction.termination_logit[member], x[:, 6])


def test_some_members_alone_predict_as_they_do_among_all() -> None:
    ensemble = make_ensemble()
    obs, actions, members = torch.randn(2, 4, 2), torch.randn(2, 4, 1), torch.tensor([2, 0])
    some = ensemble.predict(ensemble.state, obs, actions, members)
    for group, member in enumerate(members):
        every = ensemble.model.module(obs[group], actions[group])
        torch.testing.assert_close(some.mean[group], every.mean[member])
        torch.testing.assert_close(some.log_variance[group], every.log_variance[member])
    picked = pick_members(ensemble.model.named(ensemble.model.params), members)
    assert picked["max_log_variance"].shape == (3,)


def test_log_variances_stay_between_their_bounds() -> None:
    torch.manual_seed(0)
    model = MLPMOPOEnsembleModel(2, 1, (), num_members=2)
    log_variance = model(1e4 * torch.randn(50, 2), torch.zeros(50, 1)).log_variance.detach()
    assert log_variance.max() == pytest.approx(0.5, abs=0.01)
    assert log_variance.min() == pytest.approx(-10.0, abs=0.01)


def test_first_weights_are_those_of_the_paper() -> None:
    torch.manual_seed(0)
    first = MLPMOPOEnsembleModel(20, 5, (200,), num_members=7).layers[0].get_parameter("weight").detach()
    std = 1.0 / (2.0 * math.sqrt(25))
    assert first.abs().max() <= 2.0 * std
    assert first.std() == pytest.approx(0.88 * std, rel=0.02)  # a normal cut off at two deviations keeps 88 % of it


# --- The loss --------------------------------------------------------------------------------------------------------


def constant_model(log_variance: float) -> FlatModule:
    """One member without hidden layers that expects (0, 0) whatever it sees; its bounds are far away."""
    model = MLPMOPOEnsembleModel(1, 1, (), num_members=1, learned_termination=True)
    weight, bias = model.layers[0].get_parameter("weight"), model.layers[0].get_parameter("bias")
    torch.nn.init.zeros_(weight)
    torch.nn.init.zeros_(bias)
    with torch.no_grad():
        bias[..., 2:4] = log_variance
        model.max_log_variance.fill_(50.0)
        model.min_log_variance.fill_(-50.0)
    return FlatModule(model)


def one_row() -> Batch:
    return {
        "obs": torch.ones(1, 1, 1),
        "actions": torch.ones(1, 1, 1),
        "targets": torch.tensor([[[3.0, 1.0]]]),
        "terminated": torch.tensor([[1.0]]),
    }


def test_the_loss_is_twice_the_negative_log_likelihood_and_the_bounds() -> None:
    model = constant_model(log_variance=math.log(4.0))
    metrics = ensemble_loss(model.params, one_row(), model, [0.0], {})
    # (9 / 4 + log 4 + 1 / 4 + log 4) / 2, 0.01 * (2 * 50 + 2 * 50), and -log sigmoid(0) for the termination.
    likelihood = (9 / 4 + 1 / 4) / 2 + math.log(4.0)
    assert metrics["likelihood_loss"] == pytest.approx(likelihood)
    assert metrics["termination_loss"] == pytest.approx(math.log(2.0))
    assert metrics["loss"] == pytest.approx(likelihood + 2.0 + math.log(2.0))
    assert metrics["model_mse"] == pytest.approx((9.0 + 1.0) / 2)


def test_every_layer_has_its_own_weight_decay() -> None:
    torch.manual_seed(0)
    model = FlatModule(MLPMOPOEnsembleModel(1, 1, (4,), num_members=2))
    batch = {name: values.expand(2, *values.shape[1:]) for name, values in one_row().items()}
    plain = ensemble_loss(model.params, batch, model, [0.0, 0.0], {})["loss"]
    decayed = ensemble_loss(model.params, batch, model, [0.1, 0.3], {})["loss"]
    first, last = model.module.layers[0].weight, model.module.layers[2].weight  # type: ignore[index, union-attr]
    expected_loss = 0.05 * first.square().sum() + 0.15 * last.square().sum()  # both members', halved
    assert decayed - plain == pytest.approx(float(expected_loss), rel=1e-4)


def test_weight_decays_grow_towards_the_last_layer_at_any_depth() -> None:
    assert weight_decays(5) == pytest.approx([2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4])
    assert weight_decays(3) == pytest.approx([2.5e-5, 7.5e-5, 1e-4])
    assert weight_decays(2) == pytest.approx([2.5e-5, 1e-4])


def test_members_learn_as_if_alone() -> None:
    torch.manual_seed(0)
    both = FlatModule(MLPMOPOEnsembleModel(2, 1, (4,), num_members=2))
    batch = {
        "obs": torch.randn(2, 6, 2),
        "actions": torch.randn(2, 6, 1),
        "targets": torch.randn(2, 6, 3),
        "terminated": torch.zeros(2, 6),
    }
    params = both.params.clone().requires_grad_()
    decays = [0.1, 0.2]
    (gradient,) = torch.autograd.grad(ensemble_loss(params, batch, both, decays, {})["loss"], params)
    for member in range(2):
        one = FlatModule(MLPMOPOEnsembleModel(2, 1, (4,), num_members=1))
        one.load(one.params, pick_members(both.named(both.params), torch.tensor([member])))
        alone = one.params.clone().requires_grad_()
        own = {name: values[member : member + 1] for name, values in batch.items()}
        (expected_gradient,) = torch.autograd.grad(ensemble_loss(alone, own, one, decays, {})["loss"], alone)
        for name, value in one.named(expected_gradient).items():
            if is_member_parameter(name):
                torch.testing.assert_close(both.named(gradient)[name][member : member + 1], value)


# --- The fit ---------------------------------------------------------------------------------------------------------


@pytest.mark.learning
def test_a_fit_recovers_mean_and_noise_of_a_linear_system() -> None:
    ensemble = make_ensemble(
        model_hidden_sizes=(32, 32), model_max_epochs=50, model_batch_size=128, model_learning_rate=3e-3
    )
    result = ensemble.fit(transitions(5_000))
    test = transitions(1_000, seed=1)
    elites = ensemble.state["elites"]
    obs, actions = (torch.from_numpy(test[name]).expand(2, -1, -1) for name in ("obs", "actions"))
    prediction = ensemble.predict(ensemble.state, obs, actions, elites)
    errors = prediction.mean - torch.from_numpy(expected(test["obs"], test["actions"])).float()
    assert errors.square().mean((0, 1)).sqrt().max() < 0.05
    std = (0.5 * prediction.log_variance).exp().mean((0, 1)).numpy()
    assert std == pytest.approx(STD, rel=0.1)
    # What is left on held-out data is the noise.
    assert result.metrics["holdout_mse"] == pytest.approx(np.square(STD).mean(), rel=0.1)


@pytest.mark.learning
def test_termination_is_learnt_as_a_probability() -> None:
    ensemble = make_ensemble(learned_termination=True, model_max_epochs=30)
    rows = transitions(1_000)
    rng = np.random.default_rng(0)
    rows["terminated"] = np.where(rows["obs"][:, 0] > 0.0, rng.random(1_000) < 0.7, False)
    ensemble.fit(rows)
    obs = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]])
    logits = ensemble.predict(ensemble.state, obs, torch.zeros(1, 2, 1), ensemble.state["elites"][:1]).termination_logit
    assert logits is not None
    assert logits.sigmoid()[0] == pytest.approx(torch.tensor([0.7, 0.0]), abs=0.1)


def test_bootstraps_make_equal_members_differ() -> None:
    ensemble = make_ensemble(model_max_epochs=1)
    for name, value in ensemble.model.named(ensemble.model.params).items():
        if is_member_parameter(name):
            value[:] = value[:1].clone()
    ensemble.fit(transitions(100))
    assert not torch.allclose(weights_of(ensemble, 0), weights_of(ensemble, 1))
    assert not torch.allclose(weights_of(ensemble, 1), weights_of(ensemble, 2))


def test_each_member_goes_once_through_its_own_draw_of_the_rows() -> None:
    ensemble = make_ensemble()
    table = torch.arange(80.0)[:, None].expand(-1, ensemble._minibatch.shape[1])
    bootstraps = ensemble.generator.integers(80, size=(3, 80))
    epochs = [
        torch.cat([rows.clone().view(3, 32, -1)[..., 0] for rows in ensemble._minibatches(table, bootstraps)], 1)
        for _ in range(2)
    ]
    for epoch in epochs:
        assert epoch.shape == (3, 96)  # three minibatches of 32: 16 rows come twice
        for member in range(3):
            assert sorted(epoch[member, :80].tolist()) == sorted(bootstraps[member].tolist())
            assert epoch[member, 80:].tolist() == epoch[member, :16].tolist()
    assert not torch.equal(epochs[0], epochs[1])


class Scripted(DynamicsEnsemble):
    """Pretends to err on held-out data as a script says; notes each member's weights after every epoch."""

    script: list[list[float]]
    seen: list[list[Tensor]]

    def holdout_errors(self, table: Tensor) -> np.ndarray:
        self.seen.append([weights_of(self, member) for member in range(3)])
        return np.array(self.script[min(len(self.seen), len(self.script)) - 1])


def scripted(script: list[list[float]], **hparams: Any) -> Scripted:
    ensemble = make_ensemble(**hparams)
    ensemble.__class__ = Scripted
    assert isinstance(ensemble, Scripted)
    ensemble.script, ensemble.seen = script, []
    return ensemble


def test_a_fit_stops_after_five_epochs_in_which_no_member_improved_and_restores_the_best() -> None:
    # 0.995 is no improvement on 1: it is less than one per cent. The best epochs are the second, first and third.
    script = [[1.0, 1.0, 1.0], [0.5, 0.995, 1.0], [0.5, 0.995, 0.9], [0.6, 1.2, 0.899]]
    ensemble = scripted(script, model_max_epochs=100)
    told: list[tuple[int, float]] = []
    metrics = ensemble.fit(
        transitions(60), lambda now: told.append((int(now["model_epochs"]), float(now["holdout_mse"])))
    ).metrics
    assert metrics["model_epochs"] == len(ensemble.seen) == 3 + 5
    # After every epoch, of the two best members until then.
    assert told[:3] == [(1, 1.0), (2, 0.75), (3, pytest.approx(0.7))]
    assert told[-1] == (8, float(metrics["holdout_mse"]))
    for member, epoch in enumerate((1, 0, 2)):
        assert torch.equal(weights_of(ensemble, member), ensemble.seen[epoch][member])
    assert not torch.equal(ensemble.seen[2][0], ensemble.seen[1][0])
    assert ensemble.state["elites"].tolist() == [0, 2]
    assert metrics["holdout_mse"] == pytest.approx((0.5 + 0.9) / 2)


def test_a_fit_ends_after_its_last_epoch() -> None:
    ensemble = scripted([[1.0 / 2**epoch] * 3 for epoch in range(20)], model_max_epochs=4)
    result = ensemble.fit(transitions(60))
    assert result.metrics["model_epochs"] == 4
    assert result.num_gradient_steps == 4 * 2  # 48 rows in minibatches of 32


def test_errors_on_held_out_rows_are_means_over_rows_and_outputs() -> None:
    ensemble = make_ensemble()
    rows = transitions(HOLDOUT_ROWS + 44)  # the second part is not whole
    obs, actions = torch.from_numpy(rows["obs"]), torch.from_numpy(rows["actions"])
    targets = np.concatenate([rows["next_obs"] - rows["obs"], rows["rewards"][:, None]], 1)
    means = ensemble.model.module(obs, actions).mean
    expected_errors = (means - torch.from_numpy(targets)).square().mean((1, 2))
    assert ensemble.holdout_errors(ensemble._table(rows)) == pytest.approx(expected_errors.numpy(), rel=1e-5)


def test_inputs_are_normalised_by_the_statistics_of_the_data() -> None:
    ensemble = make_ensemble(model_holdout_ratio=0.01)
    rows = transitions(500)
    rows["obs"][:, 0] = 3.0 + 10.0 * rows["obs"][:, 0]
    rows["obs"][:, 1] = 7.0  # constant: not divided by its deviation
    ensemble.fit(rows)
    # All but the five rows that are held out: what these could change is less than the tolerance.
    assert ensemble.state["input_mean"].numpy() == pytest.approx([rows["obs"][:, 0].mean(), 7.0, 0.0], abs=0.2)
    assert ensemble.state["input_std"].numpy() == pytest.approx([10.0, 1.0, 1 / math.sqrt(3)], rel=0.1)
    assert all(torch.isfinite(value).all() for value in ensemble.state.values())


@pytest.mark.parametrize("count", [2, 3, 33])
def test_a_few_transitions_are_enough(count: int) -> None:
    metrics = make_ensemble().fit(transitions(count)).metrics
    assert all(torch.isfinite(value) for value in metrics.values())


def test_the_next_fit_goes_on_where_the_last_one_ended() -> None:
    ensemble = make_ensemble()
    ensemble.fit(transitions(100))
    count = int(ensemble.state["adam_count"])
    before = weights_of(ensemble, 0)
    result = ensemble.fit(transitions(100))
    assert int(ensemble.state["adam_count"]) == count + result.num_gradient_steps
    assert (weights_of(ensemble, 0) - before).abs().max() < 0.1
    assert ensemble.num_fits == 2


def test_its_state_loads_into_another_one_which_then_fits_the_same() -> None:
    ensemble, other = make_ensemble(), make_ensemble(seed=1)
    ensemble.fit(transitions(100))
    other.load_state_dict(clone(ensemble.state_dict()))
    for each in (ensemble, other):
        each.fit(transitions(120, seed=1))
    assert_identical(other.state_dict(), ensemble.state_dict())


def test_one_seed_gives_one_ensemble() -> None:
    assert_identical(make_ensemble().state_dict(), make_ensemble().state_dict())
    assert not torch.equal(make_ensemble().model.params, make_ensemble(seed=1).model.params)


@pytest.mark.slow
@pytest.mark.compile
def test_compiled_fits_equal_eager_ones() -> None:
    eager, compiled = make_ensemble(), make_ensemble(acceleration="compile")
    for each in (eager, compiled):
        each.fit(transitions(200))
    torch.testing.assert_close(compiled.model.params, eager.model.params, rtol=1e-3, atol=1e-4)
