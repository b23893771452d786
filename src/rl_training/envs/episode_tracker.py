"""Which episode each environment of a group is in, and errors that say so."""

import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rl_training.envs.array_space import ArraySpace
from rl_training.envs.slot import NUM_STEPS_KEY, EnvState, ReplayDivergedError
from rl_training.errors import EnvError, text_of


class EpisodeTracker:
    """Knows which episode each env of a group is in, for error messages, and which envs must be reset before a step."""

    def __init__(self, num_envs: int, crash_dir: Path | None) -> None:
        self.crash_dir = crash_dir
        self.must_reset = set(range(num_envs))
        self.failure = ""  # the first error, if there was one
        self.closed = False
        self.num_steps = 0  # of the whole group; the step of one env is the difference to the start of its episode
        self._starts = [0] * num_envs
        self._seeds = [0] * num_envs
        self._numbers = [-1] * num_envs
        self._places = ["the reset"] * num_envs  # empty while the episode runs

    def start(self, index: int, seed: int, number: int | None = None, place: str = "the reset") -> None:
        self._seeds[index] = seed
        self._numbers[index] = self._numbers[index] + 1 if number is None else number
        self._starts[index] = self.num_steps
        self._places[index] = place
        self.must_reset.add(index)

    def started(self, index: int, num_steps: int = 0, ended: bool = False) -> None:
        """Mark the episode of `index` as running, with `num_steps` steps already taken."""
        self._starts[index] = self.num_steps - num_steps
        self._places[index] = ""
        if not ended:
            self.must_reset.discard(index)

    def with_num_steps(self, index: int, state: EnvState | None) -> EnvState | None:
        """Add the number of steps of the episode to the state of an env."""
        return None if state is None else state | {NUM_STEPS_KEY: np.array(self.num_steps - self._starts[index])}

    def close(self) -> None:
        self.closed = True
        self.must_reset = set(range(len(self._starts)))  # so that `step` checks a single condition

    def check_open(self) -> None:
        if self.closed and self.failure:
            raise EnvError(f"the environments are closed, because {self.failure}")
        if self.closed:
            raise RuntimeError("the environments are closed")

    def raise_reset_needed(self) -> None:
        self.check_open()
        raise RuntimeError(f"envs {sorted(self.must_reset)} must be reset before the next step: their episode ended")

    def where(self, index: int) -> str:
        """Describe where env `index` is: at the current step, counted from 1, or at a reset."""
        if self._numbers[index] < 0:
            return "before its first episode"
        place = self._places[index] or f"step {self.num_steps - self._starts[index] + 1}"
        return f"at {place} of episode {self._numbers[index]} (seed {self._seeds[index]})"

    def check_finite(self, space: ArraySpace, rows: np.ndarray, indices: Sequence[int] | None = None) -> None:
        """Raise for observations that are not finite, one row per env, or per env of `indices`."""
        row = space.first_not_finite(rows)
        if row is not None:
            raise self.error(row if indices is None else indices[row], space.not_finite(rows[row]))

    def error(
        self, index: int, what: str, traceback_text: str = "", kind: type[EnvError] = EnvError, *, hint: str = ""
    ) -> EnvError:
        """Build the error that says what env `index` did and where; write the traceback to the crash folder."""
        message = f"env {index} {what} {self.where(index)}" + (f"; {hint}" if hint else "")
        return self._reported(message, f"env_{index}.txt", traceback_text, kind)

    def group_error(self, cause: BaseException, kind: str = "vector") -> EnvError:
        """Build the error for an exception of a call for all envs at once; Ctrl-C is not the envs': raise it."""
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        message = f"the {kind} environment {describe_alone(cause)} at step {self.num_steps + 1} of all environments"
        return self._reported(message, "envs.txt", format_traceback(cause))

    def _reported(self, message: str, file: str, traceback_text: str, kind: type[EnvError] = EnvError) -> EnvError:
        """Write the traceback to the crash folder; return the error that names the file."""
        if self.crash_dir is not None and kind is not ReplayDivergedError:
            path = self.crash_dir / file
            try:
                self.crash_dir.mkdir(parents=True, exist_ok=True)
                path.unlink(missing_ok=True)  # it may be a link to another file
                text = f"{message}\n\n{traceback_text or 'The environment left no traceback.'}\n"
                path.write_text(text, "utf-8", "backslashreplace")
            except OSError as problem:
                return kind(f"{message}; its traceback could not be written to {path}: {problem}")
            message += f"; see {path}"
        self.failure = self.failure or message
        return kind(message)

    def error_from(self, index: int, cause: BaseException) -> EnvError:
        """Build the error for an exception of env `index`, `SystemExit` included; Ctrl-C is not the env's: raise it."""
        if isinstance(cause, KeyboardInterrupt):
            raise cause
        kind = type(cause) if isinstance(cause, EnvError) else EnvError
        return self.error(index, describe(cause), format_traceback(cause), kind)


def describe(cause: BaseException) -> str:
    """Describe what an env did; an `EnvError` from the checks of this library already does."""
    return str(cause) if isinstance(cause, EnvError) else f"raised {type(cause).__name__}: {text_of(cause)}"


def describe_alone(cause: BaseException) -> str:
    """Describe what an env did where no place follows, before which some descriptions end with a comma."""
    return describe(cause).removesuffix(",")


def format_traceback(cause: BaseException) -> str:
    return "".join(traceback.format_exception(type(cause), cause, cause.__traceback__))


def describe_exit(exit_code: int | None) -> str:
    """Describe how a process ended; a negative exit code is the signal that ended it."""
    if exit_code is None:
        return "closed its connection"
    if exit_code >= 0:
        return f"ended its process with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    hint = " (often: out of memory)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}, exit code {exit_code},"
