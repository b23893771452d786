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

from __future__ import annotations  # `help` then shows `GivenFactory | None`, not what it stands for

import copy
import logging
import operator
import re
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import gymnasium as gym
from numpy.typing import ArrayLike
from torch import Tensor, nn

from rl_training.core.counted import counted
from rl_training.core.seeding import Streams
from rl_training.core.spaces import Spaces
from rl_training.core.types import Algorithm
from rl_training.envs.factory import GivenFactory, make_vector_factory, with_env_kwargs
from rl_training.envs.hang_watch import hangs_end
from rl_training.envs.instances import settings_of, settings_of_vector
from rl_training.envs.slot import Env
from rl_training.envs.vector_row import AnyVectorEnv
from rl_training.errors import CheckpointError, ConfigError
from rl_training.experiment.checkpointing import resumable_names
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import load_config
from rl_training.experiment.manifest import POLICY
from rl_training.experiment.registry import registry
from rl_training.experiment.saved_checkpoint import copy_checkpoint, find_checkpoint, open_checkpoint
from rl_training.exporting.contract import Contract
from rl_training.exporting.module import PolicyModule, build_module
from rl_training.exporting.writing import Source, export_policy
from rl_training.hparams.datasets import dataset_choice
from rl_training.hparams.fields import expand_home
from rl_training.results.html import Preview
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.changed_settings import changed_settings, check_same_state, with_settings
from rl_training.runtime.dataset_loading import GivenDataset, with_dataset
from rl_training.runtime.evaluation import EvalEpisodes, evaluate_run
from rl_training.runtime.filming import MAX_STEPS, FilmSettings, film_episodes
from rl_training.runtime.predicting import Observations, Predictor, make_player
from rl_training.runtime.resuming import RunFinishedError
from rl_training.runtime.run import Run
from rl_training.runtime.run_spaces import spaces_of
from rl_training.runtime.saved_policy import build_policy, env_factory_of, load_policy, rebuild_policy, saved_spaces
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.signals import end_script
from rl_training.runtime.torch_settings import torch_defaults
from rl_training.runtime.trainer import TrainResult, resume, train

if TYPE_CHECKING:
    from typing import Never, Self

log = logging.getLogger("rl_training")

_NOT_GIVEN = 0  # total_timesteps of an agent that waits for those of `learn`
_DEFAULT = TrainConfig.model_construct(algo="", total_timesteps=0)  # whose other fields hold the defaults


