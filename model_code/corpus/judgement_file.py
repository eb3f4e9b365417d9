"""The project's own judgements: `judgements.jsonl`, which `freshet judge` writes.

The file lies beside `params.yaml`, so that git keeps its history. Each line judges one document
for one question. Builds and retrains read it in addition to the judgements of the source, whatever
kind the source is. Its hash is part of `corpus.lock.json`, so that a changed file runs the stage
`corpus` again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_code.corpus.cleaning import clean_line, written_id
from model_code.corpus.rows import RefusedRow, Row, Table, printable
from model_code.corpus.settings import SPLITS, CorpusSettings
from model_code.corpus.sources.base import Source, open_locked_source
from model_code.errors import FreshetError
from model_code.files import hash_path, hash_text, write_text
from model_code.progress import Progress, no_progress
from model_code.text.known_queries import normalize_query

# Name of the file in the project's root.
JUDGEMENT_FILE = "judgements.jsonl"
# Key in `corpus.lock.json`. Its value is the hash of the judgement file.
JUDGEMENT_LOCK = "judgements"


@dataclass(frozen=True)
class JudgedPair:
    """A document that a person judged for a question.

    Attributes:
        question: Text of the question, on one line.
        document_id: Id of the document.
        relevance: Grade; 0 or less means that the document is not relevant.
        split: Split of the question, one of `SPLITS`. None: the build assigns one by a hash.
    """

    question: str
    document_id: str
    relevance: int = 1
    split: str | None = None

    @property
    def key(self) -> tuple[str, str]:
        """Normalised question and document id. A file holds one judgement per key."""
        return normalize_query(self.question), self.document_id


@dataclass(frozen=True)
class JudgementChanges:
    """Counts of what `record_judgements` changed in the file.

    Attributes:
        added: Number of pairs that were not judged before.
        changed: Number of pairs that have another grade or split now.
        unchanged: Number of pairs that had the same grade and split before.
    """

    added: int
    changed: int
    unchanged: int


def text_query_id(text: str) -> str:
    """Return an id for a query that came without one.

    The id is a hash of the text. The split of a query is drawn by its id, so equal texts always get
    the same split.

    >>> text_query_id("how to sort")
    'given~7dc7b7b56101fc62'
    """
    return f"given~{hash_text(text)[:16]}"


def read_judgements(path: Path) -> list[JudgedPair]:
    """Read the project's own judgements; an empty list if there is no file.

    If several lines judge the same pair, the last one counts.

    Args:
        path: The file.

    Raises:
        FreshetError: If the file is not UTF-8, or a line is not a judgement. The message names the
            line.
    """
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise FreshetError(
            f"{path.name} holds bytes that are no UTF-8; save the file as UTF-8, or restore it "
            "from git"
        ) from None

    pairs: dict[tuple[str, str], JudgedPair] = {}
    # `splitlines` would also split at U+2028, which JSON allows within a text.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            pair = _parse_line(line, f"{path.name}:{number}")
            pairs[pair.key] = pair
    return list(pairs.values())


def record_judgements(path: Path, judged: Iterable[JudgedPair]) -> JudgementChanges:
    """Add judgements to the file. The file is written only if a judgement is new or different.

    A pair that was judged before keeps its line and gets the new grade. If a pair is judged several
    times, the last judgement counts. The caller must hold the project's lock.

    Args:
        path: The file.
        judged: The judgements.
    """
    before = {pair.key: pair for pair in read_judgements(path)}
    after = dict(before)
    new_keys: set[tuple[str, str]] = set()
    for pair in judged:
        after[pair.key] = pair
        new_keys.add(pair.key)

    added = len(new_keys - before.keys())
    changed = sum(before[key] != after[key] for key in new_keys & before.keys())
    if added or changed:
        write_judgements(path, after.values())
    return JudgementChanges(added, changed, len(new_keys) - added - changed)


def write_judgements(path: Path, pairs: Iterable[JudgedPair]) -> None:
    """Replace the file by the given judgements. The caller must hold the project's lock.

    Args:
        path: The file.
        pairs: All judgements.
    """
    write_text(path, "".join(_line(pair) for pair in pairs))


def judgement_hash(path: Path) -> str | None:
    """Return the hash of the judgement file for `corpus.lock.json`; None if there is no file."""
    return hash_path(path) if path.is_file() else None


def judgements_by_question(pairs: Iterable[JudgedPair]) -> dict[str, list[JudgedPair]]:
    """Group judgements by the text of their question."""
    grouped: dict[str, list[JudgedPair]] = {}
    for pair in pairs:
        grouped.setdefault(pair.question, []).append(pair)
    return grouped


def open_judged_source(
    settings: CorpusSettings, root: Path, lock: Mapping[str, Any]
) -> JudgedSource:
    """Open the source that a lock describes, together with the project's own judgements.

    Args:
        settings: The settings of the corpus.
        root: Root of the project.
        lock: Content of `corpus.lock.json`.

    Raises:
        FreshetError: If the source or the file of judgements changed since the lock was written.
    """
    path = root / JUDGEMENT_FILE
    source = open_locked_source(settings, root, lock)
    if judgement_hash(path) != lock.get(JUDGEMENT_LOCK):
        raise FreshetError(
            f"{JUDGEMENT_FILE} changed since `freshet ingest`. Builds read only what the lock "
            "names: run `freshet ingest` again to accept the change."
        )
    return JudgedSource(source, read_judgements(path))


class JudgedSource:
    """A source together with the project's own judgements.

    An own judgement replaces the source's judgement of the same pair. If the source has the
    question as a query, the question keeps the source's id and split. Normalised texts are
    compared; see `normalize_query`.

    The tables must be read in the order documents, queries, qrels, as `build_corpus` does. Rows of
    qrels depend on the ids that the earlier tables had. Own judgements of documents that the source
    no longer holds are left out, because deleting a document must not stop a build.

    Attributes:
        source: The source without the own judgements.
        missing: Number of own judgements that were left out.
    """

    def __init__(self, source: Source, pairs: Iterable[JudgedPair]) -> None:
        """Join a source and the project's own judgements. The tables are read later."""
        self.source = source
        self._by_question = judgements_by_question(pairs)
        # Id of each query by its normalised text, and the ids of all documents. They are filled
        # while the tables are read.
        self._query_ids: dict[str, str] = {}
        self._document_ids: set[str] = set()
        self.missing = 0

    def describe(self) -> dict[str, Any]:
        """Describe the content of the source, without the own judgements."""
        return self.source.describe()

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table: first rows of the source, then rows of the own judgements."""
        if table == "queries":
            yield from self._query_rows(progress)
        elif table == "qrels":
            yield from self._qrel_rows(progress)
        else:
            yield from self._document_rows(progress)

    def _document_rows(self, progress: Progress) -> Iterator[Row | RefusedRow]:
        """Yield the source's rows of documents. Remember their ids to check judgements later."""
        for row in self.source.rows("documents", progress):
            if isinstance(row, Row):
                self._document_ids.add(written_id(row.values.get("id")))
            yield row

    def _query_rows(self, progress: Progress) -> Iterator[Row | RefusedRow]:
        """Yield the source's rows of queries, then each own question that the source lacks."""
        for row in self.source.rows("queries", progress):
            self._remember_query(row)
            yield row
        for question in self._by_question:
            normalized_question = normalize_query(question)
            if normalized_question in self._query_ids:
                continue
            query_id = text_query_id(question)
            self._query_ids[normalized_question] = query_id
            location = f"{JUDGEMENT_FILE}:{query_id}"
            yield Row("queries", location, {"id": query_id, "text": question})

    def _remember_query(self, row: Row | RefusedRow) -> None:
        """Remember the id of a query by its text, so that an own question can reuse the id."""
        if isinstance(row, RefusedRow):
            return
        text = row.values.get("text")
        query_id = row.values.get("id")
        if isinstance(text, str) and query_id is not None:
            normalized_text = normalize_query(clean_line(text))
            self._query_ids.setdefault(normalized_text, written_id(query_id))

    def _qrel_rows(self, progress: Progress) -> Iterator[Row | RefusedRow]:
        """Yield the source's rows of qrels, then the own rows, which hold the own judgements.

        A row of the source is left out if there is an own judgement of its pair. A question that
        the source has in a split stays there. The split of an own judgement counts only for
        questions without one.
        """
        own_rows = list(self._own_qrel_rows())
        own_pairs = {(row.values["query_id"], row.values["document_id"]) for row in own_rows}
        source_splits: dict[str, Any] = {}
        for row in self.source.rows("qrels", progress):
            if isinstance(row, Row):
                query_id = written_id(row.values.get("query_id"))
                document_id = written_id(row.values.get("document_id"))
                source_splits.setdefault(query_id, row.values.get("split"))
                if (query_id, document_id) in own_pairs:
                    continue
            yield row

        for row in own_rows:
            values = dict(row.values)
            split = source_splits.get(values["query_id"]) or values["split"]
            if split is None:
                del values["split"]
            else:
                values["split"] = split
            yield Row("qrels", row.location, values)

    def _own_qrel_rows(self) -> Iterator[Row]:
        """Yield a row for each own judgement of a document that the source still holds."""
        for question, pairs in self._by_question.items():
            query_id = self._query_ids[normalize_query(question)]
            for pair in pairs:
                if pair.document_id not in self._document_ids:
                    self.missing += 1
                    continue
                values = {
                    "query_id": query_id,
                    "document_id": pair.document_id,
                    "relevance": pair.relevance,
                    "split": pair.split,
                }
                yield Row("qrels", f"{JUDGEMENT_FILE}:{query_id}", values)


