"""Append-only JSON-lines files that a resumed run truncates to its checkpoint."""

import contextlib
import io
import json
import logging
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from rl_training.core.durable_files import describe_os_error, open_file, open_log
from rl_training.errors import CheckpointError

log = logging.getLogger("rl_training")


class JsonLines:
    """Appends one record per line. `position`: the size of the file when the checkpoint was written."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        with self._wrap_errors():
            file = open_log(path)
            size = os.fstat(file.fileno()).st_size
            if 0 < size < position:  # an empty file is that of a new folder, whose checkpoint is from another run
                log.warning("%s is shorter than when the checkpoint was written: records are missing", path)
            os.truncate(file.fileno(), min(position, size))
            self._file: TextIO = io.TextIOWrapper(file, encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        with self._wrap_errors():
            self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        with self._wrap_errors():
            self._file.flush()

    def position(self) -> int:
        """Sync everything to disk and return the size of the file."""
        with self._wrap_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            return self.path.stat().st_size

    def close(self) -> None:
        # The last checkpoint synced what matters; an error here would hide the one that ended the run.
        with contextlib.suppress(OSError):
            self._file.close()

    @contextlib.contextmanager
    def _wrap_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            problem = describe_os_error(error, self.path.parent)
            raise CheckpointError(
                f"{self.path} cannot be written: {problem}; the checkpoints are intact, "
                "`resume` continues from the newest"
            ) from error


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Read all records; raise `CheckpointError` if one is damaged."""
    with io.TextIOWrapper(open_file(path), encoding="utf-8") as file:
        try:
            records = [json.loads(line) for line in file]
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{path} is damaged: {error}") from None
    if not all(isinstance(record, dict) for record in records):
        raise CheckpointError(f"{path} is damaged: a line holds no JSON object")
    return records
