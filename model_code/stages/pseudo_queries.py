"""Stage `pseudo_queries`: queries generated from the documents, to train on; those that fit several
are dropped.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, strip_query_lines, write_table
from model_code.queries.pseudo_queries import (
    DROP_REASONS,
    InverseCloze,
    PseudoQuery,
    reasons_to_drop,
)
from model_code.queries.settings import TRAINED_FOLDER, PseudoQuerySettings


def run(context: StageContext) -> dict[str, Any]:
    """Write `pseudo_queries.parquet`; the report counts queries, by kind, and what was dropped and
    why.
    """
    corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
    documents = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    generated: list[PseudoQuery] = []
    for kind in context.settings["pseudo_queries"].generators:
        generator, progress = _generator(kind, context), context.progress(kind)
        generated += generator.generate(
            documents, context.settings["seed"], context.checkpoints, progress
        )
    table = pd.DataFrame(generated, columns=list(PseudoQuery._fields), dtype=str)
    ordinal = table.groupby(["document_id", "kind"]).cumcount().astype(str)
    table["query_id"] = table["document_id"] + "~" + table["kind"] + "~" + ordinal
    reasons = pd.Series(reasons_to_drop(generated, documents), dtype=object)
    kept = table[reasons.isna()].sort_values("query_id", ignore_index=True)
    write_table(context.output, "pseudo_queries", kept[["query_id", "document_id", "text", "kind"]])
    return {
        "documents": len(documents),
        "documents_without_query": len(documents) - kept["document_id"].nunique(),
        "generated": len(table),
        "kept": len(kept),
        "dropped": {reason: int((reasons == reason).sum()) for reason in DROP_REASONS},
        "by_kind": {str(kind): len(rows) for kind, rows in kept.groupby("kind")},
    }


def _generator(kind: str, context: StageContext) -> Any:
    """What makes the queries of a kind, with `generate` as `InverseCloze` has it."""
    settings: PseudoQuerySettings = context.settings["pseudo_queries"]
    if kind == "inverse_cloze":
        return InverseCloze(kind, settings.inverse_cloze)
    # with torch and transformers
    from model_code.queries.sequence_to_sequence import SequenceToSequence

    trained = context.inputs["query_generator"] / TRAINED_FOLDER
    return SequenceToSequence.load(
        settings.sequence_to_sequence, trained, context.settings["encoder"].device
    )
