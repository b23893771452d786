"""Off-policy actor-critics: what all members of the family share, which is acting, updating and state.

A recipe (sac.py, td3.py, redq.py) brings the networks, the actions that its actor's outputs stand for, and two pure
steps: one of the critics, one of the actor. The actor's step follows the critics' at every `policy_delay`-th update.
"""

import inspect
import math
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import accelerate_rounds
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.actor_critic import ActorCriticHParams
from rl_training.hparams.schedules import is_warm_up
from rl_training.learners.checks import FLOATS, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network, check_output, submodules, trial_obs
from rl_training.learners.random_inputs import RandomInput, RandomInputs
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.encoders import build_encoder


class ActorCriticRecipe(Protocol):
    """What a member of the family brings."""

    @property
    def actor(self) -> FlatModule: ...

    def state(self) -> State:
        """Return the first values of everything that an update changes, `actor.params` among them."""
        ...

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        """Return what is drawn for `rounds` updates of `rows` rows each; with `actor`, for the actor's step, too."""
        ...

    def explore(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Return exploring actions for the actor's outputs: (rows, outputs) -> (rows, *action)."""
        ...

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Return the actions without exploration for the actor's outputs."""
        ...

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the critics' step: return the entries of the state that change, and metrics with td_errors, (batch,)."""
        ...

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the actor's step: return the entries of the state that change, and metrics."""
        ...


class ActorCritic:
    """Acts at random during warm-up, then by its actor; `update` makes one update per `batch_size` rows."""

    def __init__(self, recipe: ActorCriticRecipe, setup: Setup[ActorCriticHParams]) -> None:
        self.recipe, self.hparams = recipe, setup.hparams
        self.num_updates = 0
        self.state = recipe.state()
        self._device = setup.device
        self._action_shape = action_field(setup.spaces.action).shape
        self._total_updates = max(1, setup.total_updates)
        self._step_sizes = {name: float(rate) for name, rate in self.state.items() if name.endswith(".learning_rate")}
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise")}
        self._random_inputs: dict[tuple[int, bool], RandomInputs] = {}  # by rounds, and whether the actor learns
        self._metrics: Metrics = {}  # the latest value of each: not every update includes the actor
        self._outputs = act_function(recipe.actor.module, setup.device, setup.acceleration)

        def step_both(state: State, batch: Batch) -> tuple[State, Metrics]:
            critics, metrics = recipe.learn_critics(state, batch)
            actor, actor_metrics = recipe.learn_actor({**state, **critics}, batch)
            return {**critics, **actor}, {**metrics, **actor_metrics}

        self.pure_step = step_both
        mode, identity = setup.acceleration, setup.identity_with(recipe)
        self._step_critics_in_place = accelerate_rounds(recipe.learn_critics, mode, identity=identity)
        self._step_both_in_place = accelerate_rounds(step_both, mode, identity=identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        if not explore:
            return ActResult(self.recipe.best(self._outputs(obs)))
        generator = self._generators["action"]
        if is_warm_up(self.hparams, step):
            return ActResult(generator.uniform(-1.0, 1.0, (len(obs), *self._action_shape)).astype(np.float32))
        return ActResult(self.recipe.explore(self._outputs(obs), generator))

    def update(self, batch: Batch) -> UpdateResult:
        rows, delay = self.hparams.batch_size, self.hparams.policy_delay
        rounds, done, td_errors = len(batch["rewards"]) // rows, 0, []
        if self.hparams.learning_rate_schedule == "linear":
            left = max(0.0, 1.0 - self.num_updates / self._total_updates)
            for name, rate in self._step_sizes.items():
                self.state[name].fill_(rate * left)
        while done < rounds:
            wait = delay - 1 - self.num_updates % delay  # updates of the critics alone before the actor's next
            count = rounds if delay == 1 else max(1, min(wait, rounds - done))
            part = batch if count == rounds else _cut(batch, done * rows, (done + count) * rows)
            metrics = self._learn(part, count, with_actor=wait == 0)
            td_errors.append(metrics.pop("td_errors").flatten())
            self._metrics |= metrics if count == 1 else {name: values.mean() for name, values in metrics.items()}
            self.num_updates += count
            done += count
        errors = td_errors[0] if len(td_errors) == 1 else torch.cat(td_errors)
        return UpdateResult(dict(self._metrics), num_gradient_steps=rounds, td_errors=errors)

    def status(self, step: int) -> dict[str, float]:
        return {"learning_rate": float(self.state["critic.learning_rate"])}

    def policy_state_dict(self) -> StateDict:
        return dict(self.recipe.actor.named(self.state["actor.params"]))

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self.recipe.actor.load(self.state["actor.params"], state)

    def state_dict(self) -> StateDict:
        return {
            **tensors_to_save(self.state, without=("actor.params",)),
            "num_updates": self.num_updates,
            "metrics": dict(self._metrics),
            "generators": generators_to_save(self._generators),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.state, state, without=("actor.params",))
        self.num_updates = int(state["num_updates"])
        self._metrics = {name: torch.as_tensor(value) for name, value in state["metrics"].items()}
        load_generators(self._generators, state["generators"])

    def _learn(self, batch: Batch, rounds: int, *, with_actor: bool) -> Metrics:
        key = (rounds, with_actor)
        if key not in self._random_inputs:
            random_inputs = self.recipe.random_inputs(rounds, self.hparams.batch_size, actor=with_actor)
            self._random_inputs[key] = RandomInputs(random_inputs, self._device)
        batch = batch | self._random_inputs[key].fill(self._generators["noise"])
        step_in_place = self._step_both_in_place if with_actor else self._step_critics_in_place
        return step_in_place(self.state, batch, rounds)  # writes the new weights into self.state


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    return {name: values[start:stop] for name, values in batch.items()}


# --- What the recipes share ------------------------------------------------------------------------------------------


CRITICS = {"values": Expected(FLOATS, "critics batch"), "targets": Expected(FLOATS, "batch")}


def critic_metrics(values: Tensor, targets: Tensor, batch: Batch) -> Metrics:
    """Compute the critics' loss and its metrics from their values, (critics, batch), and the targets, (batch,).

    Squared errors are summed over the critics: each then learns as if it were alone.
    """
    check_tensors("critic loss", {"values": values, "targets": targets}, CRITICS)
    errors = values - targets
    losses = errors.square().sum(0)
    td_errors = errors.detach().abs().mean(0)
    return {
        "loss": (batch["weights"] * losses if "weights" in batch else losses).mean(),
        "q_value_mean": values.detach().mean(),
        "target_mean": targets.mean(),
        "td_error_mean": td_errors.mean(),
        "td_errors": td_errors,
    }


def build_model(
    setup: Setup[ActorCriticHParams], kind: type[ContinuousActorCritic], *, num_critics: int, by_member: bool = False
) -> nn.Module:
    """Return the user's networks, or new ones of this kind for the run's spaces.

    `by_member`: the recipe also computes the values of some critics alone.
    """
    hparams, outputs = setup.hparams, kind.outputs_per_action * action_size(setup)

    def build() -> nn.Module:
        return kind(
            lambda: build_encoder(setup.spaces.observation),
            action_size(setup),
            hparams.hidden_sizes,
            num_critics=num_critics,
            layer_norm=hparams.layer_norm,
            residual=hparams.network == "simba",
        )

    def check(network: nn.Module) -> None:
        _check_networks(network, setup, outputs, num_critics, by_member=by_member)

    return build_network(setup, build, check)


def action_size(setup: Setup[ActorCriticHParams]) -> int:
    return math.prod(action_field(setup.spaces.action).shape)


def _check_networks(
    network: nn.Module, setup: Setup[ActorCriticHParams], outputs: int, num_critics: int, *, by_member: bool
) -> None:
    """Raise for networks of the user that do not fit, before they learn anything wrong."""
    actor, critics = submodules(network, ("actor", "critics"))
    obs = trial_obs(setup)
    actions = torch.zeros((len(obs), *action_field(setup.spaces.action).shape), device=setup.device)
    check_output(actor, (obs,), {"observations": 2, "outputs": outputs}, "actor")
    check_output(critics, (obs, actions), {"critics": num_critics, "observations": 2}, "critics")
    if by_member and "members" not in inspect.signature(critics.forward).parameters:
        raise TypeError(
            "the network's critics must take (obs, actions, members=None) and give the values of members alone"
        )
