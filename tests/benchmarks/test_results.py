"""Result files, the statistics over them, the command line, and the committed summary."""

import argparse
import json
import re
from pathlib import Path

import pytest
from benchmarks.__main__ import COMMANDS, main
from benchmarks.command_line import UsageError, check_names, parse_seeds
from benchmarks.results import RESULTS, Session, append_line, read_lines
from benchmarks.spread import spread
from benchmarks.summarize import round_floats, scores_by_config, shipped_scores_text, summarize, to_text

from rl_training.commands.config import score_text
from rl_training.experiment.config_files import SHIPPED_SCORES, packaged_configs, shipped_scores
from rl_training.results.statistics import summarize as summarize_seeds

# --- Statistics ------------------------------------------------------------------------------------------------------


def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end() -> None:
    # Of eight scores the two lowest and the two highest go: (3 + 4 + 5 + 6) / 4.
    assert summarize_seeds([100.0, 1.0, 6.0, 3.0, 5.0, 4.0, 2.0, 90.0]).iqm == pytest.approx(4.5)
    # Of five, one at each end: (2 + 3 + 4) / 3.
    assert summarize_seeds([1.0, 2.0, 3.0, 4.0, 100.0]).iqm == pytest.approx(3.0)


def test_mean_and_deviation_are_those_of_the_sample() -> None:
    scores = summarize_seeds([2.0, 4.0, 9.0])
    assert scores.mean == pytest.approx(5.0)
    assert scores.std == pytest.approx(13.0**0.5)  # (9 + 1 + 16) / 2 = 13
    assert summarize_seeds([7.0]).std == 0.0


def test_the_interval_of_two_scores_is_their_range() -> None:
    # Both seeds of a resample are the lower one in a quarter of the resamples, and the upper one in another quarter:
    # more than the 2.5 % that are cut off at each end.
    assert summarize_seeds([1.0, 3.0]).interval == (1.0, 3.0)
    assert summarize_seeds([5.0, 5.0, 5.0]).interval == (5.0, 5.0)


def test_a_bootstrap_over_tasks_resamples_each_task_by_itself() -> None:
    # Every stratified resample holds two zeros and two tens, so the middle half is always (0 + 10) / 2. A bootstrap
    # over the pooled scores would also draw resamples of zeros alone.
    tasks = ([0.0, 0.0], [10.0, 10.0])
    assert summarize_seeds(*tasks).interval == (5.0, 5.0)
    assert summarize_seeds([0.0, 0.0, 10.0, 10.0]).interval == (0.0, 10.0)


def test_no_scores_cannot_be_summarised() -> None:
    with pytest.raises(ValueError, match="no scores"):
        summarize_seeds([])


def test_a_spread_is_the_median_with_the_range() -> None:
    assert f"{spread([3.0, 1.0, 2.5]):.1f}" == "2.5 (1.0..3.0)"


# --- Files -----------------------------------------------------------------------------------------------------------


def test_lines_are_read_as_they_were_appended(tmp_path: Path) -> None:
    file = tmp_path / "scores" / "row.jsonl"
    assert read_lines(file) == []
    append_line(file, {"seed": 0, "note": "± 1"})
    append_line(file, {"seed": 1})
    assert read_lines(file) == [{"seed": 0, "note": "± 1"}, {"seed": 1}]
    assert len(file.read_text(encoding="utf-8").splitlines()) == 2


def test_a_session_replaces_the_lines_of_the_one_before(tmp_path: Path) -> None:
    for machine in ("first", "second"):
        session = Session(tmp_path / "replay.jsonl", {"machine": machine, "date": "start"})
        session.add({"repeat": 0})
        session.add({"repeat": 1, "date": "later"})
    assert read_lines(session.path) == [
        {"repeat": 0, "machine": "second", "date": "start"},
        {"repeat": 1, "date": "later", "machine": "second"},
    ]


# --- The committed results -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def summary() -> dict[str, object]:
    return summarize(RESULTS)


def test_the_committed_summary_is_what_the_lines_give(summary: dict[str, object]) -> None:
    text = (RESULTS / "summary.json").read_text(encoding="utf-8")
    assert text == to_text(summary)
    assert json.loads(text) == summary


def test_the_shipped_scores_are_those_of_the_summary(summary: dict[str, object]) -> None:
    assert SHIPPED_SCORES.read_text("utf-8") == shipped_scores_text(summary)
    assert set(shipped_scores()) <= set(packaged_configs())


