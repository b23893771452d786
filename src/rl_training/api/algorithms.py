"""The classes that users import: one per registry row, each with `learn`, `evaluate`, `predict`, `save` and `load`.

    from rl_training import DQN

    agent = DQN.for_env("CartPole-v1", total_timesteps=50_000)
    agent.learn()
    print(agent.evaluate(episodes=20))
    action = agent.predict(obs)

Two classes are named DQN, and so on for the other algorithms. `rl_training.DQN`, the same as
`rl_training.api.algorithms.DQN`, is the managed one: it makes environments, trains, evaluates, saves and loads.
`rl_training.algorithms.dqn.DQN` is the algorithm of the paper: the part that acts and updates inside a run. Users need
the first, readers of the paper the second.
"""

from __future__ import annotations  # `help` then shows `EnvFactory | None`, not what it stands for

import logging
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from torch import nn

from rl_training.api.observations import read_observations
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces, to_env_actions
from rl_training.core.types import Algorithm
from rl_training.envs.factory import EnvFactory, with_env_kwargs
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import find_checkpoint, open_checkpoint
from rl_training.experiment.config import TrainConfig, load_config
from rl_training.experiment.manifest import POLICY
from rl_training.experiment.registry import registry
from rl_training.hparams.datasets import dataset_choice
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.dataset_loading import GivenDataset, with_dataset
from rl_training.runtime.episodes import follow_episode
from rl_training.runtime.evaluation import EvalEpisode, evaluate_episodes
from rl_training.runtime.setup import RunOptions, env_factory_of, load_policy, saved_spaces, spaces_of
from rl_training.runtime.signals import end_script
from rl_training.runtime.trainer import TrainResult, resume, train

if TYPE_CHECKING:
    from typing_extensions import Never, Self

log = logging.getLogger("rl_training")

_DEFAULT = TrainConfig.model_construct(algo="", total_timesteps=0)  # whose other fields hold the defaults


