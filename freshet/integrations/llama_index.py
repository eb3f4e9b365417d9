"""A LlamaIndex retriever over a `Client` or a `Project`; needs the extra `llama-index`."""

from __future__ import annotations

from typing import Any

from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import NodeWithScore, QueryBundle, TextNode

from freshet.results import Hit

METADATA_KEYS = ("document_id", "title", "section", "date", "generation")


class FreshetNodes(BaseRetriever):
    """A retriever that returns passages as nodes with scores.

    Args:
        client: A `Client` or a `Project`.
        k: Number of passages.
        **options: Options of `Client.search`, such as `filters`.
    """

    def __init__(self, client: Any, k: int = 10, **options: Any) -> None:
        self.client = client
        self.k = k
        self.options = options
        super().__init__()

    def _retrieve(self, query_bundle: QueryBundle) -> list[NodeWithScore]:
        """Return the best passages for a query. LlamaIndex calls this method in `retrieve`."""
        hits = self.client.search(query_bundle.query_str, self.k, **self.options).hits
        return [NodeWithScore(node=_node(hit), score=hit.score) for hit in hits]


def _node(hit: Hit) -> TextNode:
    """Return the passage of a hit as a node, with the fields of its document as metadata."""
    metadata = dict(hit.fields)
    for key in METADATA_KEYS:
        metadata[key] = getattr(hit, key)
    return TextNode(
        id_=f"{hit.document_id}#{hit.start}",
        text=hit.text,
        start_char_idx=hit.start,
        end_char_idx=hit.end,
        metadata=metadata,
    )