class ManagedAlgorithm:
    """An agent: an algorithm, its environments and its run folder.

    Make one from a config, for an environment (`for_env`) or from a saved run (`load`).
    """

    algo_name: ClassVar[str]

    def __init__(
        self,
        config: TrainConfig | str | Path | Env | AnyVectorEnv | GivenFactory,
        *arguments: Never,
        env_factory: GivenFactory | None = None,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        track: Sequence[str] = (),
        show_progress: bool = True,
        **settings: Never,
    ) -> None:
        """Make an agent from a config, or for an environment with default settings. Nothing is trained or written yet.

        Args:
            config: a `TrainConfig`, or the path of a YAML file; `configs/...` also finds those of the package. Or an
                environment, as in `for_env`: the number of steps is then the argument of `learn`.
            env_factory: makes an environment from the config's `env_kwargs`, in place of its `env_id`.
            network: is trained in place of the algorithm's default network.
            dataset: what an offline algorithm learns from, or GAIL imitates, in place of the config's: the path of a
                file, a dict of arrays or a `TransitionDataset`. The run folder keeps arrays (docs/datasets.md).
            callbacks: are called during training.
            track: where the records of the run are sent, such as `["mlflow", "wandb:project=rl"]` (docs/tracking.md).
            show_progress: whether to print the progress of training.
        """
        if arguments or settings or _is_policy_name(config):
            self._reject(config, arguments, settings)
        given_env = False
        if isinstance(config, TrainConfig):
            self.config = config
        elif isinstance(config, Path) or (isinstance(config, str) and not _is_env_id(config)):
            self.config = load_config(config)
        else:
            if env_factory is not None:
                raise TypeError("give the environment or env_factory, not both")
            chosen, env_factory = self._choose_env(config)
            given_env, self.config = True, TrainConfig(algo=self.algo_name, total_timesteps=1, **chosen)
        if self.config.algo != self.algo_name:
            raise ConfigError(
                f"{type(self).__name__} trains {self.algo_name!r}, but the config's algo is {self.config.algo!r}"
            )
        if env_factory is not None:  # arguments that it does not take are refused here
            if self.config.execution_backend == "vector":
                make_vector_factory(self.config.env_id, self.config.env_kwargs, env_factory)
            else:
                with_env_kwargs(env_factory, self.config.env_kwargs)
        self.config = with_dataset(self.config, dataset)
        if choice := dataset_choice(self.config.hparams):
            choice.check_given(self.algo_name)
        if given_env:
            self.config = self.config.model_copy(update={"total_timesteps": _NOT_GIVEN})
        self._options = RunOptions(
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=callbacks,
            track=track,
            show_progress=show_progress,
        )
        self._checkpoint: Path | None = None
        self._changes: Mapping[str, Any] = {}  # settings that `learn` changes when it continues a loaded run
        self._algorithm: Algorithm | None = None
        self._step: Callable[[], int] = lambda: 0  # of the policy
        self._spaces: Spaces | None = None
        self._run_config = self.config  # with what the run has filled in

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy needs. An algorithm's functions read its own memory, so the copy builds another one."""
        state = {**self.__dict__, "_algorithm": None, "_step": self._step(), "_policy_state": None}
        if self._algorithm is not None:
            state["_policy_state"] = _copied(self._algorithm.policy_state_dict())
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        step, policy = state.pop("_step"), state.pop("_policy_state")
        self.__dict__.update(state)
        self._step = lambda: step
        if policy is not None:
            assert self._spaces is not None
            self._algorithm = rebuild_policy(self._run_config, self._options, self._spaces, policy)

    @classmethod
    def for_env(
        cls,
        env: str | Env | AnyVectorEnv | GivenFactory,
        total_timesteps: int,
        *,
        algo_kwargs: Mapping[str, Any] = _DEFAULT.algo_kwargs,
        env_kwargs: Mapping[str, Any] = _DEFAULT.env_kwargs,
        wrappers: list[str | dict[str, Any]] = _DEFAULT.wrappers,
        env_id: str = _DEFAULT.env_id,
        seed: int = _DEFAULT.seed,
        num_envs: int = _DEFAULT.num_envs,
        device: str = _DEFAULT.device,
        output_dir: str | Path = _DEFAULT.output_dir,
        eval_interval: int = _DEFAULT.eval_interval,
        eval_episodes: int = _DEFAULT.eval_episodes,
        eval_envs: int = _DEFAULT.eval_envs,
        stop_return: float | None = _DEFAULT.stop_return,
        log_interval: int = _DEFAULT.log_interval,
        checkpoint_interval: int = _DEFAULT.checkpoint_interval,
        checkpoint_minutes: float = _DEFAULT.checkpoint_minutes,
        keep_checkpoints: int = _DEFAULT.keep_checkpoints,
        tensorboard: bool = _DEFAULT.tensorboard,
        clip_rewards: bool = _DEFAULT.clip_rewards,
        obs_max: Literal["auto"] | int | dict[str, int] = _DEFAULT.obs_max,
        one_hot_obs: bool = _DEFAULT.one_hot_obs,
        execution_backend: Literal[
            "local_sync", "local_async", "envpool", "ray", "tensor", "vector"
        ] = _DEFAULT.execution_backend,
        worker_timeout: float = _DEFAULT.worker_timeout,
        worker_start: Literal["auto", "fork", "spawn"] = _DEFAULT.worker_start,
        max_episode_steps: int | None = _DEFAULT.max_episode_steps,
        acceleration: Literal["auto", "eager", "compile", "cuda_graph"] = _DEFAULT.acceleration,
        matmul_precision: Literal["highest", "high", "medium"] = _DEFAULT.matmul_precision,
        check_compiled_every: int = _DEFAULT.check_compiled_every,
        deterministic: bool | Literal["auto"] = _DEFAULT.deterministic,
        threads: int = _DEFAULT.threads,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        track: Sequence[str] = (),
        show_progress: bool = True,
        **unknown: Never,
    ) -> Self:
        """Make an agent for an environment. Nothing is trained or written yet.

        Args:
            env: a Gymnasium id, a function that makes the environment, or an environment that `gymnasium.make` or
                `gymnasium.make_vec` made. The run makes its own copies.
            total_timesteps: environment steps to train for; gradient steps for offline algorithms.
            algo_kwargs: settings of the algorithm, such as `{"gamma": 0.98}`; `rl-training config show` lists them.
            env_kwargs: keyword arguments of the environment; those of the function, if `env` is one.
            env_id: name of the environment that a function makes, for the run folder.
            network: is trained in place of the algorithm's default network.
            dataset: what an offline algorithm learns from, or GAIL imitates: the path of a file, a dict of arrays or a
                `TransitionDataset`. The run folder keeps arrays (docs/datasets.md).
            callbacks: are called during training.
            track: where the records of the run are sent, such as `["mlflow", "wandb:project=rl"]` (docs/tracking.md).
            show_progress: whether to print the progress of training.

        The other keywords are the settings of `TrainConfig`, with the same meaning and defaults (docs/config.md).
        """
        arguments = locals()  # by name: every setting is passed on, and a test checks that none is missing
        settings = {name: arguments[name] for name in TrainConfig.model_fields if name in arguments}
        chosen, env_factory = cls._choose_env(env, total_timesteps)
        if isinstance(env, gym.Env | gym.vector.VectorEnv) and (env_kwargs or wrappers):
            raise TypeError("env_kwargs and wrappers are for an id or a function, but env is an environment already")
        if isinstance(env, gym.vector.VectorEnv) and num_envs not in (env.num_envs, _DEFAULT.num_envs):
            raise TypeError(
                f"num_envs is {num_envs}, but env is a vector of {counted(env.num_envs, 'environment')} already"
            )
        if env_id and env_factory is None:
            raise TypeError(f"env_id names what a function makes, but env is {chosen['env_id']!r} already")
        settings |= chosen
        if env_id:
            settings["env_id"] = env_id
        return cls(
            TrainConfig(algo=cls.algo_name, **settings, **unknown),
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=callbacks,
            track=track,
            show_progress=show_progress,
        )

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        algo_kwargs: Mapping[str, Any] | None = None,
        env_factory: GivenFactory | None = None,
        network: nn.Module | None = None,
        dataset: GivenDataset | None = None,
        callbacks: Sequence[Callback] = (),
        track: Sequence[str] = (),
        show_progress: bool = True,
        allow_code: bool = False,
    ) -> Self:
        """Load a saved agent. `learn` then continues the run where it stopped.

        Args:
            path: a run folder, or a checkpoint in it or from `save`.
            algo_kwargs: settings of the algorithm that `learn` continues with, in a new run folder; the old one stays.
                Settings that the saved state depends on, such as `hidden_sizes`, are rejected.
            env_factory: makes an environment from the saved `env_kwargs`, in place of the saved `env_id`.
            network: a module of the architecture that was trained, if it was not the default one.
            dataset: the dataset that was learned from, if it is not where it was; other data are refused by `learn`.
            callbacks: are called when training continues.
            track: where the records are sent, in addition to the choice of earlier starts (docs/tracking.md).
            show_progress: whether to print the progress of training.
            allow_code: whether to import the code that a run of another user names, such as `module:EnvId`; set it only
                if you trust the run's author. Your own runs need it never.
        """
        checkpoint = open_checkpoint(find_checkpoint(path), parts=(POLICY,))
        config, changes = checkpoint.config, {"algo_kwargs": algo_kwargs} if algo_kwargs else {}
        if not hasattr(cls, "algo_name"):
            right = f"{config.spec.class_name}.load({str(path)!r})"
            raise TypeError(f"{cls.__name__} has no algorithm: write {right}")
        if changes:
            config = with_settings(config, changes)
            changed = changed_settings(checkpoint.config, config)  # rejects what cannot change
        agent = cls(
            config,
            env_factory=env_factory,
            network=network,
            dataset=dataset,
            callbacks=callbacks,
            track=track,
            show_progress=show_progress,
        )
        agent._options = replace(agent._options, allow_code=allow_code)
        agent._checkpoint, agent._changes = checkpoint.path, changes
        agent._load_policy()
        if changes:
            options = replace(agent._options, network=copy.deepcopy(network))  # an algorithm takes its parameters over
            check_same_state(agent._policy(), build_policy(config, checkpoint, options), changed)
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
        if total_timesteps is None and self.config.total_timesteps == _NOT_GIVEN:
            name, env = type(self).__name__, self.config.env_id
            raise ConfigError(
                f"learn() needs the number of steps, such as learn(50_000) or {name}.for_env({env!r}, 50_000).learn()"
            )
        config = self.config if total_timesteps is None else self.config.updated(total_timesteps=total_timesteps)
        options = replace(self._options, callbacks=(_Watch(self, config), *self._options.callbacks))
        try:
            if self._checkpoint is None:
                result = train(config, options)
            else:
                changes = self._changes
                result = resume(self._checkpoint, options, total_timesteps=total_timesteps, settings=changes)
        except RunFinishedError as error:
            raise ConfigError(
                f"the run is finished at {error.step:,} steps; learn(total_timesteps={2 * error.step}) continues it"
            ) from None
        if result.signal is not None and on_signal == "raise":
            state = "saved" if result.interrupted else "finished"
            advice = "; agent.learn() continues it" if result.interrupted else ""
            place = f"at step {result.step} in {result.run_dir}"
            log.warning("signal %s: the run is %s %s%s", result.signal.name, state, place, advice)
            end_script(result.signal)
        return result

    def evaluate(self, episodes: int | None = None, *, seeds: Sequence[int] | None = None) -> EvalEpisodes:
        """Play whole episodes without exploration and return them; training is not affected.

        Args:
            episodes: how many; the config's `eval_episodes` by default.
            seeds: reset seeds of the environment, one per episode, in place of the run's own list.
        """
        chosen = self._eval_seeds(self.config.eval_episodes if episodes is None else episodes, seeds)
        with hangs_end(self.config.worker_timeout), torch_defaults():
            return evaluate_run(self.config, env_factory_of(self.config, self._options), self._policy(), chosen)

    def video(
        self,
        path: str | Path,
        episodes: int = 3,
        *,
        seeds: Sequence[int] | None = None,
        max_steps: int = MAX_STEPS,
        fps: float | None = None,
        width: int | None = None,
    ) -> Path:
        """Film the episodes that `evaluate` plays; return the path.

        Args:
            path: a .mp4, .gif or .webp file. Needs the extra `video`: pip install "rl-training[video]".
            episodes: how many.
            seeds: reset seeds of the environment, one per episode, in place of the run's own list.
            max_steps: after this many steps an episode is cut.
            fps: steps per second; by default what the environment declares.
            width: in pixels; by default as rendered, at most 320 for .gif and .webp.
        """
        out = expand_home(path)
        settings = FilmSettings(max_steps=max_steps, fps=fps, width=width)
        chosen = self._eval_seeds(episodes, seeds)
        film_episodes(out, self._policy(), self.config, self._options, chosen, settings=settings)
        return out

    def preview(self, episodes: int = 1, *, max_steps: int = MAX_STEPS, width: int | None = None) -> Preview:
        """Film the first episodes that `evaluate` plays and return them as the value of a notebook cell."""
        with tempfile.TemporaryDirectory() as folder:
            film = self.video(Path(folder, "preview.mp4"), episodes, max_steps=max_steps, width=width)
            return Preview(film.read_bytes(), f"{self.algo_name} on {self.config.env_id}, {episodes} episode(s)")

    def predict(self, obs: Observations, action_mask: ArrayLike | None = None, *, deterministic: bool = True) -> Any:
        """Return one action for one observation, or one for each of a batch: not a tuple. No file is read.

        Args:
            obs: one observation or a batch. One with several parts is a dict; a batch of them is a dict of batches or a
                list of dicts.
            action_mask: which actions are valid, one flag per choice (true or 1); by default all are. A dict
                observation may hold it under the key `action_mask`.
            deterministic: the best action. False samples from the policy, if it is stochastic.
        """
        return self.player(deterministic=deterministic)(obs, action_mask)

    def player(self, *, deterministic: bool = True) -> Predictor:
        """Return a function like `predict` that plays one episode; make a new one for each episode.

        A recurrent policy remembers the observations that the function was called with. `predict` treats every
        observation as the first of an episode.
        """
        algorithm = self._policy()
        assert self._spaces is not None
        return make_player(algorithm, self._spaces, registry()[self.algo_name], deterministic=deterministic)

    def save(self, path: str | Path) -> Path:
        """Copy the newest checkpoint to the new folder `path`, from which `load` and the CLI read it; return `path`."""
        if self._checkpoint is None:
            raise CheckpointError("there is nothing to save yet: call learn() first")
        if not self._checkpoint.exists():
            raise CheckpointError(f"cannot copy {self._checkpoint}: it was deleted or moved after training")
        target = expand_home(path)
        if target.exists():
            raise CheckpointError(f"{target} exists already")
        return copy_checkpoint(open_checkpoint(self._checkpoint), target)

    def module(self) -> PolicyModule:
        """Return the policy as it is now as an `nn.Module` on the CPU: a batch of observations in, actions out.

        The observations are those that the environment returns after its wrappers, the actions those that it takes:
        normalisation, scaling and masks are part of the module. `inputs` and `outputs` of the module name what it takes
        and returns. A recurrent policy also takes and returns its carry.
        """
        algorithm = self._policy()
        assert self._spaces is not None
        return build_module(algorithm, self._spaces, registry()[self.algo_name])

    def export(self, path: str | Path, *, file_format: Literal["onnx", "pt2"] = "onnx", pairs: int = 256) -> Contract:
        """Write the policy for use without this library to the new folder `path`, and return its contract.

        Args:
            path: the folder, with the policy, contract.json, pairs.npz and README.md (docs/export.md).
            file_format: `"onnx"` runs anywhere; `"pt2"` only in PyTorch, and only where you trust the file.
            pairs: how many observations and actions to record in the environment and to compare the file with.
        """
        algorithm, factory = self._policy(), self._options.factory_for(self.config)
        if factory is None:
            raise ConfigError(
                "export records observations and actions in an environment, but the run has none (env_id is empty); "
                "agent.module() returns the policy without"
            )
        assert self._spaces is not None
        source = Source(
            config=self.config, algorithm=algorithm, spaces=self._spaces, factory=factory, step=self._step()
        )
        with hangs_end(self.config.worker_timeout):
            return export_policy(source, expand_home(path), file_format=file_format, pairs=pairs)

    @classmethod
    def _choose_env(
        cls, env: str | Env | AnyVectorEnv | GivenFactory, total_timesteps: int | None = None
    ) -> tuple[dict[str, Any], GivenFactory | None]:
        """Return the settings that name an environment, and the function that makes it, if it is the user's own."""
        if isinstance(env, str):
            return {"env_id": env}, None
        if isinstance(env, gym.Env | gym.vector.VectorEnv):
            try:
                return (settings_of(env) if isinstance(env, gym.Env) else settings_of_vector(env)), None
            except ConfigError as problem:
                steps = "50_000" if total_timesteps is None else total_timesteps
                made, more = f"lambda: {type(env.unwrapped).__name__}(...)", ""
                if not isinstance(env, gym.Env):
                    made = f"lambda num_envs: {type(env.unwrapped).__name__}(...)"
                    more = f', num_envs={env.num_envs}, execution_backend="vector"'
                call = f"{cls.__name__}.for_env({made}, {steps}{more})"
                raise ConfigError(
                    f"env: a run makes its own copies, but this environment cannot be copied: {problem}; "
                    f"give a function that makes it, such as {call}"
                ) from None
        if not callable(env):
            raise TypeError(
                f"env must be a Gymnasium id, one environment or a function that makes one, got {type(env).__name__}"
            )
        return {"env_id": getattr(env, "__name__", type(env).__name__)}, env

    @classmethod
    def _reject(cls, config: object, arguments: Sequence[object], settings: Mapping[str, object]) -> NoReturn:
        """Raise for a call in the style of another library, or of `for_env`, and show the call that works."""
        name = cls.__name__
        if _is_policy_name(config):
            raise TypeError(
                f"{name} takes no policy name such as {config!r}: its network follows from the spaces; "
                f"write {name}.for_env(env, total_timesteps=50_000).learn()"
            )
        call = f"{name}.for_env(env, total_timesteps=50_000"
        if not settings:
            raise TypeError(f"{name}(...) does not take a second argument, got {arguments[0]!r}; {call}) does")
        extra, setting = next(iter(settings)), ""
        if extra in registry()[cls.algo_name].hparams.model_fields:
            setting = f', algo_kwargs={{"{extra}": ...}}'
        elif extra not in TrainConfig.model_fields:
            raise TypeError(f"{name} has no setting {extra!r}; its settings are arguments of {call}, ...)")
        elif extra != "total_timesteps":
            setting = f", {extra}=..."
        raise TypeError(f"{name}(...) does not take the setting {extra!r}; {call}{setting}) does")

    def _eval_seeds(self, episodes: int, seeds: Sequence[int] | None) -> Sequence[int]:
        """Return the given reset seeds, or those of the run's evaluations."""
        if seeds is None:
            if not hasattr(episodes, "__index__"):
                raise TypeError(f"episodes must be a whole number, got {episodes!r}")
            if episodes < 1:
                raise ConfigError(f"episodes must be >= 1, got {episodes}")
            return Streams(self.config.seed).eval_seeds(episodes)
        if not isinstance(seeds, Collection):
            raise TypeError(f"seeds must be a list of reset seeds, such as [3], got {seeds!r}")
        if len(seeds) == 0:
            raise ConfigError("seeds must hold at least one seed, got none")
        return [operator.index(seed) for seed in seeds]

    def _policy(self) -> Algorithm:
        if self._algorithm is None:
            raise RuntimeError("the agent has no policy yet: call learn() or load() first")
        return self._algorithm

    def _load_policy(self) -> None:
        assert self._checkpoint is not None
        checkpoint, self._algorithm = load_policy(self._checkpoint, self._options)
        self._step, self._run_config = lambda: checkpoint.step, checkpoint.config
        with torch_defaults():
            factory = self._options.factory_for(self.config)
            self._spaces = spaces_of(factory) if factory is not None else saved_spaces(checkpoint)


