"""Episodes of a tensor environment that step in one call; each has its own seed and is what it is alone."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from rl_training.core.types import State
from rl_training.envs.episode_tracker import EpisodeTracker
from rl_training.envs.hang_watch import ENV_CALLS
from rl_training.envs.slot import EnvSlot
from rl_training.envs.tensor_env import TensorEnv, episode_keys, tensor_env_in
from rl_training.envs.vector import StepResult
from rl_training.errors import ConfigError


def tensor_rows_of(slot: EnvSlot, num_envs: int) -> "TensorRows | None":
    """Return rows of the tensor environment in `slot`; None if there is none, or wrappers change what it returns."""
    try:
        return TensorRows(tensor_env_in(slot.env), slot, num_envs)
    except ConfigError:
        return None


class TensorRows:
    """Steps any of its episodes together, as `AsyncEnvs` does, with the results of `TensorGymEnv` bit for bit.

    A row that is left out of a step is dropped: no step starts from the end of an episode.
    """

    def __init__(self, env: TensorEnv, slot: EnvSlot, num_envs: int) -> None:
        """`slot`: one row as a Gymnasium environment; what the rows return is checked as what it returns."""
        self.num_envs = num_envs
        self.observation_space, self.action_space = slot.env.observation_space, slot.env.action_space
        self._env, self._slot, self._episodes = env, slot, EpisodeTracker(num_envs, None)
        self._indices: list[int] = []  # of the episodes in the tensors below, one row each
        self._seeds = self._elapsed = torch.zeros(0, dtype=torch.int64)
        self._state: State = {}

    def reset(
        self, indices: Sequence[int], seeds: Sequence[int], episodes: Sequence[int]
    ) -> tuple[np.ndarray, list[dict[str, Any]]]:
        for index, seed, number in zip(indices, seeds, episodes, strict=True):
            self._episodes.start(index, seed, number)
        self._keep([index for index in self._indices if index not in indices])
        new_seeds = torch.tensor(seeds)
        elapsed = torch.zeros_like(new_seeds)
        with self._guarded(), ENV_CALLS, torch.inference_mode():
            first = self._env.first(episode_keys(new_seeds, elapsed))
            found = self._env.observe(first).numpy()
        obs = self._empty_obs(len(indices))
        for row, index in enumerate(indices):
            with self._guarded(index):
                obs[row] = self._slot.observations.checked(found[row])
        self._episodes.check_finite(self._slot.observations, obs, indices)
        for index in indices:
            self._episodes.started(index)
        self._state = {
            name: torch.cat((self._state[name], values)) if self._state else values for name, values in first.items()
        }
        self._seeds, self._elapsed = torch.cat((self._seeds, new_seeds)), torch.cat((self._elapsed, elapsed))
        self._indices += indices
        return obs, [{} for _ in indices]

    def step(self, actions: np.ndarray, indices: Sequence[int]) -> StepResult:
        """Step these episodes; the result has one row for each."""
        self._keep(indices)
        taken = torch.from_numpy(self._slot.actions.cast_actions(actions, len(indices)))
        self._elapsed = self._elapsed + 1
        with self._guarded(), ENV_CALLS, torch.inference_mode():
            keys = episode_keys(self._seeds, self._elapsed)
            self._state, rewards, terminated = self._env.step(self._state, taken, keys)
            limit = self._env.max_episode_steps
            truncated = torch.zeros_like(terminated) if limit is None else self._elapsed >= limit
            values = (rewards.float().tolist(), terminated.tolist(), truncated.tolist())
            found = list(zip(self._env.observe(self._state).numpy(), *values, strict=True))
        result = StepResult(
            obs=self._empty_obs(len(indices)),
            rewards=np.empty(len(indices)),
            terminated=np.empty(len(indices), np.bool_),
            truncated=np.empty(len(indices), np.bool_),
            infos=[{} for _ in indices],
            ended=[],
        )
        for row, index in enumerate(indices):
            with self._guarded(index):
                checked = self._slot.checked_step(*found[row], result.infos[row])
            result.obs[row], result.rewards[row], result.terminated[row], result.truncated[row], _ = checked
            if result.terminated[row] or result.truncated[row]:
                result.ended.append(index)
        self._episodes.check_finite(self._slot.observations, result.obs, indices)
        self._episodes.num_steps += 1
        return result

    @contextlib.contextmanager
    def _guarded(self, index: int | None = None) -> Iterator[None]:
        """Turn what is raised into an `EnvError` that says which episode, or that all of them, failed and where."""
        try:
            yield
        except BaseException as cause:
            if index is None:
                raise self._episodes.group_error(cause, "tensor") from cause
            raise self._episodes.error_from(index, cause) from cause

    def _empty_obs(self, rows: int) -> np.ndarray:
        return np.empty((rows, *self._slot.observations.shape), self._slot.observations.dtype)

    def _keep(self, indices: Sequence[int]) -> None:
        """Keep the rows of these episodes alone, in this order."""
        if indices == self._indices:
            return
        rows = [self._indices.index(index) for index in indices]
        self._seeds, self._elapsed = self._seeds[rows], self._elapsed[rows]
        self._state = {name: values[rows] for name, values in self._state.items()}
        self._indices = list(indices)
