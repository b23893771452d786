"""Runs of any registered algorithm that write no file: a few steps or updates in milliseconds."""

from types import SimpleNamespace
from typing import Any

from builders import small_hparams
from rl_training.core.seeding import Streams
from rl_training.core.setup import Setup
from rl_training.core.spaces import Spaces
from rl_training.envs.factory import EnvFactory, make_env_factory, make_envs
from rl_training.envs.tiny import Masked
from rl_training.experiment.algorithm_spec import AlgorithmSpec
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import registry
from rl_training.hparams.datasets import dataset_choice
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collector import Collector
from rl_training.runtime.dataset_loading import load_transition_dataset
from rl_training.runtime.no_collector import NoCollector
from rl_training.runtime.run import Run
from rl_training.runtime.trainer import LOOPS

NUM_ENVS = 2
# The loops differ in what a step does; each of these settings makes it learn within a few.
QUICK = {
    "buffer_capacity": 50,
    "learning_starts": 0,
    "gradient_updates_per_step": 2,
    "train_ratio": 16.0,
    "target_update_interval": 3,
    "num_steps": 4,
    "minibatch_size": 4,
}


def some_actions(spec: AlgorithmSpec) -> str:
    """A kind of action that the algorithm takes: choices, if it takes those."""
    return max(spec.actions, key=lambda kind: kind == "discrete")


def config_of(spec: AlgorithmSpec, actions: str | None = None, **hparams: Any) -> TrainConfig:
    """A small run on an env of a kind of action that the algorithm takes."""
    soft = "tau" in spec.hparams.model_fields and spec.hparams.model_fields["tau"].default < 1.0
    quick = {name: value for name, value in QUICK.items() if name != "target_update_interval" or not soft}
    return TrainConfig(
        algo=spec.name,
        env_id="rl_training/Identity-v0",
        env_kwargs={"actions": actions or some_actions(spec)},
        total_timesteps=200,
        log_interval=3,  # offline, the updates from one log to the next are a step of the loop
        num_envs=NUM_ENVS,
        algo_kwargs=small_hparams(spec.name, **quick) | hparams,
    )


def make_run(
    name: str, seed: int = 0, actions: str | None = None, *, factory: EnvFactory | None = None, **hparams: Any
) -> Run:
    """A run of the algorithm with its memory and envs, which writes no file."""
    config = config_of(registry()[name], actions, **hparams)
    factory = factory or make_env_factory(config.env_id, config.env_kwargs)
    envs, streams = make_envs(factory, NUM_ENVS), Streams(seed)
    masks = factory is Masked
    choice, is_offline = dataset_choice(config.hparams), config.spec.loop == "offline"
    setup = Setup(
        spaces=Spaces(envs.observation_space, envs.action_space, masks),
        hparams=config.hparams,
        total_timesteps=config.total_timesteps,
        total_updates=config.total_updates,
        streams=streams,
        num_envs=NUM_ENVS,
        dataset=load_transition_dataset(choice, env_factory=factory) if choice is not None else None,
    )
    run = Run(
        config=config,
        streams=streams,
        folder=SimpleNamespace(positions=dict),  # type: ignore[arg-type]
        env_factory=factory,
        algorithm=config.spec.build_algorithm(setup),
        memory=config.spec.build_memory(setup),
        collector=NoCollector() if is_offline else Collector(envs, streams, action_masks=masks),
        spaces=setup.spaces,
    )
    run.collector.start()
    return run


class Watch(Callback):
    """Ends the loop after some steps of every env, or groups of updates; notes the metrics after each."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.metrics: list[dict[str, float]] = []

    def on_step(self, run: Run) -> None:
        self.metrics.append({name: float(value) for name, value in run.last_metrics.items()})
        if len(self.metrics) == self.steps:
            run.stop_reason = "enough"


def advance(run: Run, steps: int) -> list[dict[str, float]]:
    """Take some steps of every env in the algorithm's own loop; offline, make some groups of updates."""
    watch = Watch(steps)
    run.stop_reason = ""
    callbacks = [*run.config.spec.build_callbacks(run), watch]
    for callback in callbacks:
        callback.on_start(run)
    LOOPS[run.config.spec.loop](run, run.config.hparams, callbacks)
    return watch.metrics
