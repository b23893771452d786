"""A few cases of each kind of `python -m benchmarks fuzz`, and how outcomes are judged."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from benchmarks.exactness import ALGO_KWARGS
from benchmarks.fuzz import Fuzzer, make_intact, outcome, run_command
from benchmarks.fuzz_cases import BUG, CANARY, HANG, KINDS, RAN_CODE, REFUSED, Kind
from benchmarks.measurements import summarize_fuzz

from benchmarks import fuzz, fuzz_cases
from rl_training.experiment.config import TrainConfig

pytestmark = pytest.mark.process

CASES = 2  # of each kind


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    folder = tmp_path_factory.mktemp("fuzz")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RL_TRAINING_CACHE", str(folder / "cache"))
        make_intact(folder / "intact")
        yield Fuzzer(folder / "intact")


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_of_case_ends_rightly(fuzzer: Fuzzer, kind: Kind) -> None:
    wrong = [line for line in (fuzzer.run(number, kind) for number in range(CASES)) if not line["right"]]
    assert wrong == []


@pytest.mark.parametrize("algo", sorted(ALGO_KWARGS))
def test_the_configs_that_are_changed_are_valid(algo: str) -> None:
    TrainConfig(**fuzz_cases.base_config(algo))


def test_a_command_that_does_not_end_is_a_hang(fuzzer: Fuzzer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz, "LONGEST", 0.0)
    with fuzzer._copy() as folder:
        code, text = run_command(fuzz_cases.EVALUATE, folder)
        assert outcome(code, text, folder, None) == HANG


def test_code_that_runs_is_found(fuzzer: Fuzzer) -> None:
    with fuzzer._copy() as folder:
        config = fuzz_cases.base_config("dqn") | {"env_id": f"{fuzz_cases.EVIL}:Env-v0"}
        (folder / "config.yaml").write_text(yaml.safe_dump(config))  # the user's own config may name code
        code, text = run_command(("train", "config.yaml"), folder)
        assert (folder / CANARY).exists()
        assert outcome(code, text, folder, None) == RAN_CODE


def test_outcomes_are_judged_by_code_and_text(tmp_path: Path) -> None:
    assert outcome(2, "error: the file is damaged", tmp_path, None) == REFUSED
    assert outcome(2, "", tmp_path, None) == BUG  # no word about why
    assert outcome(1, "error: KeyError", tmp_path, None) == BUG
    assert outcome(-11, "", tmp_path, None) == BUG
    assert outcome(2, "Traceback (most recent call last)\nerror: x", tmp_path, None) == BUG


def test_the_kinds_come_in_their_shares() -> None:
    kinds = [kind for _, kind in fuzz.numbered_cases(2_000, 0)]
    assert set(kinds) == set(KINDS)
    for kind, share in KINDS.items():
        assert kinds.count(kind) == pytest.approx(2_000 * share / sum(KINDS.values()), rel=0.3)


def test_the_summary_counts_what_went_wrong() -> None:
    lines = [
        {"kind": "a", "outcome": REFUSED, "right": True},
        {"kind": "a", "outcome": BUG, "right": False},
        {"kind": "b", "outcome": REFUSED, "right": True},
    ]
    assert summarize_fuzz(lines) == {
        "cases": 3,
        "wrong": 1,
        "outcomes": {REFUSED: 2, BUG: 1},
        "kinds": {"a": {REFUSED: 1, BUG: 1}, "b": {REFUSED: 1}},
    }


def test_a_case_is_the_same_for_the_same_number(fuzzer: Fuzzer) -> None:
    changes = []
    for _ in range(2):
        with fuzzer._copy() as folder:
            changes.append(fuzz_cases.resealed_values(folder, random.Random(5)).what)
    assert changes[0] == changes[1]
