"""How long the vector of a document that is added later should be, beside vectors that were learned together.

Learning moves a document's vector away from queries of others. An encoding was not moved, so it wins more of them:
added as it is, a document costs older ones more than if it had been there from the start. Made shorter, it wins fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from model_code.dsi.trainer import DocumentDev
from model_code.dsi.vectors import document_means
from model_code.encoding.encoder import Encoder, encode_passages
from model_code.progress import Progress
from model_code.training.data import Passages

ENOUGH = 30  # queries that the sample could take; fewer would make the scale a matter of luck
CELLS = 2**24  # scores held at once


class BestScores(NamedTuple):
    """Of m queries, each the best score (m) of some documents; -inf where there are none."""

    relevant: np.ndarray  # learned vectors of the documents that answer it
    others: np.ndarray  # learned vectors of all the others outside the sample
    learned: np.ndarray  # learned vectors of the others in the sample
    encoded: np.ndarray  # encodings of the same


def encoding_scale(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> float | None:
    """The largest c such that `sample`, had it the vectors c * encodings, would take no more queries than it does now.

    A query is taken where a document of the sample ranks above all that answer it, which rank above the rest. Documents
    added with such vectors should then cost the others as much as documents that were there when V was learned. None
    where fewer than `ENOUGH` queries could be taken, or where no scale is too large.

    vectors: V (n, H), learned. sample: (s,) rows of V, of documents that stand for added ones. encodings: (s, H), what
      the encoder gives for them. queries: (m, H), not learned from. relevant: rows that answer each query.

    >>> learned, encoded = np.array([[1.0, 0.0], [0.5, 0.0]]), np.array([[1.0, 0.0]])
    >>> queries = np.stack([np.linspace(1, 2, 40), np.zeros(40)], axis=1)
    >>> round(encoding_scale(learned, np.array([1]), encoded, queries, [{0}] * 40), 6)  # at 1 all would be lost
    1.0
    """
    best = _rivals(vectors, sample, encodings, queries, relevant)
    kept = (best.relevant > best.others) & (best.relevant > 0)
    taken = int((best.learned >= best.relevant)[kept].sum())
    threatened = kept & (best.encoded > 0)
    lost_from = np.sort(best.relevant[threatened] / best.encoded[threatened])  # the scale that takes each query
    if kept.sum() < ENOUGH or taken >= len(lost_from):
        return None
    return float(np.nextafter(lost_from[taken], 0))


def _rivals(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> BestScores:
    place = {int(row): i for i, row in enumerate(sample)}
    parts = []
    for queries_of, answers in _blocks(queries, relevant, CELLS // len(vectors) + 1):
        learned, encoded = queries_of @ vectors.T, queries_of @ encodings.T  # (b, n), (b, s)
        own = np.array([scores[list(rows)].max() for scores, rows in zip(learned, answers, strict=True)])
        for query, rows in enumerate(answers):
            learned[query, list(rows)] = -np.inf
            encoded[query, [place[row] for row in rows if row in place]] = -np.inf
        in_sample = learned[:, sample].max(axis=1, initial=-np.inf)
        learned[:, sample] = -np.inf
        parts.append((own, learned.max(axis=1), in_sample, encoded.max(axis=1, initial=-np.inf)))
    return BestScores(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def _blocks(
    queries: np.ndarray, relevant: Sequence[Collection[int]], size: int
) -> Iterator[tuple[np.ndarray, Sequence[Collection[int]]]]:
    for start in range(0, len(queries), size):
        yield queries[start : start + size], relevant[start : start + size]


SAMPLE = 5000  # documents that stand for added ones, at most half of all


def measured_scale(
    judge: DocumentDev | None, encoder: Encoder, encodings: np.ndarray | None, seed: int, progress: Progress
) -> float | None:
    """See `encoding_scale`; None without dev queries too.

    judge: of the learned vectors. encodings: (n, H) of all documents by `encoder`, or None: those needed are made.
    """
    if judge is None:
        return None
    evaluator, vectors = judge.evaluator, judge.vectors.detach().cpu().numpy()
    count = min(len(vectors) // 2, SAMPLE)
    sample = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:count])
    if count == 0:
        return None
    chosen = _encoded(evaluator.passages, sample, encoder, progress) if encodings is None else encodings[sample]
    queries = (judge.frozen or encoder).encode(evaluator.queries)
    relevant = [[int(document) for document in judged] for judged in evaluator.qrels.values()]
    return encoding_scale(vectors, sample, chosen, queries, relevant)


def _encoded(passages: Passages, documents: np.ndarray, encoder: Encoder, progress: Progress) -> np.ndarray:
    rows = [passages.of(document) for document in documents.tolist()]
    texts = [passages.texts[row] for own in rows for row in own.tolist()]
    owners = np.repeat(np.arange(len(rows)), [len(own) for own in rows])
    return document_means(encode_passages(encoder, texts, progress), owners, len(rows))
