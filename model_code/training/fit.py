"""Steps that the training of every kind of retriever shares."""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, load_corpus
from model_code.distributed.clustering import make_lloyd
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.dense_index import DenseIndex
from model_code.training.data import TrainingData
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables
from model_code.training.trainer import Trainer

Made = TypeVar("Made", bound=Trainer)


def load_start_encoder(context: StageContext, start: str | None) -> Encoder:
    """Where training begins: a trained encoder, `TrainingSettings.start`, or the base."""
    return Encoder.from_settings(
        context.settings["encoder"], None if start is None else context.root / start
    )


def make_trainer(
    kind: type[Made],
    context: StageContext,
    encoder: Any,
    data: TrainingData,
    settings: TrainingSettings,
    dev: DevEvaluator | None,
    **options: Any,
) -> Made:
    """A trainer with the stage's hierarchy, if training reads it, and from its checkpoints;
    options: its kind's.
    """
    tree = Hierarchy.load(context.inputs["hierarchy"]) if settings.needs_hierarchy else None
    seed: int = context.settings["seed"]

    def cluster(vectors: np.ndarray) -> Hierarchy:
        return build_hierarchy(vectors, context.settings["hierarchy"], seed, make_lloyd=make_lloyd)

    again, progress = cluster if settings.cotraining else None, context.progress("train")
    return kind(
        encoder, data, settings, seed, tree, dev, again, context.checkpoints, progress, **options
    )


def write_training_report(
    context: StageContext,
    tables: TrainingTables,
    data: TrainingData,
    settings: TrainingSettings,
    trainer: Trainer,
) -> dict[str, Any]:
    """Write the training curve; the report of what a retriever was trained on and chosen by, and
    what came of it.
    """
    state = trainer.state
    write_json(context.output / "history.json", state.history)
    kinds = {(True, False): "supervised", (False, True): "unsupervised", (True, True): "joint"}
    return {
        "supervision": kinds[bool(len(data.supervised)), bool(len(data.unsupervised))],
        "supervised_pairs": len(data.supervised),
        "unsupervised_pairs": len(data.unsupervised),
        "dev_queries": min(len(tables.dev.queries), settings.dev_queries),
        "dev_metric": settings.dev_metric,
        "start_dev": state.history[0].get(settings.dev_metric),
        "best_dev": state.best_metric,
        "best_dev_interval": state.best_interval,
        "best_step": state.best_step,
        "steps": state.step,
        "pairs_seen": state.step * trainer.pairs_per_step,
        "trained_parameters": trainer.trained_parameters,
        "reclustered_at": state.reclustered_at,
    }


def reusable_vectors(context: StageContext, encoder: Encoder, corpus: Corpus) -> np.ndarray | None:
    """The passages of `corpus` as the base index has them; None, so that they are encoded anew, if
    it has others.

    It does where it is another encoder's, or `corpus` is judged without lines that the whole
    documents begin with: these are what queries ask, so no training would come up to the start.
    """
    index = DenseIndex.load(context.inputs["base_index"], check=False)
    passages = load_corpus(context.inputs["corpus"]).passages[["document_id", "text"]]
    same = index.document_ids == passages["document_id"].tolist() and passages.equals(
        corpus.passages[list(passages)]
    )
    return index.vectors if same and index.fingerprint == encoder.fingerprint() else None
