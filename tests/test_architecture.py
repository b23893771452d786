"""Imports between the folders of the package point downwards only, as docs/architecture.md draws it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "rl_training"

# From the top to the bottom. A folder imports from the rows below its own, never from its own row or above.
LAYERS = (
    ("cli", "__init__", "__main__"),
    ("commands",),
    ("api",),
    ("studies",),
    ("launching", "exporting", "probing"),
    ("runtime",),
    ("algorithms",),
    ("learners", "data"),
    ("tracking",),
    ("acceleration", "datasets", "results"),
    ("models", "envs", "experiment"),
    ("core",),
    ("hparams",),
    ("errors",),
)
RANKS = {name: rank for rank, row in enumerate(LAYERS) for name in row}


def part_of(module: str) -> str:
    """Return the folder, or the module at the top, that a dotted name belongs to: `rl_training.data.n_step` -> data."""
    return module.split(".")[1] if "." in module else "__init__"


def is_typing_only(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def running_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of code that runs: what stands under `if TYPE_CHECKING` does not."""
    yield node
    children = node.orelse if isinstance(node, ast.If) and is_typing_only(node) else ast.iter_child_nodes(node)
    for child in children:
        yield from running_nodes(child)


def imported_modules(source: str) -> list[str]:
    """Return the modules of the package that a source imports, at its top or inside a function."""
    found = []
    for node in running_nodes(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.append(node.module or "")
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return [module for module in found if module.split(".")[0] == "rl_training"]


def upward_imports(part: str, source: str) -> list[str]:
    """Return the imports of a source that do not point downwards."""
    return [
        module
        for module in imported_modules(source)
        if part_of(module) != part and RANKS[part_of(module)] <= RANKS[part] and part not in LAYERS[0]
    ]


def test_every_part_of_the_package_has_its_place_among_the_layers() -> None:
    found = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}
    assert found == set(RANKS)


@pytest.mark.parametrize("part", sorted(RANKS))
def test_imports_point_downwards(part: str) -> None:
    files = sorted((PACKAGE / part).rglob("*.py")) or [PACKAGE / f"{part}.py"]
    upward = {str(file.relative_to(PACKAGE)): upward_imports(part, file.read_text("utf-8")) for file in files}
    assert {file: modules for file, modules in upward.items() if modules} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from rl_training.runtime.run import Run",
        "import rl_training.algorithms.dqn",
        "def build():\n    from rl_training.runtime.run import Run",
        "from rl_training.data.n_step import NStepWindows",  # a folder of the same row
        "from rl_training import DQN",
    ],
)
def test_an_upward_import_is_found(source: str) -> None:
    assert len(upward_imports("learners", source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "from rl_training.core.types import Batch",
        "from rl_training.learners.optim import FlatModule",
        "import torch",
        "if TYPE_CHECKING:\n    from rl_training.runtime.run import Run",
    ],
)
def test_a_downward_or_typing_only_import_is_allowed(source: str) -> None:
    assert upward_imports("learners", source) == []


def test_algorithms_are_one_file_per_paper() -> None:
    """Every file of `algorithms/` builds at least one row of the registry."""
    from rl_training.experiment.registry import registry

    builders = {spec.build.partition(":")[0].rpartition(".")[2] for spec in registry().values()}
    assert {path.stem for path in (PACKAGE / "algorithms").glob("*.py")} - {"__init__"} == builders
