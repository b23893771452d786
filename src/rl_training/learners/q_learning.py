"""Deep Q-learning: what all members of the family share.

A recipe (dqn.py, c51_dqn.py, qr_dqn.py, iqn.py, fqf.py) brings the network, its Q-values and the loss; what these
share is in q_networks.py and q_losses.py. Double selection, dueling streams, noisy layers, n-step returns and
prioritized replay are settings that any recipe takes.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import Step, accelerate
from rl_training.core.counters import Keys
from rl_training.core.setup import Setup
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
from rl_training.errors import CheckpointError, ConfigError
from rl_training.hparams import schedules
from rl_training.hparams.q_learning import QLearningHParams
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import check_output, trial_obs
from rl_training.learners.optim import Optimizer, descend, polyak
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.q_losses import Apply
from rl_training.learners.q_networks import build_augmentation, q_optimizer
from rl_training.learners.random_inputs import RandomInput, RandomInputs, noise, uniform
from rl_training.learners.replay_on_device import ReplayLearner, acting_noise, epsilon_greedy, with_random_inputs
from rl_training.learners.resets import ResetWeights
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.learners.stack import stackable_steps
from rl_training.models.distributions import Categorical
from rl_training.models.layers import NoisyLayers, noise_factors


class QRecipe(Protocol):
    """What a member of the family brings."""

    @property
    def network(self) -> nn.Module:
        """The network whose parameters are trained."""
        ...

    @property
    def q_values(self) -> nn.Module:
        """(batch, *obs) -> (batch, actions), computed from the network's outputs; acting uses it."""
        ...

    @property
    def random_inputs(self) -> Mapping[str, int]:
        """How many numbers in [0, 1) the loss needs for each row of a batch, by their name there."""
        ...

    @property
    def loss(self) -> Callable[[Tensor, Tensor, Batch, Any, Apply], Metrics]:
        """The pure loss of (params, target_params, batch, hparams, apply).

        It returns at least loss, q_value_mean, target_mean, td_error_mean, and td_errors: (batch,), not negative and
        not weighted.
        """
        ...


