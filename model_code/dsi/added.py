"""The length of added documents' vectors, measured on what training learned and on the dev queries that it did not."""

from __future__ import annotations

import numpy as np

from model_code.dsi.dev import DocumentDev
from model_code.dsi.encoding_scale import encoding_scale
from model_code.dsi.start import document_means
from model_code.encoding.encoder import Encoder
from model_code.progress import Progress
from model_code.training.data import Passages

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
    return document_means(encoder.encode(texts, progress), owners, len(rows))
