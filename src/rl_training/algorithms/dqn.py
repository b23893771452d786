"""DQN: Q-learning with a deep network, experience replay and a target network.

    y = r + gamma * max_a' Q_target(s', a')        (no second term after a termination)
    minimise Huber(Q(s, a) - y)

With `double_q` the online network picks a' and the target network values it (van Hasselt et al. 2016).

Mnih et al. 2015, Human-level control through deep reinforcement learning.
Deviations: Adam instead of RMSProp, a global gradient-norm clip, optional layer normalisation; the reasons are in
docs/algorithms/dqn.md.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.algorithms.base import ActResult, Batch, Metrics, Setup, State, StateDict, UpdateResult
from rl_training.algorithms.optim import FlatModule, descend, learning_state
from rl_training.algorithms.targets import td_loss, td_target
from rl_training.experiment.seeding import generator_state, set_generator_state
from rl_training.hparams.dqn import DQNHParams
from rl_training.models.encoders import build_encoder
from rl_training.models.mlp_q_network import MLPQNetwork
from rl_training.runtime.acceleration import accelerate
from rl_training.runtime.acting import act_function


def dqn_loss(
    params: Tensor,
    target_params: Tensor,
    batch: Batch,
    hparams: DQNHParams,
    apply_q: Callable[[Tensor, Tensor], Tensor],
) -> Metrics:
    """The loss of one batch and what to watch about it.

    `apply_q(params, obs)` gives (batch, actions). `batch`: obs, next_obs, actions (batch,) int64, rewards (batch,),
    terminated (batch,) bool, and optionally weights (batch,), the importance weights of prioritized replay.
    """
    actions, rewards = batch["actions"], batch["rewards"]
    q_values = apply_q(params, batch["obs"]).gather(1, actions[:, None]).squeeze(1)
    next_q = apply_q(target_params, batch["next_obs"])
    if hparams.double_q:
        best_actions = apply_q(params.detach(), batch["next_obs"]).argmax(1)
        next_values = next_q.gather(1, best_actions[:, None]).squeeze(1)
    else:
        next_values = next_q.amax(1)
    targets = td_target(rewards, batch["terminated"], next_values, hparams.gamma).detach()
    losses = td_loss(q_values, targets, hparams.loss)
    if "weights" in batch:
        losses = batch["weights"] * losses
    td_errors = (targets - q_values).detach()
    return {
        "loss": losses.mean(),
        "q_value_mean": q_values.detach().mean(),
        "target_mean": targets.mean(),
        "td_error_mean": td_errors.abs().mean(),
        "td_errors": td_errors,
    }


class DQN:
    """Acts epsilon-greedily on the online network; learns one gradient step per update."""

    def __init__(self, network: nn.Module, num_actions: int, setup: Setup[DQNHParams]) -> None:
        self.hparams = setup.hparams
        self.num_actions = num_actions
        self.num_updates = 0
        self._total_timesteps = setup.total_timesteps
        self._total_updates = max(1, setup.hparams.updates_until(setup.total_timesteps))
        self._generator = setup.streams.numpy("action")
        self._network = FlatModule(network.to(setup.device))
        params = self._network.params
        self._state = {**learning_state(params, self.hparams.learning_rate), "target": params.clone()}
        self._q_values = act_function(network, setup.device, setup.acceleration)
        self._step = accelerate(self._learn, setup.acceleration, identity=setup.identity)

    def act(
        self, obs: np.ndarray, *, step: int = 0, explore: bool = False, action_mask: np.ndarray | None = None
    ) -> ActResult:
        if not explore:
            return ActResult(self._q_values(obs).argmax(1))
        # One draw per env: envs that share a draw would explore in lockstep.
        random = self._generator.random(len(obs)) < self._epsilon(step)
        num_random = np.count_nonzero(random)
        if num_random == 0:
            return ActResult(self._q_values(obs).argmax(1))
        actions = self._generator.integers(self.num_actions, size=len(obs))
        if num_random < len(obs):
            actions = np.where(random, actions, self._q_values(obs).argmax(1))
        return ActResult(actions)

    def update(self, batch: Batch) -> UpdateResult:
        if self.hparams.learning_rate_schedule == "linear":
            left = max(0.0, 1.0 - self.num_updates / self._total_updates)
            self._state["learning_rate"].fill_(self.hparams.learning_rate * left)
        metrics = self._step(self._state, batch)
        self.num_updates += 1
        if self.num_updates % self.hparams.target_update_interval == 0:
            self._state["target"].copy_(self._state["params"])
        return UpdateResult(metrics, td_errors=metrics.pop("td_errors"))

    def status(self, step: int) -> dict[str, float]:
        return {"epsilon": self._epsilon(step)}

    def policy_state_dict(self) -> StateDict:
        return dict(self._network.named(self._state["params"]))

    def load_policy_state_dict(self, state: Mapping[str, Any]) -> None:
        self._network.load(self._state["params"], state)

    def state_dict(self) -> StateDict:
        learning = {name: value for name, value in self._state.items() if name != "params"}
        return {**learning, "num_updates": self.num_updates, "generator": generator_state(self._generator)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in self._state.items():
            if name != "params":
                value.copy_(torch.as_tensor(state[name]))
        self.num_updates = int(state["num_updates"])
        set_generator_state(self._generator, state["generator"])

    def _learn(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        def loss(params: Tensor) -> Metrics:
            return dqn_loss(params, state["target"], batch, self.hparams, self._network.apply)

        return descend(loss, state, max_grad_norm=self.hparams.max_grad_norm, adam_eps=self.hparams.adam_eps)

    def _epsilon(self, step: int) -> float:
        if step < self.hparams.learning_starts:
            return 1.0  # nothing is learnt yet: the untrained network's preference is no exploration
        return self.hparams.epsilon(step, self._total_timesteps)


def build_dqn(setup: Setup[DQNHParams]) -> DQN:
    num_actions = int(setup.spaces.action.n)  # type: ignore[attr-defined]
    network = setup.network
    if network is None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(setup.streams.integer("init"))
            encoder, features = build_encoder(setup.spaces.observation)
            network = MLPQNetwork(
                features,
                num_actions,
                setup.hparams.hidden_sizes,
                encoder,
                layer_norm=setup.hparams.layer_norm,
            )
    return DQN(network, num_actions, setup)
