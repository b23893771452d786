"""PQN: Q-learning on rollouts of many environments, without a replay buffer and without a target network.

    G_t = r_t + gamma (1 - d_t) [lambda G_{t+1} + (1 - lambda) max_a Q(s_{t+1}, a)]        Peng's Q(lambda)
    minimise  (Q(s_t, a_t) - G_t)^2 / 2,  several epochs of shuffled minibatches per rollout

Layer normalisation does what a target network does elsewhere: it keeps the values bounded. The trace is not cut at
exploratory actions. At a time limit the return bootstraps from the final observation and the trace ends.

Gallici et al. 2025, Simplifying deep temporal difference learning. Deviations are in docs/algorithms/pqn.md.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.acceleration.acting import act_function
from rl_training.acceleration.steps import accelerate
from rl_training.core.counters import LEARNING_LANE, Keys
from rl_training.core.setup import Setup
from rl_training.core.types import ActResult, Batch, Metrics, State, StateDict, UpdateResult
from rl_training.hparams.pqn import PQNHParams
from rl_training.learners.checks import ANY, FLOATS, INDICES, Expected, check_tensors
from rl_training.learners.flat_module import FlatModule
from rl_training.learners.networks import build_network, check_output, trial_obs
from rl_training.learners.on_device import RolloutLearner
from rl_training.learners.optim import clipped_adam, descend
from rl_training.learners.policies import NetworkPolicy
from rl_training.learners.q_losses import pick
from rl_training.learners.returns import lambda_return, successor_values
from rl_training.learners.rollouts import mean_metrics, minibatches, num_rollouts, steps_of
from rl_training.learners.saved_state import generators_to_save, load_generators, load_tensors, tensors_to_save
from rl_training.models.distributions import Categorical
from rl_training.models.encoders import build_encoder
from rl_training.models.layers import HeadStyle
from rl_training.models.mlp_q_network import MLPQNetwork

PQN_BATCH = {
    "obs": Expected(ANY, "batch ..."),
    "actions": Expected(INDICES, "batch"),
    "targets": Expected(FLOATS, "batch"),
}


def pqn_loss(params: Tensor, batch: Batch, apply: Callable[[Tensor, Tensor], Tensor]) -> Metrics:
    """Compute the loss of one minibatch and its metrics.

    `apply(params, obs)` returns (batch, actions). `batch`: obs, actions and targets, (batch,).
    """
    check_tensors("pqn_loss", batch, PQN_BATCH)
    q_values = pick(apply(params, batch["obs"]), batch["actions"])
    errors = batch["targets"] - q_values
    return {
        "loss": 0.5 * errors.square().mean(),
        "q_value_mean": q_values.detach().mean(),
        "target_mean": batch["targets"].mean(),
        "td_error_mean": errors.detach().abs().mean(),
    }


def q_lambda_targets(
    rewards: Tensor, next_values: Tensor, terminated: Tensor, truncated: Tensor, *, gamma: float, q_lambda: float
) -> Tensor:
    """Return the targets of a rollout, (steps, envs) as all arguments.

    `next_values`: the largest Q-value of each true successor, at a time limit that of the final observation.
    """
    trace = q_lambda * (~(terminated | truncated)).float()
    return lambda_return(rewards, gamma * (~terminated).float(), next_values, trace)


class PQN:
    """Acts epsilon-greedily; an update learns several epochs from one rollout."""

    def __init__(self, network: nn.Module, setup: Setup[PQNHParams]) -> None:
        self.hparams = hparams = setup.hparams
        self._setup = setup
        self.num_updates = 0
        self.num_actions = setup.spaces.num_actions
        self._shape = (hparams.num_steps, setup.num_envs)
        self._total_updates = max(1, num_rollouts(setup))
        self._generators = {name: setup.streams.numpy(name) for name in ("action", "shuffle", "eval_action")}
        self._network = FlatModule(network.to(setup.device))
        optimizer = replace(clipped_adam(hparams, hparams.learning_rate), rectified=True)
        self._state = optimizer.state(self._network.params)
        self._epsilon = torch.tensor(hparams.epsilon_start, device=setup.device)  # for acting on the device
        self._indices = torch.zeros(hparams.minibatch_size, dtype=torch.int64, device=setup.device)
        self._q_values = act_function(network, setup.device, setup.acceleration)

        def step(state: State, batch: Batch) -> tuple[State, Metrics]:
            rows = {name: values[batch["indices"]] for name, values in batch.items() if name != "indices"}
            return descend(lambda params: pqn_loss(params, rows, self._network.apply), state, optimizer)

        self.pure_step = step
        self._step_in_place = accelerate(step, setup.acceleration, identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        epsilon = self._exploration() if explore else self.hparams.evaluation_epsilon
        generator = self._generators["action" if explore else "eval_action"]
        actions: np.ndarray = self._q_values(obs).argmax(1)
        if epsilon > 0.0:
            random = generator.random(len(obs)) < epsilon
            actions = np.where(random, generator.integers(self.num_actions, size=len(obs)), actions)
        return ActResult(actions)

    def update(self, batch: Batch) -> UpdateResult:
        self._state["learning_rate"].fill_(self._learning_rate())
        learned = {name: batch[name] for name in ("obs", "actions")} | self._targets(batch)
        history: list[Metrics] = []
        for _ in range(self.hparams.update_epochs):
            for indices in minibatches(self._indices, len(batch["rewards"]), self._generators["shuffle"]):
                # Writes the new weights into self._state.
                history.append(self._step_in_place(self._state, learned | {"indices": indices}))
        self.num_updates += 1
        return UpdateResult(mean_metrics(history), num_gradient_steps=len(history))

    def on_device(self) -> RolloutLearner:
        """Return this algorithm for tensor environments: acting and updates without the host."""
        return RolloutLearner(
            setup=self._setup,
            step=self.pure_step,
            estimate=lambda rollout, names: self._targets(rollout, rollout["params"]),
            sample=self._draw,
            acting=("params", "epsilon"),
            estimates=("targets",),
            learned=("obs", "actions", "targets"),
        )

    @property
    def state(self) -> State:
        """Everything that an update changes, and epsilon."""
        return self._state | {"epsilon": self._epsilon}

    def use_state(self, state: State) -> None:
        """Act by, and save, these tensors in place of its own: the member's rows of a stacked state."""
        self._state, self._epsilon = {name: state[name] for name in self._state}, state["epsilon"]
        self._network.use(self._state["params"])
        self._q_values = act_function(self._network.module, self._setup.device, self._setup.acceleration)

    def begin_learning(self) -> dict[str, float]:
        """Count the next update on the device; return the entries of the state that the host decides for it."""
        numbers = {"learning_rate": self._learning_rate(), "epsilon": self._exploration()}
        self.num_updates += 1
        return numbers

    def status(self, step: int) -> dict[str, float]:
        return {"epsilon": self._exploration(), "learning_rate": float(self._state["learning_rate"])}

    def policy_state_dict(self) -> StateDict:
        return dict(self._network.named(self._state["params"]))

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load(self._state["params"], state)

    def state_dict(self) -> StateDict:
        learning = tensors_to_save(self._state, without=("params",))
        return {**learning, "num_updates": self.num_updates, "generators": generators_to_save(self._generators)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        load_tensors(self._state, state, without=("params",))
        self.num_updates = int(state["num_updates"])
        load_generators(self._generators, state["generators"])

    def _learning_rate(self) -> float:
        left = max(0.0, 1.0 - self.num_updates / self._total_updates)
        return self.hparams.learning_rate * (left if self.hparams.learning_rate_schedule == "linear" else 1.0)

    def _exploration(self) -> float:
        """Return epsilon, which is the same for a whole rollout."""
        first, last = self.hparams.epsilon_start, self.hparams.epsilon_end
        decay_updates = self.hparams.exploration_fraction * self._total_updates
        progress = 1.0 if decay_updates <= self.num_updates else self.num_updates / decay_updates
        return first + progress * (last - first)

    def _draw(self, state: State, obs: Tensor, keys: Keys) -> Tensor:
        """Choose actions on the device, by counters; pure."""
        best = self._network.apply(state["params"], obs).argmax(1)
        drawn = keys.uniform(LEARNING_LANE, 2)
        random = (drawn[:, 1] * self.num_actions).long()
        return torch.where(drawn[:, 0] < state["epsilon"], random, best)

    @torch.no_grad()
    def _targets(self, rollout: Batch, params: Tensor | None = None) -> Batch:
        """Return the target of every row under the present network."""
        params = self._state["params"] if params is None else params

        def best(obs: Tensor) -> Tensor:
            q_values: Tensor = self._network.apply(params, obs)
            return q_values.amax(1)

        next_values = successor_values(rollout, best(rollout["obs"]).view(self._shape), best)
        rewards, terminated, truncated = steps_of(rollout, self._shape)
        targets = q_lambda_targets(
            self.hparams.reward_scale * rewards,
            next_values,
            terminated,
            truncated,
            gamma=self.hparams.gamma,
            q_lambda=self.hparams.q_lambda,
        )
        return {"targets": targets.flatten()}


def pqn_policy(pqn: PQN) -> NetworkPolicy:
    return NetworkPolicy(pqn._network.module, Categorical([pqn.num_actions], single=True))


def build_pqn(setup: Setup[PQNHParams]) -> PQN:
    hparams = setup.hparams
    num_actions = setup.spaces.num_actions

    def build() -> nn.Module:
        encoder, features = build_encoder(setup.spaces.observation)
        style = HeadStyle(layer_norm=hparams.layer_norm, residual=hparams.network == "simba")
        return MLPQNetwork(features, num_actions, hparams.hidden_sizes, encoder, style=style)

    def check(network: nn.Module) -> None:
        check_output(network, (trial_obs(setup),), {"observations": 2, "actions": num_actions})

    return PQN(build_network(setup, build, check), setup)
