"""Copy documents to LanceDB, with one row per passage."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from model_code.collection.handover.libraries import import_library
from model_code.collection.handover.passages import EncodedDocument
from model_code.errors import FreshetError
from model_code.text.documents import canonical_fields

# Largest number of document ids in one SQL condition.
IDS_PER_CONDITION = 500


class LanceEngine:
    """A table of LanceDB.

    Its columns are `document_id`, `passage` (number of the passage, from 0), `title`, `text`,
    `fields` (JSON), `date` and `vector`. Search it with `.distance_type("dot")`, because scores are
    inner products.
    """

    def __init__(self, target: str, name: str) -> None:
        """Connect to LanceDB.

        Args:
            target: Folder, or an address that LanceDB understands, such as `s3://bucket/path`.
            name: Name of the table.

        Raises:
            FreshetError: If lancedb is not installed, or cannot open the target.
        """
        # Without this, LanceDB logs a warning for each table that is created.
        os.environ.setdefault("LANCE_LOG", "error")
        library: Any = import_library("lancedb", "lancedb")
        self._name = name
        try:
            self._database = library.connect(target)
            self._exists = name in self._database.list_tables().tables
        except (OSError, RuntimeError, ValueError) as error:
            reason = str(error).partition("\n")[0]
            raise FreshetError(
                f"LanceDB cannot open {target} ({reason}); correct the address or the permissions"
            ) from error
        self._table = self._database.open_table(name) if self._exists else None

    def exists(self) -> bool:
        """Return whether the table exists."""
        return self._exists

    def create(self, dimension: int) -> None:
        """Create the table without rows. An existing table is replaced."""
        import pyarrow as pa

        schema = pa.schema(
            [
                pa.field("document_id", pa.string()),
                pa.field("passage", pa.int32()),
                pa.field("title", pa.string()),
                pa.field("text", pa.string()),
                pa.field("fields", pa.string()),
                pa.field("date", pa.string()),
                pa.field("vector", pa.list_(pa.float32(), dimension)),
            ]
        )
        self._table = self._database.create_table(self._name, schema=schema, mode="overwrite")
        self._exists = True

    def write(self, documents: Sequence[EncodedDocument]) -> None:
        """Write documents. Earlier rows of the same documents are deleted."""
        import pyarrow as pa

        self.delete([encoded.document.document_id for encoded in documents])
        rows: list[dict[str, Any]] = []
        for encoded in documents:
            rows.extend(_rows(encoded))
        table = self._opened()
        table.add(pa.Table.from_pylist(rows, schema=table.schema))

    def delete(self, document_ids: Collection[str]) -> None:
        """Delete the rows of documents."""
        quoted_ids = [_quote(document_id) for document_id in sorted(document_ids)]
        for start in range(0, len(quoted_ids), IDS_PER_CONDITION):
            listed_ids = ", ".join(quoted_ids[start : start + IDS_PER_CONDITION])
            self._opened().delete(f"document_id IN ({listed_ids})")

    def finish(self) -> None:
        """Do nothing: LanceDB commits each change by itself."""

    def _opened(self) -> Any:
        """Return the open table.

        Raises:
            FreshetError: If the table does not exist.
        """
        if self._table is None:
            raise FreshetError(f"LanceDB has no table {self._name!r}: create it first")
        return self._table


def _rows(encoded: EncodedDocument) -> list[dict[str, Any]]:
    """Return the rows of a document, one for each passage."""
    document = encoded.document
    rows = []
    for passage, text in enumerate(encoded.texts):
        row = {
            "document_id": document.document_id,
            "passage": passage,
            "title": document.title,
            "text": text,
            "fields": canonical_fields(document.fields),
            "date": document.date,
            "vector": np.asarray(encoded.vectors[passage]).tolist(),
        }
        rows.append(row)
    return rows


def _quote(text: str) -> str:
    """Return a text as an SQL literal.

    >>> _quote("Ada's note")
    "'Ada''s note'"
    """
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