class ManagedAlgorithm:
    """An agent: an algorithm, its environments and its run folder.

    Make one from a config, for an environment (`for_env`) or from a saved run (`load`).
    """

    algo_name: ClassVar[str]

    def __init__(
        self,
        config: TrainConfig | str | Path,
        *,
        env_factory: EnvFactory | None = None,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
    ) -> None:
        """Make an agent from a config. Nothing is trained or written yet.

        Args:
            config: a `TrainConfig`, or the path of a YAML file; `configs/...` also finds those of the package.
            env_factory: makes an environment from the config's `env_kwargs`, in place of its `env_id`.
            network: is trained in place of the algorithm's default network.
            dataset: what an offline algorithm learns from, or GAIL imitates, in place of the config's: the path of a
                file, a dict of arrays or a `TransitionDataset`. The run folder keeps arrays (docs/datasets.md).
            callbacks: are called during training.
            show_progress: whether to print the progress of training.
        """
        self.config = config if isinstance(config, TrainConfig) else load_config(config)
        if self.config.algo != self.algo_name:
            raise ConfigError(
                f"{type(self).__name__} trains {self.algo_name!r}, but the config's algo is {self.config.algo!r}"
            )
        if env_factory is not None:
            with_env_kwargs(env_factory, self.config.env_kwargs)  # arguments that it does not take are refused here
        self.config = with_dataset(self.config, dataset)
        if choice := dataset_choice(self.config.hparams):
            choice.check_given(self.algo_name)
        self._options = RunOptions(
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=tuple(callbacks),
            show_progress=show_progress,
        )
        self._checkpoint: Path | None = None
        self._algorithm: Algorithm | None = None
        self._spaces: Spaces | None = None
        self._to_env: Callable[[np.ndarray], np.ndarray]

    @classmethod
    def for_env(
        cls,
        env: str | EnvFactory,
        total_timesteps: int,
        *,
        algo_kwargs: Mapping[str, Any] = _DEFAULT.algo_kwargs,
        env_kwargs: Mapping[str, Any] = _DEFAULT.env_kwargs,
        env_id: str = _DEFAULT.env_id,
        seed: int = _DEFAULT.seed,
        num_envs: int = _DEFAULT.num_envs,
        device: str = _DEFAULT.device,
        output_dir: str | Path = _DEFAULT.output_dir,
        eval_interval: int = _DEFAULT.eval_interval,
        eval_episodes: int = _DEFAULT.eval_episodes,
        stop_return: float | None = _DEFAULT.stop_return,
        log_interval: int = _DEFAULT.log_interval,
        checkpoint_interval: int = _DEFAULT.checkpoint_interval,
        checkpoint_minutes: float = _DEFAULT.checkpoint_minutes,
        keep_checkpoints: int = _DEFAULT.keep_checkpoints,
        tensorboard: bool = _DEFAULT.tensorboard,
        clip_rewards: bool = _DEFAULT.clip_rewards,
        execution_backend: Literal["local_sync", "local_async", "envpool"] = _DEFAULT.execution_backend,
        worker_timeout: float = _DEFAULT.worker_timeout,
        acceleration: Literal["auto", "eager", "compile", "cuda_graph"] = _DEFAULT.acceleration,
        matmul_precision: Literal["highest", "high", "medium"] = _DEFAULT.matmul_precision,
        deterministic: bool | Literal["auto"] = _DEFAULT.deterministic,
        threads: int = _DEFAULT.threads,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
        **unknown: Never,
    ) -> Self:
        """Make an agent for an environment. Nothing is trained or written yet.

        Args:
            env: a Gymnasium id, or a function that makes the environment.
            total_timesteps: environment steps to train for; gradient steps for offline algorithms.
            algo_kwargs: settings of the algorithm, such as `{"gamma": 0.98}`; `rl-training config show` lists them.
            env_kwargs: keyword arguments of the environment; those of the function, if `env` is one.
            env_id: name of the environment that a function makes, for the run folder.
            network: is trained in place of the algorithm's default network.
            dataset: what an offline algorithm learns from, or GAIL imitates: the path of a file, a dict of arrays or a
                `TransitionDataset`. The run folder keeps arrays (docs/datasets.md).
            callbacks: are called during training.
            show_progress: whether to print the progress of training.

        The other keywords are the settings of `TrainConfig`, with the same meaning and defaults (docs/config.md).
        """
        arguments = locals()  # by name: every setting is passed on, and a test checks that none is missing
        settings = {name: arguments[name] for name in TrainConfig.model_fields if name in arguments}
        env_factory = None
        if callable(env):
            env_factory = env
            settings["env_id"] = env_id or getattr(env, "__name__", type(env).__name__)
        elif env_id:
            raise TypeError(f"env_id names what a function makes, but env is an id already: {env!r}")
        else:
            settings["env_id"] = env
        return cls(
            TrainConfig(algo=cls.algo_name, **settings, **unknown),
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=callbacks,
            show_progress=show_progress,
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        env_factory: EnvFactory | None = None,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        show_progress: bool = True,
    ) -> Self:
        """Load a saved agent. `learn` then continues the run where it stopped.

        Args:
            path: a run folder, or a checkpoint in it or from `save`.
            env_factory: makes an environment from the saved `env_kwargs`, in place of the saved `env_id`.
            network: a module of the architecture that was trained, if it was not the default one.
            dataset: the dataset that was learned from, if it is not where it was; other data are refused by `learn`.
            callbacks: are called when training continues.
            show_progress: whether to print the progress of training.
        """
        checkpoint = open_checkpoint(find_checkpoint(path), parts=(POLICY,))
        agent = cls(
            checkpoint.config,
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=callbacks,
            show_progress=show_progress,
        )
        agent._checkpoint = checkpoint.path
        agent._load_policy()
        return agent

    def learn(
        self, total_timesteps: int | None = None, *, on_signal: Literal["raise", "return"] = "raise"
    ) -> TrainResult:
        """Train, or continue after a stop or `load` exactly where training stopped.

        Args:
            total_timesteps: the new length of the whole run, if it is to be another than the config's.
            on_signal: after a signal the run is saved. `"raise"` then ends the script, by `KeyboardInterrupt` (Ctrl-C)
                or `SystemExit(75)` (SIGTERM and others); `"return"` returns a result with `interrupted` set.
        """
        if on_signal not in ("raise", "return"):
            raise ConfigError(f'on_signal must be "raise" or "return", got {on_signal!r}')
        config = self.config if total_timesteps is None else self.config.updated(total_timesteps=total_timesteps)
        if self._checkpoint is None:
            result = train(config, self._options)
        else:
            result = resume(self._checkpoint, self._options, total_timesteps=total_timesteps)
        self.config, self._checkpoint = config, result.checkpoint
        self._take(result.algorithm)
        if result.signal is not None and on_signal == "raise":
            state = "saved" if result.interrupted else "finished"
            advice = "; agent.learn() continues it" if result.interrupted else ""
            place = f"at step {result.step} in {result.run_dir}"
            log.warning("signal %s: the run is %s %s%s", result.signal.name, state, place, advice)
            end_script(result.signal)
        return result

    def evaluate(self, episodes: int | None = None, *, seeds: Sequence[int] | None = None) -> list[EvalEpisode]:
        """Play whole episodes without exploration and return them; training is not affected.

        Args:
            episodes: how many; the config's `eval_episodes` by default.
            seeds: reset seeds of the environment, one per episode, in place of the run's own list.
        """
        if seeds is None:
            count = self.config.eval_episodes if episodes is None else episodes
            if count < 1:
                raise ConfigError(f"episodes must be >= 1, got {count}")
            seeds = Streams(self.config.seed).eval_seeds(count)
        if not seeds:
            raise ConfigError("seeds must hold at least one seed, got none")
        return evaluate_episodes(env_factory_of(self.config, self._options), self._policy(), seeds)

    def predict(self, obs: Any, action_mask: Any = None) -> Any:
        """Return the greedy action for one observation, or one action for each of a batch. No file is read.

        Args:
            obs: one observation or a batch. One with several parts is a dict; a batch of them is a dict of batches or a
                list of dicts.
            action_mask: which actions are valid, one flag per choice (true or 1); by default all are. A dict
                observation may hold it under the key `action_mask`.
        """
        return self.player()(obs, action_mask)

    def player(self) -> Callable[..., Any]:
        """Return a function like `predict` that plays one episode; make a new one for each episode.

        A recurrent policy remembers the observations that the function was called with. `predict` treats every
        observation as the first of an episode.
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
        """Copy the newest checkpoint to the new folder `path`, from which `load` and the CLI read it; return `path`."""
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
    """Return the class of one registry row."""
    spec = registry()[algo_name]
    # Users import it from the package itself, so that is where it says it comes from.
    namespace = {"algo_name": algo_name, "__doc__": spec.class_doc, "__module__": "rl_training"}
    return type(spec.class_name, (ManagedAlgorithm,), namespace)


def __getattr__(name: str) -> Any:
    for spec in registry().values():
        if spec.class_name == name:
            return managed_class(spec.name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
