"""The stage `acceptance`: no retriever is trained on a corpus that fails the acceptance suite."""

from __future__ import annotations

from typing import Any

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.acceptance import assess
from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.files import write_json

DATA_DOCS = ".freshet/data_docs"


def run(context: StageContext) -> dict[str, Any]:
    """Assess the corpus and its queries, whose tables keep their contracts; write `verdict.json`, return its summary.

    Data Docs, and a copy of the verdict that a failure leaves readable, go to `root/.freshet/data_docs`: HTML names its
    time, so it is no output of the stage. Raises `FreshetError` naming each expectation that failed.
    """
    corpus = load_corpus(context.inputs["corpus"])
    pseudo_queries = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
    data_docs = context.root / DATA_DOCS
    verdict = assess(corpus, pseudo_queries, context.settings["acceptance"], data_docs)
    write_json(context.output / "verdict.json", verdict)
    write_json(data_docs / "verdict.json", verdict)
    failed = [row for row in verdict["expectations"] if not row["passed"]]
    if failed:
        raise FreshetError(
            f"the corpus is not accepted: {'; '.join(map(_sentence, failed))}. Details: {DATA_DOCS}/index.html. "
            "Mend the source, or move the bounds under `acceptance` in params.yaml."
        )
    return {"passed": True, "source": verdict["source"], "expectations": len(verdict["expectations"])}


def _sentence(row: dict[str, Any]) -> str:
    bounds = ", ".join(f"{name} {value}" for name, value in row["bounds"].items())
    return f"{row['table']}: {row['expectation']} ({bounds}), observed {row['observed']}"
