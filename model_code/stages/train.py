"""Stage `train`, once per retriever: train it on the corpus's pairs, and keep the best checkpoint.

Output: `encoder/`, the trained encoder with its card, and `history.json`, the rows of the training curve; some kinds
add their own.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext, leave_out
from model_code.corpus.tables import load_corpus
from model_code.retrievers.kinds import module
from model_code.scale.training import train
from model_code.training.card import write_card
from model_code.training.tables import TrainingTables

NOT_TRAINED = (
    "{name} is not trained: {known} training queries of this corpus have judgements by people, and {least} are the "
    "least; bring qrels, or set training.min_judged_queries: 0 to train on made queries all the same"
)


def run(context: StageContext) -> dict[str, Any]:
    """Train the retriever `context.name`; the report says what it saw and which step was best.

    Where people judged too few queries, it is left out: trained on made queries alone, encoders lost as often as they
    won, and nothing tells which.
    """
    retriever = context.settings["retriever"]
    least, qrels = retriever.training.min_judged_queries, load_corpus(context.inputs["corpus"]).qrels
    known = qrels.loc[qrels["split"] == "train", "query_id"].nunique()
    if known < least:
        return leave_out(context.output, NOT_TRAINED.format(name=context.name, known=known, least=least))
    shared = retriever.training.accumulation if retriever.kind == "dense" else 1  # others have stages that are not
    report = train(_train, context, shared)
    write_card(context, report)
    return report


def _train(context: StageContext) -> dict[str, Any]:
    return module(context.settings["retriever"].kind).train(context, TrainingTables.load(context))
