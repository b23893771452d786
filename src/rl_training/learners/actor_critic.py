"""Off-policy actor-critics, as far as they are the same: acting, updating, state.

A recipe (sac.py, td3.py, redq.py) brings the networks, how actions come from the actor's outputs, and two pure steps:
one of the critics, one of the actor. The actor's follows the critics' at every `policy_delay`-th update.
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
from rl_training.core.seeding import generator_state, set_generator_state
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.actor_critic import ActorCriticHParams
from rl_training.learners.optim import ClippedAdam, FlatModule
from rl_training.learners.random_inputs import RandomInput, RandomInputs
from rl_training.learners.user_networks import check_output, zero_obs
from rl_training.models.continuous import ContinuousActorCritic
from rl_training.models.encoders import build_encoder


class Recipe(Protocol):
    """What a member of the family brings."""

    @property
    def actor(self) -> FlatModule: ...

    def state(self) -> State:
        """Give all that learns and how: `actor.params` among it."""
        ...

    def random_inputs(self, rounds: int, rows: int, *, actor: bool) -> Mapping[str, RandomInput]:
        """Name the random numbers of `rounds` updates of `rows` rows each; `actor`: those of the actor's step, too."""
        ...

    def explore(self, outputs: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """Turn the actor's outputs into actions that explore: (rows, outputs) -> (rows, *action)."""
        ...

    def best(self, outputs: np.ndarray) -> np.ndarray:
        """Turn the actor's outputs into the actions that it thinks best."""
        ...

    def learn_critics(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the critics' step: the entries of the state that change, and metrics, td_errors (batch,) among them."""
        ...

    def learn_actor(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        """Take the actor's step."""
        ...


class ActorCritic:
    """Acts by its actor, at first at random; a call of `update` makes one update per `batch_size` rows."""

    def __init__(self, recipe: Recipe, setup: Setup[ActorCriticHParams]) -> None:
        self.recipe = recipe
        self.hparams = setup.hparams
        self.num_updates = 0
        self.state = recipe.state()
        self._device = setup.device
        self._action_shape = action_field(setup.spaces.action).shape
        self._total_updates = max(1, setup.hparams.updates_until(setup.total_timesteps))
        self._step_sizes = {name: float(rate) for name, rate in self.state.items() if name.endswith(".learning_rate")}
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise")}
        self._random_inputs: dict[tuple[int, bool], RandomInputs] = {}  # by rounds, and whether the actor learns
        self._metrics: Metrics = {}  # the latest value of each: not every update is one of the actor, too
        self._outputs = act_function(recipe.actor.module, setup.device, setup.acceleration)
        self._learn_critics = accelerate_rounds(self._critics_step, setup.acceleration, identity=setup.identity)
        self._learn_both = accelerate_rounds(self._whole_step, setup.acceleration, identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        if not explore:
            return ActResult(self.recipe.best(self._outputs(obs)))
        generator = self._generators["action"]
        if self.hparams.explores_blindly(step):
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
            **{name: value for name, value in self.state.items() if name != "actor.params"},
            "num_updates": self.num_updates,
            "metrics": dict(self._metrics),
            "generators": {name: generator_state(generator) for name, generator in self._generators.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self.state.items():
            if name != "actor.params":
                value.copy_(torch.as_tensor(state[name]))
        self.num_updates = int(state["num_updates"])
        self._metrics = {name: torch.as_tensor(value) for name, value in state["metrics"].items()}
        for name, generator in self._generators.items():
            set_generator_state(generator, state["generators"][name])

    def apply_actor(self, params: Tensor, obs: Tensor) -> Tensor:
        """Give the actor's outputs with any parameters: (batch, *obs) -> (batch, outputs)."""
        outputs: Tensor = self.recipe.actor.apply(params, obs)
        return outputs

    def _learn(self, batch: Batch, rounds: int, *, with_actor: bool) -> Metrics:
        key = (rounds, with_actor)
        if key not in self._random_inputs:
            random_inputs = self.recipe.random_inputs(rounds, self.hparams.batch_size, actor=with_actor)
            self._random_inputs[key] = RandomInputs(random_inputs, self._device)
        learn = self._learn_both if with_actor else self._learn_critics
        return learn(self.state, batch | self._random_inputs[key].fill(self._generators["noise"]), rounds)

    def _critics_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        return self.recipe.learn_critics(state, batch)

    def _whole_step(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        critics, metrics = self.recipe.learn_critics(state, batch)
        actor, more = self.recipe.learn_actor({**state, **critics}, batch)
        return {**critics, **actor}, {**metrics, **more}


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    return {name: values[start:stop] for name, values in batch.items()}


# --- What the recipes share ------------------------------------------------------------------------------------------


def critic_metrics(values: Tensor, targets: Tensor, batch: Batch) -> Metrics:
    """The critics' loss and what to watch about it: (critics, batch), (batch,).

    Squared errors are summed over the critics: each then learns as if it were alone.
    """
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


def adam_of(hparams: ActorCriticHParams, learning_rate: float) -> ClippedAdam:
    return ClippedAdam(learning_rate=learning_rate, eps=hparams.adam_eps, max_grad_norm=hparams.max_grad_norm)


def build_model(
    setup: Setup[ActorCriticHParams], kind: type[ContinuousActorCritic], *, num_critics: int, by_member: bool = False
) -> nn.Module:
    """Give the user's networks, or make some of this kind for the run's spaces.

    `by_member`: the critics are asked for the values of some of them, too.
    """
    hparams, spaces = setup.hparams, setup.spaces
    outputs = kind.outputs_per_action * action_size(setup)
    if setup.network is not None:
        _check_networks(setup.network.to(setup.device), setup, outputs, num_critics, by_member=by_member)
        return setup.network
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(setup.streams.integer("init"))
        model = kind(
            lambda: build_encoder(spaces.observation),
            action_size(setup),
            hparams.hidden_sizes,
            num_critics=num_critics,
            layer_norm=hparams.layer_norm,
            residual=hparams.network == "simba",
        )
    return model.to(setup.device)


def action_size(setup: Setup[ActorCriticHParams]) -> int:
    return math.prod(action_field(setup.spaces.action).shape)


def _check_networks(
    network: nn.Module, setup: Setup[ActorCriticHParams], outputs: int, num_critics: int, *, by_member: bool
) -> None:
    """Refuse networks of the user's that do not fit, before they learn anything wrong."""
    actor, critics = getattr(network, "actor", None), getattr(network, "critics", None)
    if not isinstance(actor, nn.Module) or not isinstance(critics, nn.Module):
        raise TypeError(
            f"the network must have the modules `actor` and `critics`, but {type(network).__name__} has not"
        )
    obs = zero_obs(setup)
    actions = torch.zeros((len(obs), *action_field(setup.spaces.action).shape), device=setup.device)
    check_output(actor, "actor", (obs,), (len(obs), outputs))
    check_output(critics, "critics", (obs, actions), (num_critics, len(obs)))
    if by_member and "members" not in inspect.signature(critics.forward).parameters:
        raise TypeError(
            "the network's critics must take (obs, actions, members=None) and give the values of members alone"
        )
