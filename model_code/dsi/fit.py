"""Train an atomic DSI: a query encoder and one vector per document.

Writes `encoder/`, which is the base encoder as it came unless it is trained too, `history.json`, the rows of the
training curve, and `document_vectors/`, a dense index with what `vectors.py` puts beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.dsi.encoding_scale import measured_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import DocumentTrainer, QueryVectors, loop_settings, pooled
from model_code.dsi.vectors import Representatives, document_means, random_vectors
from model_code.encoding.encoder import Encoder
from model_code.index.dense_index import DenseIndex
from model_code.index.settings import ALWAYS_EXACT, IndexSettings
from model_code.scale.encoding import encode_resumably
from model_code.training.data import TrainingData
from model_code.training.fit import finish, load_tree, start_encoder, start_vectors
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables


def fit_document_vectors(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train document vectors as the retriever's settings say; the report says what they saw and which step was best."""
    own: DocumentVectorSettings = context.settings["retriever"].document_vectors
    training: TrainingSettings = context.settings["retriever"].training
    seed: int = context.settings["seed"]
    encoder = start_encoder(context, training.start)
    data = tables.training_data(training)
    start, pool = _start(context, tables, encoder), pooled(data)
    settings = loop_settings(own, training, len(pool.pairs))
    trainer = DocumentTrainer(
        encoder,
        pool,
        settings,
        seed,
        load_tree(context, settings),
        tables.dev_evaluator(training.replace(dev_passages=None), seed),  # to rank all costs little: none is encoded
        checkpoints=context.checkpoints,
        progress=context.progress("train"),
        own=own,
        vectors=torch.nn.Parameter(torch.from_numpy(start.copy())),
        query_vectors=None if own.train_encoder else _query_vectors(context, encoder, pool, "queries"),
    )
    result = trainer.fit()
    encodings = start if own.start == "documents" and not own.train_encoder else None
    scale = measured_scale(trainer, encodings, seed, context.progress("encode a sample"))
    encoder.save(context.output / "encoder")
    report = {"fingerprint": encoder.fingerprint(), "encoding_scale": scale}
    report |= _save(context, tables, trainer, report["fingerprint"], 1.0 if scale is None else scale)
    return finish(context, tables, data, training, result) | report


def _start(context: StageContext, tables: TrainingTables, encoder: Encoder) -> np.ndarray:
    """The start vectors: (n, H) float32."""
    retriever = context.settings["retriever"]
    if retriever.document_vectors.start == "random":
        seed = context.settings["seed"] + retriever.training.seed_offset
        return random_vectors(len(tables.number), encoder.dimension, seed)
    vectors = start_vectors(context, encoder, tables.corpus)
    if vectors is None:
        folder, progress = context.checkpoints / "passages", context.progress("encode passages")
        vectors = encode_resumably(encoder, list(tables.passages.texts), folder, progress, "encode_documents")
    return document_means(vectors, tables.passages.documents, len(tables.number))


def _save(
    context: StageContext, tables: TrainingTables, trainer: DocumentTrainer, fingerprint: str, scale: float
) -> dict[str, Any]:
    """Write what the finished trainer learned, and the mean query of each document under its encoder; report both."""
    queries = trainer.query_vectors or _query_vectors(context, trainer.encoder, trainer.data, "trained_queries")
    vectors, data = trainer.vectors.detach().cpu().numpy(), trainer.data
    means, counts = queries.means(data.passages.documents[data.pairs.passages], len(vectors))
    means[counts == 0] = vectors[counts == 0]
    folder, exact = context.output / "document_vectors", IndexSettings(flat_below=ALWAYS_EXACT)
    DenseIndex.build(vectors, list(tables.number), fingerprint, exact).save(folder)
    Representatives(means, counts).complete(folder, scale)
    return {"documents": len(vectors), "documents_without_queries": int((counts == 0).sum())}


def _query_vectors(context: StageContext, encoder: Encoder, pool: TrainingData, folder: str) -> QueryVectors:
    return QueryVectors.encode(pool.pairs, encoder, context.checkpoints / folder, context.progress("encode queries"))