class QLearner:
    """Acts epsilon-greedily, or by the noise of its weights, and takes one gradient step per update."""

    scaling = None  # of observations and rewards

    def __init__(self, recipe: QRecipe, setup: Setup[QLearningHParams], optimizer: Optimizer | None = None) -> None:
        self.recipe, self.hparams = recipe, setup.hparams
        self.num_actions = setup.spaces.num_actions
        self.num_updates = 0
        self._device = setup.device
        self._total_timesteps = setup.total_timesteps
        self._total_updates = max(1, setup.total_updates)
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "noise", "eval_action")}
        self._random_inputs: dict[int, RandomInputs] = {}  # by the number of rows
        recipe.q_values.to(setup.device)  # the network, and what computes Q-values from its outputs
        self._network = network = FlatModule(recipe.network)
        self._noisy = noisy = NoisyLayers(recipe.network)
        if setup.hparams.noisy and not noisy.size:
            raise ConfigError(
                "algo_kwargs.noisy: true needs a network with NoisyLinear layers, "
                f"but {type(recipe.network).__name__} has none"
            )
        if setup.network is not None:
            sizes = {"observations": 2, "actions": self.num_actions}
            check_output(recipe.q_values, (trial_obs(setup),), sizes)
        self._noise_seed = setup.streams.integer("noise")
        self._no_noise = torch.zeros(noisy.size, device=setup.device)
        optimizer = optimizer or q_optimizer(recipe.network, setup)
        self._state = {**optimizer.state(network.params), "target": network.params.clone()}
        self._acting = "target" if setup.hparams.act_with_target else "params"  # the weights of the policy
        self.policy = self._target_q_values() if setup.hparams.act_with_target else recipe.q_values
        self._act_mode = "eager" if noisy.size else setup.acceleration  # a captured graph would keep its first noise
        self._q_values = act_function(self.policy, setup.device, self._act_mode)
        self._reset_weights: ResetWeights | None = None
        if setup.hparams.reset_interval is not None:
            self._reset_weights = ResetWeights(recipe.network, setup.streams, share=setup.hparams.reset_share)

        self._augment = augment = build_augmentation(setup)

        def apply(params: Tensor, *inputs: Any, noise: Tensor | None = None) -> Any:
            return network.apply(params, *inputs, buffers=None if noise is None else noisy.buffers(noise))

        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            batch = batch if augment is None else augment(batch)

            def loss(params: Tensor) -> Metrics:
                return recipe.loss(params, state["target"], batch, setup.hparams, apply)

            new, metrics = descend(loss, state, optimizer)
            if setup.hparams.tau < 1.0:
                new["target"] = polyak(state["target"], new["params"], setup.hparams.tau)
            return new, metrics

        self.apply, self.pure_step = apply, step
        self._step_in_place = accelerate(
            step, setup.acceleration, identity=setup.identity_with(recipe), reuses_metrics=True
        )

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        begun = self._begin(obs, self._epsilon(step) if explore else None, action_mask)
        return begun if isinstance(begun, ActResult) else begun.finish(self.outputs(begun))

    def begin_act(
        self, obs: np.ndarray, *, step: int, action_mask: np.ndarray | None = None, carry: Carry | None = None
    ) -> ActResult | PendingActions:
        """Draw what an exploring `act` draws; return its actions, or what they still need."""
        return self._begin(obs, self._epsilon(step), action_mask)

    def _begin(self, obs: np.ndarray, epsilon: float | None, mask: np.ndarray | None) -> ActResult | PendingActions:
        """Draw what acting draws. `epsilon`: of exploration; None: act as in an evaluation."""
        explores, rows = epsilon is not None, len(obs)
        epsilon = self.hparams.evaluation_epsilon if epsilon is None else epsilon
        generator = self._generators["action" if explores else "eval_action"]
        # One number per env: envs that share it would explore in lockstep.
        random = generator.random(rows) < epsilon if epsilon > 0.0 else np.zeros(rows, np.bool_)
        if random.all():
            return ActResult(self._random(rows, generator, mask))
        # Each env has its own noise, too.
        noise = self._acting_noise(rows, generator) if self._noisy.size and explores else None

        def finish(q_values: np.ndarray) -> ActResult:
            actions: np.ndarray = (q_values if mask is None else np.where(mask, q_values, -np.inf)).argmax(1)
            return ActResult(
                np.where(random, self._random(rows, generator, mask), actions) if random.any() else actions
            )

        return PendingActions(obs, finish, noise)

    def outputs(self, pending: PendingActions) -> np.ndarray:
        """Return the Q-values for which actions wait."""
        if self._noisy.size:
            drawn = pending.noise
            self._noisy.set(self._no_noise if drawn is None else torch.from_numpy(drawn).to(self._device))
        return self._q_values(pending.inputs)

    @property
    def acting_entries(self) -> tuple[str, ...]:
        """The entries of the state that `network_function` reads."""
        return (self._acting,)

    def network_function(self) -> Callable[..., Tensor]:
        """Return the Q-values as a pure function of (state, obs) or, with noisy layers, (state, obs, noise)."""
        module = FlatModule(copy.deepcopy(self.recipe.q_values))
        noisy, name = NoisyLayers(module.module), self._acting

        def q_values(state: State, obs: Tensor, noise: Tensor | None = None) -> Tensor:
            result: Tensor = module.apply(state[name], obs, buffers=None if noise is None else noisy.buffers(noise))
            return result

        return q_values

    def update(self, batch: Batch) -> UpdateResult:
        for name, rate in self.scheduled_rates().items():
            self._state[name].fill_(rate)
        batch = batch | self._draw(len(batch["rewards"]))
        metrics = self._step_in_place(self._state, batch)  # writes the new weights into self._state
        self.num_updates += 1
        self.end_updates()
        return UpdateResult(without_td_errors(metrics), td_errors=metrics[TD_ERRORS])

    def scheduled_rates(self) -> dict[str, float]:
        """Return the learning rate of the next update by its name in the state; none if it is constant."""
        is_linear = self.hparams.learning_rate_schedule == "linear"
        return {"learning_rate": self.hparams.learning_rate * self._rate_left()} if is_linear else {}

    def kinds(self, rounds: int) -> list[tuple[str, int]]:
        """Return the kinds of the next updates: there is one."""
        return [("whole", rounds)]

    def end_updates(self) -> None:
        """Copy the target network and reset weights, if that is due after the update that was counted last."""
        if self.hparams.tau == 1.0 and self.num_updates % self.hparams.target_update_interval == 0:
            self._state["target"].copy_(self._state["params"])
        if self._reset_weights is not None and schedules.is_reset(self.hparams, self.num_updates, self._total_updates):
            self._reset(self._reset_weights)

    def on_device(self) -> ReplayLearner:
        """Return this algorithm for tensor environments: acting and updates without the host."""
        interval = self.hparams.target_update_interval
        q_values, numbers = self.network_function(), self._noisy.size

        def draw(state: State, obs: Tensor, keys: Keys) -> Tensor:
            noise = acting_noise(keys, numbers) if numbers else None
            return epsilon_greedy(q_values({self._acting: state["params"]}, obs, noise), state["exploration"], keys)

        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            update = batch["update"] + 1
            new, metrics = learn(state, batch)
            if self.hparams.tau == 1.0:
                new["target"] = torch.where(update % interval == 0, new["params"], state["target"])
            return new, metrics

        learn = with_random_inputs(self.pure_step, self._inputs(self.hparams.batch_size))
        return ReplayLearner(
            params=self._acting,
            draw=draw,
            steps={"whole": step},
            kind_of=lambda number: "whole",
            exploration=self._epsilon,
            rates={"learning_rate": self.hparams.learning_rate},
            rates_left=self._rate_left,
            seed=self._noise_seed,
            keep=self.keep,
        )

    # --- As a member of a stack --------------------------------------------------------------------------------------

    @property
    def pure_steps(self) -> Mapping[str, Step]:
        """The step of an update."""
        return stackable_steps(self.hparams, {"whole": self.pure_step})

    @property
    def noise(self) -> np.random.Generator:
        return self._generators["noise"]

    def random_inputs(self, kind: str, rounds: int) -> Mapping[str, RandomInput]:
        """Return what is drawn for one update; several are not made at once."""
        return self._inputs(rounds * self.hparams.batch_size)

    def keep(self, metrics: Metrics) -> Metrics:
        return metrics

    @property
    def state(self) -> State:
        """Everything that an update changes."""
        return self._state

    def use_state(self, state: State) -> None:
        """Act by, and save, these tensors in place of its own: the member's rows of a stacked state."""
        self._state = {name: state[name] for name in self._state}
        self._network.use(self._state["params"])
        self.policy = self._target_q_values() if self.hparams.act_with_target else self.recipe.q_values
        self._q_values = act_function(self.policy, self._device, self._act_mode)

    def status(self, step: int) -> dict[str, float]:
        return {"epsilon": self._epsilon(step)}

    def policy_state_dict(self) -> StateDict:
        return dict(self._network.named(self._state[self._acting]))

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load(self._state[self._acting], state)

    def state_dict(self) -> StateDict:
        learning = tensors_to_save(self._state, without=(self._acting,))
        return {**learning, "num_updates": self.num_updates, "generators": generators_to_save(self._generators)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if "generators" not in state:
            raise CheckpointError(
                "the checkpoint lacks the states of the random generators: it can be evaluated, but not continued"
            )
        load_tensors(self._state, state, without=(self._acting,))
        self.num_updates = int(state["num_updates"])
        load_generators(self._generators, state["generators"])

    def _target_q_values(self) -> nn.Module:
        """Return a copy of the module that computes Q-values, with the parameters of the target network."""
        copied = copy.deepcopy(self.recipe.q_values)
        FlatModule(copied).use(self._state["target"])
        return copied

    def _reset(self, weights: ResetWeights) -> None:
        """Reset both networks, each with a draw of its own; a target as it was would pull the other one back."""
        number = self.num_updates // (self.hparams.reset_interval or 1)
        for which, name in enumerate(("params", "target")):
            self._state[name].copy_(weights.of(self._state[name], number, which))
        for name, value in self._state.items():
            if name not in ("params", "target", "learning_rate"):
                value.zero_()

    def _rate_left(self) -> float:
        is_linear = self.hparams.learning_rate_schedule == "linear"
        return max(0.0, 1.0 - self.num_updates / self._total_updates) if is_linear else 1.0

    def _draw(self, rows: int) -> Batch:
        if rows not in self._random_inputs:
            self._random_inputs[rows] = RandomInputs(self._inputs(rows), self._device)
        return self._random_inputs[rows].fill(self._generators["noise"])

    def _inputs(self, rows: int) -> dict[str, RandomInput]:
        """Return the random inputs of an update of this many rows."""
        inputs = {name: RandomInput((rows, count), uniform) for name, count in self.recipe.random_inputs.items()}
        if self._noisy.size:
            inputs["noise"] = RandomInput((3, self._noisy.size), noise)
        return inputs if self._augment is None else inputs | self._augment.random_inputs(rows)

    def _epsilon(self, step: int) -> float:
        if step < self.hparams.learning_starts:
            return 1.0  # nothing is learned yet: the untrained network's preference is no exploration
        return schedules.epsilon(self.hparams, step, self._total_timesteps)

    def _acting_noise(self, rows: int, generator: np.random.Generator) -> np.ndarray:
        normal = generator.standard_normal((rows, self._noisy.size), np.float32)
        factors: np.ndarray = noise_factors(torch.from_numpy(normal)).numpy()
        return factors

    def _random(self, rows: int, generator: np.random.Generator, mask: np.ndarray | None) -> np.ndarray:
        if mask is None:
            return generator.integers(self.num_actions, size=rows)
        actions: np.ndarray = np.where(mask, generator.random(mask.shape), -1.0).argmax(1)  # uniform over allowed ones
        return actions


def q_policy(learner: QLearner) -> NetworkPolicy:
    return NetworkPolicy(learner.policy, Categorical([learner.num_actions], single=True))
