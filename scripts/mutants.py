"""Check that the tests notice errors in the code of known queries and IncDSI.

Run: python scripts/mutants.py [NAME ...]

A mutant is a small error in one file. For each mutant, this script puts the error into a temporary
copy of the tree, and runs tests that must fail by it. It prints whether the mutant was caught. The
exit code is 1 if a mutant survives, or if a mutant cannot be judged. That is the case if the text
that it replaces is not found exactly once, or if its tests fail without it. Without names, all
mutants are run, which takes several minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]

# Folders and files that tests need, relative to the root.
COPIED = (
    "assets",
    "benchmarks",
    "experiments",
    "freshet",
    "model_code",
    "orchestration",
    "scripts",
    "tests",
    "dvc.yaml",
    "params.yaml",
    "pyproject.toml",
)

# Exit codes of pytest.
PASSED = 0
FAILED = 1

TEXT_TESTS = "tests/model_code/text/test_known_queries.py"
CORPUS_TESTS = "tests/model_code/corpus/test_corpus_queries.py"
LIVE_TESTS = "tests/model_code/collection/generations/test_known_queries.py"
WORD_TESTS = "tests/model_code/retrieval/test_known_words.py"
FUSED_TESTS = "tests/model_code/incdsi/test_fused_solver.py"
ROUTE_TESTS = "tests/orchestration/service/test_document_routes.py"
FUSION_TESTS = "tests/model_code/stages/test_fusion.py"


@dataclass(frozen=True)
class Mutant:
    """A small error in the code, and tests that must notice it.

    Attributes:
        name: A word or two for the command line and the output.
        file: The changed file, relative to the root.
        old: Text of the file, which occurs in it exactly once.
        new: The text that replaces it.
        tests: Tests of pytest, of which at least one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Put the error into the tree at `root`.

        Raises:
            ValueError: If the old text does not occur exactly once.
        """
        path = root / self.file
        text = path.read_text(encoding="utf-8")
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.name}: {self.file} has {self.old!r} {count} times, not once")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


MUTANTS = (
    Mutant(
        "equal-queries-by-order",
        "model_code/text/known_queries.py",
        "shown = min(evidence_for, key=lambda query: (not query.is_public, _rank(query)))",
        "shown = evidence_for[0]",
        (f"{TEXT_TESTS}::test_order_of_arrival_changes_nothing",),
    ),
    Mutant(
        "no-limit-of-queries",
        "model_code/text/known_queries.py",
        "if len(taken) == limits.max_queries:",
        "if False:",
        (f"{TEXT_TESTS}::test_many_thumbs_are_compared_with_few_queries",),
    ),
    Mutant(
        "no-limit-of-words",
        "model_code/text/known_queries.py",
        "words_left -= word_count",
        "words_left -= 0",
        (f"{TEXT_TESTS}::test_selected_queries_share_the_limit_of_words",),
    ),
    Mutant(
        "near-duplicates-not-merged",
        "model_code/text/known_queries.py",
        "if is_near_duplicate(query.words, kept.words):",
        "if False:",
        (f"{TEXT_TESTS}::test_near_duplicates_share_their_weight",),
    ),
    Mutant(
        "person-counts-per-near-duplicate",
        "model_code/text/known_queries.py",
        "weight = public_weight + max(other_weights, default=0.0)",
        "weight = public_weight + sum(other_weights)",
        (f"{TEXT_TESTS}::test_thumbs_on_near_duplicates_count_once",),
    ),
    Mutant(
        "evidence-against-ignored",
        "model_code/text/known_queries.py",
        "if total > 0:",
        "if True:",
        (f"{TEXT_TESTS}::test_thumb_down_cancels_the_query_of_a_row",),
    ),
    Mutant(
        "judging-queries-known",
        "model_code/corpus/corpus_queries.py",
        "if not held_out:",
        "if True:",
        (f"{CORPUS_TESTS}::test_query_that_judges_is_never_known",),
    ),
    Mutant(
        "thumb-down-ignored",
        "model_code/collection/segments/known_overrides.py",
        "balances[pair] -= 1",
        "balances[pair] -= 0",
        (f"{LIVE_TESTS}::test_latest_thumb_of_a_person_counts",),
    ),
    Mutant(
        "raised-hit-counts",
        "model_code/collection/segments/known_overrides.py",
        "elif not opinion.raised:",
        "else:",
        (f"{LIVE_TESTS}::test_raised_hit_earns_no_weight_but_loses_some",),
    ),
    Mutant(
        "forgotten-query-kept",
        "model_code/collection/segments/known_overrides.py",
        "excluded = held_out | later.forgotten",
        "excluded = held_out",
        (f"{LIVE_TESTS}::test_forgotten_query_finds_nothing",),
    ),
    Mutant(
        "typed-queries-shown",
        "model_code/collection/generations/live_queries.py",
        "if show_all or query.is_public:",
        "if True:",
        (f"{ROUTE_TESTS}::test_document_shows_its_queries_and_counts_those_of_users",),
    ),
    Mutant(
        "known-words-not-marked",
        "model_code/retrieval/bm25_index.py",
        "is_known = not plain_weights[row]",
        "is_known = False",
        (f"{LIVE_TESTS}::test_explanation_marks_words_of_known_queries",),
    ),
    Mutant(
        "weight-ignored-in-length",
        "model_code/retrieval/bm25_index.py",
        "return lengths + self.words.weight * self._known_counts.lengths()",
        "return lengths + self._known_counts.lengths()",
        (f"{WORD_TESTS}::test_known_words_follow_the_formula",),
    ),
    Mutant(
        "own-query-among-words",
        "model_code/retrieval/bm25_index.py",
        "if shared >= MIN_DUPLICATE_JACCARD * max(union, 1):",
        "if False:",
        (f"{FUSED_TESTS}::test_document_does_not_win_its_query_by_the_words_of_the_query",),
    ),
    Mutant(
        "near-duplicate-among-words",
        "model_code/retrieval/bm25_index.py",
        "if shared >= MIN_DUPLICATE_JACCARD * max(union, 1):",
        "if shared >= max(union, 1):",
        (f"{FUSED_TESTS}::test_document_does_not_win_its_query_by_a_near_duplicate",),
    ),
    Mutant(
        "solver-counts-own-query",
        "model_code/incdsi/fused_solver.py",
        "own_bm25 = float(self.own_bm25[query_index])",
        "own_bm25 = float(self.bm25[query_index, arrival_index])",
        (f"{FUSED_TESTS}::test_document_does_not_win_its_query_by_the_words_of_the_query",),
    ),
    Mutant(
        "margin-with-wrong-sign",
        "model_code/incdsi/fused_solver.py",
        "own_limits = -(own.best_rivals + settings.gamma1)",
        "own_limits = -(own.best_rivals - settings.gamma1)",
        (f"{FUSED_TESTS}::test_problem_is_in_units_of_the_fused_score",),
    ),
    Mutant(
        "own-words-not-in-limit",
        "model_code/incdsi/fused_solver.py",
        " + own.bm25_terms - own.means / own_scales",
        " - own.means / own_scales",
        (f"{FUSED_TESTS}::test_problem_is_in_units_of_the_fused_score",),
    ),
    Mutant(
        "words-not-in-constraint",
        "model_code/incdsi/fused_solver.py",
        "(constraints.owner_scores - bm25_terms) * scales",
        "constraints.owner_scores * scales",
        (f"{FUSED_TESTS}::test_limit_of_a_constraint_counts_words_of_the_new_document",),
    ),
    Mutant(
        "encoding-is-not-the-prior",
        "model_code/incdsi/fused_solver.py",
        "prior=prior,\n        lambda2=settings.lambda2,",
        "prior=np.zeros_like(prior),\n        lambda2=settings.lambda2,",
        (f"{FUSED_TESTS}::test_problem_is_in_units_of_the_fused_score",),
    ),
    Mutant(
        "common-query-is-constraint",
        "model_code/incdsi/fused_solver.py",
        "max_products[self.batch.rows_of_query(text)] = np.inf",
        "self.batch.rows_of_query(text)",
        (f"{FUSED_TESTS}::test_a_query_of_both_documents_is_no_constraint",),
    ),
    Mutant(
        "removed-document-constrains",
        "model_code/incdsi/constraints.py",
        "is_live[self.rows_by_document[document_id]] = False",
        "is_live[self.rows_by_document[document_id]] = True",
        (f"{FUSED_TESTS}::test_deleted_documents_are_no_constraint",),
    ),
    Mutant(
        "solved-vectors-judge",
        "model_code/collection/generations/evaluation_segments.py",
        "document_ids = documents_solved_with(searcher.generation, hashes=held_out)",
        "document_ids: list[str] = []",
        (f"{FUSED_TESTS}::test_vectors_solved_with_judging_queries_do_not_judge",),
    ),
    Mutant(
        "vectors-solved-for-judging-queries",
        "model_code/incdsi/fused_builder.py",
        "drop_held_out(queries_of_row(document), ",
        "drop_held_out(queries_of_row(document), frozenset() & ",
        (f"{FUSED_TESTS}::test_queries_that_judge_are_never_solved_for",),
    ),
    Mutant(
        "fusion-ignores-the-limit",
        "model_code/stages/fusion.py",
        "chosen = choose_weights(fusion, scored, sample, metric, fixed, limit)",
        "chosen = choose_weights(fusion, scored, sample, metric, fixed)",
        (f"{FUSION_TESTS}::test_weight_that_harms_documents_without_known_queries_is_excluded",),
    ),
)


def copy_tree(folder: Path) -> None:
    """Copy everything that the tests need to a folder."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=ignored)
        else:
            shutil.copy(source, folder / name)


