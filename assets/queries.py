"""Queries: the model that writes some, those that were written, and the verdict over corpus and queries."""

from collections.abc import Sequence
from pathlib import Path

import dagster as dg

from assets.pages import Preview, first_rows, learning_curve, report_of, table
from assets.stage_assets import Page, stage_assets
from model_code.files import read_json
from orchestration.pipeline.stages import Stage
from orchestration.project import Project

HELD_OUT = ("log_likelihood",)  # of held-out queries, what a generator's best step is chosen by


def preview_query_generator(folder: Path) -> Preview:
    """The learning curve, if a generator was trained at all."""
    if not report_of(folder)["trained"]:
        return {"history": "no generator was trained (`pseudo_queries.training.base` is null)"}
    return learning_curve(folder, HELD_OUT)


def preview_pseudo_queries(folder: Path) -> Preview:
    """First generated queries."""
    columns = ["query_id", "document_id", "text", "kind"]
    return {"first pseudo-queries": first_rows(folder / "pseudo_queries.parquet", columns)}


def preview_acceptance(folder: Path) -> Preview:
    """Each expectation with its bounds and what was observed."""
    return {"verdict": table(read_json(folder / "verdict.json")["expectations"])}


QUERY_GENERATOR = Page("corpus", frozenset({"torch"}), preview_query_generator)
PSEUDO_QUERIES = Page("corpus", frozenset({"parquet"}), preview_pseudo_queries)
ACCEPTANCE = Page("corpus", frozenset({"great_expectations"}), preview_acceptance)


def query_assets(project: Project, table: Sequence[Stage]) -> list[dg.AssetsDefinition]:
    """`query_generator`, `pseudo_queries` and `acceptance_verdict`."""
    pages = {"query_generator": QUERY_GENERATOR, "pseudo_queries": PSEUDO_QUERIES, "acceptance": ACCEPTANCE}
    return stage_assets(project, table, pages)
