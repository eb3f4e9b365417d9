"""The stage `corpus`: read the locked source and write the contracted tables that everything else
is built from.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.corpus.build import build_corpus
from model_code.corpus.sources.base import open_locked_source
from model_code.corpus.tables import write_table
from model_code.files import read_json


def run(context: StageContext) -> dict[str, Any]:
    """Write documents, passages, queries, qrels and quarantine as Parquet; return the counts of
    rows and reasons.

    Raises `FreshetError` if the source is not what `inputs["lock"]` says, or holds too many
    malformed rows.
    """
    settings, passages = context.settings["corpus"], context.settings["passages"]
    source = open_locked_source(settings, context.root, read_json(context.inputs["lock"]))
    built = build_corpus(source, settings, passages, context.progress("corpus"))
    for name, table in built.tables.items():
        write_table(context.output, name, table)
    return built.report
