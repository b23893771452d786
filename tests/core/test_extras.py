"""Optional packages: one message that says what to install, and one table that agrees with pyproject.toml."""

import json
import re
import sys
from pathlib import Path

import pytest

from rl_training.core.extras import EXTRAS, install_line, installed, require
from rl_training.errors import ConfigError

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text("utf-8")

DEVELOPERS = ("dev", "docs", "notebooks")  # extras for those who work on the library itself


def declared_extras() -> dict[str, list[str]]:
    """Return the extras of pyproject.toml with the names of their packages, without those for developers alone."""
    section = PYPROJECT.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    lists = re.findall(r"^(\w+) = (\[.*?\])", section, re.MULTILINE | re.DOTALL)
    names = {extra: re.findall(r'"([A-Za-z0-9_-]+)', packages) for extra, packages in lists if extra not in DEVELOPERS}
    assert names["minatar"] == ["minatar"]
    return names


def test_a_package_that_is_there_is_imported() -> None:
    assert require("PIL.Image", extra="offline", what="this").__name__ == "PIL.Image"


@pytest.mark.parametrize("module", ["matplotlib", "matplotlib.figure"])
def test_a_missing_package_is_named_with_what_to_install(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as error:
        require(module, extra="plot", what="a .png figure")
    assert str(error.value) == 'a .png figure needs the package matplotlib: pip install "rl-training[plot]"'


def test_the_package_is_named_as_pip_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(ConfigError, match="an image needs the package pillow: pip"):
        require("PIL.Image", extra="offline", what="an image")


def test_a_package_that_lacks_another_one_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wandb.py").write_text("import something_else_entirely", "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"wandb, which cannot be imported here \(No module named 'something_else"):
        require("wandb", extra="wandb", what="--track wandb")


def test_versions_come_from_the_installed_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib

    assert installed("plot") == {"matplotlib": matplotlib.__version__}
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert installed("plot") == {"matplotlib": None}


def test_the_table_knows_every_extra_and_only_packages_that_these_install() -> None:
    declared = declared_extras()
    assert set(declared) == set(EXTRAS)
    for extra, packages in declared.items():
        assert set(EXTRAS[extra].values()) <= set(packages), extra
        assert install_line(extra) == f"pip install {json.dumps(f'rl-training[{extra}]')}"
