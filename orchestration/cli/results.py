"""The one report: which system is best, what is live, what the gate said, what systems cost; printed and as a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.words import say
from orchestration.project import Project


def results(
    as_json: Annotated[
        bool, typer.Option("--json", help="One object per system, each metric with its interval.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--all", help="Every table: paired differences, parts of the queries.")
    ] = False,
    costs: Annotated[
        int, typer.Option("--costs", min=0, metavar="QUERIES", help="Time so many queries; show what systems cost.")
    ] = 0,
) -> None:
    """Compare all systems on the test queries: effectiveness, and with --costs what it takes; write the report."""
    project = Project.find()
    comparison = load_comparison(project)
    if as_json:
        say(json.dumps(comparison["systems"], indent=2, ensure_ascii=False))
    else:
        show_results(project, comparison, costs, whole)


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    from model_code.files import read_json

    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def show_results(
    project: Project, comparison: dict[str, Any], costs: int = 0, whole: bool = False, show: Callable[[str], None] = say
) -> None:
    """Print sentences and tables, and write the page. whole: every table, not the first alone."""
    from model_code.evaluation.plots import systems_plot
    from model_code.evaluation.report import headline_metrics, lead, page, tables
    from model_code.files import write_text
    from orchestration.cli.tables import table_text
    from orchestration.pipeline.costs import cost_table

    sentences = [lead(comparison), standing(project)]
    for sentence in sentences:
        show(sentence)
    if not comparison["systems"]:
        return
    shown = tables(comparison)
    first = next(iter(shown))
    printed = shown if whole else {first: shown[first]}
    if costs:
        measured = {f"Costs: {costs} queries, one at a time": cost_table(project, comparison["split"], costs)}
        shown, printed = shown | measured, printed | measured
    for title, table in printed.items():
        show(f"\n{title}\n{table_text(list(table.columns), table.to_numpy().tolist())}")
    picture = systems_plot(comparison["systems"], headline_metrics(comparison)[:4])
    path = project.state / "report.html"
    write_text(path, page("Comparison", sentences, picture, shown))
    show(f"\nAll tables, with a picture: {path}")


def standing(project: Project) -> str:
    """What is live and what the gate said last, in one sentence."""
    from model_code.live.collection import default_retriever, retrievers
    from orchestration.registry import history

    lines = history.read(project)
    if not lines:
        return "No retriever was registered and judged yet: freshet register, then freshet promote."
    last, live = lines[-1], project.live
    why = f": {'; '.join(last['verdict']['reasons'])}" if last["verdict"] else ""
    searched = f"Live is {default_retriever(live)}. " if retrievers(live) else ""
    return f"{searched}Last move: {last['action']} of version {last['to']} on {last['when'][:10]}{why}."
