"""Documents, queries and qrels: the lock of their source, and what was read, cleaned and merged from it."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, first_rows
from assets.stage_assets import LOCK_KEY, Page, stage_assets
from orchestration.pipeline.stages import Stage
from orchestration.project import Project


def preview_corpus(folder: Path) -> Preview:
    """First documents and queries, and what was quarantined."""
    return {
        "first documents": first_rows(folder / "documents.parquet", ["document_id", "title", "text"]),
        "first queries": first_rows(folder / "queries.parquet", ["query_id", "text", "split"]),
        "first quarantined rows": first_rows(folder / "quarantine.parquet", ["location", "table", "reason", "detail"]),
    }


CORPUS = Page("corpus", frozenset({"parquet", "pandera"}), preview_corpus)


def corpus_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`corpus_lock` and `corpus`."""

    @dg.asset(key=LOCK_KEY, group_name="corpus", kinds={"json"})
    def corpus_lock(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        """What the corpus's source holds now: versions and content hash, through which every stage sees it."""
        from orchestration.pipeline.ingest import ingest

        lock = ingest(project)
        facts = {name: value for name, value in lock.items() if isinstance(value, (str, int, float))}
        return dg.MaterializeResult(data_version=dg.DataVersion(lock["content_hash"]), metadata=facts)

    return [corpus_lock, *stage_assets(project, table, {"corpus": CORPUS})]
