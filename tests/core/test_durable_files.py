"""Files that are replaced in one step leave nothing behind, even if their writer was killed."""

import os
from pathlib import Path

from rl_training.core.durable_files import write_atomic

NO_PROCESS = 2**22 + 1  # larger than any process id of Linux


def test_next_write_removes_what_a_killed_writer_left(tmp_path: Path) -> None:
    left = tmp_path / f".result.json_{NO_PROCESS}"
    others = [
        tmp_path / name for name in (f".result.json_{os.getppid()}", ".result.json_notes", f".config_{NO_PROCESS}")
    ]
    for path in (left, *others):
        path.write_text("half")
    write_atomic(tmp_path / "result.json", "whole")
    assert (tmp_path / "result.json").read_text() == "whole"
    assert not left.exists()
    assert all(path.exists() for path in others)  # of a writer that runs, and of somebody else
