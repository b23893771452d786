"""Off-policy actor-critics: what all members of the family share, which is acting, updating and state.

A recipe (sac.py, td3.py, redq.py) brings the networks, the actions that its actor's outputs stand for, and two pure
steps: one of the critics, one of the actor. The actor's step follows the critics' at every `policy_delay`-th update.
"""

from collections.abc import Callable, Mapping
from typing import Any, cast

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import Step, accelerate_rounds
from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.setup import Setup
from rl_training.core.spaces import action_field
from rl_training.core.state_checks import check_like
from rl_training.core.types import (
    TD_ERRORS,
    ActResult,
    Batch,
    Carry,
    Metrics,
    PendingActions,
    State,
    StateDict,
    UpdateResult,
    without_td_errors,
)
from rl_training.hparams.actor_critic import ActorCriticHParams
from rl_training.hparams.discrete_sac import DiscreteSACHParams
from rl_training.hparams.mbpo import ModelHParams
from rl_training.hparams.offline import DatasetCriticHParams
from rl_training.hparams.schedules import is_warm_up
from rl_training.learners.actor_critic_recipe import ActorCriticRecipe, DeviceRecipe
from rl_training.learners.choice_noise import ChoiceNoise
from rl_training.learners.colored_noise import ColoredNoise
from rl_training.learners.normalization import OBS_CONSTANTS, take_moments
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.random_inputs import RandomInput, RandomInputs
from rl_training.learners.replay_on_device import ReplayLearner, warm_up, with_random_inputs
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.learners.scaling import Scaling, build_scaling
from rl_training.learners.stack import stackable_steps
from rl_training.models.batch_renorm import FlatMoments
from rl_training.models.distributions import Categorical, SquashedGaussian