def run_tests(root: Path, tests: Sequence[str]) -> int:
    """Run tests in a copy of the tree, and return the exit code of pytest.

    The tests run in a Python that writes no bytecode: a mutant may be written in the same second as
    the code that it replaces, and have the same length.
    """
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests]
    completed = subprocess.run(
        command, cwd=root, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    return completed.returncode


def judge_mutant(mutant: Mutant, root: Path) -> str:
    """Run the tests of a mutant in a copy of the tree, and return the outcome in a word or two.

    The copy is restored afterwards.
    """
    path = root / mutant.file
    original = path.read_bytes()
    try:
        mutant.apply(root)
    except ValueError as error:
        return f"not found: {error}"
    try:
        code = run_tests(root, mutant.tests)
    finally:
        path.write_bytes(original)
    if code == FAILED:
        return "caught"
    if code == PASSED:
        return "survived"
    return f"not judged: pytest ended with {code}"


def main(names: Sequence[str]) -> int:
    """Run the mutants of these names, or all, and return the exit code."""
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    unknown = sorted(set(names) - {mutant.name for mutant in chosen})
    if unknown:
        print(f"unknown mutants: {', '.join(unknown)}")
        return 1

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        copy_tree(root)
        tests = sorted({test for mutant in chosen for test in mutant.tests})
        if run_tests(root, tests) != PASSED:
            print("the tests of the mutants fail without any mutant")
            return 1

        outcomes = []
        for mutant in chosen:
            outcome = judge_mutant(mutant, root)
            print(f"{mutant.name}: {outcome}", flush=True)
            outcomes.append(outcome)
    caught = outcomes.count("caught")
    print(f"{caught} of {len(outcomes)} mutants are caught")
    return 0 if caught == len(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
