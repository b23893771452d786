"""The documentation is true: generated parts are fresh, links resolve, snippets and commands are valid."""

import ast
import dataclasses
import functools
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from rl_training.api import exports
from rl_training.cli import app
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.config_files import parse_yaml
from rl_training.experiment.registry import AlgorithmSpec, registry
from test_architecture import LAYERS

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
DOCS = ROOT / "docs"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
CONFIGS = sorted((ROOT / "src" / "rl_training" / "assets" / "configs").rglob("*.yaml"))

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
MATH = re.compile(r"^\$\$.*?\$\$$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?rl-training (.+)$", re.MULTILINE)
WIDTH = 100
# Archaic words, and words that have a plainer one: again, also, learned, reported, evaluated, deleted.
REJECTED_WORDS = re.compile(
    r"\b(anew|besides|lest|learnt|whatever|be it|of ours|made up|will do|told|judged?|believed|abandoned|as far as|"
    r"the env's)\b",
    re.IGNORECASE,
)


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DOCS))
    return importlib.import_module("generate")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language in languages]


def prose(page: Path) -> str:
    """Return a page without code blocks and displayed formulas."""
    return MATH.sub("", FENCE.sub("", page.read_text("utf-8")))


def anchors(page: Path) -> set[str]:
    """Return the names that GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings]
    return {heading.strip().lower().replace(" ", "-") for heading in plain}


def commands(page: Path) -> list[str]:
    """Return every `rl-training ...` line of the page's shell blocks, without redirections, pipes and comments."""
    lines = [line for body in blocks(page, "sh", "bash", "") for line in COMMAND.findall(body.replace("\\\n", " "))]
    return [re.split(r"\s+(?:[|>#&]|2>)|;", line)[0] for line in lines]


# --- Generated parts --------------------------------------------------------------------------------------------------


def test_generated_parts_are_fresh(generator: ModuleType) -> None:
    stale = generator.stale_files()
    assert not stale, f"run `python docs/generate.py`: {[str(path) for path in stale]}"


@pytest.mark.parametrize(
    ("page", "fresh", "stale"),
    [
        ("docs/config.md", "| `seed` |", "| `sed` |"),
        ("docs/algorithms/dqn.md", "341.7 ± 224.9", "541.7 ± 224.9"),
        ("README.md", "| SB3 685 |", "| SB3 585 |"),
    ],
)
def test_a_changed_table_is_found(generator: ModuleType, page: str, fresh: str, stale: str) -> None:
    text = (ROOT / page).read_text("utf-8")
    assert fresh in text
    assert generator.regenerated(text.replace(fresh, stale), (ROOT / page).parent) == text


def test_an_unknown_table_is_an_error(generator: ModuleType) -> None:
    with pytest.raises(ValueError, match="unknown table 'scors dqn'"):
        generator.table("scors dqn", DOCS)


GENERATED = re.compile(r"<!-- begin generated: .*?<!-- end generated -->", re.DOTALL)
TYPED_RESULT = re.compile(
    r"\d ± \d"
    r"|\d (?:env )?(?:steps|updates)(?:/s| per second)"
    r"|(?:ended|ends|scored|reached|reaches|made) (?:at |between )?-?\d[\d.,]*(?! steps)\b"
    r"|^\|(?:[^|\n]*\|)*[^|\n]*(?:return|score|steps/s|updates/s|seconds)[^|\n]*\|[^\n]*\n\|(?:---\|)+\n(?:\|.*\d.*\n)",
    re.MULTILINE,
)


def typed_results(text: str) -> list[str]:
    """Return scores and speeds that stand in the text itself: in sentences, and in tables with such a column."""
    return TYPED_RESULT.findall(MATH.sub("", FENCE.sub("", GENERATED.sub("", text))))


def test_results_are_generated_not_typed() -> None:
    pages = [README, *sorted(DOCS.rglob("*.md"))]
    found = {name_of(page): typed_results(page.read_text("utf-8")) for page in pages}
    assert {name: results for name, results in found.items() if results} == {}


@pytest.mark.parametrize(
    "text",
    [
        "reaches -169.3 ± 1.5",
        "One seed had ended at 403.",
        "Pong ran at 1,706 env steps per second.",
        "| setting | seeds | final return |\n|---|---|---|\n| one update | 0 to 4 | 463 |\n",
        "| backend | env steps/s |\n|---|---|\n| `local_sync` | 55,000 |\n",
    ],
)
def test_a_typed_result_is_found(text: str) -> None:
    assert typed_results(text)
    assert not typed_results(f"<!-- begin generated: scores dqn -->\n{text}<!-- end generated -->\n")


