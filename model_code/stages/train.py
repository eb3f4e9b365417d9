"""Stage `train`, once per retriever: train it on the corpus's pairs, and keep the best checkpoint.

Output: `encoder/`, the trained encoder, and `history.json`, the rows of the training curve; some kinds add their own.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.retrievers.kinds import module
from model_code.scale.training import train
from model_code.training.tables import TrainingTables


def run(context: StageContext) -> dict[str, Any]:
    """Train the retriever `context.name`; the report says what it saw and which step was best."""
    retriever = context.settings["retriever"]
    shared = retriever.training.accumulation if retriever.kind == "dense" else 1  # others have stages that are not
    return train(_train, context, shared)


def _train(context: StageContext) -> dict[str, Any]:
    return module(context.settings["retriever"].kind).train(context, TrainingTables.load(context))
