"""The stage `acceptance`: no retriever is trained on a corpus that fails the acceptance suite."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.corpus.acceptance import assess
from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.files import write_json

DATA_DOCS = ".freshet/data_docs"


def run(context: StageContext) -> dict[str, Any]:
    """Assess the corpus, whose tables keep their contracts; write `verdict.json`, return its summary.

    Data Docs, and a copy of the verdict that a failure leaves readable, go to `root/.freshet/data_docs`: HTML names its
    time, so it is no output of the stage. Raises `FreshetError` naming each expectation that failed.
    """
    corpus = load_corpus(context.inputs["corpus"])
    data_docs = context.root / DATA_DOCS
    verdict = assess(corpus, context.settings["acceptance"], data_docs)
    write_json(context.output / "verdict.json", verdict)
    write_json(data_docs / "verdict.json", verdict)
    failed = [row for row in verdict["expectations"] if not row["passed"]]
    if failed:
        raise FreshetError(
            f"the corpus is not accepted: {'; '.join(map(_sentence, failed))}. Mend the source, or move the bounds "
            f"under `acceptance` in params.yaml; {DATA_DOCS}/verdict.json has all that was looked at."
        )
    return {"passed": True, "expectations": len(verdict["expectations"])}


LIMITS = {"min_value": "at least", "max_value": "at most"}
WORDS = {  # what is wrong where an expectation fails; the last ones by their column
    "expect_table_row_count_to_be_between": "too few",
    "expect_column_values_to_be_unique": "there twice",
    "expect_column_values_to_be_between": "without words",
    "repeated": "equal to another",
    "document_exists": "of a document that is not there",
}


def _sentence(row: dict[str, Any]) -> str:
    """An expectation that failed, in words.

    >>> row = {"table": "documents", "expectation": "expect_table_row_count_to_be_between", "observed": 3}
    >>> _sentence(row | {"bounds": {"min_value": 10}})
    'documents: too few: 3, and 10 at least'
    """
    bounds, expectation = row["bounds"], row["expectation"]
    wrong = WORDS.get(expectation) or WORDS[bounds["column"]]
    unit = " %" if "_values_" in expectation else ""
    limits = [f"{bounds[name]:g} {word}" for name, word in LIMITS.items() if bounds.get(name) is not None]
    if unit:
        limits += [f"{100 * (1 - bounds.get('mostly', 1)):g} % at most"]
    return f"{row['table']}: {wrong}: {row['observed']}{unit}, and {', '.join(limits)}"
