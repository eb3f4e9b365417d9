"""Write documents to files that can be sent to OpenSearch: a mapping and bulk requests.

    FOLDER/mapping.json                  body of `PUT /INDEX`
    FOLDER/documents-000000-0000.ndjson  body of `POST /INDEX/_bulk`, with all documents
    FOLDER/changes-000001-0000.ndjson    body of `POST /INDEX/_bulk`, with the changes of a later
                                         hand-over

Send the files in the order of their names, the documents first.

A document of OpenSearch has all passages of a document as nested objects. So a search for the
nearest passages returns each document once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from model_code.collection.handover.passages import EncodedDocument
from model_code.files import atomic_write, hash_text, write_json

MAPPING = "mapping.json"
# Names of the files that are written here. Other files of the folder are left alone.
WRITTEN_FILE = re.compile(r"(documents|changes)-\d{6}-\d{4}\.ndjson")
# Size above which a new file is begun. By default, OpenSearch refuses requests above 100 MB.
MAX_FILE_BYTES = 50_000_000
# Largest length of an id in UTF-8. OpenSearch refuses longer ids.
MAX_ID_BYTES = 512


class OpenSearchFiles:
    """The files that one hand-over, a copy of documents to OpenSearch, writes.

    The folder also has the files of earlier hand-overs.
    """

    def __init__(self, target: str, name: str, change_set: int) -> None:
        """Use a folder. Nothing is written yet.

        Args:
            target: Path of the folder.
            name: Name of the index.
            change_set: Number of earlier hand-overs. 0 for the first one, which has all documents.
        """
        self._folder = Path(target)
        self._name = name
        prefix = "documents" if change_set == 0 else "changes"
        self._stem = f"{prefix}-{change_set:06d}"
        self._lines: list[str] = []
        self._bytes = 0
        self._files = 0

    def exists(self) -> bool:
        """Return whether the folder has a mapping, which the first hand-over writes."""
        return (self._folder / MAPPING).is_file()

    def create(self, dimension: int) -> None:
        """Write the mapping, and delete the files that earlier hand-overs have written."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("*.ndjson"):
            if WRITTEN_FILE.fullmatch(path.name):
                path.unlink()
        write_json(self._folder / MAPPING, index_mapping(dimension))

    def write(self, documents: Sequence[EncodedDocument]) -> None:
        """Write requests that index documents. OpenSearch replaces earlier versions by id."""
        for encoded in documents:
            action = {"index": {"_id": engine_id(encoded.document.document_id)}}
            body = json.dumps(_source(encoded), ensure_ascii=False)
            self._append(json.dumps(action), body)

    def delete(self, document_ids: Collection[str]) -> None:
        """Write requests that delete documents."""
        for document_id in sorted(document_ids):
            action = {"delete": {"_id": engine_id(document_id)}}
            self._append(json.dumps(action))

    def finish(self) -> None:
        """Write the requests that are still in memory to the last file."""
        if self._lines:
            self._write_file()
        # If this hand-over was interrupted before, it now runs again. The files of both runs have
        # the same names, with the numbers 0, 1, 2 and so on. This run has replaced the files 0 to
        # `self._files - 1`. Files with higher numbers come from the interrupted run. Their requests
        # are out of date.
        for path in self._folder.glob(f"{self._stem}-*.ndjson"):
            if WRITTEN_FILE.fullmatch(path.name):
                number = int(path.stem.rpartition("-")[2])
                if number >= self._files:
                    path.unlink()

    def _append(self, *lines: str) -> None:
        """Add the lines of one request, and begin a new file first if they would not fit."""
        # Each line ends with a newline character, which counts as well.
        size = sum(len(line.encode()) + 1 for line in lines)
        if self._lines and self._bytes + size > MAX_FILE_BYTES:
            self._write_file()
        self._lines.extend(lines)
        self._bytes += size

    def _write_file(self) -> None:
        """Write the lines that are in memory to the next file."""
        path = self._folder / f"{self._stem}-{self._files:04d}.ndjson"
        with atomic_write(path) as staged, staged.open("w", encoding="utf-8") as stream:
            for line in self._lines:
                stream.write(line + "\n")
        self._files += 1
        self._lines = []
        self._bytes = 0


def index_mapping(dimension: int) -> dict[str, Any]:
    """Return the body of the request that creates the index.

    Args:
        dimension: Dimension of the vectors.
    """
    vector = {
        "type": "knn_vector",
        "dimension": dimension,
        "method": {"name": "hnsw", "engine": "faiss", "space_type": "innerproduct"},
    }
    passage = {"passage": {"type": "integer"}, "text": {"type": "text"}, "vector": vector}
    properties = {
        "document_id": {"type": "keyword", "ignore_above": 8191},
        "title": {"type": "text"},
        "text": {"type": "text"},
        # A field of a document can have any name, and values of different types. `flat_object`
        # accepts this.
        "fields": {"type": "flat_object"},
        "date": {"type": "date", "ignore_malformed": True},
        "passages": {"type": "nested", "properties": passage},
    }
    return {
        "settings": {"index": {"knn": True}},
        "mappings": {"dynamic": False, "properties": properties},
    }


def engine_id(document_id: str) -> str:
    """Return the id of a document in OpenSearch.

    An id that is too long for OpenSearch is replaced by its hash. The field `document_id` always
    has the real id.
    """
    if len(document_id.encode()) <= MAX_ID_BYTES:
        return document_id
    return hash_text(document_id)


def _source(encoded: EncodedDocument) -> dict[str, Any]:
    """Return the body of a document in OpenSearch, with its passages as nested objects."""
    document = encoded.document
    passages = []
    for passage, text in enumerate(encoded.texts):
        vector = encoded.vectors[passage].tolist()
        passages.append({"passage": passage, "text": text, "vector": vector})
    source = {
        "document_id": document.document_id,
        "title": document.title,
        "text": document.text,
        "fields": dict(document.fields),
        "passages": passages,
    }
    if document.date is not None:
        source["date"] = document.date
    return source
