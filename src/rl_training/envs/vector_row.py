"""Vector environments of Gymnasium, read row by row, and one with a single row as an ordinary environment."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from rl_training.errors import ConfigError, EnvError

AnyVectorEnv = VectorEnv[Any, Any, Any]
Infos = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def autoreset_mode(vector: AnyVectorEnv) -> AutoresetMode:
    """Return what a vector environment does when an episode ends; raise `ConfigError` if it does not say."""
    declared = vector.metadata.get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        raise ConfigError(
            f"execution_backend: vector needs to know when {vector} resets itself, but its metadata have the "
            f'autoreset_mode {declared!r}; set metadata["autoreset_mode"] to a gymnasium.vector.AutoresetMode'
        ) from None


def row_of(batch: Any, index: int) -> Any:
    """Return one row of batched observations, which may have parts, as the caller's own."""
    if isinstance(batch, Mapping):
        return {key: row_of(part, index) for key, part in batch.items()}
    if isinstance(batch, tuple):
        return tuple(row_of(part, index) for part in batch)
    row = batch[index]
    return row.copy() if isinstance(row, np.ndarray) else row


def info_of(infos: Infos, index: int) -> dict[str, Any]:
    """Return the info of one row: entries that it has according to the flags `_<name>`, or that have no flags."""
    if not isinstance(infos, Mapping):
        return dict(infos[index])  # as the wrapper DictInfoToList returns them
    found = {}
    for name, values in infos.items():
        flags = infos.get(f"_{name}")
        is_flag = name.startswith("_") and name[1:] in infos
        if is_flag or (flags is not None and not flags[index]):
            continue
        if isinstance(values, Mapping):
            found[name] = info_of(values, index)
        elif isinstance(values, Sequence | np.ndarray) and not isinstance(values, str) and len(values) > index:
            found[name] = values[index]
    return found


def split_final(info: dict[str, Any]) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """Return the last observation and info of an episode, and the first info of the next one.

    `info`: of a row that has reset itself in the step that ended its episode (`AutoresetMode.SAME_STEP`).
    """
    first = dict(info)
    final_obs, final_info = first.pop("final_obs", None), first.pop("final_info", {})
    if final_obs is None:
        raise EnvError(
            "reset itself in the step that ended its episode (AutoresetMode.SAME_STEP), and its info has no "
            "`final_obs`: the last observation is lost; it came"
        )
    return final_obs, dict(final_info), first


class VectorRow(gym.Env[Any, Any]):
    """A vector environment with one row as an ordinary environment. A reset of the vector is a reset of the row."""

    def __init__(self, vector: AnyVectorEnv) -> None:
        self.vector, self._mode = vector, autoreset_mode(vector)
        self.observation_space, self.action_space = vector.single_observation_space, vector.single_action_space
        self.metadata, self.render_mode = dict(vector.metadata), vector.render_mode
        self.spec = vector.spec or next((env.spec for env in self._single_envs()), None)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, infos = self.vector.reset(seed=seed, options=options)
        return row_of(obs, 0), info_of(infos, 0)

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        actions = np.asarray(action, self.vector.action_space.dtype)[None]
        batch, rewards, terminated, truncated, infos = self.vector.step(actions)
        obs, info = row_of(batch, 0), info_of(infos, 0)
        if self._mode is AutoresetMode.SAME_STEP and (terminated[0] or truncated[0]):
            obs, info, _ = split_final(info)
        return obs, rewards[0], terminated[0], truncated[0], info

    def render(self) -> Any:
        pictures = self.vector.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        self.vector.close()

    def wrappers(self) -> Iterator[Any]:
        """Yield the wrappers of the vector environment and, where they are in this process, of its environments."""
        vector = self.vector
        while isinstance(vector, VectorWrapper):
            yield vector
            vector = vector.env
        for env in self._single_envs():
            while isinstance(env, gym.Wrapper):
                yield env
                env = env.env

    def _single_envs(self) -> list[Any]:
        return list(getattr(self.vector.unwrapped, "envs", ()))
