"""The splits of queries: test, dev, gate and train.

A split depends on a seed and on the id of the query, or of the document that it asks for. Documents
and queries that come or go never change the split of another query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from model_code.corpus.settings import GATE, QuerySplitSettings


def split_queries(
    stated: Mapping[str, str | None],
    settings: QuerySplitSettings,
    documents: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the split of every query: the stated one, else one drawn by hash.

    Test queries are drawn one by one. For dev and gate, a share `settings.by_document` of the
    documents keeps all its queries in one split. Without that, most dev and gate queries of a
    corpus with many queries per document ask for documents that training asks for, too, and a
    retriever that only remembers them scores well.

    Dev and gate are carved out of a stated train where the source states none. A draw depends on
    the seed and on the id of the query or document alone, so documents and queries that come or go
    move no other query.

    Args:
        stated: Split by query id, None where the source states none.
        settings: Shares of the splits.
        documents: Document id by query id, see `key_documents`. Queries without one are drawn
            one by one.

    Returns:
        Split by query id.

    >>> split_queries({"q1": "test", "q2": "dev", "q3": "train"}, QuerySplitSettings())
    {'q1': 'test', 'q2': 'dev', 'q3': 'train'}
    """
    documents = documents or {}
    splits: dict[str, str] = {}
    for query, split in stated.items():
        splits[query] = split or _draw_split(query, documents.get(query), settings)

    trained = {query for query, split in stated.items() if split == "train"}
    for name, share in (("dev", settings.dev_share), (GATE, settings.gate_share)):
        if name in stated.values():
            continue
        for query in sorted(trained):
            if _is_carved(query, documents.get(query), name, share, settings):
                splits[query] = name
                trained.remove(query)
    return splits


def key_documents(pairs: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Return the document by which each query is split: its most relevant one, of equals the first.

    Args:
        pairs: Relevance by (query id, document id).

    >>> key_documents({("q", "b"): 1, ("q", "a"): 1, ("p", "a"): 1, ("p", "c"): 2})
    {'q': 'a', 'p': 'c'}
    """
    best: dict[str, tuple[int, str]] = {}
    for (query, document), relevance in pairs.items():
        rank = (-relevance, document)
        best[query] = min(rank, best.get(query, rank))
    return {query: document for query, (_, document) in best.items()}


def _draw_split(query: str, document: str | None, settings: QuerySplitSettings) -> str:
    place = position(query, settings.seed, "queries")
    if place < settings.test_share:
        return "test"

    if document is not None and _is_split_whole(document, settings):
        # Scaled to the part of [0, 1) that test leaves, so that the shares are those of the
        # settings.
        place = settings.test_share + (1 - settings.test_share) * position(
            document, settings.seed, "documents"
        )
    if place < settings.test_share + settings.dev_share:
        return "dev"
    if place < settings.test_share + settings.dev_share + settings.gate_share:
        return GATE
    return "train"


def _is_carved(
    query: str, document: str | None, name: str, share: float, settings: QuerySplitSettings
) -> bool:
    if document is not None and _is_split_whole(document, settings):
        return position(document, settings.seed, f"{name} documents") < share
    return position(query, settings.seed, name) < share


def _is_split_whole(document: str, settings: QuerySplitSettings) -> bool:
    return position(document, settings.seed, "split by document") < settings.by_document


def position(identifier: str, seed: int, purpose: str) -> float:
    """Return a number in [0, 1) that is uniform over ids and fixed by the arguments.

    Numbers of different purposes are independent.

    >>> round(position("numpy.sort", seed=0, purpose="queries"), 4)
    0.293
    """
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
