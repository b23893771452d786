"""The notebooks were executed, are small, and their cells still run, with shorter runs."""

import json
from pathlib import Path
from typing import Any

import pytest

from reference_scripts import EXAMPLES

NOTEBOOKS = sorted((EXAMPLES / "notebooks").glob("*.ipynb"))
SHORTER = {
    "8_000": "200",
    "3_000": "50",
    "2_000": "100",
    "range(40)": "range(12)",
    "range(3)": "range(2)",
}


def code_cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["compare", "first_agent", "offline_data"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_executed_from_top_to_bottom_without_an_error(path: Path) -> None:
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert outputs
    assert all(output["output_type"] != "error" for output in outputs)
    assert "/tmp/" not in path.read_text("utf-8")
    assert path.stat().st_size < 500_000


@pytest.mark.learning
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_cells_of_a_notebook_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for cell in code_cells(path):
        code = "".join(cell["source"])
        for written, short in SHORTER.items():
            code = code.replace(written, short)
        exec(compile(code, path.name, "exec"), names)
    assert list(tmp_path.glob("runs/*/result.json"))
