"""Train a dense retriever: fine-tune an encoder on the corpus's pairs and keep the best step."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import make_pair_loss, set_indexed_layers
from model_code.training.fit import (
    load_start_encoder,
    make_trainer,
    reusable_vectors,
    write_training_report,
)
from model_code.training.settings import TrainingSettings
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Trainer


def fit_dense_encoder(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the dense retriever of a stage's context and write its encoder and training curve.

    Args:
        context: Context of the stage `train`, with the retriever's settings.
        tables: Pairs, passages and dev queries of the corpus.

    Returns:
        Report of the stage: the training data, the best step, and the encoder's fingerprint.
    """
    retriever = context.settings["retriever"]
    settings: TrainingSettings = retriever.training
    layers: LayerSettings = retriever.layers

    # An encoder that was trained before may name layers. This retriever's settings decide.
    encoder = load_start_encoder(context, settings.start)
    set_indexed_layers(encoder, layers)

    data = tables.training_data(settings)
    dev = tables.dev_evaluator(settings, context.settings["seed"])
    trainer = make_trainer(
        Trainer,
        context,
        encoder,
        data,
        settings,
        dev,
        pair_loss=make_pair_loss(encoder, layers),
    )
    trainer.fit(reusable_vectors(context, encoder, tables.corpus))
    encoder.save(context.output / "encoder")

    report = write_training_report(context, tables, data, settings, trainer)
    report["fingerprint"] = encoder.fingerprint()
    if layers.numbers:
        report["layers"] = list(layers.layer_numbers(encoder.depth))
        report["layer_pooling"] = layers.pooling
    return report
