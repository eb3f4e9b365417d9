"""The mutants of known queries and IncDSI: each can be applied, and the tests catch all of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from scripts import mutants
from scripts.mutants import FAILED, MUTANTS, PASSED, ROOT, Mutant, judge_mutant, main


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_changes_one_place(mutant: Mutant) -> None:
    text = (ROOT / mutant.file).read_text(encoding="utf-8")

    assert text.count(mutant.old) == 1
    assert mutant.new != mutant.old


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_tests_of_a_mutant_exist(mutant: Mutant) -> None:
    assert mutant.tests
    for test in mutant.tests:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8")


def test_mutants_have_different_names() -> None:
    names = Counter(mutant.name for mutant in MUTANTS)

    assert len(names) == len(MUTANTS) >= 10


@pytest.mark.parametrize(
    ("code", "outcome"), [(PASSED, "survived"), (FAILED, "caught"), (4, "not judged")]
)
def test_outcome_follows_the_tests(
    code: int, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "code.py").write_text("a = 1")
    seen: list[str] = []

    def run_tests(root: Path, tests: tuple[str, ...]) -> int:
        seen.append((root / "code.py").read_text())
        return code

    monkeypatch.setattr(mutants, "run_tests", run_tests)

    found = judge_mutant(Mutant("m", "code.py", "1", "2", ("t",)), tmp_path)

    assert found.startswith(outcome)
    assert seen == ["a = 2"]
    assert (tmp_path / "code.py").read_text() == "a = 1"


def test_lost_text_is_an_outcome(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("a = 1 + 1")

    assert judge_mutant(Mutant("m", "code.py", "1", "2", ("t",)), tmp_path).startswith("not found")
    assert judge_mutant(Mutant("m", "code.py", "3", "2", ("t",)), tmp_path).startswith("not found")


def test_unknown_name_is_refused() -> None:
    assert main(["no such mutant"]) == 1


@pytest.mark.long
def test_all_mutants_are_caught() -> None:
    assert main([]) == 0
