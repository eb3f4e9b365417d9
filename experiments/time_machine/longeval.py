"""A reader of LongEval's format: dated snapshots of a collection with judgements from clicks.

The folder has the layout of LongEval's web collection:

    queries.txt                          id, tab, text
    Trec/2022-06_fr/*.txt                <DOC> elements with <DOCNO> and <TEXT>
    Json/2022-06_fr/*.json               or lists of objects with `id` and `contents`
    qrels/2022-06_fr/qrels_processed.txt query, 0, document and a grade of 0 to 2 by clicks

The first snapshot has the documents of the stream's first day. Each later snapshot is a step with
one batch: its differences from the snapshot before. The clicks of a snapshot are judgements of the
queries of that snapshot.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.time_machine.docstrings import is_in_share
from experiments.time_machine.stream import (
    KNOWN,
    TESTED,
    Step,
    Stream,
    StreamQuery,
    Text,
    make_batch,
)
from model_code.corpus.cleaning import clean_line, clean_text
from model_code.corpus.rows import Row
from model_code.corpus.sources.trec import read_documents, read_qrels, read_topics
from model_code.errors import FreshetError

_SNAPSHOT = re.compile(r"(\d{4}-\d{2})(?:_\w+)?")


def make_longeval_stream(folder: Path, settings: Mapping[str, Any]) -> Stream:
    """Read the snapshots of a folder.

    A query that is asked in several snapshots becomes a separate query for each of them, because
    its clicks differ.

    Args:
        folder: Folder in LongEval's layout.
        settings: `tested_share`, the share of the queries that are tested. `max_documents`, the
            largest number of documents of a snapshot; 0 for all.

    Raises:
        FreshetError: If the folder has fewer than two snapshots.
    """
    snapshots = _snapshots(folder)
    texts = dict(_query_texts(folder / "queries.txt"))
    start: dict[str, Text] = {}
    before: dict[str, Text] = {}
    steps: list[Step] = []
    queries: list[StreamQuery] = []
    for number, (month, source) in enumerate(snapshots.items()):
        clicked = dict(_clicked(folder, source.name))
        clicked_documents = set().union(*clicked.values())
        documents = _documents(source, clicked_documents, settings["max_documents"])
        if number == 0:
            start = documents
        else:
            date = f"{month}-28"
            steps.append(Step(month, date, [make_batch(month, date, before, documents)]))
        before = documents
        queries.extend(_snapshot_queries(number, month, clicked, texts, settings["tested_share"]))
    first_month = next(iter(snapshots))
    return Stream("longeval", f"{first_month}-28", start, steps, queries)


def _snapshots(folder: Path) -> dict[str, Path]:
    """Return the folder of each month's documents, oldest first."""
    found: dict[str, Path] = {}
    for layout in ("Trec", "Json"):
        for path in sorted((folder / layout).glob("*")):
            match = _SNAPSHOT.fullmatch(path.name)
            if match and path.is_dir():
                found.setdefault(match[1], path)
    if len(found) < 2:
        raise FreshetError(
            f"{folder} has {len(found)} snapshots; a stream needs at least two folders such as "
            "Trec/2022-06_fr or Json/2022-06_fr"
        )
    return dict(sorted(found.items()))


def _documents(source: Path, clicked: set[str], max_documents: int) -> dict[str, Text]:
    """Return the documents of a snapshot: all that were clicked, and others up to a limit.

    Args:
        source: Folder of the snapshot.
        clicked: Ids of the documents that were clicked.
        max_documents: Largest number of documents; 0 for all. Clicked documents are never left out.
    """
    documents: dict[str, Text] = {}
    others: dict[str, Text] = {}
    for document_id, text in _read_snapshot(source):
        if not text.text:
            continue
        has_no_limit = max_documents == 0
        if document_id in clicked or has_no_limit:
            documents[document_id] = text
        else:
            others[document_id] = text

    free_places = max(0, max_documents - len(documents))
    for document_id in sorted(others)[:free_places]:
        documents[document_id] = others[document_id]
    return documents


def _read_snapshot(source: Path) -> Iterator[tuple[str, Text]]:
    """Yield the id and the text of each document of a snapshot, in either layout."""
    for path in sorted(source.iterdir()):
        if path.suffix == ".json":
            for row in json.loads(path.read_text(encoding="utf-8")):
                yield row["id"], Text("", clean_text(row["contents"]))
            continue
        for read in read_documents(path):
            if isinstance(read, Row):
                values = read.values
                yield values["id"], Text(clean_line(values["title"]), clean_text(values["text"]))


def _query_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the text of each query of the collection."""
    for row in read_topics(path):
        if isinstance(row, Row):
            yield row.values["id"], clean_line(row.values["text"])


def _clicked(folder: Path, snapshot: str) -> Iterator[tuple[str, set[str]]]:
    """Yield each query of a snapshot, with the documents that are relevant according to clicks."""
    relevant: dict[str, set[str]] = {}
    for path in sorted((folder / "qrels" / snapshot).glob("*.txt")):
        for row in read_qrels(path):
            if isinstance(row, Row) and int(row.values["relevance"]) > 0:
                relevant.setdefault(row.values["query_id"], set()).add(row.values["document_id"])
    yield from sorted(relevant.items())


def _snapshot_queries(
    number: int,
    month: str,
    clicked: Mapping[str, set[str]],
    texts: Mapping[str, str],
    tested_share: float,
) -> list[StreamQuery]:
    """Return the queries that were asked in one snapshot.

    Args:
        number: Number of the step that ends with the snapshot.
        month: Month of the snapshot.
        clicked: Ids of the relevant documents of each query, by its id.
        texts: Texts of all queries by id.
        tested_share: Share of the queries that are tested. The others are known.
    """
    queries: list[StreamQuery] = []
    for query_id, documents in clicked.items():
        if query_id not in texts:
            continue
        # A query has the same role in every snapshot, so that no tested query is ever known.
        role = TESTED if is_in_share(query_id, tested_share) else KNOWN
        queries.append(
            StreamQuery(
                f"{month}:{query_id}",
                texts[query_id],
                frozenset(documents),
                number,
                role,
                "click",
            )
        )
    return queries
