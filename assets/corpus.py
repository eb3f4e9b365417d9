"""Dagster assets of the corpus.

These are the lock of the corpus's source, the tables of documents and queries, generated queries,
and the verdict of the acceptance rules.
"""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, first_rows, learning_curve, table
from assets.stage_assets import LOCK_KEY, AssetPage, ProjectResource, stage_assets
from model_code.files import read_json
from model_code.stages.stage import Stage

# Number of queries on the page of the corpus.
SHOWN_QUERIES = 5


def preview_corpus(folder: Path) -> Preview:
    """Show the first documents, queries and quarantined rows.

    Queries that users of the search typed are left out.
    """
    from model_code.corpus.tables import read_public_queries

    queries = read_public_queries(folder)[["query_id", "text", "split"]].head(SHOWN_QUERIES)
    # JSON has no NaN, which pandas may have in place of a missing split.
    queries = queries.astype(object).where(queries.notna(), None)
    return {
        "first documents": first_rows(
            folder / "documents.parquet", ["document_id", "title", "text"]
        ),
        "first queries": table(queries.to_dict("records")),
        "first quarantined rows": first_rows(
            folder / "quarantine.parquet", ["location", "table", "reason", "detail"]
        ),
    }


def preview_query_generator(folder: Path) -> Preview:
    """Show the learning curve of the model that writes queries, if one was trained."""
    if not read_json(folder / "report.json")["trained"]:
        return {"history": "no generator was trained (`pseudo_queries.training.base` is null)"}
    # The best step of the training is the one with the highest log-likelihood of held-out queries.
    return learning_curve(folder, ["log_likelihood"])


def preview_pseudo_queries(folder: Path) -> Preview:
    """Show the first queries that were generated from documents."""
    columns = ["query_id", "document_id", "text", "kind"]
    return {"first pseudo-queries": first_rows(folder / "pseudo_queries.parquet", columns)}


def preview_acceptance(folder: Path) -> Preview:
    """Show each rule that the corpus had to meet, with its bounds and the observed value."""
    return {"verdict": table(read_json(folder / "verdict.json")["expectations"])}


PAGES = {
    "corpus": AssetPage("corpus", frozenset({"parquet", "pandera"}), preview_corpus),
    "query_generator": AssetPage("corpus", frozenset({"torch"}), preview_query_generator),
    "pseudo_queries": AssetPage("corpus", frozenset({"parquet"}), preview_pseudo_queries),
    "acceptance": AssetPage("corpus", frozenset({"great_expectations"}), preview_acceptance),
}


@dg.asset(key=LOCK_KEY, group_name="corpus", kinds={"json"})
def corpus_lock(project: ProjectResource) -> dg.MaterializeResult:
    """Versions and content hash of the corpus's source.

    Stages depend on this lock, so that they run again if the source has changed.
    """
    from orchestration.pipeline.ingest import ingest

    lock = ingest(project)
    facts = {name: value for name, value in lock.items() if isinstance(value, (str, int, float))}
    return dg.MaterializeResult(data_version=dg.DataVersion(lock["content_hash"]), metadata=facts)


def corpus_assets(table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """Return the assets of the corpus, from `corpus_lock` to `acceptance_verdict`."""
    return [corpus_lock, *stage_assets(table, PAGES)]