class _Watch(Callback):
    """Hands the agent what a run has made so far, so that it can be used in callbacks and after an error."""

    def __init__(self, agent: ManagedAlgorithm, config: TrainConfig) -> None:
        self._agent, self._config = agent, config

    def on_start(self, run: Run) -> None:
        self._agent.config = self._config
        self._agent._algorithm, self._agent._spaces = run.algorithm, run.spaces
        self._agent._step, self._agent._run_config = lambda: run.step, run.config

    def on_end(self, run: Run) -> None:
        if resumable_names(run.folder.checkpoints):
            self._agent._checkpoint, self._agent._changes = find_checkpoint(run.folder.path), {}


def _copied(state: Any) -> Any:
    """Copy the state of a policy to the host."""
    if isinstance(state, Mapping):
        return {name: _copied(value) for name, value in state.items()}
    return state.detach().cpu().clone() if isinstance(state, Tensor) else copy.deepcopy(state)


def _is_env_id(text: str) -> bool:
    """Return whether a text is an env id, not the path of a config."""
    is_versioned, is_path = re.search(r"-v\d+$", text), re.search(r"/|\.ya?ml$", text)
    return not Path(text).is_file() and (text in gym.registry or bool(is_versioned) or not is_path)


def _is_policy_name(value: object) -> bool:
    """Return whether a value is a network by name in the style of other libraries: `PPO("MlpPolicy", env)`."""
    return isinstance(value, str) and re.fullmatch(r"\w+Policy", value) is not None


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
