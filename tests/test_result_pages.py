"""The results page, the learning curves and the comments of the configs show what the result files hold."""

import importlib
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from benchmarks.rows import ROWS

from rl_training.experiment.config_files import PACKAGED_CONFIGS, packaged_configs, shipped_scores
from rl_training.experiment.registry import registry

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
RESULT_FILE = r"benchmarks/results/(?:scores|atari)/[\w.*-]+\.jsonl"


def module(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module(name)


@pytest.fixture
def curves(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("learning_curves", monkeypatch)


@pytest.fixture
def targets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    return module("targets", monkeypatch)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("-157.0 ± 88.7 at 20k steps (rl-zoo3's table)", (-157.0, 88.7, 20_000)),
        ("386 ± 64 (the table of its pull request: 5 seeds)", (386.0, 64.0, 500)),
        ("about 3300 (the MBPO paper's learning curves)", (3300.0, None, 500)),
        ("-101.6 of an expert's -98.8 (TRPO, 1.5M steps)", (-101.6, None, 1_500_000)),
        ("6.3 at 10M frames (Dopamine)", (6.3, None, 10_000_000)),
        ("6 to 7 (read off a curve)", None),
        ("needs 800k steps for the expert's 500", None),
    ],
)
def test_a_published_score_is_read_from_its_text(curves: ModuleType, text: str, found: object) -> None:
    assert curves.published_score(text, 500) == found


def test_every_page_with_scores_shows_its_curves(curves: ModuleType) -> None:
    for algo in registry():
        page = (DOCS / "algorithms" / f"{algo}.md").read_text("utf-8")
        shown = re.findall(r"images/curves/([\w.-]+)\.svg", page)
        assert shown == list(curves.figures(algo)), algo
        assert any(figure.lines for figure in curves.figures(algo).values()), algo  # not only final scores


def test_pictures_of_rows_that_are_gone_are_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    generator = module("generate", monkeypatch)
    assert generator.left_over_pictures() == []
    (tmp_path / "gone.svg").write_text("")
    monkeypatch.setattr(generator, "CURVES", tmp_path)
    assert generator.left_over_pictures() == [tmp_path / "gone.svg"]


