"""Guards docs/guarantees.md: the test that each promise names exists, once.

pytest tests/test_guarantees.py
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROMISE = re.compile(r"^\| .+ \| `(test_\w+)` \|$")


def test_each_promise_names_a_test_that_exists():
    lines = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8").splitlines()
    rows = [line for line in lines if line.startswith("|") and not line.startswith(("|---", "| promise"))]
    named = [found[1] for line in rows if (found := PROMISE.match(line))]
    assert len(named) == len(rows) > 10, "a promise without a test"
    trees = (ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / "tests").rglob("test_*.py"))
    tests = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    assert {name: tests[name] for name in named} == dict.fromkeys(named, 1)
