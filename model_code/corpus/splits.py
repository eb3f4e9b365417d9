"""Give each query one of the splits test, dev, gate and train.

A split is drawn by a hash of a seed and an id: that of the query, or of its most relevant document.
Documents and queries that are added or removed therefore never move another query.
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
    """Return the split of every query: the split of the source, or one that is drawn by hash.

    Test queries are drawn one by one. Dev and gate are partly drawn by document: for a share
    `settings.by_document` of the documents, all queries that are not in test are in the same split.
    The reason is a corpus with many queries per document. Most of its dev and gate queries would
    otherwise ask for documents that training queries ask for, too. A retriever that only memorises
    these documents would then score well.

    If the source has a train split but no dev or gate split, dev and gate are drawn from train.

    Args:
        stated: Split of the source by query id; None for a query without one.
        settings: Shares of the splits.
        documents: Document id by query id; see `key_documents`. Queries without an entry are always
            drawn one by one.

    Returns:
        Split by query id.

    >>> split_queries({"q1": "test", "q2": "dev", "q3": "train"}, QuerySplitSettings())
    {'q1': 'test', 'q2': 'dev', 'q3': 'train'}
    """
    documents = documents or {}
    splits: dict[str, str] = {}
    for query, split in stated.items():
        splits[query] = split or _draw_split(query, documents.get(query), settings)

    # The queries that the source trains on. Dev takes its share first, then gate.
    training_queries = {query for query, split in stated.items() if split == "train"}
    for name, share in (("dev", settings.dev_share), (GATE, settings.gate_share)):
        if name in stated.values():
            continue
        for query in sorted(training_queries):
            if _leaves_training(query, documents.get(query), name, share, settings):
                splits[query] = name
                training_queries.remove(query)
    return splits


def key_documents(pairs: Mapping[tuple[str, str], int]) -> dict[str, str]:
    """Return each query's most relevant document; of equally relevant ones that with the lowest id.

    Args:
        pairs: Relevance by pair of query id and document id.

    Returns:
        Document id by query id.

    >>> key_documents({("q", "b"): 1, ("q", "a"): 1, ("p", "a"): 1, ("p", "c"): 2})
    {'q': 'a', 'p': 'c'}
    """
    # The smallest of these ranks is that of the most relevant document.
    best_ranks: dict[str, tuple[int, str]] = {}
    for (query, document), relevance in pairs.items():
        rank = (-relevance, document)
        best_ranks[query] = min(rank, best_ranks.get(query, rank))
    return {query: document for query, (_, document) in best_ranks.items()}


def _draw_split(query: str, document: str | None, settings: QuerySplitSettings) -> str:
    """Draw the split of a query to which the source gives none.

    The interval [0, 1) is divided into test, dev, gate and train by the shares of the settings. A
    hash of the query gives a number in it, and the number gives the split.

    Args:
        query: Id of the query.
        document: Id of its most relevant document, if it is known.
        settings: Shares of the splits.
    """
    test_end = settings.test_share
    dev_end = test_end + settings.dev_share
    gate_end = dev_end + settings.gate_share

    number = position(query, settings.seed, "queries")
    if number < test_end:
        return "test"
    if document is not None and _is_split_whole(document, settings):
        # All queries of this document that are not in test get the number of the document. It is
        # mapped to the interval after test, so that dev and gate get the shares of the settings.
        document_number = position(document, settings.seed, "documents")
        number = test_end + (1 - test_end) * document_number
    if number < dev_end:
        return "dev"
    if number < gate_end:
        return GATE
    return "train"


def _leaves_training(
    query: str, document: str | None, name: str, share: float, settings: QuerySplitSettings
) -> bool:
    """Return whether a training query of the source is moved to another split.

    Args:
        query: Id of the query.
        document: Id of its most relevant document, if it is known.
        name: The other split, "dev" or "gate".
        share: Share of the training queries that are moved to it.
        settings: Settings of the splits.
    """
    if document is not None and _is_split_whole(document, settings):
        return position(document, settings.seed, f"{name} documents") < share
    return position(query, settings.seed, name) < share


def _is_split_whole(document: str, settings: QuerySplitSettings) -> bool:
    """Return whether all queries of a document go to the same split of dev, gate and train."""
    return position(document, settings.seed, "split by document") < settings.by_document


def position(identifier: str, seed: int, purpose: str) -> float:
    """Return a pseudo-random number in [0, 1) that depends only on the arguments.

    The numbers of different ids are uniform, and those of different purposes are independent.

    >>> round(position("numpy.sort", seed=0, purpose="queries"), 4)
    0.293
    """
    digest = hashlib.sha256(f"{purpose}\0{seed}\0{identifier}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
