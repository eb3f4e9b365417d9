"""The command `freshet results`: how good the systems are, and what they cost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.files import read_json, write_text
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.tables import table_text

if TYPE_CHECKING:
    import pandas as pd

# Number of metrics in the picture, which has one panel for each metric.
MAX_PLOTTED_METRICS = 4


def results(
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object per system, with confidence intervals. With --costs, each "
            "has a key `costs`.",
        ),
    ] = False,
    all_tables: Annotated[
        bool,
        typer.Option("--all", help="Print every table, such as paired differences."),
    ] = False,
    costs: Annotated[
        int,
        typer.Option(
            "--costs",
            min=0,
            metavar="QUERIES",
            help="Time this number of queries, and show what each system costs.",
        ),
    ] = 0,
    add_run: Annotated[
        list[str] | None,
        typer.Option(
            "--add-run",
            metavar="NAME=FILE",
            help="Add the TREC run of another system as a row, with all tests. May be repeated.",
        ),
    ] = None,
) -> None:
    """Compare all systems on the test queries, and write a report.

    Use it after a build, to see which retriever is best and by how much.

    Example: freshet results --costs 100
    """
    project = Project.find()
    comparison = load_comparison(project)
    if add_run:
        comparison = compare_with_runs(project, comparison, add_run)
    if as_json:
        systems = comparison["systems"]
        if costs:
            _add_costs(project, comparison["split"], costs, systems)
        print_message(json.dumps(systems, indent=2, ensure_ascii=False))
    else:
        show_results(project, comparison, costs, all_tables)


def _add_costs(
    project: Project, split: str, queries: int, systems: dict[str, dict[str, Any]]
) -> None:
    """Add the key `costs` to each system that is built.

    Args:
        project: The project.
        split: Name of the split whose queries are timed.
        queries: Number of queries to time.
        systems: Values of the metrics, by system and metric.
    """
    from orchestration.pipeline.costs import measure_costs

    for name, cost in measure_costs(project, split, queries).items():
        if name in systems:
            systems[name]["costs"] = asdict(cost)


def load_comparison(project: Project) -> dict[str, Any]:
    """Return the comparison of all systems, from `artifacts/comparison/comparison.json`.

    Raises:
        FreshetError: If no build has compared systems yet.
    """
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet; run `freshet run` first")
    return read_json(path)


def compare_with_runs(
    project: Project, comparison: dict[str, Any], arguments: Sequence[str]
) -> dict[str, Any]:
    """Compare the systems of the build again, together with outside runs.

    Nothing below `artifacts/` changes.

    Args:
        project: The project.
        comparison: The comparison of the build.
        arguments: Outside runs, each as NAME=FILE.

    Raises:
        FreshetError: If an argument or a run is not sound, or no query is judged.
    """
    from model_code.evaluation.outside_runs import parse_outside_runs, refuse_taken_names
    from model_code.stages import comparison as comparison_stage
    from model_code.stages.system_comparison import compare
    from orchestration import parameters
    from orchestration.pipeline.stage_context import stage_context

    outside_runs = parse_outside_runs(arguments)
    if not comparison["systems"]:
        raise FreshetError("no query is judged, so a run cannot be compared; add qrels first")
    refuse_taken_names(outside_runs, comparison["systems"])

    settings = parameters.load(project.params_file)
    with tempfile.TemporaryDirectory() as folder:
        context = stage_context(
            comparison_stage.STAGE, project, settings, Path(folder), Path(folder)
        )
        return compare(context, outside_runs)


def show_results(
    project: Project, comparison: dict[str, Any], cost_queries: int = 0, all_tables: bool = False
) -> None:
    """Print the comparison of systems, and write it as a page with a picture.

    Args:
        project: The project.
        comparison: Content of `comparison.json`.
        cost_queries: Number of queries to time for a table of costs; 0 for no such table.
        all_tables: Whether to print all tables in place of the first one.
    """
    from model_code.evaluation.report import (
        headline_metrics,
        render_page,
        report_tables,
        summary_sentence,
    )

    sentences = [summary_sentence(comparison), _judgement_line(project), status_line(project)]
    print_message("\n".join(sentences))
    if not comparison["systems"]:
        return
    # matplotlib takes a second to import, and nothing is drawn without judgements.
    from model_code.evaluation.plots import systems_plot

    tables = report_tables(comparison)
    first_title = next(iter(tables))
    printed_titles = list(tables) if all_tables else [first_title]
    if cost_queries:
        title = f"Costs: {cost_queries} queries, one at a time"
        tables[title] = _cost_table(project, comparison, cost_queries)
        printed_titles.append(title)

    for title in printed_titles:
        table = tables[title]
        text = table_text(list(table.columns), table.to_numpy().tolist())
        print_message(f"\n{title}\n{text}")

    metrics = headline_metrics(comparison)[:MAX_PLOTTED_METRICS]
    picture = systems_plot(comparison["systems"], metrics)
    path = project.state / "report.html"
    write_text(path, render_page("Comparison", sentences, picture, tables))
    print_message(f"\nAll tables, with a picture: {path}")


def _cost_table(project: Project, comparison: dict[str, Any], queries: int) -> pd.DataFrame:
    from orchestration.pipeline.costs import cost_table, measure_costs

    return cost_table(measure_costs(project, comparison["split"], queries))


def _judgement_line(project: Project) -> str:
    """Return a sentence with the judgements that the next training has, or why it is unknown."""
    from orchestration.freshness.judged_pairs import count_judgements

    try:
        return f"Judgements for the next training: {count_judgements(project)}."
    except FreshetError as error:
        return f"Judgements cannot be counted: {error}."


def status_line(project: Project) -> str:
    """Return two sentences: the live retriever, and the last promotion or rollback.

    Before the first registration, the text tells how to register and promote a retriever.
    """
    from model_code.collection.generations.generation_store import default_retriever, retrievers
    from orchestration.registry import history

    lines = history.read(project)
    if not lines:
        return (
            "No retriever is registered yet. "
            "Use freshet register, and then freshet promote, to search with one."
        )

    last = lines[-1]
    text = f"Last change: {last['action']} of version {last['to']} on {last['when'][:10]}"
    verdict = last["verdict"]
    if verdict:
        statements = [*verdict["reasons"], *verdict["findings"]]
        text += f": {'; '.join(statements)}"
    text += "."
    if retrievers(project.live):
        text = f"Live is {default_retriever(project.live)}. {text}"
    return text