def test_a_page_names_the_targets_that_its_scores_miss(generator: ModuleType) -> None:
    lines = generator.table("scores rainbow_dqn", DOCS).splitlines()
    missed = lines[lines.index("| row | target that is missed | found | note |") + 2 :]
    (row,) = [line for line in missed if line.startswith("| [`rainbow_dqn-minatar-breakout`](")]
    assert "| >= dqn on the mean |" in row


def test_every_setting_of_a_run_has_a_row() -> None:
    text = (DOCS / "config.md").read_text("utf-8")
    assert [name for name in TrainConfig.model_fields if f"| `{name}` |" not in text] == []


def test_every_algorithm_has_a_page_with_its_settings_and_a_row_in_the_readme() -> None:
    readme = README.read_text("utf-8")
    for name in registry():
        page = (DOCS / "algorithms" / f"{name}.md").read_text("utf-8")
        assert re.search(rf"<!-- begin generated: hparams {name}( from \w+)? -->", page), name
        assert f"| [`{name}`](docs/algorithms/{name}.md) |" in readme


def test_every_algorithm_page_takes_its_scores_and_curves_from_the_results() -> None:
    marks = {
        name: sorted(
            re.findall(r"<!-- begin generated: (scores|curves) (\w+)", (DOCS / "algorithms" / f"{name}.md").read_text())
        )
        for name in registry()
    }
    assert marks == {name: [("curves", name), ("scores", name)] for name in registry()}


def test_an_algorithm_without_results_names_the_command_that_adds_them(generator: ModuleType) -> None:
    (line,) = importlib.import_module("score_tables").score_tables(DOCS, ["brand_new"])
    assert line == "Not scored yet: `python -m benchmarks scores brand_new` runs its rows."
    assert generator.table("curves brand_new", DOCS) == ""


def test_every_learning_curve_is_drawn_over_its_seeds(generator: ModuleType) -> None:
    curves = importlib.import_module("learning_curves")
    ours = curves.curve_figure("ppo-lunarlander").lines[0]
    assert ours.label == "rl-training, 5 seeds"
    assert ours.x[-1] == 1_000_000
    assert (ours.low <= ours.y).all()
    assert (ours.y <= ours.high).all()


# --- Pages ------------------------------------------------------------------------------------------------------------


def test_the_readme_is_short_outside_of_its_tables() -> None:
    written = re.sub(r"<!-- begin generated: .*?<!-- end generated -->", "", README.read_text("utf-8"), flags=re.DOTALL)
    assert len(written.splitlines()) <= 90


def test_lines_outside_of_tables_and_code_are_wrapped() -> None:
    long = [
        (name_of(page), line)
        for page in PAGES
        for line in prose(page).splitlines()
        if len(line) > WIDTH and not line.startswith(("|", "<!--", "!["))
    ]
    assert long == []


def test_pages_and_config_comments_are_in_plain_english() -> None:
    texts = {
        name_of(page): re.sub(
            r"<!-- begin generated: (config|hparams).*?end generated -->", "", prose(page), flags=re.DOTALL
        )
        for page in PAGES
    }
    texts |= {name_of(config): "\n".join(re.findall("#.*", config.read_text("utf-8"))) for config in CONFIGS}
    found = {name: sorted({word.lower() for word in REJECTED_WORDS.findall(text)}) for name, text in texts.items()}
    assert {name: words for name, words in found.items() if words} == {}


def test_every_page_is_in_the_index_once(generator: ModuleType) -> None:
    """The site builds its sidebar from the index, so a page that is missing there cannot be reached."""
    contents = importlib.import_module("contents")
    listed = [page for pages in contents.sections(contents.INDEX.read_text("utf-8")).values() for page in pages]
    expected = {page.resolve() for page in PAGES} - {README.resolve(), contents.INDEX}
    assert sorted(listed) == sorted(expected | {ROOT.resolve() / "benchmarks" / "README.md"})


