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
from model_code.training.small_sets import adapt_to_small_set, describe_adaptation
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
    chosen_settings: TrainingSettings = retriever.training
    layers: LayerSettings = retriever.layers

    # The folder of an encoder that was trained before may name the layers to index. The settings of
    # this retriever replace them.
    encoder = load_start_encoder(context, chosen_settings.start)
    set_indexed_layers(encoder, layers)

    data = tables.training_data(chosen_settings)
    dev = tables.dev_evaluator(chosen_settings, context.settings["seed"])
    settings = adapt_to_small_set(chosen_settings, len(data.supervised), dev is not None)
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
    adaptation = describe_adaptation(chosen_settings, settings)
    if adaptation:
        report["adapted_to_small_set"] = adaptation
    report["fingerprint"] = encoder.fingerprint()
    if layers.numbers:
        report["layers"] = list(layers.layer_numbers(encoder.depth))
        report["layer_pooling"] = layers.pooling
    return report
