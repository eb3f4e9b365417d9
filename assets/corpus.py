"""Documents, queries and qrels, the model that writes more queries, and the acceptance verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.family import AssetFamily, Check, first_rows, markdown_table, report_of
from assets.learning_curve import learning_curve
from model_code.context import StageContext
from model_code.files import read_json

HELD_OUT = ("log_likelihood",)  # of held-out queries, what a generator's best step is chosen by


def preview_corpus(folder: Path) -> Mapping[str, str]:
    """First documents and queries, and what was quarantined."""
    return {
        "first documents": first_rows(folder / "documents.parquet", ["document_id", "title", "text"]),
        "first queries": first_rows(folder / "queries.parquet", ["query_id", "text", "split"]),
        "first quarantined rows": first_rows(folder / "quarantine.parquet", ["location", "table", "reason", "detail"]),
    }


def corpus_accepted(context: StageContext) -> tuple[bool, Mapping[str, Any]]:
    """Whether every expectation was met."""
    expectations = read_json(context.output / "verdict.json")["expectations"]
    return all(row["passed"] for row in expectations), {"expectations": len(expectations)}


def preview_acceptance(folder: Path) -> Mapping[str, str]:
    """Each expectation with its bounds and what was observed."""
    return {"verdict": markdown_table(read_json(folder / "verdict.json")["expectations"])}


def preview_pseudo_queries(folder: Path) -> Mapping[str, str]:
    """First generated queries."""
    columns = ["query_id", "document_id", "text", "split"]
    return {"first pseudo-queries": first_rows(folder / "pseudo_queries.parquet", columns)}


def preview_query_generator(folder: Path) -> Mapping[str, str]:
    """The learning curve, if a generator was trained at all."""
    if not report_of(folder)["trained"]:
        return {"history": "no generator was trained (`pseudo_queries.training.base` is null)"}
    return learning_curve(folder, HELD_OUT)


CORPUS = AssetFamily(
    stage="corpus",
    noun="corpus",
    group="corpus",
    kinds=frozenset({"parquet", "pandera"}),
    preview=preview_corpus,
)
QUERY_GENERATOR = AssetFamily(
    stage="query_generator",
    noun="query_generator",
    group="corpus",
    kinds=frozenset({"torch"}),
    preview=preview_query_generator,
)
PSEUDO_QUERIES = AssetFamily(
    stage="pseudo_queries",
    noun="pseudo_queries",
    group="corpus",
    kinds=frozenset({"parquet"}),
    preview=preview_pseudo_queries,
)
ACCEPTANCE = AssetFamily(
    stage="acceptance",
    noun="acceptance_verdict",
    group="corpus",
    kinds=frozenset({"great_expectations"}),
    preview=preview_acceptance,
    checks=(Check("corpus_accepted", "Every expectation of the acceptance suite is met.", corpus_accepted),),
)
