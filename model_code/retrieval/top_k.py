"""Selection of the best passages, documents and vectors.

Documents are ordered by descending score, and equal scores by ascending document id. The order does
not depend on k or on the order of the passages.

This is our own code because `numpy.partition` and `torch.topk` break ties arbitrarily and select
rows, not documents. `select_best_rows` also takes a fifth of a partition's time on large inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf
from operator import itemgetter
from typing import Any

import numpy as np

from model_code.errors import SettingsError
from model_code.retrieval.packed_ids import SortedIds
from model_code.retrieval.protocol import Ranking

# Number of documents that are fetched beyond k, because some may be filtered out afterwards.
EXTRA_DOCUMENTS = 16

# Number of groups per wanted row, when the best rows are found by the maxima of groups.
GROUPS_PER_ROW = 4

# Number of scores up to which all keys are partitioned. For more scores it is faster to select the
# best rows by groups first.
MIN_SCORES_FOR_GROUPS = 2**11

# Smallest number of queries for which a matrix product is used. For fewer queries, separate dot
# products per query are faster than a narrow matrix product.
MIN_QUERIES_FOR_MATMUL = 12

# Float32 scores held at a time (128 MiB). A block always has `MIN_QUERIES_FOR_MATMUL` queries at
# least, even if their scores need more.
MAX_SCORES_IN_MEMORY = 2**25

# The upper 32 bits of a sort key hold the score's bits, the lower 32 bits the document's number.
_SCORE_SHIFT = np.uint64(32)
_NUMBER_MASK = np.uint64(2**32 - 1)


def top_k(
    scores: np.ndarray,
    document_ids: Sequence[str],
    k: int,
    document_rows: np.ndarray | None = None,
) -> Ranking:
    """Return the k best documents, each scored by its best passage.

    A smaller k gives the first entries of the same ranking.

    Args:
        scores: Score of each passage, shape (n,).
        document_ids: Document ids that the passages refer to.
        k: Number of documents.
        document_rows: For each passage the position of its document in `document_ids`, shape (n,).
            None: passage i belongs to `document_ids[i]`.

    Raises:
        SettingsError: If k is below 1.

    >>> top_k(np.array([.5, .9, .5, 0]), ["b", "c", "a", "d"], k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    _require_positive(k)
    depth = k
    while True:
        rows = select_best_rows(scores, depth)
        positions = rows if document_rows is None else document_rows[rows]

        best: dict[str, float] = {}
        for position, score in zip(positions.tolist(), scores[rows].tolist(), strict=True):
            document = document_ids[position]
            if score > best.get(document, -inf):
                best[document] = score

        all_rows_are_ranked = len(rows) == len(scores)
        if len(best) >= k or all_rows_are_ranked:
            return rank_best_first(best.items(), k)
        # Several of the best passages may belong to one document. To get k documents, more rows are
        # read.
        depth *= 2


def top_k_positive(
    scores: np.ndarray,
    document_ids: SortedIds,
    k: int,
    document_numbers: np.ndarray,
    has_repeated_documents: bool,
) -> Ranking:
    """Return the ranking of `top_k` without scores of 0, in half of its time.

    Each passage gets a key of 64 bits: the bits of its score, then the number of its document. The
    bits of non-negative float32 numbers, read as integers, have the order of the numbers. So one
    sort of the keys orders passages by score and id. Documents are numbered from the last id to the
    first, because the largest keys are the best.

    Args:
        scores: Score of each passage, shape (n,), float32, none negative.
        document_ids: Ids of all documents.
        k: Number of documents.
        document_numbers: Number of each passage's document, counted from the last id, shape (n,),
            uint32.
        has_repeated_documents: Whether documents have several passages.

    Raises:
        SettingsError: If k is below 1.
    """
    _require_positive(k)
    depth = k
    while True:
        # Rank passages by their keys. Of each document, only the first and best one is kept.
        keys = _best_keys(scores, document_numbers, depth)
        all_passages_are_ranked = len(keys) < depth
        if has_repeated_documents:
            _, first_occurrences = np.unique(keys & _NUMBER_MASK, return_index=True)
            keys = keys[np.sort(first_occurrences)]
        if len(keys) >= k or all_passages_are_ranked:
            break
        # Several of the best passages may belong to one document. To get k documents, more keys are
        # read.
        depth *= 2

    best = keys[:k]
    best_scores = (best >> _SCORE_SHIFT).astype(np.uint32).view(np.float32).tolist()
    best_numbers = (best & _NUMBER_MASK).astype(np.int64)
    positions = len(document_ids) - 1 - best_numbers
    return list(zip(document_ids.at(positions.tolist()), best_scores, strict=True))


def _best_keys(scores: np.ndarray, document_numbers: np.ndarray, count: int) -> np.ndarray:
    """Return the keys of the `count` best scores above 0, in descending order.

    The upper 32 bits of a key hold the bits of the score, the lower 32 bits the document's number.
    """
    rows: np.ndarray | slice = slice(None)
    if len(scores) > max(count, MIN_SCORES_FOR_GROUPS):
        threshold = _first_threshold(scores, count)
        # Without a threshold above 0, all scores above 0 remain. Scores of 0 are left out anyway.
        rows = np.flatnonzero(scores >= threshold) if threshold > 0 else np.flatnonzero(scores)
    score_bits = scores[rows].view(np.uint32).astype(np.uint64)
    keys = score_bits << _SCORE_SHIFT | document_numbers[rows]

    surplus = len(keys) - count
    if surplus > 0:
        keys = np.partition(keys, surplus)[surplus:]
    keys.sort()

    # Leave out scores of 0: the upper 32 bits of their keys are 0.
    first_positive = keys.searchsorted(_NUMBER_MASK, side="right")
    return keys[first_positive:][::-1]


def rank_best_first(scores: Iterable[tuple[str, float]], k: int | None = None) -> Ranking:
    """Order different documents by descending score. Equal scores are ordered by ascending id.

    Args:
        scores: Pairs of document id and score.
        k: Number of documents to keep. None keeps all.

    >>> rank_best_first({"b": 0.5, "c": 0.9, "a": 0.5}.items(), k=2)
    [('c', 0.9), ('a', 0.5)]
    """
    # Two sorts are faster than one sort by a tuple, because neither calls a Python function.
    by_id = sorted(scores)
    return sorted(by_id, key=itemgetter(1), reverse=True)[:k]


def select_best_rows(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the rows of the `count` best scores, ascending, and of scores equal to the last one.

    A first threshold, which is cheap to find, leaves few rows. Among these the exact threshold is
    found. All rows are returned if so many scores are NaN that no threshold can be found.

    >>> select_best_rows(np.array([0.5, 0.9, 0.5, 0.2]), count=2).tolist()
    [0, 1, 2]
    """
    if count >= len(scores):
        return np.arange(len(scores))
    threshold = _first_threshold(scores, count)
    if np.isnan(threshold):
        return np.arange(len(scores))

    rows = np.flatnonzero(scores >= threshold)
    row_scores = scores[rows]
    higher_scores = row_scores[row_scores > threshold]
    # A partition of many equal scores, such as those of passages without a match, takes long.
    threshold_is_exact = len(higher_scores) < count
    if threshold_is_exact:
        return rows
    exact_threshold = _nth_best(higher_scores, count)
    return rows[row_scores >= exact_threshold]


def _first_threshold(scores: np.ndarray, count: int) -> np.floating:
    """Return a value that the `count` best scores and few other scores reach.

    The scores are split into groups. At least `count` scores reach the `count`-th best group
    maximum, because the maxima are scores themselves. A group takes rows at regular distances,
    because neighbouring rows often have similar scores. This takes a fifth of the time of a
    partition of all scores.
    """
    group_count = GROUPS_PER_ROW * count
    group_size = len(scores) // group_count
    if group_size < 2:
        return _nth_best(scores, count)
    # Each column of the matrix is a group. The last scores do not fill a row, and belong to none.
    groups = scores[: group_size * group_count].reshape(group_size, group_count)
    return _nth_best(groups.max(axis=0), count)


def _nth_best(scores: np.ndarray, n: int) -> np.floating:
    position = len(scores) - n
    return np.partition(scores, position)[position]


def search_filtered(
    search: Callable[[Any, int], list[Ranking]],
    queries: Any,
    k: int,
    keep: Callable[[str], bool],
    first_depth: int,
    max_depth: int,
) -> list[Ranking]:
    """Return the k best documents that pass a filter, for each query.

    The search fetches `first_depth` documents and doubles the depth for queries with too few hits.
    A ranking has fewer than k documents if the search finds no more. An approximate search may miss
    matching documents.

    Args:
        search: Returns the best documents for queries, down to a given depth.
        queries: Queries, of which slices can be taken.
        k: Number of documents per query.
        keep: Whether a document passes the filter.
        first_depth: Depth of the first search.
        max_depth: Largest depth to search. k documents among so many pass the filter, if k exist.
    """
    first_depth = min(first_depth, max_depth)
    filtered: list[Ranking] = []
    for i, ranking in enumerate(search(queries, first_depth)):
        depth = first_depth
        hits = [hit for hit in ranking if keep(hit[0])]
        while len(hits) < k and depth < max_depth:
            # A ranking shorter than the depth holds all documents that match.
            found_all_matches = len(ranking) < depth
            if found_all_matches:
                break
            depth = min(max_depth, 2 * depth)
            query = queries[i : i + 1]
            (ranking,) = search(query, depth)
            hits = [hit for hit in ranking if keep(hit[0])]
        filtered.append(hits[:k])
    return filtered


def nearest_rows(
    queries: np.ndarray,
    blocks: Sequence[np.ndarray],
    count: int,
    excluded_rows: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of vectors that have the largest inner products with each query.

    The last bits of a score may depend on the number of queries, because the products of several
    queries are computed together.

    Args:
        queries: Query vectors, shape (q, H), float32.
        blocks: Arrays of vectors, each of shape (n_i, H), float32. Rows count through all blocks.
        count: Number of rows per query.
        excluded_rows: Rows that score -inf.

    Returns:
        Scores (float32) and rows (int64), both of shape (q, min(count, n)). They are ordered by
        descending score, and by ascending row if scores are equal.

    >>> nearest_rows(np.array([[0.0, 1.0]], np.float32), [np.eye(2, dtype=np.float32)], count=2)
    (array([[1., 0.]], dtype=float32), array([[1, 0]]))
    """
    row_count = sum(map(len, blocks))
    width = min(count, row_count)
    best_scores = np.empty((len(queries), width), np.float32)
    best_rows = np.empty((len(queries), width), np.int64)

    # The scores of several blocks are copied into one array, which doubles the memory.
    copies = 1 if len(blocks) == 1 else 2
    step = max(MIN_QUERIES_FOR_MATMUL, MAX_SCORES_IN_MEMORY // copies // max(1, row_count))
    for start in range(0, len(queries), step):
        some_queries = queries[start : start + step]
        products = [_inner_products(some_queries, block) for block in blocks]
        scores = np.concatenate(products, axis=1) if len(products) > 1 else products[0]
        if excluded_rows is not None:
            scores[:, excluded_rows] = -np.inf

        for i, query_scores in enumerate(scores, start):
            candidates = select_best_rows(query_scores, count)
            order = np.argsort(-query_scores[candidates], kind="stable")[:width]
            best_rows[i] = candidates[order]
            best_scores[i] = query_scores[best_rows[i]]
    return best_scores, best_rows


def _inner_products(queries: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return the products (q, n) of queries (q, H) with vectors (n, H)."""
    if len(queries) < MIN_QUERIES_FOR_MATMUL:
        return np.vecdot(vectors, queries[:, None])
    return queries @ vectors.T


def _require_positive(k: int) -> None:
    if k < 1:
        raise SettingsError(f"k is {k}, but a ranking holds at least 1 document")
