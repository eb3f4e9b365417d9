"""Guards the order of all packages, that modules do not import each other in circles, and that a
class has one name.

Imports are read wherever they are written: inside functions, for type checkers only, relative ones,
and those that a string names.
"""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from model_code.retrieval.kinds import TRAINED_KINDS

ROOT = Path(__file__).parents[1]
TOPS = ("assets", "freshet", "model_code", "orchestration")
# the console script's package imports its app, and the app the package's commands
COMMAND_LINE = "orchestration.cli"
# "a.b", "a.b:name", and what precedes {kind}
STRING = re.compile(rf"((?:{'|'.join(TOPS)})(?:\.\w+)+)(?::\w+|\.)?")
ORCHESTRATORS = {"dagster", "mlflow", "dvc"}
Imports = Mapping[str, Set[str]]
"""What each module imports, by dotted names."""


def within(top: str, names: str) -> set[str]:
    return {f"{top}.{name}" for name in names.split()}


# lowest first: a package imports from lower groups and from its own, where no circle may be
ORDER = (
    within("freshet", "client errors json_values results"),
    within("model_code", "audit context errors files mapped_tensors progress row_file settings"),
    within("model_code", "project text"),
    within("model_code", "corpus encoding losses"),
    within("model_code", "hierarchy"),
    within("model_code", "distributed"),
    within("model_code", "retrieval"),
    within("model_code", "evaluation"),
    within("model_code", "checks"),
    within("model_code", "drift training"),
    within("model_code", "mlr queries"),
    {module.removesuffix(".kind") for module in TRAINED_KINDS.values()},
    within("model_code", "retriever_settings"),
    within("model_code", "stages"),
    within("model_code.collection", "settings ledger"),
    within("model_code.collection", "segments"),
    within("model_code.collection", "generations"),
    within("model_code", "incdsi"),
    within("model_code.collection", "index"),
    within("model_code.collection", "sync backup follow handover"),
    within("model_code.collection", "query_copies erase forget"),
    within("orchestration", "parameters running_service"),
    within("orchestration", "pipeline"),
    within("orchestration", "registry"),
    within("orchestration", "freshness"),
    within("assets", "corpus evaluation live pages registry retrievers stage_assets"),
    within("orchestration", "guard health_check service"),
    within("freshet", "integrations project"),
    within("orchestration", "definitions instance jobs project_definitions sensors"),
    within("freshet", "dagster"),
    within("orchestration", "cli"),
    within("freshet", "command"),
)
# The subpackages of this package are in the order one by one.
SUBPACKAGED = "model_code.collection"
# names the modules of all kinds by strings, and imports one when it is needed
REGISTRY = "model_code.retrieval.kinds"


def test_packages_import_downwards_only() -> None:
    modules = product()
    graph = {module: imported(path, module) for module, path in modules.items()}
    graph[REGISTRY] = imported(modules[REGISTRY], REGISTRY, typing=False)

    assert breaches(graph) == []
    # The order names exactly the packages that exist.
    assert {package(module) for module in modules} - {*TOPS, SUBPACKAGED} == set().union(*ORDER)


MADE: Imports = {
    "model_code.retrieval.dense": {"model_code.files", "model_code.retrieval.flat", "numpy"},
    "model_code.dense.log": {"model_code.retrieval.dense"},
    "model_code.dsi.log": {"model_code.dense.log"},
    "orchestration.cli.app": {"model_code.collection.index.status", "assets.live"},
}


@pytest.mark.parametrize(
    ("module", "other", "breach"),
    [
        (
            "model_code.files",
            "model_code.retrieval.dense",
            "imports model_code.retrieval.dense, above it",
        ),
        ("model_code.project", "model_code.incdsi", "imports model_code.incdsi, above it"),
        (
            "model_code.collection.index.status",
            "orchestration.cli",
            "imports orchestration.cli, above it",
        ),
        ("model_code.new.part", "numpy", "is of no package of the order"),
    ],
)
def test_upward_import_is_a_breach(module: str, other: str, breach: str) -> None:
    assert breaches(MADE) == []
    assert breaches({**MADE, module: {other}}) == [f"{module} {breach}"]


