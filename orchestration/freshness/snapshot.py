"""Export the training data of a retrain: the live documents and their judged queries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

import pandas as pd

from model_code.collection.generations.generation import Generation, live_rows
from model_code.collection.index.project_ledger import (
    open_ledger_if_exists,
    read_feedback,
)
from model_code.corpus.settings import GATE
from model_code.corpus.sources.files import write_snapshot
from model_code.corpus.splits import key_documents, split_queries
from model_code.errors import FreshetError
from model_code.files import hash_text
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.probes import (
    documents_by_query,
    feedback_relevance,
    gate_judgements,
    has_corpus_queries,
)

# Columns of a live document. In a snapshot the first one is called `id`.
DOCUMENT_COLUMNS = ("document_id", "title", "text", "fields", "date", "queries")
# A document without queries, as its segment stores it.
NO_QUERIES = "[]"

Row = dict[str, Any]
Relevance = dict[str, dict[str, int]]
"""Relevance of documents by query text and document id."""


def export_snapshot(
    project: Project, generation: Generation, folder: Path, only: Set[str] | None = None
) -> None:
    """Write the live documents of a generation, and their judged queries, to a folder.

    Queries come from three places: the corpus, the queries that documents arrived with, and
    feedback that found a document relevant. All documents that arrived with a query answer it. A
    document that feedback found irrelevant is kept as such.

    A query that the corpus judges keeps its id and its split. Other queries are split like the
    queries of a source without splits.

    Args:
        project: The project.
        generation: The generation whose documents are exported.
        folder: The folder to write.
        only: The ids of the documents to export; None for all.

    Raises:
        FreshetError: If the corpus, whose queries are exported, is not built.
        Damaged: If a file of texts is damaged.
    """
    documents = []
    for row in live_documents(generation):
        if only is None or row["id"] in only:
            documents.append(row)
    documents.sort(key=lambda row: row["id"])
    live_ids = {row["id"] for row in documents}

    corpus_queries = _read_corpus_table(project, "queries")
    corpus_qrels = _read_corpus_table(project, "qrels")
    relevance = _relevance_of_arrivals_and_feedback(project, generation, live_ids)
    qrels = _merge_qrels(corpus_queries, corpus_qrels, relevance, live_ids)

    queries = _query_rows(corpus_queries, relevance, qrels)
    write_snapshot(folder, {"documents": documents, "queries": queries, "qrels": qrels})


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


def gate_has_queries(project: Project, generation: Generation) -> bool:
    """Return whether a retrain on this generation has judged queries for the gate.

    Also return True if the corpus is not built. The answer is unknown then, and `export_snapshot`
    raises an error that says so.
    """
    if not has_corpus_queries(project.artifacts):
        return True

    live_ids = {document_id for (document_id,) in live_rows(generation, "document_id")}
    corpus_queries = _read_corpus_table(project, "queries")
    corpus_qrels = _read_corpus_table(project, "qrels")
    relevance = _relevance_of_arrivals_and_feedback(project, generation, live_ids)
    qrels = _merge_qrels(corpus_queries, corpus_qrels, relevance, live_ids)

    relevant = [row for row in qrels if row["relevance"] > 0]
    given_splits = {row["query_id"]: row["split"] for row in relevant}
    pairs = {(row["query_id"], row["document_id"]): row["relevance"] for row in relevant}
    settings = parameters.load(project.params_file).corpus.splits
    splits = set(split_queries(given_splits, settings, key_documents(pairs)).values())
    return GATE in splits or "test" in splits


def gate_queries_for(workspace: Project, document_ids: Iterable[str]) -> frozenset[str]:
    """Return the ids of the gate's queries that one of the documents answers."""
    targets = set(document_ids)
    queries = set()
    for query_id, relevant in gate_judgements(workspace.artifacts).qrels.items():
        if targets & relevant.keys():
            queries.add(query_id)
    return frozenset(queries)