def _line(pair: JudgedPair) -> str:
    """Return a judgement as a line of JSON. A split that the build assigns is left out."""
    values = asdict(pair)
    if pair.split is None:
        del values["split"]
    return json.dumps(values, ensure_ascii=False) + "\n"


def _parse_line(line: str, location: str) -> JudgedPair:
    """Return the judgement of a line.

    Raises:
        FreshetError: If the line is not a judgement. The message names the location.
    """
    try:
        values = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _bad_line(location, f"no JSON: {printable(error)}") from None
    fault = _find_fault(values)
    if fault is not None:
        raise _bad_line(location, fault)
    return JudgedPair(**values)


def _find_fault(values: Any) -> str | None:
    """Return why a parsed JSON value is not a judgement; None if it is one."""
    if not isinstance(values, Mapping):
        return "no object"
    unknown = values.keys() - JudgedPair.__dataclass_fields__.keys()
    if unknown:
        return f"unknown key {printable(min(unknown))!r}"
    for name in ("question", "document_id"):
        value = values.get(name)
        if not isinstance(value, str) or not value:
            return f"{name} is {printable(value)!r}, not text"
    relevance = values.get("relevance", 1)
    if not isinstance(relevance, int) or isinstance(relevance, bool):
        return f"relevance is {printable(relevance)!r}, not a whole number"
    split = values.get("split")
    if split is not None and split not in SPLITS:
        return f"split is {printable(split)!r}, not one of {', '.join(SPLITS)}"
    return None


def _bad_line(location: str, fault: str) -> FreshetError:
    """Return the error for a line of the file that is not a judgement."""
    return FreshetError(
        f"{location} is no judgement ({fault}): delete the line, or restore the file from git"
    )
