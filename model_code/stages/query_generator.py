"""Stage `query_generator`: train a model that writes queries, on the pairs of the corpus.

The model is a sequence-to-sequence model. The output has the folder `model/`, which
`AutoModelForSeq2SeqLM` can load, and `history.json` with the rows of the training curve. If
`pseudo_queries.training.base` is null, nothing is trained and the output has only the report.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.stages.stage import QUERY_CODE, Stage, artifact_paths

STAGE = Stage(
    name="query_generator",
    description="A model that writes queries, trained on the corpus's own pairs; only a report "
    "if none is asked for.",
    groups=("pseudo_queries.training", "pseudo_queries.sequence_to_sequence", "encoder", "seed"),
    inputs=artifact_paths("corpus"),
    output="artifacts/query_generator",
    code=QUERY_CODE,
)


def run(context: StageContext) -> dict[str, Any]:
    """Train the model, and return a report of its training data and its best training step."""
    from model_code.queries.settings import TRAINING_GROUP

    if context.settings[TRAINING_GROUP].base is None:
        return {"trained": False}

    # Imported here because it imports torch and transformers, which are slow to import.
    from model_code.queries.generator_training import train_generator

    report: dict[str, Any] = {"trained": True}
    report.update(train_generator(context))
    return report


def check(context: StageContext) -> None:
    """Require a curve and a model if one was to be trained, and neither of them otherwise."""
    from model_code.checks.models import TRANSFORMER_FILES, check_history, check_model
    from model_code.checks.rules import require
    from model_code.queries.settings import TRAINED_FOLDER, TRAINING_GROUP

    model = context.output / TRAINED_FOLDER
    history = context.output / "history.json"
    if context.settings[TRAINING_GROUP].base is None:
        require(
            not model.exists() and not history.exists(),
            "no generator is trained, so model/ must not be there",
        )
        return

    check_history(history)
    check_model(model, (*TRANSFORMER_FILES, "generation_config.json"))
