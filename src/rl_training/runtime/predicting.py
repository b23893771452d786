"""Act on observations as users hold them: `agent.predict`, `agent.player` and `run.predict`."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from numpy.typing import ArrayLike

from rl_training.core.spaces import Spaces, to_env_actions
from rl_training.core.types import Algorithm
from rl_training.experiment.registry import AlgorithmSpec
from rl_training.runtime.episodes import follow_episode
from rl_training.runtime.observations import read_observations

# One observation or a batch; one with several parts is a dict, a batch of them a dict of batches or a list of dicts.
Observations: TypeAlias = ArrayLike | Mapping[str, Any] | Sequence[Mapping[str, Any]]

_AFTER_WARM_UP = sys.maxsize  # a step: the first actions of some runs are uniformly random, not those of the policy


class Predictor(Protocol):
    """Returns one action for one observation, or one action for each of a batch, as the environment expects them."""

    def __call__(self, obs: Observations, action_mask: ArrayLike | None = None) -> Any: ...


def make_player(algorithm: Algorithm, spaces: Spaces, spec: AlgorithmSpec, *, deterministic: bool = True) -> Predictor:
    """Return a function that plays one episode: by the best actions, or by samples of a stochastic policy."""
    if not (deterministic or spec.stochastic):
        raise ValueError(f"{spec.name} has no stochastic policy to sample from: leave deterministic at True")
    act = follow_episode(algorithm, step=0 if deterministic else _AFTER_WARM_UP, explore=not deterministic)
    to_env = to_env_actions(spaces.action)

    def play(obs: Observations, action_mask: ArrayLike | None = None) -> Any:
        if action_mask is not None and not spec.action_masks:
            raise ValueError(f"{spec.name} does not use action masks: it may choose any action")
        policy_input = read_observations(obs, spaces, action_mask)
        actions = to_env(act(policy_input.rows, policy_input.action_mask)).astype(spaces.action.dtype, copy=False)
        return actions[0] if policy_input.single else actions

    return play
