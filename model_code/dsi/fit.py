"""Train an atomic DSI: a query encoder and one vector per document; and how long a vector that
comes later should be.

Writes `encoder/`, which is the base encoder as it came unless it is trained too, `history.json`,
the rows of the training curve, and `document_vectors/`, a dense index with what `vectors.py` puts
beside it.

Learning moves a document's vector away from queries of others. An encoding was not moved, so it
wins more of them: added as it is, a document costs older ones more than if it had been there from
the start. Made shorter, it wins fewer.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.distributed.encoding import encode_resumably
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import DocumentTrainer, QueryVectors, loop_settings, pooled
from model_code.dsi.vectors import REPRESENTATIVES, complete, document_means, means_of
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json
from model_code.progress import Progress
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.indexing import save_index
from model_code.training.data import TrainingData
from model_code.training.fit import (
    load_start_encoder,
    make_trainer,
    reusable_vectors,
    write_training_report,
)
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables

ENOUGH = 30  # queries that the sample could take; fewer would make the scale a matter of luck
CELLS = 2**24  # scores held at once
SAMPLE = 5000  # documents that stand for added ones, at most half of all


def fit_document_vectors(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train document vectors as the retriever's settings say; the report says what they saw and
    which step was best.
    """
    vector_settings: DocumentVectorSettings = context.settings["retriever"].document_vectors
    training: TrainingSettings = context.settings["retriever"].training
    seed: int = context.settings["seed"]
    encoder = load_start_encoder(context, training.start)
    data = tables.training_data(training)
    start, pool = _start(context, tables, encoder), pooled(data)
    settings = loop_settings(vector_settings, training, len(pool.pairs))
    # to rank all costs little: none is encoded
    dev = tables.dev_evaluator(training.replace(dev_passages=None), seed)
    trainer = make_trainer(
        DocumentTrainer,
        context,
        encoder,
        pool,
        settings,
        dev,
        vector_settings=vector_settings,
        vectors=torch.nn.Parameter(torch.from_numpy(start.copy())),
        query_vectors=None
        if vector_settings.train_encoder
        else _query_vectors(context, encoder, pool, "queries"),
    )
    trainer.fit()
    encodings = None if vector_settings.train_encoder else start
    scale = measured_scale(trainer, encodings, seed, context.progress("encode a sample"))
    encoder.save(context.output / "encoder")
    report = {"fingerprint": encoder.fingerprint(), "encoding_scale": scale}
    report |= _save(
        context, tables, trainer, report["fingerprint"], 1.0 if scale is None else scale
    )
    return write_training_report(context, tables, data, training, trainer) | report


def _start(context: StageContext, tables: TrainingTables, encoder: Encoder) -> np.ndarray:
    """The start vectors: the mean of each document's passages, (n, H) float32."""
    vectors = reusable_vectors(context, encoder, tables.corpus)
    if vectors is None:
        folder, progress = context.checkpoints / "passages", context.progress("encode passages")
        vectors = encode_resumably(
            encoder, list(tables.passages.texts), folder, progress, "encode_documents"
        )
    return document_means(vectors, tables.passages.documents, len(tables.number))


def _save(
    context: StageContext,
    tables: TrainingTables,
    trainer: DocumentTrainer,
    fingerprint: str,
    scale: float,
) -> dict[str, Any]:
    """Write what the finished trainer learned, and the mean query of each document under its
    encoder; report both.
    """
    queries = trainer.query_vectors or _query_vectors(
        context, trainer.encoder, trainer.data, "trained_queries"
    )
    vectors, data = trainer.vectors.detach().cpu().numpy(), trainer.data
    owners = data.passages.documents[data.pairs.passages]
    means, counts = means_of(queries.vectors[queries.rows], owners, len(vectors))
    means[counts == 0] = vectors[counts == 0]
    folder, exact = context.output / "document_vectors", IndexSettings(flat_below=ALWAYS_EXACT)
    DenseIndex.build(vectors, list(tables.number), fingerprint, exact).save(folder)
    complete(folder, means, scale)
    return {"documents": len(vectors), "documents_without_queries": int((counts == 0).sum())}


def _query_vectors(
    context: StageContext, encoder: Encoder, pool: TrainingData, folder: str
) -> QueryVectors:
    return QueryVectors.encode(
        pool.pairs, encoder, context.checkpoints / folder, context.progress("encode queries")
    )


