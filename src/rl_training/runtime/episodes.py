"""Play one episode: the loop that evaluations and recordings share."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from rl_training.core.action_masks import MaskReader
from rl_training.core.spaces import observation_field, to_env_actions
from rl_training.core.types import Algorithm, Carry, act_on
from rl_training.envs.vector import StepResult, SyncEnvs
from rl_training.errors import EnvError

MAX_EPISODE_STEPS = 27_000  # for an env without a time limit, which could play forever; Atari's usual limit

# From observations, (rows, *shape), and their action masks, (rows, choices), if there are any, to actions as an
# algorithm chooses them, (rows, *shape): choices count from 0, the values of a Box lie in [-1, 1].
Act: TypeAlias = Callable[[np.ndarray, np.ndarray | None], np.ndarray]


@dataclass(frozen=True, slots=True)
class EpisodeStep:
    """One step of an episode; arrays have one row."""

    obs: np.ndarray  # before the step, as the env returned it
    actions: np.ndarray  # as the env received them
    result: StepResult
    cut: bool  # the last step that `max_steps` allows, and the env did not end the episode


def follow_episode(algorithm: Algorithm, *, step: int = 0, explore: bool = False) -> Act:
    """Return a function that acts in one episode; it keeps the carry of a recurrent algorithm between steps.

    `step`: the env step of the run, for algorithms whose actions depend on it.
    """
    carry: Carry | None = None

    def act(obs: np.ndarray, action_mask: np.ndarray | None) -> np.ndarray:
        nonlocal carry
        chosen = act_on(algorithm, obs, carry, step=step, explore=explore, action_mask=action_mask)
        carry = chosen.carry
        return chosen.actions

    return act


def play_episode(
    envs: SyncEnvs, act: Act, *, seed: int, number: int, max_steps: int = MAX_EPISODE_STEPS, name: str = "episode"
) -> Iterator[EpisodeStep]:
    """Reset the one env of `envs` with `seed` and yield its steps until the episode ends or is cut.

    `number`, `name`: how error messages name the episode.
    """
    to_env, dtype = to_env_actions(envs.action_space), observation_field(envs.observation_space).dtype
    action_dtype = np.dtype(envs.action_space.dtype)
    obs, infos = envs.reset([0], [seed], [number])
    reader = MaskReader(envs.action_space) if "action_mask" in infos[0] else None
    for taken in range(max_steps):
        try:
            mask = None if reader is None else reader.read(infos[0])[None]
        except ValueError as problem:
            place = f"step {taken}" if taken else "the reset"
            raise EnvError(f"env 0 gave {problem} at {place} of {name} {number} (seed {seed})") from None
        # `astype` copies: `act` may return the same array at every step.
        actions = to_env(act(obs.astype(dtype, copy=False), mask)).astype(action_dtype)
        result = envs.step(actions)
        yield EpisodeStep(obs, actions, result, cut=not result.ended and taken + 1 == max_steps)
        if result.ended:
            return
        obs, infos = result.obs, result.infos
