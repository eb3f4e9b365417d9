"""Search of headlines: one vector per document, of its readable title and first sentence.

A headline retriever is a component of fusions. The pretrained encoder makes its vectors, so it
needs no training.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.encoding.query_encoder import SearchEncoder, load_search_encoder
from model_code.files import add_to_manifest
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import Retriever

KIND = "headline"


class HeadlineRetriever(DenseRetriever):
    """A dense retriever of headlines: the title and first sentence of each document.

    Its index has one row per document, and none per passage.
    """

    @property
    def dense(self) -> None:
        """None, because parts that ask for a dense retriever need vectors of passages."""
        return None

    def best_passage_encoded(self, query: np.ndarray, document_id: str) -> int:
        """Return 0, because a headline belongs to no passage."""
        return 0

    def encode_ahead(self, new: NewPassages) -> None:
        """Encode the headlines of new documents now, so that `write_segment` finds them encoded."""
        self._ahead.make(list(new.headlines.values()), self._encode_texts)

    def keep_encodings(
        self,
        stored: IndexedRetriever[Any],
        former: NewPassages,
        new: NewPassages,
        solved: Set[str],
    ) -> None:
        """Keep stored encodings of headlines; see `IndexedRetriever.keep_encodings`."""
        self._keep_unchanged(
            stored,
            list(former.headlines),
            list(former.headlines.values()),
            list(new.headlines.values()),
        )

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Encode the headlines of new documents and index them in `folder`.

        `new.refine`, which solves vectors by IncDSI, is not applied, because it is for vectors of
        passages.
        """
        document_ids = list(dict.fromkeys(new.document_ids))
        headlines = [new.headlines[document_id] for document_id in document_ids]
        vectors = self._ahead.take(headlines, self._encode_texts).vectors
        save_headline_index(self._build_exact_index(vectors, document_ids, None), folder)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Write one index of selected documents of several retrievers, without encoding."""
        super().merge(sources, folder)
        add_to_manifest(folder, {"kind": KIND})

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one retriever that searches all segments as one index."""
        first_retriever: Any = segments[0].retriever
        joined: Any = super().join_segments(segments)
        return cls(joined.encoder, joined.index, first_retriever.fingerprint)


def build_index(
    vectors: np.ndarray,
    document_ids: Sequence[str],
    encoder: SearchEncoder,
    settings: IndexSettings,
    folder: Path,
) -> None:
    """Index the headlines of a build.

    Args:
        vectors: Vector of each headline, shape (n, H).
        document_ids: Document of each headline.
        encoder: The encoder of the vectors.
        settings: How the index is searched.
        folder: Folder of the index.
    """
    index = DenseIndex.build(vectors, document_ids, encoder.fingerprint(), settings)
    save_headline_index(index, folder)


def save_headline_index(index: DenseIndex, folder: Path) -> None:
    """Write an index whose manifest has the kind `headline` instead of `dense`."""
    index.save(folder)
    add_to_manifest(folder, {"kind": KIND})


def open_folders(encoder: Path, index: Path, **loading: Any) -> HeadlineRetriever:
    """Open a headline retriever; `loading` is passed to `load_search_encoder`."""
    return HeadlineRetriever(load_search_encoder(encoder, **loading), DenseIndex.load(index))