def test_a_curve_names_ours_the_peer_and_the_published_score(curves: ModuleType) -> None:
    root = ET.fromstring(curves.curve_figure("sac-pendulum").svg())
    texts = " ".join(text.text or "" for text in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "SAC on Pendulum-v1" in texts
    assert re.search(r"rl-training, \d+ seeds", texts)
    assert re.search(r"SB3, \d+ seeds", texts)
    assert "rl-zoo3, published: -157 at 20k" in texts


def test_the_curves_of_a_page_have_different_titles(curves: ModuleType) -> None:
    for algo in registry():
        titles = [figure.title for figure in curves.figures(algo).values() if figure.lines]
        assert len(titles) == len(set(titles)), algo


@pytest.mark.parametrize(("row", "unit"), [("sac-pendulum", "env steps"), ("iql-pendulum", "updates")])
def test_the_steps_of_an_offline_row_are_updates(curves: ModuleType, row: str, unit: str) -> None:
    assert curves.curve_figure(row).x_label == unit


def test_a_curve_takes_no_runs_on_another_dataset(curves: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        {"contender": "ours", "steps": 10, "seed": seed, "dataset": {"sha256": sha256}, "curve": curve}
        for seed, sha256, curve in (
            (0, "a" * 64, {"steps": [5, 10], "returns": [1.0, 2.0]}),
            (0, "b" * 64, {"steps": [5, 10], "returns": [3.0, 4.0]}),
        )
    ]
    monkeypatch.setattr(curves, "score_lines", lambda row: lines)
    first = curves.read_curve("iql-x", {"contender": "ours", "steps": 10, "dataset": "a" * 12}, 0)
    assert list(first.y) == [1.0, 2.0]


def entry(scores: list[float], *, target: str = "", peer: float = 0.0, held: tuple[float | None, ...] = ()) -> Any:
    ours = {"contender": "ours", "steps": 100, "seeds": list(range(len(scores))), "scores": scores}
    ours |= {"mean": sum(scores) / len(scores), "std": 1.0, "first_held": list(held)}
    d3rlpy = {**ours, "contender": "d3rlpy", "mean": peer}
    return {"row": "dqn-x", "target": target, "budget": 100, "threshold": None, "contenders": [ours, d3rlpy]}


def outcomes(targets: ModuleType, monkeypatch: pytest.MonkeyPatch, scored: Mapping[str, Any]) -> list[Any]:
    monkeypatch.setattr(targets, "summary", lambda: {"scores": scored})
    return [verdict.met for verdict in targets.verdicts("dqn-x")]


@pytest.mark.parametrize(
    ("target", "met"),
    [
        (">= 20", [True]),
        (">= 21", [False]),
        ("10 on 3/3 seeds", [True]),
        ("11 on 3/3 seeds", [False]),
        ("10 on 4/4 seeds", [False]),  # there are three
        ("first held at 5+ by 2k; no seed below 10", [False, True]),
        ("mean >= d3rlpy, and >= bc + 10 %", [True, None]),
        (">= 25, or >= 20 on the mean of 3 seeds", [True]),
        ("taller than a tree", [None]),
        ("mean >= 20", [True]),
        (">= ours-no-her; ours-no-her below 10", [True, True]),
        (">= no-her", [True]),
        ("ours-no-her below 9", [False]),
        ("ours-shuffled below 9", [None]),
        ("none set; compared with iql", []),
        ("none set; from scratch, without init_from", []),
    ],
)
def test_the_clauses_of_a_target_are_decided(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch, target: str, met: list[bool | None]
) -> None:
    row = entry([10.0, 20.0, 30.0], target=target, peer=19.0, held=(1_000.0, 2_000.0, None))
    row["contenders"].append({**row["contenders"][0], "contender": "ours-no-her", "mean": 9.0})
    assert outcomes(targets, monkeypatch, {"dqn-x": row}) == met


@pytest.mark.parametrize(
    ("target", "met"),
    [
        ("within 5 of the expert's mean return", [True]),  # 20 against 24
        ("within 3 of the expert's mean return", [False]),
        ("within 20 % of the expert's mean return", [True]),  # 20 against 0.8 * 24 = 19.2
        ("within 10 % of the expert's mean return; taller than a tree", [False, None]),
    ],
)
def test_the_distance_to_an_expert_is_a_number_or_a_share(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch, target: str, met: list[bool | None]
) -> None:
    monkeypatch.setattr(targets, "read_lines", lambda file: [{"expert": {"mean_return": 24.0}}])
    assert outcomes(targets, monkeypatch, {"dqn-x": entry([10.0, 20.0, 30.0], target=target)}) == met


def test_a_target_that_names_another_algorithm_is_compared_with_its_row(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = entry([25.0], held=(1_000.0,))
    row = entry(
        [10.0, 20.0, 30.0], target=">= qr_dqn on the mean; 5 first held no later than by qr_dqn", held=(500.0,) * 3
    )
    assert outcomes(targets, monkeypatch, {"dqn-x": row, "qr_dqn-x": other}) == [False, True]
    assert targets.verdicts("dqn-x")[0].found == "20.0 ± 1.0, qr_dqn 25.0"


def test_a_distance_in_normalised_points_is_measured_in_them(
    targets: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = entry([10.0], target=">= d3rlpy + 10 normalised points; >= d3rlpy + 11 normalised points", peer=1_000.0)
    for each, points in zip(row["contenders"], (40.0, 30.0), strict=True):
        each["normalised_mean"] = points
    assert outcomes(targets, monkeypatch, {"dqn-x": row}) == [True, False]
    assert targets.verdicts("dqn-x")[0].found == "40.0 points, d3rlpy 30.0 points"


@pytest.mark.parametrize("name", ROWS)
def test_every_target_is_written_so_that_it_can_be_decided(targets: ModuleType, name: str) -> None:
    clauses = [each for clause in targets.clauses(ROWS[name].target) for each in clause.split(", or ")]
    assert [each for each in clauses if not any(re.fullmatch(pattern, each) for pattern in targets.CHECKS)] == []


def test_no_target_is_shown_where_none_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    target_text = module("score_list", monkeypatch).target_text
    assert (
        target_text("dqn-mountaincar", {"target": "none set; the expert that gail-mountaincar imitates"}) == "none set"
    )


def test_a_target_is_not_decided_by_runs_on_other_data(targets: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    row = entry([10.0, 20.0, 30.0], target="mean >= d3rlpy", peer=19.0)
    ours, d3rlpy = row["contenders"]
    row["contenders"] = [{**ours, "dataset": "aaaa"}, {**d3rlpy, "dataset": "bbbb"}]
    assert outcomes(targets, monkeypatch, {"dqn-x": row}) == [None]
    row["contenders"].append({**d3rlpy, "dataset": "aaaa"})
    assert outcomes(targets, monkeypatch, {"dqn-x": row}) == [True]


def test_every_seed_that_missed_is_named(targets: ModuleType) -> None:
    assert targets.seeds_below(entry([10.0, 20.0, 30.0])["contenders"][0], 25.0) == "seed 0: 10.0, seed 1: 20.0"


def test_the_results_page_lists_every_contender_and_every_published_score(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list(module("score_list", monkeypatch).score_list(DOCS, []))[2:]
    scores = module("result_cells", monkeypatch).summary()["scores"]
    contenders = sum(len(entry["contenders"]) for entry in scores.values())
    published = sum(len(entry["published"]) for name, entry in scores.items() if name == entry["row"])
    assert len(lines) == contenders + published
    assert all(line.count(" | ") == 10 for line in lines)


def test_five_tasks_are_shown_together_beside_the_published_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = module("suite_tables", monkeypatch)

    def suite(budget: int, mean: float | None, **more: Any) -> dict[str, Any]:
        scores = {"seeds": [0, 1, 2], "mean": mean, "iqm": 0.5, "interval": [0.25, 0.75]}
        contenders = [] if mean is None else [{"contender": "ours", **scores}]
        return {"rows": [], "budget": budget, "contenders": contenders, **more}

    suites = {
        "iql-mujoco-50k": suite(50_000, 0.9),  # another suite
        "td3-five_tasks-100k": suite(100_000, 0.4),
        "sac-five_tasks-200k": suite(200_000, None, published=0.52280),
        "sac-five_tasks-100k": suite(100_000, 0.2799, published=0.27617),
        "crossq-five_tasks-100k": suite(100_000, 0.74, published=0.73542),
    }
    monkeypatch.setattr(tables, "summary", lambda: {"suites": suites})
    sac, td3, crossq, later = (line.split(" | ")[1:] for line in list(tables.five_tasks_table(DOCS, []))[2:])
    assert sac == ["100k", "3", "0.280", "0.500 (0.250 to 0.750)", "0.28", "missed: >= 0.28 |"]
    assert td3 == ["100k", "3", "0.400", "0.500 (0.250 to 0.750)", "", " |"]
    assert crossq[-1] == "met: >= 0.74 |"
    assert later == ["200k", "", "not scored yet", "", "0.52", " |"]
    assert len(list(tables.five_tasks_table(DOCS, ["sac"]))) == 4


def test_what_a_run_says_about_its_resume_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = module("trial_tables", monkeypatch).claim
    repeated, open_ones = "exact: episodes were repeated in 8 of 8 trials", "exact: the open episodes were repeated"
    assert claim(repeated, open_ones) == "exact, 8 of 8 trials"
    assert claim("at an episode boundary: seed and actions did not", "resumed at one") == "at an episode boundary"
    assert claim(repeated, "resumed at one") == "exact, 8 of 8 trials; later: resumed at one"


BBF_ENTRY = {"env_id": "BoxingNoFrameskip-v4", "frames": 400_000, "target": ">= 77.4", "published": {}}


def test_games_of_one_config_are_shown_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tables = module("score_tables", monkeypatch)
    figures = {"mean": 2.0, "median": 0.5, "iqm": 1.25, "interval": [1.0, 1.5]}
    suites = {
        "bbf/atari100k.yaml": {"ours": {"rows": 4, "seeds": [0, 1], **figures}},
        "dreamer/breakout_atari.yaml": {},  # no seed has played all games yet
    }
    monkeypatch.setattr(tables, "summary", lambda: {"atari_suites": suites})
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "atari").mkdir()
    line = {"seed": 0, "step": 100_000, "steps": 100_000, "final": {"mean_return": 6.1}}
    (tmp_path / "atari" / "bbf-boxing.jsonl").write_text(json.dumps(line) + "\n")
    title, _, row, _, *games = tables.atari_table(tmp_path, {"bbf-boxing": BBF_ENTRY})
    assert title.split(" | ")[4:6] == ["final policy", "human-normalised"]
    assert row.split(" | ")[4:6] == ["6.1", "0.50"]  # (6.1 - 0.1) / 12
    assert games[2:] == ["| `bbf/atari100k.yaml` | 4 | 2 | 1.25 (1.00 to 1.50) | 2.00 | 0.50 |"]
    assert list(tables.games_table({"dreamer", "iqn"})) == []


def test_a_stopped_run_has_its_own_budget_and_the_policy_that_was_played_afterwards(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = module("score_tables", monkeypatch)
    monkeypatch.setattr(tables, "summary", lambda: {"atari_suites": {}})
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    (tmp_path / "atari").mkdir()
    line = {"seed": 0, "step": 150_000, "steps": 200_000, "final": None, "after": {"sampled": {"mean_return": 6.1}}}
    (tmp_path / "atari" / "bbf-boxing.jsonl").write_text(json.dumps(line) + "\n")
    _, _, row, *_ = tables.atari_table(tmp_path, {"bbf-boxing": BBF_ENTRY})  # whose budget is 400,000 frames now
    assert row.split(" | ")[1:6] == ["0.6M of 0.8M", "0", "not recorded", "6.1", "0.50"]


def test_a_run_without_a_whole_window_of_frames_has_no_picture(
    curves: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {"frames": [40_000], "complete": [False], "mean_return": [3.0]}
    monkeypatch.setattr(curves, "summary", lambda: {"atari": {"bbf-boxing": BBF_ENTRY}})
    monkeypatch.setattr(curves, "read_lines", lambda path: [{"seed": 0, "training_curve": training}])
    assert curves.atari_figure("bbf-boxing") is None
    training["complete"] = [True]
    figure = curves.atari_figure("bbf-boxing")
    assert figure.title == "BBF on BoxingNoFrameskip-v4, training episodes"
    assert [line.y.tolist() for line in figure.lines] == [[3.0]]


def first_comment(config: str) -> str:
    lines = (PACKAGED_CONFIGS / config).read_text("utf-8").splitlines()
    return " ".join(
        line.removeprefix("# ") for line in lines[: next(i for i, line in enumerate(lines) if line[0] != "#")]
    )


@pytest.mark.parametrize("config", packaged_configs())
def test_the_comment_of_a_config_names_its_scores_and_their_seeds(config: str) -> None:
    comment = first_comment(config)
    files = re.findall(RESULT_FILE, comment)
    scored = bool(shipped_scores().get(config))
    assert ("Not scored yet" in comment, bool(files)) == (not scored, scored)
    assert all(list(ROOT.glob(file)) for file in files)
    for first, last, file in re.findall(rf"seeds (\d+) (?:to|and) (\d+)[^:]*: ({RESULT_FILE})", comment):
        for found in ROOT.glob(file):
            lines = map(json.loads, found.read_text("utf-8").splitlines())
            seeds = {line["seed"] for line in lines if line["contender"] == "ours"}
            assert seeds == set(range(int(first), int(last) + 1)), found.name
