"""Functions that the training stages of all kinds of retrievers share."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, load_corpus
from model_code.distributed.clustering import make_lloyd
from model_code.distributed.encoding import encode_resumably
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.dense_index import DenseIndex
from model_code.training.data import TrainingData
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from model_code.training.trainer import Trainer

TrainerKind = TypeVar("TrainerKind", bound=Trainer)


def load_start_encoder(context: StageContext, start: str | None) -> Encoder:
    """Load the encoder that training starts from: the folder `start`, or the base encoder."""
    folder = None
    if start is not None:
        folder = context.root / start
    # The settings of a retriever may name another base encoder than those of the project.
    retriever = context.settings["retriever"]
    settings = retriever.encoder_settings(context.settings["encoder"])
    return Encoder.from_settings(settings, folder)


def make_trainer(
    kind: type[TrainerKind],
    context: StageContext,
    encoder: Any,
    data: TrainingData,
    settings: TrainingSettings,
    dev: DevEvaluator | None,
    **options: Any,
) -> TrainerKind:
    """Create the trainer of a stage, with its checkpoints and, if needed, the hierarchy.

    Args:
        kind: Class of the trainer.
        context: Inputs and checkpoints of the stage.
        encoder: The encoder to train.
        data: The training data.
        settings: How the retriever is trained.
        dev: Evaluator on dev, which chooses the best step. None: the last step is kept.
        **options: Further arguments of the class.
    """
    seed: int = context.settings["seed"]

    def cluster(vectors: np.ndarray) -> Hierarchy:
        return build_hierarchy(vectors, context.settings["hierarchy"], seed, make_lloyd=make_lloyd)

    hierarchy = None
    if settings.needs_hierarchy:
        hierarchy = Hierarchy.load(context.inputs["hierarchy"])
        has_own_base = context.settings["retriever"].base is not None
        if has_own_base and isinstance(encoder, Encoder):
            # The retriever has another base encoder than the project. The centroids of the
            # project's hierarchy do not fit its vectors, so the passages are clustered again.
            hierarchy = cluster(_encode_passages(context, encoder, data))

    # Co-training clusters the passages again while it trains.
    cluster_again = None
    if settings.cotraining:
        cluster_again = cluster

    return kind(
        encoder,
        data,
        settings,
        seed,
        hierarchy=hierarchy,
        dev=dev,
        cluster=cluster_again,
        checkpoints=context.checkpoints,
        progress=context.progress("train"),
        **options,
    )


def _encode_passages(context: StageContext, encoder: Encoder, data: TrainingData) -> np.ndarray:
    """Encode all passages by the last layer, to cluster them: (N, H) float32."""
    return encode_resumably(
        encoder,
        data.passages.texts,
        context.checkpoints / "hierarchy",
        context.progress("encode for the hierarchy"),
        "encode_documents_by_last_layer",
    )


def write_training_report(
    context: StageContext,
    tables: TrainingTables,
    data: TrainingData,
    settings: TrainingSettings,
    trainer: Trainer,
) -> dict[str, Any]:
    """Write `history.json`, and return the report of a training stage.

    The report describes the training data and the best evaluation.
    """
    state = trainer.state
    write_json(context.output / "history.json", state.history)

    supervision = "joint"
    if not len(data.unsupervised):
        supervision = "supervised"
    elif not len(data.supervised):
        supervision = "unsupervised"
    return {
        "supervision": supervision,
        "supervised_pairs": len(data.supervised),
        "unsupervised_pairs": len(data.unsupervised),
        "dev_queries": min(len(tables.dev.queries), settings.dev_queries),
        "dev_metric": settings.dev_metric,
        "start_dev": state.history[0].get(settings.dev_metric),
        "best_dev": state.best_metric,
        "best_dev_interval": state.best_interval,
        "best_dev_groups": state.best_groups,
        "best_step": state.best_step,
        "steps": state.step,
        "pairs_seen": state.step * trainer.pairs_per_step,
        "trained_parameters": trainer.trained_parameters,
        "reclustered_at": state.reclustered_at,
    }


def reusable_vectors(context: StageContext, encoder: Encoder, corpus: Corpus) -> np.ndarray | None:
    """Return the passage vectors of the base index, if they are those of this encoder and corpus.

    The base index was built before the training, from the whole texts. Its vectors save encoding
    all passages for the evaluation of the encoder before the first step.

    Some corpora take queries from their own documents, such as the first line of a docstring. The
    training then uses a copy of the texts without these lines. With the vectors of the whole texts,
    such a query would find its own line, and the score before training would be far too good. So
    the vectors are only used if the texts are the same.

    Args:
        context: Context of the stage.
        encoder: Encoder at the start of the training.
        corpus: Corpus that the training uses.

    Returns:
        Vectors (N, H) of all passages. None if the index belongs to another encoder or other texts.
    """
    index = DenseIndex.load(context.inputs["base_index"], check=False)
    passages = load_corpus(context.inputs["corpus"]).passages[["document_id", "text"]]
    has_same_documents = index.document_ids == passages["document_id"].tolist()
    has_same_texts = passages.equals(corpus.passages[list(passages)])
    if not has_same_documents or not has_same_texts:
        return None
    if index.fingerprint != encoder.fingerprint():
        return None
    return index.vectors
