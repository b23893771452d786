"""The documentation says what the code does: tables are fresh, links resolve, snippets and commands are valid."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from rl_training.cli import app
from rl_training.experiment.config import TrainConfig, parse_yaml
from rl_training.experiment.registry import registry

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGE_IDS = [str(page.relative_to(ROOT)) for page in PAGES]

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?rl-training (.+)$", re.MULTILINE)


def load_generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(page: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language in languages]


def anchors(page: Path) -> set[str]:
    """The names GitHub gives to headings."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text("utf-8")), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)) for heading in headings]
    return {heading.strip().lower().replace(" ", "-") for heading in plain}


def commands(page: Path) -> list[str]:
    """Every `rl-training ...` line of the page's shell blocks, without redirections, pipes and comments."""
    lines = [line for body in blocks(page, "sh", "bash", "") for line in COMMAND.findall(body)]
    return [re.split(r"\s+(?:[|>#&]|2>)|;", line)[0] for line in lines]


def test_generated_tables_are_fresh() -> None:
    stale = load_generator().stale_pages()
    assert not stale, f"run `python docs/generate.py`: {[str(page) for page in stale]}"


def test_a_changed_table_would_be_seen() -> None:
    generator = load_generator()
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    assert generator.regenerated(text.replace("| `seed` |", "| `sed` |")) == text


def test_every_setting_of_a_run_has_a_row() -> None:
    text = (ROOT / "docs" / "config.md").read_text("utf-8")
    assert [name for name in TrainConfig.model_fields if f"| `{name}` |" not in text] == []


@pytest.mark.parametrize("name", registry())
def test_every_algorithm_has_a_page_with_its_settings_and_a_row_in_the_readme(name: str) -> None:
    page = (ROOT / "docs" / "algorithms" / f"{name}.md").read_text("utf-8")
    assert re.search(rf"<!-- begin generated: hparams {name}( from \w+)? -->", page)
    assert f"| `{name}` |" in (ROOT / "README.md").read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    broken = []
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_python_snippets_compile(page: Path) -> None:
    for number, body in enumerate(blocks(page, "python")):
        compile(body, f"{page.name}:{number}", "exec")


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_yaml_snippets_that_set_an_algorithm_are_valid_configs(page: Path) -> None:
    for body in blocks(page, "yaml"):
        values = parse_yaml(body, page.name)
        if "algo" in values:
            TrainConfig(**values)


def parses(command: str) -> bool:
    """Whether the CLI takes the words of a command: `--help` comes first in line, before any of it is run."""
    words = shlex.split(command)
    depth = 2 if words[0] in ("config", "dataset") else 1
    group, rest = words[:depth], words[depth:]
    options = [word.partition("=")[0] for word in rest if word.startswith("-") and word != "-"]
    answer = CliRunner().invoke(app, [*group, "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    known = re.findall(r"(?<![\w-])--?[a-z][a-z-]*", re.sub(r"\x1b\[[\d;]*m", "", answer.output))
    return answer.exit_code == 0 and all(option in known for option in options)


def test_the_readme_shows_every_command() -> None:
    shown = {command.split()[0] for command in commands(ROOT / "README.md")}
    assert shown >= {"train", "evaluate", "resume", "predict", "record", "dataset", "list", "config", "doctor"}


@pytest.mark.parametrize("page", PAGES, ids=PAGE_IDS)
def test_commands_parse(page: Path) -> None:
    assert [command for command in commands(page) if not parses(command)] == []


@pytest.mark.parametrize("command", ["trian --config x", "train --seedz 3", "config shwo x"])
def test_a_wrong_command_would_be_seen(command: str) -> None:
    assert not parses(command)