def _entry(row: str, *runs: tuple[int, float]) -> dict[str, object]:
    """Return a row's part of the summary: our runs, as steps and mean."""
    contenders = [
        {"contender": "ours", "steps": steps, "seeds": [0, 1], "mean": mean, "std": 1.0} for steps, mean in runs
    ]
    return {"row": row, "contenders": contenders}


def test_a_shorter_run_is_a_configs_score_only_where_there_is_no_full_one() -> None:
    entries = {
        "redq-hopper": _entry("redq-hopper", (40_000, 1.0), (60_000, 2.0)),
        "sac-hopper": _entry("sac-hopper", (200_000, 4.0), (100_000, 3.0)),
    }
    scores = scores_by_config({"scores": entries, "atari": {}})
    facts = {"env_id": "Hopper-v5", "seeds": [0, 1], "std": 1.0}
    assert scores == {
        "redq/hopper.yaml": [{**facts, "steps": 60_000, "budget": 125_000, "mean": 2.0}],
        "sac/hopper.yaml": [{**facts, "steps": 200_000, "mean": 4.0}],
    }
    assert score_text(scores["redq/hopper.yaml"][0]) == "2.0 ± 1.0 on Hopper-v5, 60,000 of 125,000 steps, seeds 0-1"


def test_every_result_file_is_summarised(summary: dict[str, dict[str, object]]) -> None:
    for file in RESULTS.rglob("*.jsonl"):
        kind = file.parent.name
        if kind not in ("results", "tuning"):
            assert file.stem in summary[kind], file
        assert kind != "results" or file.stem in summary, file


VARIANTS = ("-bfloat16", "-pytorch-weights", "-earlier-data")  # of a row: files of their own


@pytest.mark.parametrize("file", sorted((RESULTS / "scores").glob("*.jsonl")), ids=lambda file: file.stem)
def test_a_score_is_the_mean_return_of_the_final_policy(file: Path) -> None:
    for line in read_lines(file):
        assert file.stem.removeprefix(line["row"]) in ("", *VARIANTS)
        if "failed" not in line:
            assert line["score"] == pytest.approx(sum(line["returns"]) / len(line["returns"]))
            assert len(line["curve"]["steps"]) == len(line["curve"]["returns"])
            assert line["versions"]
            assert line["machine"]


def test_result_files_named_in_configs_and_documents_exist() -> None:
    root = RESULTS.parent.parent
    pages = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "configs").resolve().rglob("*.yaml")]
    cited = {
        (page.name, file)
        for page in pages
        for file in re.findall(r"benchmarks/results/[\w/*-]+\.\w+", page.read_text(encoding="utf-8"))
    }
    assert len(cited) > 50
    assert [(page, file) for page, file in sorted(cited) if not any(root.glob(file))] == []


def test_floats_are_rounded_to_six_digits() -> None:
    assert round_floats({"a": [1.23456789, (123456789.0, 3)], "b": None}) == {
        "a": [1.23457, [123457000.0, 3]],
        "b": None,
    }


# --- The command line ------------------------------------------------------------------------------------------------


def test_seeds_are_ranges_and_lists() -> None:
    assert parse_seeds("0-2,5") == [0, 1, 2, 5]
    with pytest.raises(argparse.ArgumentTypeError, match="0-4 or 0,2,5"):
        parse_seeds("a-b")


def test_no_names_are_all_names_and_unknown_ones_are_refused() -> None:
    assert check_names(None, ["sb3", "ours"], "contender") == ["sb3", "ours"]
    with pytest.raises(UsageError, match="unknown contender 'our'; did you mean 'ours'"):
        check_names(["our"], ["sb3", "ours"], "contender")
    with pytest.raises(UsageError, match="unknown contender 'xyz'; known: sb3, ours"):
        check_names(["xyz"], ["sb3", "ours"], "contender")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_its_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"python -m benchmarks {command}" in capsys.readouterr().out


def test_scores_lists_its_rows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["scores", "--list"]) == 0
    (row,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("sac-pendulum "))
    assert row.split(maxsplit=3) == ["sac-pendulum", "10,000", "5", ">= -160 by 5k, >= -150 at 10k"]


def test_an_unknown_command_is_refused_with_the_closest_name() -> None:
    with pytest.raises(UsageError, match="unknown command 'score'; did you mean 'scores'"):
        main(["score"])
