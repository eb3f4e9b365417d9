"""Export the training data of a retrain: the live documents and their judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation import Generation, live_rows
from model_code.corpus.sources.files import write_snapshot
from model_code.project import Project
from orchestration.freshness.judged_pairs import read_judged_pairs, require_corpus_tables
from orchestration.freshness.probes import gate_judgements

# Columns that are read for each live document. A snapshot names the first column `id`.
DOCUMENT_COLUMNS = ("document_id", "title", "text", "fields", "date", "queries")
# Value of the column `queries` in a segment for a document that arrived without queries.
NO_QUERIES = "[]"

Row = dict[str, Any]


def export_snapshot(
    project: Project, generation: Generation, folder: Path, only: Set[str] | None = None
) -> None:
    """Write the live documents of a generation, and their judged queries, to a folder.

    `read_judged_pairs` collects the judged queries of the corpus and of later origins, such as
    feedback. Queries of the corpus keep their splits (train, dev, gate or test). Queries without a
    split are assigned one by a hash when the snapshot is built.

    Args:
        project: The project.
        generation: The generation whose documents are exported.
        folder: The folder to write.
        only: The ids of the documents to export; None for all.

    Raises:
        FreshetError: If the corpus is not built, because its judged queries are exported.
        Damaged: If a file of texts is damaged.
    """
    require_corpus_tables(project)
    documents = []
    for row in live_documents(generation):
        if only is None or row["id"] in only:
            documents.append(row)
    documents.sort(key=lambda row: row["id"])

    pairs = read_judged_pairs(project, generation, only)
    write_snapshot(
        folder,
        {"documents": documents, "queries": pairs.query_rows(), "qrels": pairs.qrel_rows()},
    )


def live_documents(generation: Generation) -> Iterator[Row]:
    """Yield every live document of a generation, with the columns of a snapshot.

    Raises:
        Damaged: If a file of texts is damaged.
    """
    generation.verify_documents()
    snapshot_columns = ("id", *DOCUMENT_COLUMNS[1:])
    for values in live_rows(generation, *DOCUMENT_COLUMNS):
        row = dict(zip(snapshot_columns, values, strict=True))
        if row["queries"] == NO_QUERIES:
            row["queries"] = None
        yield row


def gate_queries_for(workspace: Project, document_ids: Iterable[str]) -> frozenset[str]:
    """Return the ids of the gate's queries to which at least one of the documents is relevant."""
    targets = set(document_ids)
    queries = set()
    for query_id, relevant in gate_judgements(workspace.artifacts).qrels.items():
        if targets & relevant.keys():
            queries.add(query_id)
    return frozenset(queries)
