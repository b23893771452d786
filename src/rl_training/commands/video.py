"""`rl-training video` and `rl-training play`: watch a trained policy."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import AllowCode, Best, Debug, EvalSeed, Quiet, RunPath, whole_number
from rl_training.core.counted import counted
from rl_training.hparams.fields import expand_home
from rl_training.results.return_text import return_text

if TYPE_CHECKING:
    from rl_training.runtime.evaluation import EvalEpisode

Episodes = Annotated[int, typer.Option(parser=whole_number(least=1), metavar="N", help="Episodes to play.")]
MaxSteps = Annotated[
    int, typer.Option(parser=whole_number(least=1), metavar="N", help="Steps after which an episode is cut.")
]


@reports_errors
def video(
    path: RunPath,
    out: Annotated[
        Path,
        typer.Option("--out", "-o", parser=expand_home, metavar="FILE", help="A .mp4, .gif or .webp file."),
    ],
    episodes: Episodes = 3,
    seed: EvalSeed = None,
    max_steps: MaxSteps = 2_000,
    fps: Annotated[
        float | None, typer.Option(metavar="X", help="Steps per second; what the environment declares if not given.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(least=1),
            metavar="PIXELS",
            help="Width; as rendered if not given, at most 320 for .gif and .webp.",
        ),
    ] = None,
    best: Best = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Film the episodes of an evaluation: the same policy, reset seeds and returns as `evaluate`."""
    from rl_training.runtime.filming import FilmSettings, film_run
    from rl_training.runtime.setup import RunOptions

    played = film_run(
        path,
        out,
        episodes=episodes,
        seed=seed,
        pointer="best" if best else "latest",
        options=RunOptions(allow_code=allow_code),
        settings=FilmSettings(max_steps=max_steps, fps=fps, width=width),
    )
    _show_episodes(played)
    show([("video", f"{out} ({out.stat().st_size / 1e3:,.0f} kB)")])


@reports_errors
def play(
    path: RunPath,
    episodes: Episodes = 3,
    seed: EvalSeed = None,
    max_steps: MaxSteps = 2_000,
    best: Best = False,
    allow_code: AllowCode = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Watch a trained policy in a window; Ctrl-C ends it. Without a display, `video` makes a film."""
    from rl_training.runtime.filming import show_run
    from rl_training.runtime.setup import RunOptions

    played = show_run(
        path,
        episodes=episodes,
        seed=seed,
        pointer="best" if best else "latest",
        options=RunOptions(allow_code=allow_code),
        max_steps=max_steps,
    )
    _show_episodes(played)


def _show_episodes(episodes: "Sequence[EvalEpisode]") -> None:
    texts = [f"return {return_text(one.ret)}, {counted(one.length, 'step')}" for one in episodes]
    show([(f"episode {one.episode}", text) for one, text in zip(episodes, texts, strict=True)])
