"""Guards the table of kinds: each is a module that trains, indexes and opens, and searching loads
no corpus tables.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import get_args

import pytest

from model_code.retrieval.base import IndexedRetriever
from model_code.retrieval.kinds import KINDS, MODULES, Kind, module


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_kind_is_a_module_with_three_functions_and_a_retriever(kind: str) -> None:
    functions = {
        name: list(inspect.signature(getattr(module(kind), name)).parameters)
        for name in ("train", "index")
    }
    assert functions == {"train": ["context", "tables"], "index": ["context"]}
    opened = module(kind).open_folders.__annotations__["return"]
    retriever = getattr(module(kind), opened)
    assert issubclass(retriever, IndexedRetriever)
    assert not retriever.__abstractmethods__


def test_each_kind_is_told_in_words() -> None:
    assert tuple(KINDS) == get_args(Kind)


def test_opening_any_kind_does_without_pandas() -> None:
    names = ", ".join(MODULES[kind] for kind in get_args(Kind))
    code = f"import sys, {names}; print('pandas' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
