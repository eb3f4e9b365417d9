"""Stage `corpus`: read the locked source and write the tables that other stages read."""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.stages.stage import Stage, code_paths

STAGE = Stage(
    name="corpus",
    description="Documents, passages, queries and qrels, cleaned and "
    "merged, with a table of refused rows.",
    groups=("corpus", "passages"),
    inputs={"lock": "corpus.lock.json"},
    output="artifacts/corpus",
    code=code_paths("corpus", "text"),
)


def run(context: StageContext) -> dict[str, Any]:
    """Write the tables of the corpus, the reading notes, and the known queries.

    A reading note tells what of a file was not read, or was read by a guess. A known query is a
    query that a document is known to answer.

    Returns:
        Counts of rows and of the reasons for quarantine.

    Raises:
        FreshetError: If the source differs from `inputs["lock"]`, or has too many malformed rows.
    """
    from model_code.corpus.build import build_corpus
    from model_code.corpus.corpus_queries import KNOWN_QUERIES
    from model_code.corpus.judgement_file import open_judged_source
    from model_code.corpus.reading_notes import READING_NOTES, notes_to_json
    from model_code.corpus.tables import write_table
    from model_code.files import read_json, write_json

    corpus_settings = context.settings["corpus"]
    lock = read_json(context.inputs["lock"])
    source = open_judged_source(corpus_settings, context.root, lock)

    built = build_corpus(
        source, corpus_settings, context.settings["passages"], context.progress("corpus")
    )
    for name, table in built.tables.items():
        write_table(context.output, name, table)
    write_json(context.output / READING_NOTES, notes_to_json(built.notes))
    built.known_queries.save(context.output / KNOWN_QUERIES)

    report = built.report
    if source.missing:
        report["judgements_of_missing_documents"] = source.missing
    return report


def check(context: StageContext) -> None:
    """Check that all tables were written, and fit their schemas and each other.

    The known queries of a document are indexed with it. So no query of the splits dev, gate or test
    may be a known query: it would find its document by its own words.
    """
    import pandas as pd

    from model_code.checks.rules import require_files
    from model_code.checks.tables import check_known_queries, check_tables
    from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
    from model_code.corpus.reading_notes import READING_NOTES, notes_from_json
    from model_code.corpus.tables import TABLES
    from model_code.files import read_json

    names = (*TABLES, "quarantine")
    files = [f"{name}.parquet" for name in names]
    require_files(context.output, [*files, KNOWN_QUERIES, READING_NOTES])
    notes_from_json(read_json(context.output / READING_NOTES))
    tables = {name: pd.read_parquet(context.output / f"{name}.parquet") for name in names}
    check_tables(tables)
    check_known_queries(CorpusQueries.load(context.output / KNOWN_QUERIES), tables)
