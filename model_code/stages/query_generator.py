"""Stage `query_generator`: a sequence-to-sequence model that writes queries, trained on the
corpus's own pairs.

Output: `model/`, which `AutoModelForSeq2SeqLM` loads, and `history.json`, the rows of the training
curve; nothing but the report if `pseudo_queries.training.base` is null.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.queries.settings import TRAINING_GROUP


def run(context: StageContext) -> dict[str, Any]:
    """Train the model; the report says what it learned from, and which step was best."""
    if context.settings[TRAINING_GROUP].base is None:
        return {"trained": False}
    from model_code.queries.generator_training import train_generator  # with torch and transformers

    return {"trained": True} | train_generator(context)
