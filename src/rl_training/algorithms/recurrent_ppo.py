"""Recurrent PPO: PPO whose policy and value remember the episode.

    h_t = cell(h_{t-1} (1 - start_t), encoder(o_t))        pi(a | h_t),  V(h_t)

Loss and advantages are PPO's. A minibatch consists of sequences of steps of one env, through which gradients flow. The
carry before a rollout is stored with it; one pass over the rollout, before its epochs, gives the states at which
sequences start. Where an episode starts inside a sequence, the state is zeros. At a time limit the bootstrapped value
is that of the final observation in the state after the last step.

Schulman et al. 2017, Proximal policy optimization algorithms; minibatches as in Dhariwal et al. 2017, OpenAI Baselines.
Deviations are in docs/algorithms/recurrent_ppo.md.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from rl_training.acceleration.steps import accelerate
from rl_training.algorithms.ppo import PPO
from rl_training.core.setup import Setup
from rl_training.core.types import ActResult, Batch, Carry, Metrics, State
from rl_training.errors import ConfigError
from rl_training.hparams.recurrent_ppo import RecurrentPPOHParams
from rl_training.learners.networks import build_seeded
from rl_training.learners.policies import RecurrentNetworkPolicy
from rl_training.learners.rollout_scaling import check_normalization
from rl_training.models.recurrent_actor_critic import RecurrentActorCritic, carry_sizes, no_starts


class RecurrentPPO(PPO):
    """Samples from its policy in the state that it carries through an episode."""

    def __init__(self, network: RecurrentActorCritic, setup: Setup[RecurrentPPOHParams]) -> None:
        super().__init__(network, setup, sequence_length=setup.hparams.sequence_length)
        self._device = setup.device
        self._carry_sizes = carry_sizes(setup.spaces, setup.hparams)
        # Compiling the acting step for each number of rows takes longer than it saves.
        captured = accelerate(self._act, "cuda_graph", "acting step", capture_plain=True)
        self._captured_act = captured if setup.acceleration == "cuda_graph" else None

    def act(
        self,
        obs: np.ndarray,
        *,
        step: int = 0,
        explore: bool = False,
        action_mask: np.ndarray | None = None,
        carry: Carry | None = None,
    ) -> ActResult:
        seen = self._scaling.rows(obs)
        if carry is None:
            carry = {name: np.zeros((len(obs), size), np.float32) for name, size in self._carry_sizes.items()}
        state = np.concatenate([carry[name] for name in self._carry_sizes], 1)
        batch = {"obs": torch.tensor(seen, device=self._device), "state": torch.tensor(state, device=self._device)}
        outputs, after = (result.cpu().numpy() for result in self._forward(batch))
        ends = np.cumsum(list(self._carry_sizes.values()))[:-1]
        carry = dict(zip(self._carry_sizes, np.split(after, ends, 1), strict=True))
        if not explore and not self.hparams.sampled_evaluation:
            return ActResult(self._distribution.mode(outputs, action_mask), carry)
        generator = self._generators["action" if explore else "eval_action"]
        return ActResult(self._distribution.sample(outputs, generator, action_mask), carry)

    def _forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the outputs for one observation of each env, and the states after it."""
        if self._captured_act is not None:
            result = self._captured_act({"params": self._state["params"]}, batch)
            return result["outputs"], result["state"]
        with torch.inference_mode():  # the module itself: to apply it to a vector of parameters takes longer
            outputs, after = self._network.module(batch["obs"], batch["state"], no_starts(batch["state"]))
        return outputs, after[0]

    def _act(self, state: State, batch: Batch) -> tuple[State, Metrics]:
        inputs = (batch["obs"], batch["state"], no_starts(batch["state"]))
        outputs, after = self._network.apply(state["params"], *inputs)
        return {}, {"outputs": outputs, "state": after[0]}

    def _evaluate(self, params: Tensor, rollout: Batch) -> tuple[Tensor, Tensor, Batch]:
        """Return outputs and successors' values as PPO does, and the states at which sequences start."""
        starts = rollout["starts"].view(self._shape)
        outputs, after = self._network.apply(params, rollout["obs"], rollout["carry"], starts)
        values = outputs[:, -1].view(self._shape)
        next_values = torch.cat((values[1:], values[-1:]))
        final = rollout["final_rows"]
        inputs = (rollout["final_obs"], in_state := after.flatten(0, 1)[final], no_starts(in_state))
        next_values.view(-1)[final] = self._network.apply(params, *inputs)[0][:, -1]
        before = torch.cat((rollout["carry"][None], after[:-1]))  # of each step; zeros follow where an episode starts
        return outputs, next_values, {"states": before[:: self._sequence_length].flatten(0, 1)}

    def _minibatch(self, batch: Batch) -> tuple[Batch, Callable[[Tensor, Tensor], Tensor]]:
        """Return the rows of some sequences, step by step, and the network started in their states."""
        length, envs = self._sequence_length, self._shape[1]
        indices = batch["indices"]  # the sequence of env e that starts at step k * length is number k * envs + e
        steps = torch.arange(length, device=indices.device)[:, None]
        places = (((indices // envs) * length + steps) * envs + indices % envs).flatten()
        rows = {name: values[places] for name, values in batch.items() if name not in ("indices", "states", "carry")}
        starts = rows.pop("starts").unflatten(0, (length, -1))
        states = batch["states"][indices]

        def apply(params: Tensor, obs: Tensor) -> Tensor:
            outputs: Tensor = self._network.apply(params, obs, states, starts)[0]
            return outputs

        return rows, apply


def recurrent_ppo_policy(ppo: RecurrentPPO) -> RecurrentNetworkPolicy:
    network = ppo._network.module
    assert isinstance(network, RecurrentActorCritic)
    sizes = {name: size for name, size in ppo._carry_sizes.items() if name.startswith("policy_")}
    return RecurrentNetworkPolicy(network.policy(), sizes, ppo._distribution, ppo._scaling.normalizer)


def build_recurrent_ppo(setup: Setup[RecurrentPPOHParams]) -> RecurrentPPO:
    if setup.network is not None:
        raise ConfigError("recurrent_ppo does not accept a network: it builds encoders, recurrent cells and heads")
    check_normalization(setup)
    seed = setup.streams.integer("init")
    network = build_seeded(seed, lambda: RecurrentActorCritic(setup.spaces, setup.hparams), setup.device)
    return RecurrentPPO(network, setup)