class ActorCritic:
    """Acts at random during warm-up, then by its actor; `update` makes one update per `batch_size` rows."""

    def __init__(
        self,
        recipe: ActorCriticRecipe,
        setup: Setup[ActorCriticHParams],
        *,
        scaling: Scaling | None = None,
        actor_first: bool = False,
        final_rate_share: float = 0.0,
    ) -> None:
        """`scaling`: of observations and rewards, if not by the settings. `actor_first`: the critics' step follows the
        actor's within an update. `final_rate_share`: share of the learning rates that a linear schedule leaves at the
        end of the run.
        """
        self.recipe, self.hparams = recipe, setup.hparams
        self.num_updates = 0
        self._final_rate_share = final_rate_share
        self.scaling = scaling = scaling or build_scaling(setup)
        self.state = recipe.state() | scaling.constants(setup.device)
        self.device = setup.device
        self._action_shape = action_field(setup.spaces.action).shape
        self.num_choices = int(setup.spaces.action.n) if isinstance(setup.spaces.action, Discrete) else 0
        self._action_noise = _action_noise(setup)
        self._total_updates = max(1, setup.total_updates)
        self._step_sizes = {name: float(rate) for name, rate in self.state.items() if name.endswith(".learning_rate")}
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise")}
        self._random_inputs: dict[tuple[str, int], RandomInputs] = {}  # by the kind and the number of updates
        self._noise_seed = setup.streams.integer("noise")
        self._metrics: Metrics = {}  # the latest value of each: not every update includes the actor
        self._act_mode = setup.acceleration
        self.use_state(self.state)

        order = (recipe.learn_critics, recipe.learn_actor)
        order = order[::-1] if actor_first else order

        def step_critics(state: State, batch: Batch) -> tuple[State, Metrics]:
            return recipe.learn_critics(state, scaling.scaled(batch, state))

        def step_both(state: State, batch: Batch) -> tuple[State, Metrics]:
            batch = scaling.scaled(batch, state)
            first, metrics = order[0](state, batch)
            second, more = order[1]({**state, **first}, batch)
            return {**first, **second}, {**metrics, **more}

        self.pure_step, self._critics_step = step_both, step_critics
        mode, identity = setup.acceleration, setup.identity_with(recipe)
        self._step_critics_in_place = accelerate_rounds(step_critics, mode, identity=identity, reuses_metrics=True)
        self._step_both_in_place = accelerate_rounds(step_both, mode, identity=identity, reuses_metrics=True)

    def act(
        self,
        obs: np.ndarray,
        *,
        step: int = 0,
        explore: bool = False,
        action_mask: np.ndarray | None = None,
        carry: Carry | None = None,
    ) -> ActResult:
        if not explore:
            return ActResult(self.recipe.best(self._outputs(self.scaling.rows(obs))))
        begun = self.begin_act(obs, step=step, carry=carry)
        return begun if isinstance(begun, ActResult) else begun.finish(self.outputs(begun))

    def begin_act(
        self, obs: np.ndarray, *, step: int, action_mask: np.ndarray | None = None, carry: Carry | None = None
    ) -> ActResult | PendingActions:
        """Draw what an exploring `act` draws; return its actions, or what they still need."""
        generator = self._generators["action"]
        if is_warm_up(self.hparams, step):
            return self._action_noise.random_actions(len(obs), generator, carry)
        noise, carry = self._action_noise.draw(len(obs), generator, carry)
        return PendingActions(
            self.scaling.rows(obs), lambda outputs: ActResult(self.recipe.explore(outputs, noise), carry)
        )

    def outputs(self, pending: PendingActions) -> np.ndarray:
        """Return the actor's outputs, for which actions wait."""
        return self._outputs(pending.inputs)

    @property
    def acting_entries(self) -> tuple[str, ...]:
        """The entries of the state that `network_function` reads."""
        return tuple(name for name in ("actor.params", ACTOR_MOMENTS) if name in self.state)

    def network_function(self) -> Callable[..., Tensor]:
        """Return the actor's outputs as a pure function of (state, obs)."""
        actor, moments = self.recipe.actor, self._moments

        def outputs(state: State, obs: Tensor) -> Tensor:
            buffers = None if moments is None else moments.named(state[ACTOR_MOMENTS])
            result: Tensor = actor.apply(state["actor.params"], obs, buffers=buffers)
            return result

        return outputs

    def estimated_returns(self, obs: np.ndarray, actions: np.ndarray) -> np.ndarray | None:
        """Return the smallest value of all critics for each row; None if they learn from rewards that are shifted."""
        if "reward_shift" in self.state:  # of dataset_rewards.py
            return None
        inputs = (torch.as_tensor(values, device=self.device) for values in (self.scaling.rows(obs), actions))
        with torch.no_grad():
            values = self.recipe.values(self.state, *inputs).amin(0)
        found: np.ndarray = self.scaling.unscaled_values(values, self.state).cpu().numpy()
        return found

    def observe(self, transitions: Mapping[str, np.ndarray]) -> None:
        """Add a step of the envs to the statistics, which acting and updates use from now on."""
        self.scaling.observe(transitions, self.state)

    def update(self, batch: Batch) -> UpdateResult:
        rows, done, td_errors = self.hparams.batch_size, 0, []
        rounds = len(batch["rewards"]) // rows
        for name, rate in self.scheduled_rates().items():
            self.state[name].fill_(rate)
        for kind, count in self.kinds(rounds):
            part = batch if count == rounds else _cut(batch, done * rows, (done + count) * rows)
            metrics = self._learn(part, count, kind)
            td_errors.append(metrics[TD_ERRORS].flatten())
            metrics = without_td_errors(metrics)
            self._metrics |= metrics if count == 1 else {name: values.mean() for name, values in metrics.items()}
            self.num_updates += count
            done += count
        errors = td_errors[0] if len(td_errors) == 1 else torch.cat(td_errors)
        return UpdateResult(dict(self._metrics), num_gradient_steps=rounds, td_errors=errors)

    def scheduled_rates(self) -> dict[str, float]:
        """Return the learning rates of the next updates by their names in the state; none if they are constant."""
        if self.hparams.learning_rate_schedule != "linear":
            return {}
        left = self._rates_left()
        return {name: rate * left for name, rate in self._step_sizes.items()}

    def kinds(self, rounds: int) -> list[tuple[str, int]]:
        """Return the kinds of the next updates in order, each with how many there are."""
        delay, done, kinds = self.hparams.policy_delay, 0, list[tuple[str, int]]()
        while done < rounds:
            wait = delay - 1 - (self.num_updates + done) % delay  # updates of the critics alone before the actor's next
            count = rounds if delay == 1 else max(1, min(wait, rounds - done))
            kinds.append(("critic" if wait else "whole", count))
            done += count
        return kinds

    def on_device(self) -> ReplayLearner:
        """Return this algorithm for tensor environments: acting and updates without the host."""
        recipe, delay = cast(DeviceRecipe, self.recipe), self.hparams.policy_delay
        steps = {"critic": self._critics_step, "whole": self.pure_step}

        def draw(state: State, obs: Tensor, keys: Keys) -> Tensor:
            actions = recipe.draw(recipe.actor.apply(state["params"], obs), keys, LEARNING_LANE)
            return warm_up(actions, state["exploration"], keys)

        return ReplayLearner(
            params="actor.params",
            draw=draw,
            steps={kind: with_random_inputs(step, self.random_inputs(kind, 1)) for kind, step in steps.items()},
            kind_of=lambda number: "whole" if number % delay == delay - 1 else "critic",
            exploration=lambda step: float(is_warm_up(self.hparams, step)),
            rates=self._step_sizes,
            rates_left=self._rates_left,
            seed=self._noise_seed,
            keep=self.keep,
        )

    def use_state(self, state: State) -> None:
        """Act by, and save, these tensors in place of its own: the member's rows of a stacked state."""
        self.state = {name: state[name] for name in self.state}
        self.recipe.actor.use(self.state["actor.params"])
        self._moments = None
        if ACTOR_MOMENTS in self.state:
            self._moments = FlatMoments(self.recipe.actor.module, self.state[ACTOR_MOMENTS])
        self._outputs = act_function(self.recipe.actor.module, self.device, self._act_mode)

    @property
    def pure_steps(self) -> Mapping[str, Step]:
        """The steps of both kinds of update."""
        return stackable_steps(self.hparams, {"critic": self._critics_step, "whole": self.pure_step})

    @property
    def noise(self) -> np.random.Generator:
        return self._generators["noise"]

    def random_inputs(self, kind: str, rounds: int) -> Mapping[str, RandomInput]:
        """Return what is drawn for so many updates of a kind."""
        return self.recipe.random_inputs(rounds, self.hparams.batch_size, actor=kind == "whole")

    def end_updates(self) -> None:
        """Do nothing: all of an update is in its step."""

    def keep(self, metrics: Metrics) -> Metrics:
        """Take the metrics of an update; return the latest value of each."""
        self._metrics |= metrics
        return dict(self._metrics)

    def _rates_left(self) -> float:
        if self.hparams.learning_rate_schedule != "linear":
            return 1.0
        final, left = self._final_rate_share, max(0.0, 1.0 - self.num_updates / self._total_updates)
        return final + (1.0 - final) * left

    @torch.no_grad()
    def evaluate_offline(self, batch: Batch) -> Metrics:
        """Return the mean squared difference of the policy's actions to those of held-out transitions."""
        best = torch.from_numpy(self.act(batch["obs"].cpu().numpy()).actions)
        return {"action_error": (best - batch["actions"].cpu()).square().mean()}

    def status(self, step: int) -> dict[str, float]:
        return {"learning_rate": float(self.state["critic.learning_rate"])}

    def policy_state_dict(self) -> StateDict:
        """Return the actor's parameters and the statistics that its layers or its observations are normalised by."""
        state: StateDict = dict(self.recipe.actor.named(self.state["actor.params"]))
        if ACTOR_MOMENTS in self.state:
            state[ACTOR_MOMENTS] = self.state[ACTOR_MOMENTS]
        return {**state, **self.scaling.policy_state_dict()}

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        actor = dict(state)
        if ACTOR_MOMENTS in self.state:
            moments = take_moments(actor, ACTOR_MOMENTS)
            check_like(moments, self.state[ACTOR_MOMENTS], ACTOR_MOMENTS)
            self.state[ACTOR_MOMENTS].copy_(moments)
        self.scaling.take_policy_state(actor, self.state)
        self.recipe.actor.load(self.state["actor.params"], actor)

    def state_dict(self) -> StateDict:
        return {
            **tensors_to_save(self.state, without=_IN_POLICY),
            "num_updates": self.num_updates,
            "metrics": dict(self._metrics),
            "generators": generators_to_save(self._generators),
            **self.scaling.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self.state, state, without=_IN_POLICY)
        self.num_updates = int(state["num_updates"])
        self._metrics = {name: torch.as_tensor(value) for name, value in state["metrics"].items()}
        load_generators(self._generators, state["generators"])
        self.scaling.load_state_dict(state)

    def start_from(self, policy: Mapping[str, Any], training: Mapping[str, Any]) -> None:
        """Load what another run has learned, with its optimizers' moments, but without learning rates and counts."""
        self.load_policy_state_dict(policy)
        load_tensors(self.state, training, without=(*_IN_POLICY, *self._step_sizes))

    def _learn(self, batch: Batch, rounds: int, kind: str) -> Metrics:
        key = (kind, rounds)
        if key not in self._random_inputs:
            self._random_inputs[key] = RandomInputs(self.random_inputs(kind, rounds), self.device)
        batch = batch | self._random_inputs[key].fill(self.noise)
        step_in_place = self._step_both_in_place if kind == "whole" else self._step_critics_in_place
        return step_in_place(self.state, batch, rounds)  # writes the new weights into self.state