def test_the_api_page_lists_every_public_name_once() -> None:
    listed = re.findall(r"^\* `(\w+)`$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(exports.homes())


def test_a_dead_link_and_a_file_of_another_site_are_found(generator: ModuleType, tmp_path: Path) -> None:
    checker = importlib.import_module("check_site")
    (tmp_path / "index.html").write_text(
        '<h1 id="top"></h1><a href="a%20b.html#here"></a><a href="#top"></a><a href="https://example.org/x"></a>'
    )
    (tmp_path / "a b.html").write_text('<p id="here"><img src="index.html">')
    assert checker.faults(tmp_path) == []
    (tmp_path / "bad.html").write_text(
        '<a href="gone.html"></a><a href="index.html#gone"></a><script src="https://example.org/x.js"></script>'
    )
    assert checker.faults(tmp_path) == [
        "bad.html links to gone.html, which does not exist",
        "bad.html links to index.html#gone, which does not exist",
        "bad.html loads https://example.org/x.js",
    ]


def test_alternatives_become_tabs_of_the_site(generator: ModuleType) -> None:
    tabs = importlib.import_module("tabs")
    page = "a\n<!-- tabs -->\n\n**One**\n\n1\n\n**Two**\n\n2\n\n<!-- end tabs -->\nb\n"
    assert tabs.as_tab_sets(page) == (
        "a\n::::{tab-set}\n:::{tab-item} One\n\n1\n\n:::\n:::{tab-item} Two\n\n2\n\n:::\n::::\nb\n"
    )
    with pytest.raises(ValueError, match="tabs begin with a line in bold, got 'no label'"):
        tabs.as_tab_sets("<!-- tabs -->\nno label\n<!-- end tabs -->\n")


def links(page: Path) -> Iterator[tuple[str, str, Path, str]]:
    """Yield text, target, file and anchor of each link that leads into the repository."""
    for text, target in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield text, target, (page.parent / path) if path else page, anchor


def test_relative_links_lead_to_files_and_headings() -> None:
    broken = [
        (name_of(page), target)
        for page in PAGES
        for _, target, file, anchor in links(page)
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file))
    ]
    assert broken == []


def defines(file: Path, symbol: str) -> bool:
    """Return whether a module defines a name, or a class of it a method: `Collector.step`."""
    *owner, name = symbol.split(".")
    tree: Any = ast.parse(file.read_text("utf-8"))
    if owner:
        classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner[0]]
        tree = classes[0] if classes else ast.Module([], [])
    nodes = list(ast.walk(tree))
    named = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    return name in named | {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}


def test_links_to_code_name_a_symbol_that_the_file_defines() -> None:
    wrong = [
        (name_of(page), text)
        for page in PAGES
        for text, _, file, _ in links(page)
        if file.suffix == ".py" and re.fullmatch(r"`[\w.]+`", text) and not defines(file, text.strip("`"))
    ]
    assert wrong == []


@pytest.mark.parametrize("symbol", ["Colector", "Collector.stp", "Callback.step"])
def test_a_wrong_symbol_is_found(symbol: str) -> None:
    assert not defines(ROOT / "src" / "rl_training" / "runtime" / "collector.py", symbol)


def test_the_architecture_page_draws_the_folders_as_the_imports_go() -> None:
    diagram = blocks(DOCS / "architecture.md", "")[0]
    drawn = [re.findall(r"\w+", match) for match in re.findall(r"^(\w+(?:, \w+)*)\s", diagram, re.MULTILINE)]
    assert [sorted(row) for row in drawn] == [
        sorted(name for name in row if not name.startswith("__")) for row in LAYERS
    ]


def test_the_reliability_page_names_tests_that_exist() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", (ROOT / "docs" / "reliability.md").read_text())
    missing = [test for file, test in named if f"def {test}(" not in (ROOT / "tests" / file).read_text()]
    assert len(named) > 20
    assert missing == []


def test_score_files_that_configs_name_exist() -> None:
    missing = [
        (name_of(config), path)
        for config in CONFIGS
        for path in re.findall(r"benchmarks/results/\S+\.jsonl", config.read_text("utf-8"))
        if not list(ROOT.glob(path))
    ]
    assert missing == []


# --- Snippets and commands --------------------------------------------------------------------------------------------


def test_python_snippets_compile_and_import_names_that_exist() -> None:
    for page in PAGES:
        for number, body in enumerate(blocks(page, "python")):
            tree = compile(body, f"{page.name}:{number}", "exec", ast.PyCF_ONLY_AST)
            imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
            for node in imports:
                if node.module and node.module.startswith("rl_training"):
                    module = importlib.import_module(node.module)
                    assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], name_of(page)


CALLBACK_EXAMPLES = blocks(DOCS / "callbacks.md", "python")


