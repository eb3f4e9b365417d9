"""Stage `pseudo_queries`: queries generated from the documents, to train on; those that fit several are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import judged_corpus, load_corpus, write_table
from model_code.queries.pseudo_queries import REASONS, InverseCloze, PseudoQuery, reasons_to_drop
from model_code.queries.settings import TRAINED_FOLDER, PseudoQuerySettings

if TYPE_CHECKING:
    from model_code.queries.sequence_to_sequence import SequenceToSequence


def run(context: StageContext) -> dict[str, Any]:
    """Write `pseudo_queries.parquet`; the report counts queries, by kind, and what was dropped and why."""
    corpus = judged_corpus(load_corpus(context.inputs["corpus"]))
    documents = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    generated = _generate(documents, context)
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
        "dropped": {reason: int((reasons == reason).sum()) for reason in REASONS},
        "by_kind": {str(kind): len(rows) for kind, rows in kept.groupby("kind")},
    }


def _generate(documents: dict[str, str], context: StageContext) -> list[PseudoQuery]:
    """The queries of all documents by each of `generators`."""
    queries: list[PseudoQuery] = []
    for kind in context.settings["pseudo_queries"].generators:
        cloze = InverseCloze(kind, context.settings["pseudo_queries"].inverse_cloze)
        generator, progress = cloze if kind == "inverse_cloze" else _model(context), context.progress(kind)
        queries += generator.generate(documents, context.settings["seed"], context.checkpoints, progress)
    return queries


def _model(context: StageContext) -> SequenceToSequence:
    from model_code.queries.sequence_to_sequence import SequenceToSequence

    settings: PseudoQuerySettings = context.settings["pseudo_queries"]
    trained = context.inputs["query_generator"] / TRAINED_FOLDER
    return SequenceToSequence.load(settings.sequence_to_sequence, trained, context.settings["encoder"].device)
