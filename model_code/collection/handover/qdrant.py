"""Copy documents to Qdrant, with one point per passage."""

from __future__ import annotations

import os
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from model_code.collection.handover.libraries import import_library
from model_code.collection.handover.passages import EncodedDocument
from model_code.errors import FreshetError

# Environment variable with the key of a Qdrant server. The key is not part of the address, because
# addresses are printed.
API_KEY = "QDRANT_API_KEY"
# Namespace from which point ids are derived. A passage of a document has the same id in each run.
POINT_NAMESPACE = uuid.UUID("6f1d6a2e-3a57-4a0c-9d39-5b1f6c0f8f1e")
# Number of points in one request. It bounds the size of the request.
POINTS_PER_REQUEST = 256
SERVER_SCHEMES = ("http://", "https://")


class QdrantEngine:
    """A collection of Qdrant, on a server or in a local folder.

    The payload of a point has the keys `document_id`, `passage` (number of the passage, from 0),
    `title`, `text`, `fields` and `date`.
    """

    def __init__(self, target: str, name: str) -> None:
        """Connect to Qdrant.

        Args:
            target: Address of a server, such as `http://127.0.0.1:6333`, or a folder.
            name: Name of the collection.

        Raises:
            FreshetError: If qdrant-client is not installed, or Qdrant does not answer.
        """
        library: Any = import_library("qdrant_client", "qdrant")
        self._models = library.models
        self._target = target
        self._name = name
        self._is_server = target.startswith(SERVER_SCHEMES)
        try:
            if self._is_server:
                self._client = library.QdrantClient(
                    url=target, api_key=os.environ.get(API_KEY), check_compatibility=False
                )
            else:
                self._client = library.QdrantClient(path=target)
            self._exists = bool(self._client.collection_exists(name))
        except Exception as error:
            # The client raises errors of several libraries. They have no common base class.
            reason = str(error).partition("\n")[0]
            raise FreshetError(
                f"Qdrant at {target} does not answer ({reason}); start it, or correct the address; "
                f"a key goes into {API_KEY}"
            ) from error

    def exists(self) -> bool:
        """Return whether the collection exists."""
        return self._exists

    def create(self, dimension: int) -> None:
        """Create the collection without documents. An existing collection is deleted."""
        if self._exists:
            self._client.delete_collection(self._name)
        # The distance is the inner product, because norms of vectors differ and affect the score.
        parameters = self._models.VectorParams(size=dimension, distance=self._models.Distance.DOT)
        self._client.create_collection(self._name, vectors_config=parameters)
        # The local mode does not support payload indexes.
        if self._is_server:
            self._client.create_payload_index(
                self._name, "document_id", self._models.PayloadSchemaType.KEYWORD
            )
        self._exists = True

    def write(self, documents: Sequence[EncodedDocument]) -> None:
        """Write documents. Earlier passages of the same documents are deleted."""
        self.delete([encoded.document.document_id for encoded in documents])
        points: list[Any] = []
        for encoded in documents:
            points.extend(self._points(encoded))
        for start in range(0, len(points), POINTS_PER_REQUEST):
            self._client.upsert(self._name, points[start : start + POINTS_PER_REQUEST])

    def delete(self, document_ids: Collection[str]) -> None:
        """Delete the points of documents."""
        if not document_ids:
            return
        is_one_of = self._models.MatchAny(any=sorted(document_ids))
        condition = self._models.FieldCondition(key="document_id", match=is_one_of)
        selector = self._models.FilterSelector(filter=self._models.Filter(must=[condition]))
        self._client.delete(self._name, points_selector=selector)

    def finish(self) -> None:
        """Close the connection. Qdrant has acknowledged all requests already."""
        self._client.close()

    def _points(self, encoded: EncodedDocument) -> list[Any]:
        """Return the points of a document, one for each passage."""
        document = encoded.document
        points = []
        for passage, text in enumerate(encoded.texts):
            payload = {
                "document_id": document.document_id,
                "passage": passage,
                "title": document.title,
                "text": text,
                "fields": dict(document.fields),
                "date": document.date,
            }
            point_id = str(uuid.uuid5(POINT_NAMESPACE, f"{passage}\0{document.document_id}"))
            vector = encoded.vectors[passage].tolist()
            point = self._models.PointStruct(id=point_id, vector=vector, payload=payload)
            points.append(point)
        return points