@pytest.mark.parametrize("number", range(len(CALLBACK_EXAMPLES)))
def test_the_examples_of_the_callbacks_page_run(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = CALLBACK_EXAMPLES[number]
    for written, short in (("50_000", "400"), ("60_000", "500"), ("5_000", "100")):
        code = code.replace(written, short)
    exec(compile(code, "callbacks.md", "exec"), {})
    assert list(tmp_path.glob("runs/*/result.json"))


PEERS = re.compile(r"^(?:from|import) (?:stable_baselines3|tianshou|d3rlpy)\b", re.MULTILINE)


def test_the_examples_of_the_tensor_environments_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(DOCS / "tensor_environments.md", "python"):
        exec(compile(code, "tensor_environments.md", "exec"), names)
    assert names["agent"].evaluate(episodes=1)[0].length <= 50
    assert int(names["result"].episode_length.max()) <= 50


def test_the_example_of_the_goals_page_reaches_every_goal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in blocks(DOCS / "goals.md", "python"):
        exec(compile(code, "goals.md", "exec"), names)
    assert all(episode.success for episode in names["episodes"])
    assert names["NeverTerminates"].compute_terminated(None, None, None, {}) is False


def test_the_examples_of_the_page_for_newcomers_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks share their names, as on the page: data, then what learns from them."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    page = DOCS / "coming_from.md"
    for code in [body for body in blocks(page, "python") if not PEERS.search(body)]:
        for written, short in (("50_000", "300"), ("20_000", "300"), ("10_000", "20"), ("5_000", "100")):
            code = code.replace(written, short)
        exec(compile(code, page.name, "exec"), names)
    runs = [json.loads(file.read_text("utf-8")) for file in tmp_path.glob("runs/*/result.json")]
    assert sorted(run["step"] for run in runs) == [20, 100, 300, 300, 300]
    assert names["action"].shape == (1, 1)


def test_the_page_for_newcomers_names_settings_that_exist() -> None:
    table = (DOCS / "coming_from.md").read_text("utf-8").partition("## Names")[2].partition("\n## ")[0]
    rows = [row.split("|") for row in table.splitlines() if row.startswith("|")]
    named = {name for _, _, here, *_ in rows for name in re.findall(r"`(\w+)`", here)}
    settings = {name for spec in registry().values() for name in spec.hparams.model_fields}
    assert len(named) > 20
    assert named - {*TrainConfig.model_fields, *registry(), *settings} == set()


def test_the_page_for_newcomers_denies_no_algorithm_that_is_here() -> None:
    (missing,) = re.findall(r"\*\*Not here\*\*: (.*?)\.", (DOCS / "coming_from.md").read_text("utf-8"), re.DOTALL)
    settings = {name for spec in registry().values() for name in spec.hparams.model_fields}
    names = {name.lower().replace(" ", "_") for name in re.split(r",\s+", missing)}
    assert names & {*registry(), *settings} == set()


def test_yaml_snippets_that_set_an_algorithm_are_valid_configs() -> None:
    for page in PAGES:
        for body in blocks(page, "yaml"):
            values = parse_yaml(body, page.name)
            if "algo" in values:
                TrainConfig(**values)


def test_the_extending_page_describes_every_field_of_a_registry_row() -> None:
    text = (DOCS / "extending.md").read_text("utf-8")
    assert [field.name for field in dataclasses.fields(AlgorithmSpec) if f"`{field.name}`" not in text] == []


def parses(command: str) -> bool:
    """Return whether the CLI accepts the words of a command; `--help` keeps it from running."""
    words = shlex.split(command)
    depth = 2 if words[0] in ("config", "dataset") else 1
    group, rest = words[:depth], words[depth:]
    options = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"]
    known = known_options(*group)
    return known is not None and all(option in known for option in options)


@functools.cache
def known_options(*group: str) -> list[str] | None:
    """Return the options in the help text of a command; None if there is no such command."""
    answer = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    if answer.exit_code != 0:
        return None
    return re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"\x1b\[[\d;]*m", "", answer.output))


def test_the_quickstart_shows_every_command() -> None:
    group: Any = get_command(app)
    shown = {command.split()[0] for command in commands(DOCS / "quickstart.md")}
    assert shown == set(group.commands)


def test_commands_parse() -> None:
    assert [(name_of(page), command) for page in PAGES for command in commands(page) if not parses(command)] == []


@pytest.mark.parametrize("command", ["trian --config x", "train --seedz 3", "config shwo x"])
def test_a_wrong_command_is_found(command: str) -> None:
    assert not parses(command)
