"""Files that are replaced in one step leave nothing behind, even if their writer was killed."""

import errno
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from rl_training.core.durable_files import check_free_space, describe_os_error, write_atomic
from rl_training.errors import ConfigError

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


@pytest.fixture
def three_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=3 * 2**20))


@pytest.mark.usefixtures("three_mib")
def test_error_of_a_full_disk_has_both_figures(tmp_path: Path) -> None:
    full, other = OSError(errno.ENOSPC, "No space left on device"), OSError(errno.EIO, "Input/output error")
    expected = f"[Errno 28] No space left on device (5.0 MiB are needed, 3.0 MiB are free in {tmp_path})"
    assert describe_os_error(full, tmp_path, 5 * 2**20) == expected
    assert describe_os_error(other, tmp_path, 5 * 2**20) == "[Errno 5] Input/output error"


@pytest.mark.usefixtures("three_mib")
def test_run_whose_checkpoints_do_not_fit_on_the_disk_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "made" / "yet"
    check_free_space(3 * 2**20, folder, "a checkpoint")
    with pytest.raises(ConfigError, match=r"^a checkpoint needs 4\.0 MiB, but only 3\.0 MiB are free in .*/yet$"):
        check_free_space(4 * 2**20, folder, "a checkpoint")
