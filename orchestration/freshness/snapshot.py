"""The snapshot of a generation that a retrain trains on."""

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

FIELDS = ("document_id", "title", "text", "fields", "date", "queries")
NO_QUERIES = "[]"


Row = dict[str, Any]


def export_snapshot(
    project: Project, generation: Generation, folder: Path, only: Set[str] | None = None
) -> None:
    """Write the snapshot of a generation to `folder`.

    only: the documents to take; None: all that are live. Queries that documents arrived with become
    judged ones, answered by all documents that arrived with the same text, and so do those on which
    people's feedback found a document relevant; what they found irrelevant is kept as such. One
    that the corpus judges already stays that one, in its split; others are split by their ids like
    those of a source without splits. FreshetError if the corpus, whose queries are taken over, is
    not built.
    """
    rows = (row for row in live_documents(generation) if only is None or row["id"] in only)
    documents = sorted(rows, key=lambda row: row["id"])
    live = {row["id"] for row in documents}
    table, judgements = _corpus_table(project, "queries"), _judgements(project, generation, live)
    qrels = _qrels(table, _corpus_table(project, "qrels"), judgements, live)
    texts = {arrival_query_id(text): text for text in judgements} | dict(
        zip(table["query_id"], table["text"], strict=True)
    )
    answered = (
        table.dropna(subset="answers")
        if "answers" in table
        else table.iloc[:0].assign(answers=None)
    )
    strings = dict(zip(answered["query_id"], answered["answers"], strict=True))  # as JSON
    judged = {row["query_id"] for row in qrels}
    queries = [
        {"id": id_, "text": text, "answers": strings.get(id_)}
        for id_, text in texts.items()
        if id_ in judged
    ]
    write_snapshot(folder, {"documents": documents, "queries": queries, "qrels": qrels})


def live_documents(generation: Generation) -> Iterator[Row]:
    """Every document that the generation finds, with the columns of a snapshot; Damaged if a file
    of texts is.
    """
    generation.verify_documents()
    for values in live_rows(generation, *FIELDS):
        row = dict(zip(("id", *FIELDS[1:]), values, strict=True))
        if row["queries"] == NO_QUERIES:
            row["queries"] = None
        yield row


def gate_has_no_queries(project: Project, generation: Generation) -> bool:
    """Whether, of all queries that `export_snapshot` writes, the gate would have none to judge a retrain by.

    Where the corpus is not built nobody knows, and `export_snapshot` says so.
    """
    if not has_corpus_queries(project.artifacts):
        return False
    live = {document_id for (document_id,) in live_rows(generation, "document_id")}
    tables = _corpus_table(project, "queries"), _corpus_table(project, "qrels")
    rows = _qrels(*tables, _judgements(project, generation, live), live)
    relevant = [row for row in rows if row["relevance"] > 0]
    stated = {row["query_id"]: row["split"] for row in relevant}
    pairs = {(row["query_id"], row["document_id"]): row["relevance"] for row in relevant}
    settings = parameters.load(project.params_file).corpus.splits
    splits = split_queries(stated, settings, key_documents(pairs))
    return not {GATE, "test"} & set(splits.values())


def _judgements(
    project: Project, generation: Generation, live: Set[str]
) -> dict[str, dict[str, int]]:
    """Relevance of live documents to texts that documents arrived with, or that people judged."""
    ledger = open_ledger_if_exists(project)
    arrived = () if ledger is None else ledger.view_at(generation.cursor).snapshot()
    judgements = {text: dict.fromkeys(ids, 1) for text, ids in documents_by_query(arrived).items()}
    for text, judged in feedback_relevance(read_feedback(project)).items():
        judgements[text] = judgements.get(text, {}) | judged
    alive = {
        text: {id_: judged[id_] for id_ in sorted(judged.keys() & live)}
        for text, judged in judgements.items()
    }
    return {text: judged for text, judged in alive.items() if any(judged.values())}


def _qrels(
    queries: pd.DataFrame,
    qrels: pd.DataFrame,
    judgements: Mapping[str, Mapping[str, int]],
    live: Set[str],
) -> list[Row]:
    """The judgements of live documents: those given, and the corpus's own, which count where both
    judge a pair.
    """
    queries = queries.dropna(subset="split")
    splits = dict(zip(queries["query_id"], queries["split"], strict=True))
    ids = dict(zip(map(str.casefold, queries["text"]), queries["query_id"], strict=True))
    judged = {
        (ids.get(text.casefold(), arrival_query_id(text)), document): relevant
        for text, documents in sorted(judgements.items())
        for document, relevant in documents.items()
    }
    for row in qrels[
        qrels["document_id"].isin(list(live)) & qrels["query_id"].isin(list(splits))
    ].itertuples():
        judged[row.query_id, row.document_id] = int(row.relevance)
    return [
        {
            "query_id": query,
            "document_id": document,
            "relevance": relevant,
            "split": splits.get(query),
        }
        for (query, document), relevant in judged.items()
    ]


def arrival_query_id(text: str) -> str:
    """The id of a query that documents arrived with, by its text alone: whatever comes or goes, its
    split stays.

    >>> arrival_query_id("how to sort")
    'given~7dc7b7b56101fc62'
    """
    return f"given~{hash_text(text)[:16]}"


def _corpus_table(project: Project, name: str) -> pd.DataFrame:
    path = project.artifacts / "corpus" / f"{name}.parquet"
    if not path.is_file():
        raise FreshetError(
            f"{path} is missing: a retrain keeps the corpus's judged queries; run `freshet run corpus`"
        )
    return pd.read_parquet(path)


def queries_for(workspace: Project, documents: Iterable[str]) -> frozenset[str]:
    """The queries of the gate that ask for one of `documents`."""
    targets = set(documents)
    qrels = gate_judgements(workspace.artifacts).qrels
    return frozenset(query for query, relevant in qrels.items() if targets & relevant.keys())
