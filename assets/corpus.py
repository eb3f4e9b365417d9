"""Documents, queries and qrels: the lock of their source, what was read, queries that a model
wrote, the verdict.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, first_rows, learning_curve, table
from assets.stage_assets import LOCK_KEY, Page, Served, stage_assets
from model_code.files import read_json
from model_code.stages.stage import Stage


def preview_corpus(folder: Path) -> Preview:
    """First documents and queries, and what was quarantined."""
    return {
        "first documents": first_rows(
            folder / "documents.parquet", ["document_id", "title", "text"]
        ),
        "first queries": first_rows(folder / "queries.parquet", ["query_id", "text", "split"]),
        "first quarantined rows": first_rows(
            folder / "quarantine.parquet", ["location", "table", "reason", "detail"]
        ),
    }


def preview_query_generator(folder: Path) -> Preview:
    """The learning curve, if a generator was trained at all."""
    if not read_json(folder / "report.json")["trained"]:
        return {"history": "no generator was trained (`pseudo_queries.training.base` is null)"}
    # of held-out queries: by it the best step is chosen
    return learning_curve(folder, ["log_likelihood"])


def preview_pseudo_queries(folder: Path) -> Preview:
    """First generated queries."""
    columns = ["query_id", "document_id", "text", "kind"]
    return {"first pseudo-queries": first_rows(folder / "pseudo_queries.parquet", columns)}


def preview_acceptance(folder: Path) -> Preview:
    """Each expectation with its bounds and what was observed."""
    return {"verdict": table(read_json(folder / "verdict.json")["expectations"])}


PAGES = {
    "corpus": Page("corpus", frozenset({"parquet", "pandera"}), preview_corpus),
    "query_generator": Page("corpus", frozenset({"torch"}), preview_query_generator),
    "pseudo_queries": Page("corpus", frozenset({"parquet"}), preview_pseudo_queries),
    "acceptance": Page("corpus", frozenset({"great_expectations"}), preview_acceptance),
}


@dg.asset(key=LOCK_KEY, group_name="corpus", kinds={"json"})
def corpus_lock(project: Served) -> dg.MaterializeResult:
    """What the corpus's source holds now: versions and content hash, through which every stage sees
    it.
    """
    from orchestration.pipeline.ingest import ingest

    lock = ingest(project)
    facts = {name: value for name, value in lock.items() if isinstance(value, (str, int, float))}
    return dg.MaterializeResult(data_version=dg.DataVersion(lock["content_hash"]), metadata=facts)


def corpus_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`corpus_lock`, `corpus`, `query_generator`, `pseudo_queries` and `acceptance_verdict`."""
    return [corpus_lock, *stage_assets(table, PAGES)]