def test_a_circle_within_a_group_is_a_breach() -> None:
    assert breaches({**MADE, "model_code.dense.log": {"model_code.dsi.log"}}) == [
        "a circle: model_code.dense, model_code.dsi"
    ]


@pytest.mark.parametrize(
    "line",
    [
        "import model_code.retrieval.dense",
        "from model_code.retrieval import dense",
        "from . import dense",
        "from ..retrieval import dense",
        "from .dense import Index",
        "def late():\n    from model_code.retrieval.dense import Index",
        "if TYPE_CHECKING:\n    from model_code.retrieval.dense import Index",
        "WAY = 'model_code.retrieval.dense:Index'",
        "find('model_code.retrieval.dense')",
        "import_module(f'model_code.retrieval.dense.{kind}')",
    ],
)
def test_every_way_of_importing_is_read(line: str) -> None:
    assert "model_code.retrieval.dense" in {
        *named(ast.parse(line), "model_code.retrieval", typing=True)
    }


def test_no_circles() -> None:
    modules = product()
    graph = {
        one: imported(path, one, typing=False) & modules.keys() - {one, COMMAND_LINE}
        for one, path in modules.items()
    }
    # A CycleError names the cycle.
    order = list(TopologicalSorter(graph).static_order())

    assert len(order) >= len(modules) > 200


def test_product_avoids_benchmarks_and_model_code_orchestrators() -> None:
    for module, path in product().items():
        tops = {one.partition(".")[0] for one in imported(path, module)}
        assert not tops & {"benchmarks", "experiments", "tests"}, module
        assert not (module.startswith("model_code") and tops & ORCHESTRATORS), module


def test_every_class_has_a_name_of_its_own() -> None:
    names: Counter[str] = Counter()
    for path in product().values():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                names[node.name] += 1

    repeated = [name for name, number in names.items() if number > 1]
    assert repeated == []


def breaches(graph: Imports) -> list[str]:
    """Return one line for each import that breaks the `ORDER`."""
    level = {}
    for number, group in enumerate(ORDER):
        for package_name in group:
            level[package_name] = number
    found = []
    beside = {name: set() for name in level}
    for module, others in graph.items():
        own = package(module)
        if own not in level and own not in (*TOPS, SUBPACKAGED):
            found.append(f"{module} is of no package of the order")
        for other in sorted(others):
            its = package(other)
            if {own, its} <= level.keys() and own != its:
                if level[its] > level[own]:
                    found.append(f"{module} imports {other}, above it")
                elif level[its] == level[own]:
                    beside[own].add(its)
    try:
        TopologicalSorter(beside).prepare()
    except CycleError as error:
        found.append(f"a circle: {', '.join(sorted(set(error.args[1])))}")
    return found


def package(module: str) -> str:
    """The first two parts of a module's name.

    >>> package("model_code.text.words"), package("orchestration"), package("model_code.collection.index.status")
    ('model_code.text', 'orchestration', 'model_code.collection.index')
    """
    depth = 3 if module.startswith(f"{SUBPACKAGED}.") else 2
    return ".".join(module.split(".")[:depth])


def product() -> dict[str, Path]:
    """Return the file of each module of the product."""
    files = {}
    for top in TOPS:
        for path in (ROOT / top).rglob("*.py"):
            files[name(path)] = path
    return files


def name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@functools.cache
def imported(path: Path, module: str, typing: bool = True) -> frozenset[str]:
    """The names that a file imports. typing: with those that only type checkers see, and those that
    strings name.
    """
    parent = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return frozenset(named(ast.parse(path.read_text()), parent, typing))


def named(tree: ast.AST, parent: str, typing: bool) -> Iterator[str]:
    """See `imported`; relative names are of the package `parent`."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not typing and isinstance(node, ast.If) and isinstance(node.test, ast.Name):
            if node.test.id == "TYPE_CHECKING":
                continue
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = []
            if node.level:
                parents = parent.split(".")
                above = parents[: len(parents) + 1 - node.level]
            base = ".".join([*above, *filter(None, [node.module])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))
        elif typing and isinstance(node, ast.Constant):
            match = STRING.fullmatch(str(node.value))
            if match:
                yield match[1]
        waiting += ast.iter_child_nodes(node)
