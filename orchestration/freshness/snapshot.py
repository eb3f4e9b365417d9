"""What a retrain trains on: the documents that are found now, and the corpus's judged queries that still have one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any

from model_code.corpus.sources.files import write_snapshot
from model_code.errors import FreshetError
from model_code.files import hash_text
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, Generation, removed_by_part
from orchestration.freshness.queries import answers, judgements, relevance
from orchestration.live.ledger import all_feedback, arrived_documents
from orchestration.project import Project

FIELDS = ("document_id", "title", "text", "fields")
Row = dict[str, Any]


def export(project: Project, generation: Generation, folder: Path, only: Set[str] | None = None) -> None:
    """Write the snapshot of a generation to `folder`.

    only: the documents to take; None: all that are live.
    Queries that documents arrived with become judged ones, answered by all documents that arrived with the same text,
    and so do those on which people's feedback found a document relevant; what they found irrelevant is kept as such.
    One that the corpus judges already stays that one, in its split; others are split by their ids like those of a
    source without splits.
    FreshetError if the corpus, whose queries are taken over, is not built.
    """
    documents = sorted(_chosen(live_documents(generation), only), key=lambda row: row["id"])
    known = {row["id"] for row in documents}
    given: dict[str, dict[str, int]] = {
        text: dict.fromkeys(own, 1) for text, own in answers(arrived_documents(project, generation)).items()
    }
    for text, own in relevance(all_feedback(project)).items():
        given[text] = given.get(text, {}) | own
    given = {text: {one: given[text][one] for one in sorted(given[text].keys() & known)} for text in given}
    given = {text: own for text, own in given.items() if any(own.values())}
    judged = (*_given_qrels(project, given), *_qrels(project, known))  # the corpus's own count, where both judge a pair
    qrels = {(row["query_id"], row["document_id"]): row for row in judged}
    asked = {query for query, _ in qrels}
    texts = {query_id(text): text for text in given} | _texts(project)
    strings = _answer_strings(project)
    queries = [{"id": one, "text": text, "answers": strings.get(one)} for one, text in texts.items() if one in asked]
    write_snapshot(folder, {"documents": documents, "queries": queries, "qrels": list(qrels.values())})


def live_documents(generation: Generation) -> Iterator[Row]:
    """Every document that the generation finds, with the columns of a snapshot; Damaged if a file of texts is."""
    generation.verify_documents()
    for number, gone in removed_by_part(generation).items():
        for row in zip(*read_columns(generation.sibling(number) / DOCUMENTS, *FIELDS), strict=True):
            if row[0] not in gone:
                yield dict(zip(("id", *FIELDS[1:]), row, strict=True))


def _chosen(documents: Iterable[Row], only: Set[str] | None) -> Iterator[Row]:
    return (row for row in documents if only is None or row["id"] in only)


def _qrels(project: Project, documents: Set[str]) -> Iterable[Row]:
    """Judgements whose document is live; a query of a document that streamed in later gets the split it was given."""
    table = _corpus_table(project, "qrels").merge(
        _corpus_table(project, "queries")[["query_id", "assigned_split"]], on="query_id"
    )
    table = table[table["document_id"].isin(list(documents)) & table["assigned_split"].notna()]
    for row in table.itertuples():
        yield _judgement(row.query_id, row.document_id, int(row.relevance), row.assigned_split)


def _given_qrels(project: Project, given: Mapping[str, Mapping[str, int]]) -> Iterator[Row]:
    """Judgements of texts that documents arrived with or people judged; given: each one's documents, how relevant."""
    table = _corpus_table(project, "queries").dropna(subset="assigned_split")
    judged = zip(table["query_id"], table["assigned_split"], strict=True)
    known = dict(zip(map(str.casefold, table["text"]), judged, strict=True))
    for text, documents in sorted(given.items()):
        query, split = known.get(text.casefold(), (query_id(text), None))
        yield from (_judgement(query, document, relevant, split) for document, relevant in documents.items())


def _judgement(query: str, document: str, relevance: int, split: str | None) -> Row:
    return {"query_id": query, "document_id": document, "relevance": relevance, "split": split}


def query_id(text: str) -> str:
    """The id of a query that documents arrived with, by its text alone: whatever comes or goes, its split stays.

    >>> query_id("how to sort")
    'given~7dc7b7b56101fc62'
    """
    return f"given~{hash_text(text)[:16]}"


def _texts(project: Project) -> dict[str, str]:
    """The corpus's queries, by id."""
    table = _corpus_table(project, "queries")
    return dict(zip(table["query_id"], table["text"], strict=True))


def _answer_strings(project: Project) -> dict[str, str]:
    """The strings that answer the corpus's queries, as JSON by id, of queries that have any."""
    table = _corpus_table(project, "queries")
    if "answers" not in table:
        return {}
    table = table.dropna(subset="answers")
    return dict(zip(table["query_id"], table["answers"], strict=True))


def _corpus_table(project: Project, name: str) -> Any:
    import pandas as pd

    path = project.artifacts / "corpus" / f"{name}.parquet"
    if not path.is_file():
        raise FreshetError(f"{path} is missing: a retrain keeps the corpus's judged queries; run `freshet run corpus`")
    return pd.read_parquet(path)


def queries_for(workspace: Project, documents: Iterable[str]) -> frozenset[str]:
    """The judged test queries that ask for one of `documents`."""
    wanted = set(documents)
    qrels = judgements(workspace.artifacts, "test").qrels
    return frozenset(query for query, relevant in qrels.items() if wanted & relevant.keys())
