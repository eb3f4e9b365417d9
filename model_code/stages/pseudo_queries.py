"""Stage `pseudo_queries`: generate queries from documents, and drop the ambiguous ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from model_code.context import StageContext
from model_code.stages.stage import QUERY_CODE, Stage, artifact_paths

if TYPE_CHECKING:
    import pandas as pd

    from model_code.queries.pseudo_queries import PseudoQuery

STAGE = Stage(
    name="pseudo_queries",
    description="Queries generated from the documents themselves, to train on.",
    groups=("pseudo_queries", "encoder", "seed"),
    inputs=artifact_paths("corpus", "query_generator"),
    output="artifacts/pseudo_queries",
    code=QUERY_CODE,
)


def run(context: StageContext) -> dict[str, Any]:
    """Write `pseudo_queries.parquet`.

    Returns:
        Counts of documents, and of queries: generated, kept, kept by kind, and dropped by reason.
    """
    import pandas as pd

    from model_code.corpus.tables import load_corpus, strip_query_lines, write_table
    from model_code.queries.pseudo_queries import DROP_REASONS, reasons_to_drop

    corpus = strip_query_lines(load_corpus(context.inputs["corpus"]))
    documents = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))

    queries = _generate_queries(documents, context)
    table = _query_table(queries)
    drop_reasons = pd.Series(reasons_to_drop(queries, documents), dtype=object)
    kept = table[drop_reasons.isna()].sort_values("query_id", ignore_index=True)
    write_table(context.output, "pseudo_queries", kept[["query_id", "document_id", "text", "kind"]])

    dropped = {reason: int((drop_reasons == reason).sum()) for reason in DROP_REASONS}
    by_kind = {str(kind): len(rows) for kind, rows in kept.groupby("kind")}
    return {
        "documents": len(documents),
        "documents_without_query": len(documents) - kept["document_id"].nunique(),
        "generated": len(table),
        "kept": len(kept),
        "dropped": dropped,
        "by_kind": by_kind,
    }


def check(context: StageContext) -> None:
    """Require the table's schema, and that each query comes from a document of the corpus."""
    import pandas as pd

    from model_code.checks.rules import require_files
    from model_code.checks.tables import check_tables, passage_documents, require_no_rows

    require_files(context.output, ["pseudo_queries.parquet"])
    table = pd.read_parquet(context.output / "pseudo_queries.parquet")
    check_tables({"pseudo_queries": table})

    known_documents = passage_documents(context.inputs["corpus"])
    is_unknown = ~table["document_id"].isin(known_documents)
    require_no_rows(
        "pseudo_queries",
        "document_id must be of a document of the corpus",
        table.loc[is_unknown, "document_id"],
    )


def _generate_queries(documents: dict[str, str], context: StageContext) -> list[PseudoQuery]:
    """Generate queries from texts by document id, with each generator of the settings."""
    queries: list[PseudoQuery] = []
    for kind in context.settings["pseudo_queries"].generators:
        generator = _make_generator(kind, context)
        queries += generator.generate(
            documents, context.settings["seed"], context.checkpoints, context.progress(kind)
        )
    return queries


def _query_table(queries: list[PseudoQuery]) -> pd.DataFrame:
    """Return one row per query, with an id made of its document, kind and number."""
    import pandas as pd

    from model_code.queries.pseudo_queries import PseudoQuery

    table = pd.DataFrame(queries, columns=list(PseudoQuery._fields), dtype=str)
    number = table.groupby(["document_id", "kind"]).cumcount().astype(str)
    table["query_id"] = table["document_id"] + "~" + table["kind"] + "~" + number
    return table


def _make_generator(kind: str, context: StageContext) -> Any:
    """Return the generator of this kind, with a method `generate` like `InverseCloze.generate`."""
    from model_code.queries.pseudo_queries import InverseCloze
    from model_code.queries.settings import TRAINED_FOLDER, PseudoQuerySettings

    settings: PseudoQuerySettings = context.settings["pseudo_queries"]
    if kind == "inverse_cloze":
        return InverseCloze(kind, settings.inverse_cloze)

    # Imported here because it imports torch and transformers. The generator `inverse_cloze` takes
    # spans of documents and needs neither.
    from model_code.queries.sequence_to_sequence import SequenceToSequence

    trained_model = context.inputs["query_generator"] / TRAINED_FOLDER
    return SequenceToSequence.load(
        settings.sequence_to_sequence, trained_model, context.settings["encoder"].device
    )
