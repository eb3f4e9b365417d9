"""Check that docs/guarantees.md names existing tests, and says which of them `make test-long` runs."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
NOT_ALWAYS = re.compile(r"pytest\.mark\.(long|skip|xfail)")
GUARANTEE = re.compile(r"^\| .+ \| `(test_\w+)` \|$")

LONG = " (`make test-long`)"


def test_each_guarantee_names_an_existing_test():
    lines = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    rows = [
        line
        for line in lines
        if line.startswith("|") and not line.startswith(("|---", "| guarantee |"))
    ]
    named = {found[1]: LONG in line for line in rows if (found := GUARANTEE.match(line))}
    assert len(named) == len(rows) > 10, "a guarantee without a test"
    tests: dict[str, list[set[str]]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                tests.setdefault(node.name, []).append(set(map(ast.unparse, node.decorator_list)))
    marks = {
        name: [own for each in tests.get(name, ()) for own in each if NOT_ALWAYS.match(own)]
        for name in named
    }
    assert {name: len(tests.get(name, ())) for name in named} == dict.fromkeys(named, 1)
    assert marks == {name: ["pytest.mark.long"] * is_long for name, is_long in named.items()}
