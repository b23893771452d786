"""Append-only JSON-lines files that a resumed run can cut back to its checkpoint."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO


class JsonLines:
    """One record per line, appended; `position` is where a checkpoint says the file ended."""

    def __init__(self, path: Path, position: int = 0) -> None:
        self.path = path
        path.touch()
        os.truncate(path, min(position, path.stat().st_size))
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(record) + "\n")

    def flush(self) -> None:
        self._file.flush()

    def position(self) -> int:
        """Bring everything to the disk and say where the file ends."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self.path.stat().st_size

    def close(self) -> None:
        self._file.close()


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
