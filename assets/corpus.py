"""Documents, queries and qrels, the model that writes more queries, and the acceptance verdict over all of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assets.family import AssetFamily, Check, first_rows, markdown_table, report_of
from model_code.files import read_json


def preview_corpus(folder: Path) -> Mapping[str, str]:
    """First documents and queries, and what was quarantined."""
    return {
        "first documents": first_rows(folder / "documents.parquet", ["document_id", "title", "text"]),
        "first queries": first_rows(folder / "queries.parquet", ["query_id", "text", "split"]),
        "first quarantined rows": first_rows(folder / "quarantine.parquet", ["location", "table", "reason", "detail"]),
    }


def contracts_hold(folder: Path) -> tuple[bool, Mapping[str, Any]]:
    """Whether the finished tables still satisfy their pandera contracts."""
    from model_code.corpus.contracts import check_tables
    from model_code.corpus.tables import load_corpus
    from model_code.errors import FreshetError

    try:
        check_tables(vars(load_corpus(folder)))
    except FreshetError as error:
        return False, {"violation": str(error)}
    return True, {}


def corpus_accepted(folder: Path) -> tuple[bool, Mapping[str, Any]]:
    """Whether every expectation was met."""
    expectations = read_json(folder / "verdict.json")["expectations"]
    return all(row["passed"] for row in expectations), {"expectations": len(expectations)}


def preview_acceptance(folder: Path) -> Mapping[str, str]:
    """Each expectation with its bounds and what was observed."""
    return {"verdict": markdown_table(read_json(folder / "verdict.json")["expectations"])}


def preview_pseudo_queries(folder: Path) -> Mapping[str, str]:
    """First generated queries."""
    columns = ["query_id", "document_id", "text", "split"]
    return {"first pseudo-queries": first_rows(folder / "pseudo_queries.parquet", columns)}


def preview_query_generator(folder: Path) -> Mapping[str, str]:
    """The learning curve's last rows, if a generator was trained at all."""
    if not report_of(folder)["trained"]:
        return {"history": "no generator was trained (`pseudo_queries.training.base` is null)"}
    return {"history": markdown_table(read_json(folder / "history.json")[-10:])}


CORPUS = AssetFamily(
    stage="corpus",
    noun="corpus",
    group="corpus",
    kinds=frozenset({"parquet", "pandera"}),
    preview=preview_corpus,
    checks=(Check("contracts_hold", "Tables satisfy their pandera contracts.", contracts_hold),),
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