def arrival_query_id(text: str) -> str:
    """Return the id of a query that a document arrived with.

    The id depends on the text alone. The query therefore stays in its split whatever documents
    come and go.

    >>> arrival_query_id("how to sort")
    'given~7dc7b7b56101fc62'
    """
    return f"given~{hash_text(text)[:16]}"


def _relevance_of_arrivals_and_feedback(
    project: Project, generation: Generation, live_ids: Set[str]
) -> Relevance:
    """Return the relevance of live documents to queries that do not come from the corpus.

    Feedback overrides the queries that documents arrived with. A query without a relevant live
    document is left out.
    """
    relevance: Relevance = {}
    ledger = open_ledger_if_exists(project)
    if ledger is not None:
        arrived = ledger.view_at(generation.cursor).snapshot()
        for text, ids in documents_by_query(arrived).items():
            relevance[text] = dict.fromkeys(ids, 1)

    for text, judged in feedback_relevance(read_feedback(project)).items():
        relevance.setdefault(text, {}).update(judged)

    live_relevance: Relevance = {}
    for text, judged in relevance.items():
        judged_live = {id_: judged[id_] for id_ in sorted(judged.keys() & live_ids)}
        if any(judged_live.values()):
            live_relevance[text] = judged_live
    return live_relevance


def _merge_qrels(
    corpus_queries: pd.DataFrame,
    corpus_qrels: pd.DataFrame,
    relevance: Mapping[str, Mapping[str, int]],
    live_ids: Set[str],
) -> list[Row]:
    """Merge `relevance` with the corpus's qrels of live documents.

    The corpus counts if both judge the same pair. Texts are compared without regard to case.

    Returns:
        Rows with query_id, document_id, relevance and split; the split is None for a query that the
        corpus does not judge.
    """
    judged_queries = corpus_queries.dropna(subset="split")
    split_by_id = dict(zip(judged_queries["query_id"], judged_queries["split"], strict=True))
    id_by_text = {
        text.casefold(): id_
        for text, id_ in zip(judged_queries["text"], judged_queries["query_id"], strict=True)
    }

    merged: dict[tuple[str, str], int] = {}
    for text, documents in sorted(relevance.items()):
        query_id = id_by_text.get(text.casefold(), arrival_query_id(text))
        for document_id, value in documents.items():
            merged[query_id, document_id] = value

    is_live = corpus_qrels["document_id"].isin(list(live_ids))
    is_judged = corpus_qrels["query_id"].isin(list(split_by_id))
    for row in corpus_qrels[is_live & is_judged].itertuples():
        merged[row.query_id, row.document_id] = int(row.relevance)

    return [
        {
            "query_id": query_id,
            "document_id": document_id,
            "relevance": value,
            "split": split_by_id.get(query_id),
        }
        for (query_id, document_id), value in merged.items()
    ]


def _query_rows(
    corpus_queries: pd.DataFrame, relevance: Mapping[str, Mapping[str, int]], qrels: list[Row]
) -> list[Row]:
    """Return a row for each query of `qrels`, with its id, text and known answers."""
    text_by_id = {arrival_query_id(text): text for text in relevance}
    text_by_id.update(zip(corpus_queries["query_id"], corpus_queries["text"], strict=True))

    # Answers are strings of JSON.
    answers_by_id = {}
    if "answers" in corpus_queries:
        answered = corpus_queries.dropna(subset="answers")
        answers_by_id = dict(zip(answered["query_id"], answered["answers"], strict=True))

    judged_ids = {row["query_id"] for row in qrels}
    return [
        {"id": id_, "text": text, "answers": answers_by_id.get(id_)}
        for id_, text in text_by_id.items()
        if id_ in judged_ids
    ]


def _read_corpus_table(project: Project, name: str) -> pd.DataFrame:
    path = project.artifacts / "corpus" / f"{name}.parquet"
    if not path.is_file():
        raise FreshetError(
            f"{path} is missing: a retrain keeps the corpus's judged queries; "
            "run `freshet run corpus`"
        )
    return pd.read_parquet(path)