def encoding_scale(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> float | None:
    """The largest c such that `sample`, had it the vectors c * encodings, would take no more
    queries than it does now.

    A query is taken where a document of the sample ranks above all that answer it, which rank above
    the rest. Documents added with such vectors should then cost the others as much as documents
    that were there when V was learned. None where fewer than `ENOUGH` queries could be taken, or
    where no scale is too large.

    vectors: V (n, H), learned. sample: (s,) rows of V, of documents that stand for added ones.
    encodings: (s, H), what
      the encoder gives for them. queries: (m, H), not learned from. relevant: rows that answer each query.

    >>> learned, encoded = np.array([[1.0, 0.0], [0.5, 0.0]]), np.array([[1.0, 0.0]])
    >>> queries = np.stack([np.linspace(1, 2, 40), np.zeros(40)], axis=1)
    >>> round(encoding_scale(learned, np.array([1]), encoded, queries, [{0}] * 40), 6)  # at 1 all would be lost
    1.0
    """
    step, parts = CELLS // len(vectors) + 1, []
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        parts.append(_best_scores(vectors, sample, encodings, queries[part], relevant[part]))
    answers, others, learned, encoded = np.concatenate([np.empty((4, 0)), *parts], axis=1)
    answered = (answers > others) & (answers > 0)
    taken = int((learned >= answers)[answered].sum())
    threatened = answered & (encoded > 0)
    # the scale that takes each query
    lost_from = np.sort(answers[threatened] / encoded[threatened])
    if answered.sum() < ENOUGH or taken >= len(lost_from):
        return None
    return float(np.nextafter(lost_from[taken], 0))


def _best_scores(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> np.ndarray:
    """Of each of b queries the best score of the learned vectors that answer it, of all the others
    outside the sample, of those in it, and of the sample's encodings; -inf where there are none:
    (4, b).
    """
    place = {int(row): i for i, row in enumerate(sample)}
    learned, encoded = queries @ vectors.T, queries @ encodings.T  # (b, n), (b, s)
    answers = np.array(
        [scores[list(rows)].max() for scores, rows in zip(learned, relevant, strict=True)]
    )
    for query, rows in enumerate(relevant):
        learned[query, list(rows)] = -np.inf
        encoded[query, [place[row] for row in rows if row in place]] = -np.inf
    in_sample = learned[:, sample].max(axis=1, initial=-np.inf)
    learned[:, sample] = -np.inf
    return np.stack([answers, learned.max(axis=1), in_sample, encoded.max(axis=1, initial=-np.inf)])


def measured_scale(
    trainer: DocumentTrainer, encodings: np.ndarray | None, seed: int, progress: Progress
) -> float | None:
    """See `encoding_scale`, of what a finished trainer learned; None without dev queries too.

    encodings: (n, H) of all documents by its encoder, or None: those needed are made.
    """
    dev, vectors = trainer.dev, trainer.vectors.detach().cpu().numpy()
    count = min(len(vectors) // 2, SAMPLE)
    if dev is None or count == 0:
        return None
    sample = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:count])
    if encodings is None:
        rows = [dev.passages.of(document) for document in sample.tolist()]
        texts = [dev.passages.texts[row] for group in rows for row in group.tolist()]
        owners = np.repeat(np.arange(count), [len(group) for group in rows])
        chosen = document_means(trainer.encoder.encode_passages(texts, progress), owners, count)
    else:
        chosen = encodings[sample]
    relevant = [[int(document) for document in judged] for judged in dev.qrels.values()]
    return encoding_scale(vectors, sample, chosen, trainer.dev_queries(dev), relevant)


def index_documents(context: StageContext) -> dict[str, Any]:
    """Index the trained vectors in `inputs["trained"]`, one per document; nothing is encoded.

    The folder `index/` is a `DenseIndex` whose passages are the documents. The representatives lie
    beside it, so that a live collection can add documents to it by IncDSI.

    Returns:
        Report of the stage `index`.

    Raises:
        FreshetError: If the corpus has other documents than training had.
    """
    folder = context.inputs["trained"] / "document_vectors"
    trained = DenseIndex.load(folder)
    scale = read_json(folder / MANIFEST)["encoding_scale"]

    documents = load_corpus(context.inputs["corpus"]).passages["document_id"]
    differing = sorted(set(documents) ^ set(trained.document_ids))
    if differing:
        raise FreshetError(
            f"the corpus and the trained vectors differ by {len(differing)} documents ({differing[0]!r} is one); "
            "every document needs a vector: train again"
        )

    index = DenseIndex.build(
        trained.vectors, trained.document_ids, trained.fingerprint, context.settings["index"]
    )
    report = save_index(index, context)
    complete(context.output / "index", np.load(folder / REPRESENTATIVES), scale)
    return report
