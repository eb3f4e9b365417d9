"""Read the input of `freshet judge`: a table, TREC qrels with queries, or a BEIR folder.

Every row becomes a judgement, or a refused row with its reason, as in a build.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from model_code.corpus.cleaning import clean_line, read_id, read_text_value, written_id
from model_code.corpus.judgement_file import JudgedPair
from model_code.corpus.qrels import read_relevance
from model_code.corpus.quarantine import Quarantine
from model_code.corpus.rows import RefusedRow, Row, RowError, printable
from model_code.corpus.settings import SPLITS
from model_code.corpus.sources.readers import SUFFIXES, open_text, read_rows
from model_code.corpus.sources.trec import read_topics
from model_code.errors import FreshetError

# Names under which a file may have a column, by Freshet's name of the column. Upper and lower case
# do not matter.
COLUMN_NAMES: dict[str, tuple[str, ...]] = {
    "question": ("question", "query", "query_text", "text"),
    "document": ("document", "document_id", "document-id", "doc", "doc_id", "corpus-id", "path"),
    "grade": ("grade", "relevance", "score", "label"),
    "split": ("split",),
    "query_id": ("query-id", "query_id", "qid", "_id", "id"),
}

# Suffixes of files of rows that always have a header. A .tsv file may have none.
TABLE_SUFFIXES = tuple(suffix for suffix in SUFFIXES if suffix != ".tsv")

# Longest list of column names in an error message, in characters.
MAX_LISTED_COLUMNS_CHARACTERS = 300


@dataclass(frozen=True)
class JudgementColumns:
    """The column names of a file, as the user gave them.

    None means that the column is found by `COLUMN_NAMES`.

    Attributes:
        question: Column with the text of the question.
        document: Column with the id of the document.
        grade: Column with the grade. Without one every pair is relevant.
    """

    question: str | None = None
    document: str | None = None
    grade: str | None = None


@dataclass(frozen=True)
class JudgementInput:
    """The judgements of a file or a BEIR folder.

    Attributes:
        pairs: The judgements of the rows that were not refused, in the order of the rows.
        refused: The refused rows.
    """

    pairs: tuple[JudgedPair, ...]
    refused: tuple[RefusedRow, ...]


def read_judgement_input(
    path: Path,
    document_ids: Set[str],
    max_characters: int,
    queries: Path | None = None,
    columns: JudgementColumns | None = None,
) -> JudgementInput:
    """Read the judgements of a file or a BEIR folder.

    Args:
        path: A BEIR folder, or a file. Without `queries`, the file is a table with a question and a
            document in each row (.csv, .tsv, .jsonl or .parquet). With `queries`, it holds qrels,
            in TREC's format or as a table.
        document_ids: Ids of the documents that may be judged. A row with another id is refused.
        max_characters: Largest length of a question.
        queries: File with the queries that the qrels refer to: TREC topics, lines "ID<tab>TEXT", or
            a table of ids and texts.
        columns: Names of the columns of a table.

    Raises:
        FreshetError: If a file is missing, has another format, or lacks a column.
    """
    if columns is None:
        columns = JudgementColumns()
    if path.is_dir():
        rows = _read_beir_folder(path)
    elif not path.is_file():
        raise FreshetError(f"{path} is not a file or a folder; name a file of judgements")
    elif queries is not None:
        rows = _join_texts(_read_qrels(path), _read_queries(queries), queries.name)
    else:
        rows = _read_table(path, columns)

    check = _Check(document_ids, max_characters)
    quarantine = Quarantine()
    pairs = tuple(quarantine.admit(rows, check.read_pair))
    return JudgementInput(pairs, tuple(quarantine.refused))


class _Check:
    """Turns rows into judgements, and raises `RowError` for a row that cannot be one.

    The values of a row are question, document_id, relevance and split.
    """

    def __init__(self, document_ids: Set[str], max_characters: int) -> None:
        """Set the ids of the documents that may be judged, and the largest length of a question."""
        self._document_ids = document_ids
        self._max_characters = max_characters
        # Ids of documents by their last part, such as the name of a file. It is filled for the
        # first error that suggests an id.
        self._ids_by_name: dict[str, list[str]] = {}

    def read_pair(self, row: Row) -> JudgedPair:
        """Return the judgement of a row. An empty grade or split counts as missing.

        Raises:
            RowError: If the question is empty or too long, the document does not exist, or the
                grade or split is not valid.
        """
        question = clean_line(read_text_value(row.values, "question"))
        if not question:
            raise RowError("empty text", "the question is empty")
        if len(question) > self._max_characters:
            detail = f"{len(question):,} characters, the limit is {self._max_characters:,}"
            raise RowError("huge text", f"the question has {detail}")

        document_id = read_id(row.values, "document_id")
        if document_id not in self._document_ids:
            raise RowError("dangling qrel", self._describe_missing(document_id))

        grade = row.values.get("relevance")
        relevance = 1 if grade is None or grade == "" else read_relevance(grade)
        split = row.values.get("split") or None
        if split is not None and split not in SPLITS:
            raise RowError("bad split", f"split is {split!r}, not one of {', '.join(SPLITS)}")
        return JudgedPair(question, document_id, relevance, split)

    def _describe_missing(self, document_id: str) -> str:
        """Return the detail for a missing document, and suggest one with the same file name."""
        if not self._ids_by_name:
            for known_id in sorted(self._document_ids):
                name = PurePosixPath(known_id).name
                self._ids_by_name.setdefault(name, []).append(known_id)
        detail = f"there is no document {document_id!r}"
        similar = self._ids_by_name.get(PurePosixPath(document_id).name, [])
        if len(similar) == 1:
            detail += f"; is it {similar[0]!r}?"
        return detail


def _read_table(path: Path, columns: JudgementColumns) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a table with a question and a document in each row.

    Raises:
        FreshetError: If the file has another format, or lacks a column.
    """
    if Path(path.name.removesuffix(".gz")).suffix.lower() not in SUFFIXES:
        raise FreshetError(
            f"{path.name} is no table of judgements; name a table ({', '.join(SUFFIXES)}, also "
            ".gz), TREC qrels with --queries, or a BEIR folder"
        )
    given = {"question": columns.question, "document": columns.document, "grade": columns.grade}
    names: dict[str, str] | None = None
    for row in read_rows(path, "qrels", path.name):
        if isinstance(row, RefusedRow):
            yield row
            continue
        if names is None:
            # The columns of the first sound row are those of the file.
            names = _find_columns(row.values, given, path.name)
        names = _with_further_columns(names, row.values)
        values = _judgement_values(row.values, names)
        values["question"] = row.values.get(names["question"])
        yield Row("qrels", row.location, values)


