"""Film the episodes that an evaluation plays, or show them in a window: the same seeds, the same returns."""

import logging
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.seeding import Streams
from rl_training.core.types import Algorithm
from rl_training.envs.hang_watch import hangs_end
from rl_training.envs.rendering import draw_without_display, explains_opengl, has_display, rendering_factory
from rl_training.envs.vector import SyncEnvs
from rl_training.errors import ConfigError, EnvError
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.evaluation import EvalEpisode, evaluate_episodes
from rl_training.runtime.saved_policy import env_factory_of, load_policy
from rl_training.runtime.setup import RunOptions
from rl_training.runtime.video_files import check_video_file, video_file

log = logging.getLogger("rl_training")

MAX_STEPS = 2_000  # of a filmed episode, by default
_BOUNDS = {"max_steps": (1, 1_000_000), "fps": (0.1, 240), "width": (16, 7_680)}


@dataclass(frozen=True, slots=True, kw_only=True)
class FilmSettings:
    """How a film looks. `fps`: steps per second, by default what the environment declares; `width`: in pixels."""

    max_steps: int = MAX_STEPS
    fps: float | None = None
    width: int | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} must be from {low:,} to {high:,}, got {value}")


def film_episodes(
    out: Path,
    algorithm: Algorithm,
    config: TrainConfig,
    options: RunOptions,
    seeds: Sequence[int],
    *,
    step: int = 0,
    settings: FilmSettings | None = None,
) -> list[EvalEpisode]:
    """Film one episode per seed and return them: a picture of every state, the last one included."""
    settings = settings or FilmSettings()
    check_video_file(out)
    draw_without_display()
    with hangs_end(config.worker_timeout), explains_opengl():
        factory, fps = rendering_factory(env_factory_of(config, options), "rgb_array", config.env_id)
        if config.execution_backend == "envpool":
            log.info("EnvPool does not render: this is Gymnasium's %s", config.env_id)
        speed = settings.fps or min(fps, _BOUNDS["fps"][1])
        with video_file(out, fps=speed, width=settings.width) as show, SyncEnvs(factory) as envs:
            return evaluate_episodes(
                envs,
                algorithm,
                seeds,
                step=step,
                max_steps=settings.max_steps,
                on_view=lambda: show(envs.render()),
            )


def film_run(
    path: Path,
    out: Path,
    *,
    episodes: int,
    seed: int | None = None,
    pointer: str = "latest",
    options: RunOptions | None = None,
    settings: FilmSettings | None = None,
) -> list[EvalEpisode]:
    """Film the policy of a run or checkpoint; `seed`: for other episodes than those of its evaluations."""
    check_video_file(out)  # before anything is loaded
    draw_without_display()  # before an environment imports mujoco
    options = options or RunOptions()
    with explains_opengl():
        checkpoint, algorithm = load_policy(path, options, pointer=pointer)
    config = checkpoint.config
    seeds = Streams(config.seed if seed is None else seed).eval_seeds(episodes)
    return film_episodes(out, algorithm, config, options, seeds, step=checkpoint.step, settings=settings)


def show_run(
    path: Path,
    *,
    episodes: int,
    seed: int | None = None,
    pointer: str = "latest",
    options: RunOptions | None = None,
    max_steps: int = MAX_STEPS,
) -> list[EvalEpisode]:
    """Play episodes of a run in a window, at the speed of the environment."""
    instead = f"rl-training video {shlex.quote(str(path))} --out agent.mp4 makes a film"
    if not has_display():
        raise EnvError(f"there is no display to open a window on: DISPLAY is not set; {instead}")
    options = options or RunOptions()
    checkpoint, algorithm = load_policy(path, options, pointer=pointer)
    config = checkpoint.config
    if config.env_kwargs.get("pixels"):
        raise EnvError(f"{config.env_id} is observed as pixels, so it cannot draw in a window; {instead}")
    seeds = Streams(config.seed if seed is None else seed).eval_seeds(episodes)
    with explains_opengl():  # without a limit of time: some windows have a key that pauses
        factory, _ = rendering_factory(env_factory_of(config, options), "human", config.env_id)
        with SyncEnvs(factory) as envs:
            return evaluate_episodes(envs, algorithm, seeds, step=checkpoint.step, max_steps=max_steps)
