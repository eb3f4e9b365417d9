"""Rows that arrive for the live collection: read, cleaned and refused by the same rules as those of the corpus.

What differs: a repeated id is a change of that document, not an error, and a list under `queries` are queries that the
document shall be found by; anything else there is refused. The id may also be called `id`, and `fields` may be an
object of its own, whose keys are fields whatever they are called.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.documents import Document
from model_code.ledger.records import Rejection

if TYPE_CHECKING:
    from model_code.corpus.rows import Malformed, Row
    from model_code.corpus.settings import CorpusSettings


@dataclass(frozen=True)
class Arrivals:
    """The sound documents of some rows, in their order, with the numbers of their rows, and the rows refused."""

    documents: tuple[Document, ...]
    rows: tuple[int, ...]
    rejected: tuple[Rejection, ...]


def rows_of_file(path: Path, settings: CorpusSettings, name: str | None = None) -> Iterator[Row | Malformed]:
    """The rows of a .jsonl, .csv, .tsv or .parquet file, plain or .gz; `name` is what locations call it.

    FreshetError if the file has another format or cannot be read as a whole.
    """
    from model_code.corpus.sources.base import renamed
    from model_code.corpus.sources.readers import read_rows
    from model_code.errors import FreshetError

    if not path.is_file():
        raise FreshetError(f"{path} is not a file; name a .jsonl, .csv, .tsv or .parquet file, or - for standard input")
    for row in read_rows(path, "documents", name or path.name):
        yield renamed(row, settings.columns)


def rows_of_mappings(mappings: Iterable[Mapping[str, Any]], settings: CorpusSettings, source: str) -> Iterator[Row]:
    """Rows that are plain values already, such as the body of a request."""
    from model_code.corpus.rows import Row
    from model_code.corpus.sources.base import renamed

    for number, values in enumerate(mappings, start=1):
        yield renamed(Row("documents", f"{source}:{number}", dict(values)), settings.columns)  # type: ignore[misc]


def admit(rows: Iterable[Row | Malformed], settings: CorpusSettings) -> Arrivals:
    """Clean the rows; what the corpus stage would put into quarantine is refused, with the same reason."""
    from model_code.corpus.cleaning import document_of
    from model_code.corpus.rows import Quarantine

    def check(row: Row) -> tuple[int, Document]:
        clean = document_of(row, settings.max_characters, settings.keep_title_only)
        return _number(row), replace(clean, queries=_clean_queries(row.values["queries"]))

    quarantine = Quarantine()
    sound = list(quarantine.admit(map(_unfolded, rows), check))
    refused = [Rejection(_number(one), one.record_id, f"{one.reason}: {one.detail}") for one in quarantine.refused]
    return Arrivals(tuple(content for _, content in sound), tuple(number for number, _ in sound), tuple(refused))


def as_row(content: Document, settings: CorpusSettings) -> dict[str, Any]:
    """A clean document as a row that `admit` reads to the same document."""
    columns = settings.columns.of("documents")
    row = {columns["id"]: content.document_id, columns["title"]: content.title, columns["text"]: content.text}
    dated = {} if content.date is None else {columns["date"]: content.date}
    return row | dated | {"fields": dict(content.fields), "queries": list(content.queries)}


def _number(row: Row | Malformed) -> int:
    """The number of a row in its source."""
    return int(row.location.rpartition(":")[2])


def _unfolded(row: Row | Malformed) -> Row | Malformed:
    """The row with an `id`, with the object under `fields` as fields of their own, and with what is under `queries`."""
    from model_code.corpus.rows import Malformed, Row

    if isinstance(row, Malformed):
        return row
    fields, values = dict(row.values.get("fields") or {}), dict(row.values)
    if "id" not in values and "id" in fields:
        values["id"] = fields.pop("id")
    queries = fields.pop("queries", None)
    if isinstance(fields.get("fields"), Mapping):
        fields |= fields.pop("fields")
    return Row(row.table, row.location, values | {"fields": fields, "queries": queries})


def _clean_queries(queries: Any) -> tuple[str, ...]:
    """The texts of a list; none of no value, or of an empty cell."""
    from model_code.corpus.cleaning import clean_line
    from model_code.corpus.rows import Unfit

    if queries is None or queries == "":
        return ()
    if not isinstance(queries, list):
        raise Unfit("wrong type", f"queries is a {type(queries).__name__}, not a list of texts; call a field otherwise")
    for query in queries:
        if not isinstance(query, str):
            raise Unfit("wrong type", f"queries holds a {type(query).__name__}, not text")
    return tuple(filter(None, map(clean_line, queries)))
