"""Result files: one JSON line per run, and JSON documents for everything else."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
Line = dict[str, Any]


def read_lines(path: Path) -> list[Line]:
    """Return the lines of a file; none if the file does not exist."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


def append_line(path: Path, line: Mapping[str, Any]) -> None:
    """Append one line. A single write keeps the file readable if the process is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write(to_line(line) + "\n")


def to_line(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write to a temporary file, then rename it: an interrupted benchmark never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


class Session:
    """The result file of one measurement. A new session replaces the lines of the previous one.

    `facts`: what is true for all lines: command, machine, source, setting. The old lines go when the first new one is
    written, so a command that fails at once loses nothing.
    """

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path, self.facts = path, dict(facts)
        self.lines: list[Line] = []

    def add(self, line: Mapping[str, Any]) -> None:
        self.lines.append({**line, **{name: value for name, value in self.facts.items() if name not in line}})
        write_text(self.path, "".join(to_line(each) + "\n" for each in self.lines))


def named(lines: Sequence[Line], **values: Any) -> list[Line]:
    """Return the lines whose fields have these values."""
    return [line for line in lines if all(line.get(name) == value for name, value in values.items())]
