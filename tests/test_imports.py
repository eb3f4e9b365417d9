"""Guards that modules do not import each other in circles, at whatever depth of a function the import is written."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMMAND_LINE = "orchestration.cli"  # the console script's package imports its app, and the app the package's commands


def test_no_circles() -> None:
    modules = product()
    graph = {one: imported(path) & modules.keys() - {one, COMMAND_LINE} for one, path in modules.items()}
    order = list(TopologicalSorter(graph).static_order())  # CycleError names the circle
    assert len(order) >= len(modules) > 200


def test_the_product_imports_neither_benches_nor_experiments() -> None:
    for module, path in product().items():
        tops = {one.partition(".")[0] for one in imported(path)}
        assert not tops & {"benchmarks", "experiments", "tests"}, module


def product() -> dict[str, Path]:
    return {
        name(path): path for top in ("assets", "model_code", "orchestration") for path in (ROOT / top).rglob("*.py")
    }


def name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(path: Path) -> set[str]:
    """The modules that a file imports, but for those that only type checkers see."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        waiting += ast.iter_child_nodes(node)
    return found
