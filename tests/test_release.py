"""What a release needs: one version everywhere, valid templates, and a promise about Python that was tested."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import rl_training

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.fixture
def settings() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.fixture
def project(settings: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = settings["project"]
    return found


def test_the_citation_names_this_version_and_license(project: dict[str, Any]) -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["cff-version"] == "1.2.0"
    assert str(citation["version"]) == rl_training.__version__
    assert citation["license"] == project["license"]
    assert {"title", "authors", "message"} <= citation.keys()


def test_the_wheel_was_tried_with_every_python_that_is_promised(project: dict[str, Any]) -> None:
    prefix = "Programming Language :: Python :: "
    promised = [entry.removeprefix(prefix) for entry in project["classifiers"] if entry.startswith(prefix)]
    first, last = (int(version.partition(".")[2]) for version in (promised[0], promised[-1]))
    assert promised == [f"3.{minor}" for minor in range(first, last + 1)]
    assert project["requires-python"] == f">=3.{first},<3.{last + 1}"
    lines = (ROOT / "benchmarks" / "results" / "wheel.jsonl").read_text("utf-8").splitlines()
    tried = [line["versions"]["python"] for line in map(json.loads, lines) if line["outcome"] == "passed"]
    assert [version for version in promised if not any(each.startswith(f"{version}.") for each in tried)] == []


def test_the_sdist_does_not_search_for_its_files(settings: dict[str, Any]) -> None:
    """A search finds the link `configs` first and then leaves out what it leads to: a wheel without configs."""
    sdist = settings["tool"]["hatch"]["build"]["targets"]["sdist"]
    assert sdist.keys() == {"only-include"}
    assert [name for name in sdist["only-include"] if not (ROOT / name).exists()] == []


def test_there_are_templates_for_bugs_learning_and_features() -> None:
    forms = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in TEMPLATES}
    assert forms.pop("config") == {"blank_issues_enabled": True}
    assert sorted(forms) == ["bug", "feature", "learning"]
    for form in forms.values():
        assert {"name", "description", "labels", "body"} <= form.keys()
        asked = [field for field in form["body"] if field["type"] == "textarea"]
        assert len({field["id"] for field in asked}) == len(asked)
        assert any(field.get("validations", {}).get("required") for field in asked)


def test_the_changelog_begins_with_what_a_reader_needs() -> None:
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest = next(section for section in text.split("\n## [")[1:] if not section.startswith("Unreleased"))
    headings = [line for line in newest.splitlines() if line.startswith("### ")]
    assert headings[:2] == ["### In short", "### Upgrading from 0.2.0"]
    assert newest.index("### Added") < 5_000
