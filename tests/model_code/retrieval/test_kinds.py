"""Guards the registry of kinds: every entry defines a complete kind, reading settings loads no slow
library, and opening any kind loads no pandas.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from types import ModuleType, SimpleNamespace

import pytest

from model_code.errors import SettingsError
from model_code.retrieval import kinds
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import TRAINED_KINDS, UNTRAINED_KINDS, trained_kind
from model_code.retriever_settings import parse_retriever

every_kind = pytest.mark.parametrize("name", TRAINED_KINDS)
RETRIEVER_MODULES = (
    "model_code.retrieval.dense",
    "model_code.lexical.retriever",
    "model_code.dsi.retriever",
    *UNTRAINED_KINDS.values(),
)


def loaded_modules(*imported: str) -> set[str]:
    """The top-level modules in a new process that imported these."""
    code = f"import sys, {', '.join(imported)}; print(*sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    return set(process.stdout.decode().split())


@every_kind
def test_a_kind_has_its_registered_name(name: str) -> None:
    assert trained_kind(name).name == name


@every_kind
def test_a_kind_trains_and_indexes_stage_contexts(name: str) -> None:
    kind = trained_kind(name)

    assert list(inspect.signature(kind.train).parameters) == ["context", "tables"]
    assert list(inspect.signature(kind.index).parameters) == ["context"]


@every_kind
def test_a_kind_opens_a_complete_retriever(name: str) -> None:
    module = import_module(TRAINED_KINDS[name])

    opened = imported_class(module, trained_kind(name).open_folders.__annotations__["return"])

    assert issubclass(opened, IndexedRetriever)
    assert not opened.__abstractmethods__


def imported_class(module: ModuleType, name: str) -> type:
    """Return a class that a module imports, perhaps for type checkers or in a function only."""
    tree = ast.parse(inspect.getsource(module))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    origins = {alias.name: node.module for node in imports for alias in node.names}
    return getattr(import_module(origins[name]), name)


@every_kind
def test_a_kind_has_a_group_of_settings(name: str) -> None:
    kind = trained_kind(name)

    settings = parse_retriever(
        {"kind": name, kind.settings_group: {}}, SAFE_TRAINING, "retrievers.x"
    )

    assert isinstance(getattr(settings, kind.settings_group), kind.settings_class)


SAFE_TRAINING = {"hierarchy_weight": 0.0, "batches": "random", "cotraining": False}


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ({"lexical": {"search": "full"}}, "lexical is read by kind: lexical only"),
        ({"kind": "dsi", "layers": {"numbers": [1]}}, "layers is read by kind: dense only"),
        ({"kind": "lexical", "start": "folder"}, "start names a dense encoder"),
        ({"kind": "dsi", "hierarchy_weight": 0.1}, "the hierarchy loss teaches the query encoder"),
        ({"kind": "sparse"}, "must be one of 'dense', 'lexical', 'dsi'"),
    ],
)
def test_settings_that_a_kind_cannot_use_are_refused(group: dict, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_retriever(group, SAFE_TRAINING, "retrievers.x")


def test_kind_is_added_by_one_registry_line(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = replace(trained_kind("dense"), name="other", open_folders=lambda *folders, **options: 1)
    monkeypatch.setitem(sys.modules, "other_package.kind", SimpleNamespace(KIND=kind))
    monkeypatch.setitem(TRAINED_KINDS, "other", "other_package.kind")

    assert trained_kind("other") is kind
    assert kinds.all_trained_kinds()[-1] is kind


def test_reading_settings_loads_no_slow_library() -> None:
    slow = {"torch", "transformers", "faiss", "pandas", "pandera", "scipy"}

    assert not slow & loaded_modules("model_code.retriever_settings")


def test_opening_any_kind_loads_no_pandas() -> None:
    assert "pandas" not in loaded_modules(*RETRIEVER_MODULES)