ACTOR_MOMENTS = "actor.moments"  # entry of the state of an actor whose layers have running moments (batch_renorm.py)
_IN_POLICY = ("actor.params", ACTOR_MOMENTS, *OBS_CONSTANTS)  # saved with the policy, or follow from what is


def _action_noise(setup: Setup[ActorCriticHParams]) -> ColoredNoise | ChoiceNoise:
    space, hparams = setup.spaces.action, setup.hparams
    if isinstance(space, Discrete):
        return ChoiceNoise(int(space.n))
    if isinstance(hparams, ModelHParams | DatasetCriticHParams | DiscreteSACHParams):
        return ColoredNoise(0.0, action_field(space).shape)
    return ColoredNoise(hparams.noise_color, action_field(space).shape)


def actor_policy(learner: ActorCritic) -> NetworkPolicy:
    """Return the policy of a recipe whose `best` action is tanh of the first outputs of its actor."""
    distribution = SquashedGaussian(learner._action_shape)
    return NetworkPolicy(learner.recipe.actor.module, distribution, learner.scaling.normalizer)


def choice_policy(learner: ActorCritic) -> NetworkPolicy:
    """Return the policy of a recipe whose `best` action has the largest output of its actor."""
    actor = learner.recipe.actor.module
    return NetworkPolicy(actor, Categorical([learner.num_choices], single=True), learner.scaling.normalizer)


def _cut(batch: Batch, start: int, stop: int) -> Batch:
    return {name: values[start:stop] for name, values in batch.items()}