def _with_further_columns(names: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, str]:
    """Return column names by our names, completed by those that only this row has.

    In JSON lines, the first row may lack a grade that a later row states.

    Args:
        names: The file's column names by our names, as far as they are known.
        values: Values of a row by the file's column names.
    """
    completed = dict(names)
    for ours, recognised in COLUMN_NAMES.items():
        column = None
        if ours not in completed:
            column = _recognise(values, recognised)
        if column is not None:
            completed[ours] = column
    return completed


def _find_columns(
    values: Mapping[str, Any], given: Mapping[str, str | None], name: str
) -> dict[str, str]:
    """Return the file's column names by our names.

    A name that the user gave comes before a name that is recognised.

    Args:
        values: Values of a row by the file's column names.
        given: Column names that the user gave, by our names; None for a column to recognise.
        name: Name of the file in the error.

    Raises:
        FreshetError: If the file lacks a column that the user gave. If `given` has an entry for
            questions or documents, that column must exist as well.
    """
    found: dict[str, str] = {}
    for ours, recognised in COLUMN_NAMES.items():
        column = given.get(ours)
        if column is None:
            column = _recognise(values, recognised)
        if column is not None:
            found[ours] = column

    missing = [column for column in found.values() if column not in values]
    for ours in ("question", "document"):
        if ours in given and ours not in found:
            missing.append(ours)
    if missing:
        existing = printable(", ".join(map(str, values)), MAX_LISTED_COLUMNS_CHARACTERS)
        raise FreshetError(
            f"{name} has no column {missing[0]!r}; it has: {existing}. Name the columns with "
            "--question, --document and --grade"
        )
    return found


