"""Train an atomic DSI: a query encoder and one vector per document.

Writes `encoder/`, which is the base encoder as it came unless it is trained too, `history.json`, the rows of the
training curve, and `document_vectors/` (`folder.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.dsi.batches import QueryVectors
from model_code.dsi.encoding_scale import measured_scale
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import DocumentTrainer, loop_settings, pooled
from model_code.dsi.vectors import DocumentVectors, Representatives, document_means, random_vectors
from model_code.encoding.encoder import DocumentSide, Encoder
from model_code.files import write_json
from model_code.hierarchy.tree import Hierarchy
from model_code.scale.encoding import encode_resumably
from model_code.training.data import TrainingData
from model_code.training.fit import data_report, result_report, start_encoder, start_vectors
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables


def fit_document_vectors(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train document vectors as the retriever's settings say; the report says what they saw and which step was best."""
    own: DocumentVectorSettings = context.settings["retriever"].document_vectors
    training: TrainingSettings = context.settings["retriever"].training
    encoder = start_encoder(context, training.start)
    data = tables.training_data(training)
    start = _start(context, tables, encoder)
    vectors = torch.nn.Parameter(torch.from_numpy(start.copy()))
    trainer = _trainer(context, tables, encoder, pooled(data), vectors)
    result = trainer.fit()
    encodings = start if own.start == "documents" and not own.train_encoder else None
    scale = measured_scale(
        trainer.dev, encoder, encodings, context.settings["seed"], context.progress("encode a sample")
    )
    trained = _collect(context, tables, trainer, 1.0 if scale is None else scale)
    encoder.save(context.output / "encoder")
    trained.save(context.output / "document_vectors")
    write_json(context.output / "history.json", list(result.history))
    return (
        data_report(tables, data, training)
        | result_report(result, training)
        | {
            "documents": len(trained.document_ids),
            "documents_without_queries": int((trained.representatives.counts == 0).sum()),
            "fingerprint": trained.fingerprint,
            "encoding_scale": scale,
        }
    )


def _trainer(
    context: StageContext, tables: TrainingTables, encoder: Encoder, pool: TrainingData, vectors: torch.nn.Parameter
) -> DocumentTrainer:
    own, training = context.settings["retriever"].document_vectors, context.settings["retriever"].training
    seed: int = context.settings["seed"]
    return DocumentTrainer(
        encoder,
        pool,
        loop_settings(own, training, len(pool.pairs)),
        own,
        vectors,
        None if own.train_encoder else _query_vectors(context, encoder, pool, "queries"),
        seed,
        Hierarchy.load(context.inputs["hierarchy"]) if training.hierarchy_weight > 0 else None,
        tables.dev_evaluator(_whole_corpus(training), seed),
        checkpoints=context.checkpoints,
        progress=context.progress("train"),
    )


def _start(context: StageContext, tables: TrainingTables, encoder: Encoder) -> np.ndarray:
    """The start vectors: (n, H) float32."""
    retriever = context.settings["retriever"]
    if retriever.document_vectors.start == "random":
        seed = context.settings["seed"] + retriever.training.seed_offset
        return random_vectors(len(tables.number), encoder.dimension, seed)
    vectors = start_vectors(context, encoder, tables.corpus)
    if vectors is None:
        folder, progress = context.checkpoints / "passages", context.progress("encode passages")
        vectors = encode_resumably(DocumentSide(encoder), list(tables.passages.texts), folder, progress)
    return document_means(vectors, tables.passages.documents, len(tables.number))


def _collect(
    context: StageContext, tables: TrainingTables, trainer: DocumentTrainer, encoding_scale: float
) -> DocumentVectors:
    """What the finished trainer learned, and the mean query of each document under its encoder."""
    encoder, pool = trainer.encoder, trainer.data
    queries = trainer.query_vectors or _query_vectors(context, encoder, pool, "trained_queries")
    vectors = trainer.vectors.detach().cpu().numpy()
    means, counts = queries.means(pool.passages.documents[pool.pairs.passages], len(vectors))
    means[counts == 0] = vectors[counts == 0]
    representatives = Representatives(means, counts)
    return DocumentVectors(vectors, list(tables.number), representatives, encoder.fingerprint(), encoding_scale)


def _query_vectors(context: StageContext, encoder: Encoder, pool: TrainingData, folder: str) -> QueryVectors:
    return QueryVectors.encode(pool.pairs, encoder, context.checkpoints / folder, context.progress("encode queries"))


def _whole_corpus(training: TrainingSettings) -> TrainingSettings:
    """The dev settings without a sample of passages: nothing has to be encoded, so ranking them all costs little."""
    return training.replace(dev_passages=None)
