"""Native code and keys are read only from files that no other user can change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_training.core import private_files
from rl_training.core.private_files import UntrustedPathError, check_private, private_folder

SOMEBODY_ELSE = 54321


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def owned_by_somebody_else(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the check see another owner; only root could really change it."""

    def status(of: Path) -> os.stat_result:
        real = of.stat()
        return os.stat_result((*real[:4], SOMEBODY_ELSE, *real[5:10])) if of == path else real

    monkeypatch.setattr(private_files, "_status", status)


@pytest.mark.usefixtures("open_umask")
def test_a_new_folder_and_those_made_above_it_are_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "a" / "b"))
    folder = private_folder("keys")
    assert folder == (tmp_path / "a" / "b" / "keys").resolve()
    assert [part.stat().st_mode & 0o777 for part in (folder, folder.parent, folder.parent.parent)] == [0o700] * 3


def test_the_folder_is_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RL_TRAINING_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert private_folder("keys") == tmp_path.resolve() / "rl_training" / "keys"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@pytest.mark.parametrize("part", ["folder/file", "folder", "."])
def test_a_path_that_others_can_write_is_refused_at_any_level(tmp_path: Path, part: str, mode: int) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "file"
    file.write_text("code")
    assert check_private(file) == file.resolve()
    (tmp_path / part).chmod(mode)
    with pytest.raises(UntrustedPathError, match=rf"{(tmp_path / part).resolve()} .*\(mode {mode:o}\).*chmod go-w"):
        check_private(file)


@pytest.mark.parametrize("part", ["folder/file", "folder", "."])
def test_a_path_of_another_user_is_refused_at_any_level(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    (tmp_path / "folder").mkdir()
    file = tmp_path / "folder" / "file"
    file.write_text("code")
    owned_by_somebody_else((tmp_path / part).resolve(), monkeypatch)
    with pytest.raises(UntrustedPathError, match=f"belongs to user {SOMEBODY_ELSE}"):
        check_private(file)


def test_a_shared_folder_where_only_owners_can_rename_may_be_above_but_not_the_folder_itself(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "ours").mkdir(mode=0o700)
    assert check_private(shared / "ours") == (shared / "ours").resolve()
    with pytest.raises(UntrustedPathError, match="writable by others"):
        check_private(shared)


def test_a_link_leads_to_the_checked_path(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert check_private(tmp_path / "link") == (tmp_path / "real").resolve()
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(UntrustedPathError, match="real"):
        check_private(tmp_path / "link")


def test_a_pipe_is_refused_without_opening_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", mode=0o600)
    with pytest.raises(UntrustedPathError, match="neither a regular file nor a folder"):
        check_private(tmp_path / "pipe")


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_private(tmp_path / "nothing")
