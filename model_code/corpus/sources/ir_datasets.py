"""A data set of ir_datasets, such as `beir/scifact` or `trec-robust04`.

`corpus.path` names the data set. ir_datasets downloads the files whose licence allows it, and
stores them below `IR_DATASETS_HOME`. It is an optional dependency: `pip install -e '.[research]'`.

Queries and judgements of the data set itself are read if it has any. Otherwise those of its parts
NAME/train, NAME/dev and NAME/test are read, each with its split.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from model_code.corpus.rows import RefusedRow, Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text
from model_code.progress import Progress, no_progress

# The split of each part of a data set, by the last element of the part's name.
PARTS = {"train": "train", "dev": "dev", "validation": "dev", "test": "test"}
# Fields of a document that hold its title or its text, best first.
TITLE_FIELDS = ("title", "headline")
TEXT_FIELDS = ("text", "body", "abstract", "contents")
QUERY_FIELDS = ("text", "query", "title")


class IrDatasetsSource:
    """A data set of the registry of ir_datasets."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Open the data set.

        Args:
            settings: Settings of the corpus, whose `path` is the name of the data set.
            root: Not used, because ir_datasets has a folder of its own.
            locked: Not used, because a version of ir_datasets pins the files of its data sets.

        Raises:
            FreshetError: If there is no such data set, or it has no documents.
        """
        self.name = str(settings.path)
        self.data_set = load(self.name)
        if not self.data_set.has_docs():
            raise FreshetError(
                f"{self.name!r} of ir_datasets has no documents; corpus.path names a data set that "
                "has"
            )

    def describe(self) -> dict[str, Any]:
        """Return the name of the data set, and the version of ir_datasets that pins its files."""
        version = importlib.metadata.version("ir_datasets")
        content = {"name": self.name, "ir_datasets": version}
        return {
            "versions": {"ir_datasets": version},
            "watermark": None,
            "content_hash": hash_text(canonical_json(content)),
        }

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table in the order of the data set."""
        if table == "documents":
            yield from self._document_rows()
            return
        for split, part in self._judged_parts():
            if table == "queries":
                yield from self._query_rows(part)
            else:
                yield from self._qrel_rows(part, split)

    def _judged_parts(self) -> list[tuple[str | None, Any]]:
        """Return the split and the data set of each part that has judgements.

        If the data set itself has judgements, it is the only part. It has a split only if the last
        element of its name is one.
        """
        if self.data_set.has_qrels():
            last_element = self.name.rpartition("/")[2]
            return [(PARTS.get(last_element), self.data_set)]

        parts: list[tuple[str | None, Any]] = []
        for suffix, split in PARTS.items():
            part = find(f"{self.name}/{suffix}")
            if part is not None and part.has_qrels():
                parts.append((split, part))
        return parts

    def _document_rows(self) -> Iterator[Row]:
        """Yield the documents, with title and text from the fields that usually hold them."""
        for number, document in enumerate(self.data_set.docs_iter(), start=1):
            values = {
                "id": document.doc_id,
                "title": _first_field(document, TITLE_FIELDS),
                "text": _first_field(document, TEXT_FIELDS) or document.default_text(),
                "fields": {},
            }
            yield Row("documents", f"{self.name}:{number}", values)

    def _query_rows(self, part: Any) -> Iterator[Row]:
        """Yield the queries of a part that have a judgement."""
        judged = {judgement.query_id for judgement in part.qrels_iter()}
        for number, query in enumerate(part.queries_iter(), start=1):
            if query.query_id not in judged:
                continue
            text = _first_field(query, QUERY_FIELDS) or query.default_text()
            yield Row("queries", f"{self.name}:{number}", {"id": query.query_id, "text": text})

    def _qrel_rows(self, part: Any, split: str | None) -> Iterator[Row]:
        """Yield the judgements of a part with their split, if the part is one."""
        for number, judgement in enumerate(part.qrels_iter(), start=1):
            values: dict[str, Any] = {
                "query_id": judgement.query_id,
                "document_id": judgement.doc_id,
                "relevance": judgement.relevance,
            }
            if split is not None:
                values["split"] = split
            yield Row("qrels", f"{self.name}:{number}", values)


def load(name: str) -> Any:
    """Return a data set of the registry.

    Raises:
        FreshetError: If ir_datasets is not installed, or has no such data set.
    """
    data_set = find(name)
    if data_set is None:
        raise FreshetError(
            f"ir_datasets has no data set {name!r}; corpus.path names one of "
            "https://ir-datasets.com, such as beir/scifact"
        )
    return data_set


def find(name: str) -> Any | None:
    """Return a data set of the registry, or None if there is none of this name."""
    try:
        import ir_datasets
    except ModuleNotFoundError:
        raise FreshetError(
            "corpus.source is ir_datasets, which is not installed: pip install -e '.[research]'"
        ) from None
    try:
        return ir_datasets.load(name)
    except KeyError:
        return None


def _first_field(record: Any, names: tuple[str, ...]) -> str:
    """Return the first of several fields of a record that is a text; empty if none is."""
    for name in names:
        value = getattr(record, name, None)
        if isinstance(value, str) and value:
            return value
    return ""