def _recognise(values: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """Find the column of a file that has one of several names.

    Upper and lower case, and blanks around the name, do not matter.

    Args:
        values: Values of a row by the file's column names.
        names: Accepted names in lower case, the preferred one first.

    Returns:
        The column's name as the file writes it. None if no column has an accepted name.
    """
    column_by_lower_name = {str(column).strip().casefold(): column for column in values}
    for name in names:
        if name in column_by_lower_name:
            return column_by_lower_name[name]
    return None


def _judgement_values(values: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the document, grade and split of a row, by our names; None for a missing value.

    Args:
        values: Values of the row by the file's column names.
        names: The file's column names by our names. A column that the file lacks is missing.
    """
    judgement: dict[str, Any] = {}
    for our_name, key in (("document", "document_id"), ("grade", "relevance"), ("split", "split")):
        column = names.get(our_name)
        judgement[key] = None if column is None else values.get(column)
    return judgement


def _read_qrels(path: Path) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a file of qrels (judgements), which name a query by its id."""
    if not _has_header(path):
        yield from _read_trec_qrels(path)
        return
    for row in read_rows(path, "qrels", path.name):
        if isinstance(row, RefusedRow):
            yield row
            continue
        names = _find_columns(row.values, {}, path.name)
        values = _judgement_values(row.values, names)
        values["query_id"] = row.values.get(names["query_id"]) if "query_id" in names else None
        yield Row("qrels", row.location, values)


def _read_trec_qrels(path: Path) -> Iterator[Row | RefusedRow]:
    """Yield the rows of a TREC file with lines "QUERY ITERATION DOCUMENT GRADE".

    The id of a document may contain blanks. The first two columns are therefore split off from the
    left, and the grade from the right.
    """
    for location, line in _lines(path):
        left_columns = line.split(maxsplit=2)
        document_and_grade = left_columns[2].rsplit(maxsplit=1) if len(left_columns) == 3 else []
        if len(document_and_grade) != 2:
            detail = "not the four columns of TREC: query, iteration, document, grade"
            yield RefusedRow("qrels", location, "bad line", detail, printable(line))
            continue
        document_id, grade = document_and_grade
        values = {"query_id": left_columns[0], "document_id": document_id, "relevance": grade}
        yield Row("qrels", location, values)


def _read_queries(path: Path) -> dict[str, str]:
    """Return the text of each query of a file by its id.

    Raises:
        FreshetError: If the file is missing, lacks the columns, or has a line that is no query.
    """
    if not path.is_file():
        raise FreshetError(f"{path} is not a file; name the file of queries with --queries")

    texts: dict[str, str] = {}
    if not _has_header(path):
        for row in read_topics(path):
            if isinstance(row, RefusedRow):
                raise FreshetError(
                    f"{row.location} is no query ({row.message}): a file of queries is TREC "
                    "topics, lines ID<tab>TEXT, or a table with the columns id and text"
                )
            texts[row.values["id"]] = row.values["text"]
        return texts

    for row in read_rows(path, "queries", path.name):
        if not isinstance(row, Row):
            continue
        names = _find_columns(row.values, {}, path.name)
        if "query_id" not in names or "question" not in names:
            existing = printable(", ".join(map(str, row.values)))
            raise FreshetError(
                f"{path.name} has no columns of ids and texts (id, text); it has: {existing}"
            )
        query_id = written_id(row.values[names["query_id"]])
        texts[query_id] = row.values[names["question"]]
    return texts


def _has_header(path: Path) -> bool:
    """Return whether a file is a table with named columns.

    A .tsv file may have none. It has a header if its first line has a column name that is known.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TABLE_SUFFIXES:
        return True
    if suffix != ".tsv":
        return False
    known_names = set(chain.from_iterable(COLUMN_NAMES.values()))
    with open_text(path) as stream:
        cells = stream.readline().split("\t")
    return any(cell.strip().casefold() in known_names for cell in cells)


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the location and the text of each line that is not blank."""
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            if line.strip():
                yield f"{path.name}:{number}", line.rstrip("\r\n")


def _read_beir_folder(folder: Path) -> Iterator[Row | RefusedRow]:
    """Yield the judgements of a BEIR folder, each with its split.

    Raises:
        FreshetError: If the folder has no queries or no qrels.
    """
    queries = _find_file(folder, "queries.jsonl")
    qrels = {split: _find_file(folder, f"qrels/{split}.tsv") for split in SPLITS}
    if queries is None or not any(qrels.values()):
        expected_files = ", ".join(f"qrels/{split}.tsv" for split in SPLITS)
        raise FreshetError(
            f"{folder} is no BEIR folder with judgements: it needs queries.jsonl and at least one "
            f"of {expected_files}"
        )
    texts = _read_queries(queries)
    for split, path in qrels.items():
        if path is None:
            continue
        for row in _join_texts(_read_qrels(path), texts, queries.name):
            if isinstance(row, RefusedRow):
                yield row
                continue
            values = dict(row.values)
            values["split"] = split
            yield Row("qrels", row.location, values)


def _find_file(folder: Path, name: str) -> Path | None:
    """Return the path of a file in a folder, plain or compressed; None if there is none."""
    for file_name in (name, f"{name}.gz"):
        if (folder / file_name).is_file():
            return folder / file_name
    return None


def _join_texts(
    rows: Iterator[Row | RefusedRow], texts: Mapping[str, str], name: str
) -> Iterator[Row | RefusedRow]:
    """Yield each row with the text of its query; refuse a row whose query is not in `texts`.

    Args:
        rows: Rows of qrels.
        texts: Text of each query by its id.
        name: Name of the file of the queries, for the message.
    """
    for row in rows:
        if isinstance(row, RefusedRow):
            yield row
            continue
        query_id = written_id(row.values.get("query_id"))
        if query_id in texts:
            values = dict(row.values)
            values["question"] = texts[query_id]
            yield Row("qrels", row.location, values)
        else:
            detail = f"{name} has no query {printable(query_id)!r}"
            excerpt = printable(" ".join(map(str, row.values.values())))
            yield RefusedRow("qrels", row.location, "dangling qrel", detail, excerpt)
