"""What a retrain trains on: the documents that are found now, and the corpus's judged queries that still have one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Set
from pathlib import Path
from typing import Any

from model_code.corpus.sources.snapshot import write_snapshot
from model_code.errors import FreshetError
from model_code.files import fsync_tree, replace_folder
from model_code.ledger.records import Content
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, Generation
from model_code.live.removed import removed_by_part
from orchestration.ledgers import existing_ledger
from orchestration.project import Project

FIELDS = ("document_id", "title", "text", "fields")
Row = dict[str, Any]


def export(project: Project, generation: Generation, folder: Path) -> Path:
    """Write the snapshot of a generation to `folder`, whole or not at all; an existing one is replaced.

    Queries that documents arrived with become judged ones, split by their ids like those of a source without splits.
    FreshetError if the corpus, whose queries are taken over, is not built.
    """
    aside = folder.with_name(f".{folder.name}.making")
    shutil.rmtree(aside, ignore_errors=True)
    documents = sorted(live_documents(generation), key=lambda row: row["id"])
    known = {row["id"] for row in documents}
    qrels = list(_qrels(project, known))
    queries = list(_queries(project, {row["query_id"] for row in qrels}))
    for content in _arrived(project, generation):
        if content.document_id in known:
            queries += [{"id": one, "text": text} for one, text in _own_queries(content)]
            qrels += [_judgement(one, content.document_id, 1, None) for one, _ in _own_queries(content)]
    write_snapshot(aside, {"documents": documents, "queries": queries, "qrels": qrels})
    fsync_tree(aside)
    replace_folder(aside, folder)
    return folder


def live_documents(generation: Generation) -> Iterator[Row]:
    """Every document that the generation finds, with the columns of a snapshot."""
    for number, gone in removed_by_part(generation).items():
        for row in zip(*read_columns(generation.sibling(number) / DOCUMENTS, *FIELDS), strict=True):
            if row[0] not in gone:
                yield dict(zip(("id", *FIELDS[1:]), row, strict=True))


def _qrels(project: Project, documents: Set[str]) -> Iterable[Row]:
    """Judgements whose document is live; a query of a document that streamed in later gets the split it was given."""
    table = _corpus_table(project, "qrels").merge(
        _corpus_table(project, "queries")[["query_id", "assigned_split"]], on="query_id"
    )
    table = table[table["document_id"].isin(list(documents)) & table["assigned_split"].notna()]
    for row in table.itertuples():
        yield _judgement(row.query_id, row.document_id, int(row.relevance), row.assigned_split)


def _judgement(query: str, document: str, relevance: int, split: str | None) -> Row:
    return {"query_id": query, "document_id": document, "relevance": relevance, "split": split}


def _arrived(project: Project, generation: Generation) -> Iterator[Content]:
    """The documents that came through the ledger, as of this generation."""
    ledger = existing_ledger(project, generation.retriever)
    return iter(()) if ledger is None else ledger.snapshot(generation.watermark)


def _own_queries(content: Content) -> list[tuple[str, str]]:
    return [(f"{content.document_id}~given~{i}", text) for i, text in enumerate(content.queries)]


def _queries(project: Project, query_ids: Set[str]) -> Iterable[Row]:
    table = _corpus_table(project, "queries")
    for row in table[table["query_id"].isin(list(query_ids))].itertuples():
        yield {"id": row.query_id, "text": row.text}


def _corpus_table(project: Project, name: str) -> Any:
    import pandas as pd

    path = project.artifacts / "corpus" / f"{name}.parquet"
    if not path.is_file():
        raise FreshetError(f"{path} is missing: a retrain keeps the corpus's judged queries; run `freshet run corpus`")
    return pd.read_parquet(path)
