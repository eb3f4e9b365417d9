"""Check that docs/guarantees.md names existing tests, and which command runs each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GUARANTEE = re.compile(r"^\| (?P<text>.+) \| `(?P<test>test_\w+)` \|$")
# The mark of a test that `make test` leaves out, by the words that the page then needs.
MARK_BY_NOTE = {"(`make test-all`)": "full", "(`make test-long`)": "long"}


def read_table_rows() -> list[str]:
    """Return the lines of the page's tables without their heads."""
    lines = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    heads = ("|---", "| guarantee |")
    return [line for line in lines if line.startswith("|") and not line.startswith(heads)]


def read_guarantees() -> dict[str, str]:
    """Return the text of each guarantee by the name of its test."""
    guarantees = {}
    for row in read_table_rows():
        match = GUARANTEE.match(row)
        if match:
            guarantees[match["test"]] = match["text"]
    return guarantees


GUARANTEES = read_guarantees()


def read_marks(expressions: Iterable[ast.expr]) -> set[str]:
    """Return the names of pytest marks, such as "full". Marks of single parameters do not count."""
    names = set()
    for expression in expressions:
        mark = expression.func if isinstance(expression, ast.Call) else expression
        if isinstance(mark, ast.Attribute) and ast.unparse(mark.value) == "pytest.mark":
            names.add(mark.attr)
    return names


@cache
def marks_by_test() -> dict[str, list[set[str]]]:
    """Return the marks of the tests of each name: of their decorators and of their module."""
    marks: dict[str, list[set[str]]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        module_marks: set[str] = set()
        for statement in tree.body:
            if isinstance(statement, ast.Assign) and ast.unparse(statement.targets) == "pytestmark":
                module_marks.update(read_marks([statement.value]))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                test_marks = read_marks(node.decorator_list)
                marks.setdefault(node.name, []).append(test_marks | module_marks)
    return marks


def test_each_guarantee_has_a_test_of_its_own() -> None:
    assert len(GUARANTEES) == len(read_table_rows())


def test_page_has_guarantees() -> None:
    assert len(GUARANTEES) > 10


@pytest.mark.parametrize("name", GUARANTEES)
def test_guarantee_names_one_existing_test(name: str) -> None:
    assert len(marks_by_test()[name]) == 1


@pytest.mark.parametrize("name", GUARANTEES)
def test_guarantee_is_tested_when_the_page_says(name: str) -> None:
    expected = {mark for note, mark in MARK_BY_NOTE.items() if note in GUARANTEES[name]}
    (marks,) = marks_by_test()[name]

    assert marks & {"full", "long", "skip", "xfail"} == expected
