"""`freshet tune-additions`: which vectors added documents get."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from model_code.incdsi.tuning import TuningReport


def tune_additions(
    documents: Annotated[int, typer.Option(min=1, help="How many live documents to take out and add again.")] = 200,
    trials: Annotated[int, typer.Option(min=0, help="How many refined settings to try, besides plain ones.")] = 50,
    seed: Annotated[int, typer.Option(help="Of the search over settings.")] = 0,
    retriever: Annotated[
        str | None, typer.Option(help="Another retriever that is live than the one searched by default.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="All trials and the best as one JSON object.")] = False,
) -> None:
    """Try ways of adding documents on documents that are live, and remember the best.

    The live collection is not changed. The best settings go to .freshet/additions/best/RETRIEVER.json, where they are
    used only if params.yaml says `additions: {use: tuned}`, for this retriever and its later builds; a retriever that
    was not tuned goes on with the settings of params.yaml, and `freshet status` says so. A way is judged by how well
    old and added documents are found, old ones weighing five times as much (IncDSI's F-beta); a refinement that does
    not beat the plain encoding is not chosen. Take out about as many documents as you expect to add.
    """
    from orchestration.live.additions import tune
    from orchestration.project import Project

    report, best = tune(Project.find(), documents, trials, seed, retriever)
    typer.echo(json.dumps({"trials": report.rows(), "best": best}, indent=2) if as_json else text(report, best))


def text(report: TuningReport, best: dict[str, Any]) -> str:
    """The trials as a table, best first, and what was chosen."""
    lines = [f"{'MRR@10':>6} {'old':>6} {'new':>6}  way of adding"]
    for trial in sorted(report.trials, key=lambda one: -one.score):
        lines.append(f"{trial.score:6.3f} {trial.old:6.3f} {trial.new:6.3f}  {trial.name}")
    split, chosen, plain = best["split"], best["found"], best["plain"]
    lines += [
        "",
        f"old documents before any addition: {report.old_before:.3f}; {split['documents']} documents were added again, "
        f"judged by {split['old_queries']} queries for old and {split['new_queries']} for new documents",
        f"best: {chosen['name']} (score {chosen['score']:.3f}; the encoder's vector as it is: {plain['score']:.3f})",
        *(f"  {name}: {value}" for name, value in best["settings"].items()),
        f"used for {best['retriever']} if params.yaml says additions: {{use: tuned}}",
    ]
    return "\n".join(lines)


def add_to(app: typer.Typer) -> None:
    """Register the commands of this file."""
    app.command(name="tune-additions")(tune_additions)
