"""A seal is valid for one text, of one kind, with one key, which only its user can read."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_training.core.seals import is_own, make_seal


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the key of a user who has none yet."""
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "keys" / "seal.key"


def test_a_seal_belongs_to_one_text_of_one_kind(key: Path) -> None:
    seal = make_seal("config", "text")
    assert is_own("config", "text", seal)
    assert make_seal("config", "text") == seal
    assert not is_own("config", "text ", seal)
    assert not is_own("checkpoint", "text", seal)
    for other in (None, "", 3, "é", str(seal)[:-1]):
        assert not is_own("config", "text", other)


def test_the_key_is_random_and_nobody_else_can_read_it(key: Path) -> None:
    first = make_seal("config", "text")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert list(key.parent.iterdir()) == [key]
    key.unlink()
    assert not is_own("config", "text", first)
    assert make_seal("config", "text") != first


def test_processes_that_create_the_key_at_the_same_time_agree(key: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        seals = list(pool.map(lambda _: make_seal("config", "text"), range(32)))
    assert len(set(seals)) == 1
    assert is_own("config", "text", seals[0])


def expose(key: Path) -> None:
    key.chmod(0o644)


def cut(key: Path) -> None:
    key.write_bytes(key.read_bytes()[:31])


def replace_by_a_pipe(key: Path) -> None:
    key.unlink()
    os.mkfifo(key, 0o600)


def open_the_folder(key: Path) -> None:
    key.parent.chmod(0o777)


@pytest.mark.parametrize("harm", [expose, cut, replace_by_a_pipe, open_the_folder])
def test_a_key_that_cannot_be_trusted_seals_nothing(harm: object, key: Path) -> None:
    seal = make_seal("config", "text")
    harm(key)  # type: ignore[operator]
    assert make_seal("config", "text") is None
    assert not is_own("config", "text", seal)
