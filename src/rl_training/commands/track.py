"""`rl-training track`: send the records of runs to a tracker, after training or beside it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rl_training.commands.messages import reports_errors, show
from rl_training.commands.options import Debug
from rl_training.core.counted import counted
from rl_training.errors import ConfigError

if TYPE_CHECKING:
    from rl_training.results.run_record import Status
    from rl_training.tracking.sending import Sender

_QUIET_SECONDS = 30.0  # after which --follow ends if nothing is trained: the next seed may be starting


@reports_errors
def track(
    paths: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, or folders that hold some.")],
    to: Annotated[
        str,
        typer.Option(
            metavar="NAME[:KEY=VALUE,...]", help="tensorboard, mlflow, wandb, trackio or a tracker of another package."
        ),
    ],
    follow: Annotated[bool, typer.Option("--follow", help="Go on while the runs are trained.")] = False,
    debug: Debug = False,
) -> None:
    """Send the records of runs to a tracker: only what was not sent before, so it can be repeated."""
    from rl_training.results.runs import find_runs
    from rl_training.tracking.sending import POLL_SECONDS, Sender
    from rl_training.tracking.trackers import make_tracker

    make_tracker(to, "--to")
    senders: dict[Path, Sender] = {}
    sent: dict[Path, Status] = {}  # the status with which everything of a run was sent
    failures: dict[Path, str] = {}
    last_active = time.monotonic()
    try:
        while True:
            is_trained = False
            for run in find_runs(*paths):
                status, path = run.status, run.path
                if status == "running":
                    is_trained, last_active = True, time.monotonic()
                elif sent.get(path) == status:
                    continue
                sender = senders.setdefault(path, Sender(path, to, make_tracker(to, "--to")))
                failure = sender.try_to_send(status, last=status != "running" or not follow)
                if failure:
                    failures[path] = failure
                else:
                    failures.pop(path, None)
                    sent[path] = status
            if not follow or (not is_trained and time.monotonic() - last_active > _QUIET_SECONDS):
                break
            time.sleep(POLL_SECONDS)
    finally:
        for sender in senders.values():
            sender.close("running")
        if rows := [(str(path), _describe(sender)) for path, sender in senders.items() if path not in failures]:
            show(rows)
    if failures:
        others = f" (and {counted(len(failures) - 1, 'more run')})" if len(failures) > 1 else ""
        raise ConfigError(f"{next(iter(failures.values()))}{others}")


def _describe(sender: "Sender") -> str:
    return f"{counted(sender.sent, 'step')} sent" if sender.sent else "nothing new"
