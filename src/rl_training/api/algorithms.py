"""The managed API: one class per registry row, `learn`, `evaluate`, `predict`, `save`, `load`.

from rl_training import DQN

agent = DQN.for_env("CartPole-v1", total_timesteps=50_000)
agent.learn()
print(agent.evaluate(episodes=20))
action = agent.predict(obs)
"""

import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from torch import nn

from rl_training.api.observations import read_observations
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces, to_env_actions
from rl_training.core.types import Algorithm
from rl_training.envs.factory import EnvFactory
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.manifest import POLICY
from rl_training.experiment.registry import registry
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.episodes import follow_episode
from rl_training.runtime.evaluation import EvalEpisode, evaluate_episodes
from rl_training.runtime.setup import RunOptions, env_factory_of, load_policy, saved_spaces, spaces_of
from rl_training.runtime.trainer import TrainResult, resume, train

M = TypeVar("M", bound="ManagedAlgorithm")


class ManagedAlgorithm:
    """An algorithm with everything around it. Make one from a config, for an env, or from a checkpoint."""

    algo_name: ClassVar[str]

    def __init__(
        self,
        config: TrainConfig | str | Path,
        *,
        env_factory: EnvFactory | None = None,
        network: nn.Module | None = None,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
    ) -> None:
        """`config`: a `TrainConfig` or the path of a YAML file. The rest is what a file cannot hold."""
        self.config = config if isinstance(config, TrainConfig) else load_config(config)
        if self.config.algo != self.algo_name:
            raise ConfigError(
                f"{type(self).__name__} trains {self.algo_name!r}, but the config's algo is {self.config.algo!r}"
            )
        self._options = RunOptions(
            env_factory=env_factory, network=network, callbacks=tuple(callbacks), show_progress=show_progress
        )
        self._checkpoint: Path | None = None
        self._algorithm: Algorithm | None = None
        self._spaces: Spaces | None = None
        self._to_env: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def for_env(cls: type[M], env: str | EnvFactory, total_timesteps: int, **settings: Any) -> M:
        """Make an agent for an env id or a function that makes the env.

        `settings` are fields of `TrainConfig` (`seed=1, algo_kwargs={"gamma": 0.98}`) or arguments of the class
        (`network=..., callbacks=...`).
        """
        arguments: dict[str, Any] = {
            name: settings.pop(name) for name in ("network", "callbacks", "show_progress") if name in settings
        }
        if callable(env):
            arguments["env_factory"] = env
            env = settings.pop("env_id", getattr(env, "__name__", type(env).__name__))
        config = TrainConfig(algo=cls.algo_name, env_id=env, total_timesteps=total_timesteps, **settings)
        return cls(config, **arguments)

    @classmethod
    def load(
        cls: type[M],
        path: str | Path,
        *,
        env_factory: EnvFactory | None = None,
        network: nn.Module | None = None,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
    ) -> M:
        """Take up a saved agent: a run folder or a checkpoint. `learn` then continues where it stopped."""
        checkpoint = open_checkpoint(find_checkpoint(path), parts=(POLICY,))
        agent = cls(
            checkpoint.config,
            env_factory=env_factory,
            network=network,
            callbacks=callbacks,
            show_progress=show_progress,
        )
        agent._checkpoint = checkpoint.path
        agent._load_policy()
        return agent

    def learn(self, total_timesteps: int | None = None) -> TrainResult:
        """Train; after a stop or a `load`, continue exactly. `total_timesteps` lengthens (or sets) the run."""
        config = self.config if total_timesteps is None else self.config.updated(total_timesteps=total_timesteps)
        if self._checkpoint is None:
            result = train(config, self._options)
        else:
            result = resume(self._checkpoint, self._options, total_timesteps=total_timesteps)
        self.config, self._checkpoint = config, result.checkpoint
        self._take(result.algorithm)
        return result

    def evaluate(self, episodes: int | None = None, *, seeds: Sequence[int] | None = None) -> list[EvalEpisode]:
        """Play whole episodes without exploration; `seeds` are the reset seeds, one per episode."""
        if seeds is None:
            count = self.config.eval_episodes if episodes is None else episodes
            if count < 1:
                raise ConfigError(f"episodes must be >= 1, got {count}")
            seeds = Streams(self.config.seed).eval_seeds(count)
        if not seeds:
            raise ConfigError("seeds must hold at least one seed, got none")
        return evaluate_episodes(env_factory_of(self.config, self._options), self._policy(), seeds)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Choose the greedy action for one observation, or for each of a batch; nothing is read from disk again.

        An observation of several parts is a dict; a batch of them is a dict of batches or a list of dicts.
        `action_mask`: which actions are valid, one flag per choice, true or 1; without one all are. A dict may bring it
        under the key `action_mask`.
        """
        return self.player()(obs, action_mask)

    def player(self) -> Callable[..., Any]:
        """Give a function like `predict` that follows one episode; ask for a new one at each episode's beginning.

        A recurrent policy remembers what the function was shown; to `predict`, every observation is a first one.
        """
        act, spaces = follow_episode(self._policy()), self._spaces
        assert spaces is not None

        def play(obs: Any, action_mask: Any = None) -> Any:
            if action_mask is not None and not registry()[self.algo_name].action_masks:
                raise ValueError(f"{self.algo_name} does not use action masks: it may choose any action")
            policy_input = read_observations(obs, spaces, action_mask)
            actions = self._to_env(act(policy_input.rows, policy_input.action_mask))
            return actions[0] if policy_input.single else actions

        return play

    def save(self, path: str | Path) -> Path:
        """Copy the agent's newest checkpoint to `path`, a folder that `load` and the CLI take."""
        if self._checkpoint is None:
            raise CheckpointError("there is nothing to save yet: call learn() first")
        target = Path(path)
        if target.exists():
            raise CheckpointError(f"{target} exists already")
        temporary = target.with_name(f".{target.name}_writing")
        shutil.rmtree(temporary, ignore_errors=True)
        shutil.copytree(self._checkpoint, temporary)
        temporary.rename(target)
        return target

    def _policy(self) -> Algorithm:
        if self._algorithm is None:
            raise RuntimeError("the agent has no policy yet: call learn() or load() first")
        return self._algorithm

    def _load_policy(self) -> None:
        assert self._checkpoint is not None
        self._take(load_policy(self._checkpoint, self._options)[1])

    def _take(self, algorithm: Algorithm) -> None:
        self._algorithm = algorithm
        if self._spaces is None:
            assert self._checkpoint is not None
            factory = self._options.factory_for(self.config)
            if factory is not None:
                self._spaces = spaces_of(factory)
            else:
                self._spaces = saved_spaces(open_checkpoint(self._checkpoint, parts=()))
            self._to_env = to_env_actions(self._spaces.action)


@cache
def managed_class(algo_name: str) -> type[ManagedAlgorithm]:
    """The class of one registry row."""
    spec = registry()[algo_name]
    return type(
        spec.class_name,
        (ManagedAlgorithm,),
        {"algo_name": algo_name, "__doc__": f"{spec.summary} ({spec.paper}).", "__module__": __name__},
    )


def __getattr__(name: str) -> Any:
    for spec in registry().values():
        if spec.class_name == name:
            return managed_class(spec.name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
