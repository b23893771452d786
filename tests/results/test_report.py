"""`report`: one HTML file that loads nothing, runs nothing and shows what the run folders hold."""

import base64
import csv
import json
import re
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from rl_training.cli import app
from rl_training.errors import ConfigError, EnvError
from rl_training.results.report import write_report
from rl_training.results.report_data import read_report
from rl_training.results.run_record import RunRecord
from rl_training.results.runs import find_runs
from run_folders import write_run

VOID = {"meta", "rect", "line", "polyline", "polygon", "circle"}
EVIL = "<script>alert(1)</script>"


class Page(HTMLParser):
    """Reads a page as a browser does: its text by element, its attributes, and whether every element is closed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.text = path.read_text()
        self.feed(self.text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", data.strip()))

    def of(self, tag: str) -> list[str]:
        return [text for where, text in self.texts if where == tag]

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.tags)

    @property
    def visible(self) -> str:
        return "\n".join(text for tag, text in self.texts if tag not in ("script", "style"))


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def make(folder: Path, **options: object) -> Page:
    out = folder.parent / "report.html"
    write_report(find_runs(folder), out, **options)  # type: ignore[arg-type]
    return Page(out)


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    for seed in range(3):
        write_run(folder / f"a{seed}", seed=seed, returns=(1.0, 5.0 + seed), algo="dqn")
        write_run(folder / f"b{seed}", seed=seed, returns=(2.0, 20.0 + seed), algo="ppo")
    return folder


def test_the_parts_of_the_page_come_in_their_order(runs: Path) -> None:
    page = make(runs, title="My runs", command="rl-training report runs")
    assert page.of("h1") == ["My runs"]
    assert page.of("h2") == [
        "Summary",
        "Learning curves",
        "Settings that differ",
        "Final scores",
        "Training metrics",
        "Seeds that are not finished",
        "System",
        "Files",
        "Command",
    ]
    assert "rl-training report runs" in page.of("code")
    verdict = next(text for text in page.of("p") if "scores highest" in text)
    assert verdict == (
        "ppo scores highest on CartPole-v1: 21.0 ± 1.0 over 3 seeds. A run of it scores higher than one of dqn with "
        "probability 1.00 (1.00 to 1.00): better in these few seeds."
    )
    assert "21.0 ± 1.0" in page.of("td")
    assert page.of("text").count("ppo (3 seeds)") >= 2  # the curve, and the one of each seed


def test_groups_with_overlapping_scores_are_not_clearly_better(tmp_path: Path) -> None:
    for seed in range(3):
        write_run(tmp_path / f"runs/a{seed}", seed=seed, returns=(10.0 + seed,), algo="dqn")
        write_run(tmp_path / f"runs/b{seed}", seed=seed, returns=(10.1 + seed,), algo="ppo")
    assert ": not clearly better." in make(tmp_path / "runs").visible


def test_every_chart_has_its_numbers_in_a_table(runs: Path) -> None:
    page = make(runs)
    assert page.count("svg") == page.of("summary").count("Numbers of this chart") == 7
    assert "6 (5 to 7)" in page.of("td")  # interquartile mean of 5, 6, 7 and its interval


def test_nothing_is_loaded_and_no_code_can_run(runs: Path) -> None:
    page = make(runs)
    text = (runs.parent / "report.html").read_text()
    assert re.findall("http[^ ]*", text) == ['http-equiv="Content-Security-Policy"']
    policy = next(attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert str(policy).startswith("default-src 'none';")
    assert "script-src" not in str(policy)
    assert not {name for _, attrs in page.tags for name in attrs} & {"src", "href", "srcset", "data", "onclick"}
    assert not re.search(r"url\(|@import", text)
    assert [attrs for tag, attrs in page.tags if tag == "script"] == [{"type": "application/json", "id": "data"}]
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_names_and_settings_of_others_are_shown_as_text(tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    write_run(folder / EVIL, env_id=EVIL, algo_kwargs={"network": f"<!--{EVIL}"})
    failed = write_run(folder / "b", env_id=EVIL, algo_kwargs={"network": '"><img src=x>'}, finished=False)
    (failed / "crash").mkdir()
    (failed / "crash" / "traceback.txt").write_text(f"Traceback\nValueError: {EVIL}\n")
    (failed / "metadata.json").write_text(json.dumps({"starts": [{"device": EVIL, "versions": {EVIL: EVIL}}]}))
    page = make(folder, title=EVIL, command=EVIL)
    assert page.count("script") == 1
    assert page.count("img") == 0
    assert page.of("h1") == page.of("code") == [EVIL]
    assert f"ValueError: {EVIL}" in page.of("td")
    assert '"><img src=x>' in page.of("td")
    data = read_report(tmp_path / "report.html")
    assert {each["env_id"] for each in data["runs"]} == {EVIL}
    assert {each["run"] for each in data["runs"]} == {f"runs/{EVIL}", "runs/b"}
    block = page.of("script")[0]
    assert "</" not in block
    assert "<!" not in block


def test_a_report_of_no_runs_is_refused(tmp_path: Path) -> None:
    result = run("report", tmp_path, "--out", tmp_path / "report.html")
    assert result.exit_code == 2
    assert "no run found" in result.stderr
    assert not (tmp_path / "report.html").exists()
    result = run("report", "--out", tmp_path / "report.html")
    assert result.exit_code == 2
    assert "give FOLDER..." in result.stderr


def test_the_file_must_have_a_fitting_name(runs: Path) -> None:
    result = run("report", runs, "--out", runs / "report.pdf")
    assert result.exit_code == 2
    assert "--out must be a .html file" in result.stderr


def test_the_folder_of_a_report_is_made(runs: Path) -> None:
    page, numbers = runs / "new" / "report.html", runs / "numbers" / "report.csv"
    assert run("report", runs, "--out", page).exit_code == 0
    assert run("report", "--extract", page, "--out", numbers).exit_code == 0
    assert page.is_file()
    assert numbers.is_file()


def test_seeds_that_are_not_finished_are_named(runs: Path) -> None:
    failed = write_run(runs / "c0", algo="dqn", seed=7, returns=(1.0,), finished=False)
    (failed / "crash").mkdir()
    (failed / "crash" / "traceback.txt").write_text("Traceback\nValueError: the reward is NaN\n")
    write_run(runs / "c1", algo="dqn", seed=8, returns=(), finished=False)
    page = make(runs)
    assert "6 of 8 runs are finished." in page.visible
    assert {"failed", "not started", "ValueError: the reward is NaN"} <= set(page.of("td"))
    assert {"runs/c0", "runs/c1"} <= set(page.of("th"))
    assert "No chart" not in page.visible


def test_runs_without_any_evaluation_have_a_report(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", returns=(), finished=False)
    page = make(tmp_path / "runs")
    assert "No run on CartPole-v1 was evaluated yet." in page.of("p")
    assert page.count("svg") == 0


def test_each_environment_has_its_own_table_and_curve(tmp_path: Path) -> None:
    write_run(tmp_path / "runs/a", env_id="CartPole-v1")
    write_run(tmp_path / "runs/b", env_id="Pendulum-v1")
    page = make(tmp_path / "runs")
    assert page.of("caption") == ["Scores: CartPole-v1", "Scores: Pendulum-v1"]
    assert "Pendulum-v1 scores 3.000 ± 0.000 over 1 seed." in page.of("p")
    assert "Final scores" not in page.of("h2")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("eval.jsonl", '{"step": 100, "episode": 0, "return": "x", "length": 1}\n[]\nnot json\n{"step": 3'),
        ("metrics.jsonl", '{"step": 100, "wall_s": "x", "metrics": {"loss": NaN}}\n{"step": 200, "metrics": []}\n'),
        ("result.json", '{"eval": [{"return": "x"}], "step": "x"}'),
        ("result.json", '{"eval": 3, "step": 200, "wall_s": 1}'),
        ("metadata.json", '{"starts": [3]}'),
        ("config.yaml", "algo: dqn\nseed: [\n"),
        ("config.yaml", "algo: dqn\nseed: x\neval_episodes: x\nenv_id: 3\n"),
    ],
)
def test_a_damaged_file_does_not_prevent_the_report(runs: Path, name: str, content: str) -> None:
    (runs / "a0" / name).write_text(content)
    page = make(runs)
    assert "21.0 ± 1.0" in page.of("td")


def test_a_run_without_readable_settings_is_named(runs: Path) -> None:
    (runs / "a0" / "config.yaml").write_text("3")
    page = make(runs)
    assert "Folders that cannot be read" in page.of("h3")
    assert "runs/a0" in page.of("th")
    for folder in runs.iterdir():
        (folder / "config.yaml").write_text("3")
    with pytest.raises(ConfigError, match="no run can be read"):
        make(runs)


def test_the_report_names_system_and_checksums(runs: Path) -> None:
    start = {
        "versions": {"torch": "2.13.0"},
        "host": {"name": "vm", "cpus": 2},
        "device": "cpu",
        "resume": "exact",
        "git_commit": "0123abc",
    }
    (runs / "a0" / "metadata.json").write_text(json.dumps({"starts": [{"device": "old"}, start]}))
    page = make(runs)
    assert {"torch 2.13.0", "name vm, cpus 2", "cpu", "exact", "0123abc"} <= set(page.of("td"))
    for name in ("config.yaml", "eval.jsonl", "result.json"):
        assert sha256((runs / "a0" / name).read_bytes()).hexdigest() in page.of("td")
        assert f"runs/a0/{name}" in page.of("th")


def test_a_hundred_runs_fit_into_the_limit(tmp_path: Path) -> None:
    for number in range(100):
        returns = [float(step % 17 + number / 3) for step in range(200)]
        write_run(tmp_path / f"runs/{number}", seed=number % 10, returns=returns, algo_kwargs={"gamma": number // 10})
    make(tmp_path / "runs", max_mb=10)
    assert (tmp_path / "report.html").stat().st_size < 10_000_000
    size = len(read_report(tmp_path / "report.html")["runs"][0]["records"]["train/loss"]["steps"])
    assert size == 200


def test_a_page_that_is_too_large_leaves_out_training_metrics_and_says_so(runs: Path) -> None:
    make(runs)
    whole = (runs.parent / "report.html").stat().st_size
    page = make(runs, max_mb=(whole - 1) / 1e6)
    assert "The raw numbers of these are left out: with them the page would be larger than --max-mb." in page.of("p")
    assert set(read_report(runs.parent / "report.html")["runs"][0]["records"]) == {"eval/return", "eval/length"}
    with pytest.raises(ConfigError, match=r"the report would have .* MB, more than --max-mb 0.001"):
        make(runs, max_mb=0.001)


# --- Videos ----------------------------------------------------------------------------------------------------------


def film(run: RunRecord) -> tuple[bytes, str]:
    """Stand in for a film: its size is that of the seed in thousands of bytes."""
    if run.algo == "ppo":
        raise EnvError(f"{EVIL} cannot be filmed: it has no render modes")
    return b"x" * 1000 * (run.seed + 1), f"seed {run.seed}"


def sources(page: Page) -> list[str | None]:
    return [attrs["src"] for tag, attrs in page.tags if tag == "video"]


def test_a_video_shows_the_run_with_the_median_score_of_each_group(runs: Path) -> None:
    page = make(runs, film=film)
    assert page.of("h2")[5:8] == ["Seeds that are not finished", "Videos", "System"]
    data = base64.b64encode(b"x" * 2000).decode()
    assert sources(page) == [f"data:video/mp4;base64,{data}"]  # of seed 1: 6.0 lies between 5.0 and 7.0
    assert "seed 1" in page.of("p")
    assert f"no film: {EVIL} cannot be filmed: it has no render modes" in page.of("p")
    policy = next(str(attrs["content"]) for tag, attrs in page.tags if attrs.get("http-equiv"))
    assert "media-src data:;" in policy
    assert not (runs.parent / "report_videos").exists()


def test_a_video_that_does_not_fit_is_a_file_beside_the_page(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(make(runs).text)
    page = make(runs, film=film, max_mb=(size + 2500) / 1e6)  # 2,667 bytes as base64
    assert (sources(page), page.of("a")) == ([], ["report_videos/0.mp4"])
    assert (runs.parent / "report_videos" / "0.mp4").read_bytes() == b"x" * 2000
    assert "The film has 0.0 MB, too much for this page; it is a file beside it:" in page.of("p")
    monkeypatch.setattr("rl_training.results.report_videos.MAX_VIDEO_BYTES", 1999)
    assert sources(make(runs, film=film)) == []


def test_the_median_run_of_a_group_that_was_not_evaluated_is_any(tmp_path: Path) -> None:
    write_run(tmp_path / "runs" / "a", returns=(), finished=False)
    assert len(sources(make(tmp_path / "runs", film=film))) == 1


def test_the_numbers_come_back_as_csv(runs: Path) -> None:
    report, out = runs.parent / "report.html", runs.parent / "data.csv"
    assert run("report", runs, "--out", report).exit_code == 0
    assert run("report", "--extract", report, "--out", out).stdout.strip() == str(out)
    lines = list(csv.DictReader(out.open()))
    chosen = [line for line in lines if line["run"] == "runs/b2" and line["record"] == "eval/return"]
    assert [(line["step"], line["value"]) for line in chosen] == [("100", "2.0"), ("200", "22.0")]
    assert chosen[0]["group"] == "ppo"
    assert {line["record"] for line in lines} == {"eval/return", "eval/length", "train/loss", "speed/steps_per_s"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "<html></html>",
        '<script id="data">{"format": 99}</script>',
        '<script id="data">{"format": 1, "runs": [{}]}</script>',
        '<script id="data">{"format": 1, "runs": [3]}</script>',
    ],
)
def test_other_files_are_not_taken_for_a_report(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.html").write_text(content)
    result = run("report", "--extract", tmp_path / "x.html", "--out", tmp_path / "x.csv")
    assert result.exit_code == 2
    assert "is not a report of rl-training" in result.stderr
    assert "there is no report" in run("report", "--extract", tmp_path / "y.html", "--out", tmp_path / "x.csv").stderr
