"""What all commands share: errors as one clear message and an exit code, and plain output."""

import functools
import logging
import shlex
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from typing import NoReturn, ParamSpec

import typer

from rl_training.core.printable_text import printable_lines
from rl_training.errors import UserError, exits_are_errors, text_of

PROGRAM = "rl-training"
EXIT_BUG, EXIT_USER_ERROR, EXIT_KILLED = 1, 2, 130

P = ParamSpec("P")
log = logging.getLogger("rl_training")


class _PlainLines(logging.Handler):
    """Prints log records as plain lines on the current `sys.stderr`, which a live view replaces while it runs."""

    def emit(self, record: logging.LogRecord) -> None:
        prefix = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        print(printable_lines(prefix + self.format(record)), file=sys.stderr, flush=True)


def _log_to_stderr(*, debug: bool, quiet: bool) -> None:
    log.setLevel(logging.DEBUG if debug else logging.WARNING if quiet else logging.INFO)
    if not any(isinstance(handler, _PlainLines) for handler in log.handlers):
        log.addHandler(_PlainLines())


def reports_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Wrap a command to end with one clear message and an exit code at an error; obeys its `debug` and `quiet`."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        _log_to_stderr(debug=bool(kwargs.get("debug")), quiet=bool(kwargs.get("quiet")))
        try:
            with exits_are_errors():
                command(*args, **kwargs)
        except (typer.Exit, typer.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _fail("interrupted", EXIT_KILLED)
        except UserError as error:
            _fail(text_of(error), EXIT_USER_ERROR)
        except OSError as error:
            _fail(f"{error.filename}: {error.strerror}" if error.filename else str(error), EXIT_USER_ERROR)
        except Exception as error:
            if _is_out_of_memory(error):
                _fail(
                    f"out of memory ({text_of(error)}); smaller networks, batches or buffers need less", EXIT_USER_ERROR
                )
            _fail(_describe_bug(error), EXIT_BUG)

    return wrapped


def _fail(message: str, code: int) -> NoReturn:
    log.debug("the full error:", exc_info=True)
    print(f"error: {printable_lines(message)}", file=sys.stderr, flush=True)
    raise typer.Exit(code)


def _is_out_of_memory(error: Exception) -> bool:
    """Return whether numpy, or torch on a GPU or the CPU, found no memory."""
    of_torch = type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text_of(error)
    return isinstance(error, MemoryError) or of_torch


def _describe_bug(error: Exception) -> str:
    summary = f"{type(error).__name__}: {text_of(error)}"
    report = f"{shlex.join(sys.argv)}\n\n{''.join(traceback.format_exception(error))}"
    with tempfile.NamedTemporaryFile(prefix="rl_training_", suffix=".txt", delete=False) as file:
        file.write(report.encode("utf-8", "backslashreplace"))
    return f"{summary}\nthis is a bug in {PROGRAM}, not a mistake of yours; please report it with {file.name}"


def show(rows: Sequence[tuple[str, str]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, text in rows:
        typer.echo(printable_lines(f"{name:<{width}}  {text}".rstrip()))


def command_line(*words: object) -> str:
    return shlex.join([PROGRAM, *map(str, words)])
