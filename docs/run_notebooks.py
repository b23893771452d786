"""Execute the notebooks of examples/notebooks and keep their outputs: `make notebooks`.

Each runs in an empty folder, whose name is left out of the outputs. Outputs that a later one replaces, such as those of
progress, are not kept by the notebook format.
"""

import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).resolve().parent.parent / "examples" / "notebooks"


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=1_800, resources={"metadata": {"path": folder}}).execute()
        text = nbformat.writes(notebook).replace(str(Path(folder).resolve()), ".")
    path.write_text(text.rstrip("\n") + "\n", "utf-8")


def main() -> None:
    chosen = [NOTEBOOKS / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in chosen:
        execute(path)
        print(f"{path.name}: {path.stat().st_size / 1_000:.0f} kB")


if __name__ == "__main__":
    main()
