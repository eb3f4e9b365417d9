"""From a source to artifacts and what they are worth: ingest, run, plan, results, demo, bench."""

from __future__ import annotations

import gc
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.files import read_json, write_text
from model_code.project import Project
from model_code.text.words import print_message

if TYPE_CHECKING:
    from dagster import ExecuteInProcessResult

EXAMPLES = (
    "split a string on whitespace",
    "solve a system of linear equations",
    "read a table from a csv file",
)
NEXT_STEPS = """\
Next
  freshet search "your words"   search the live collection
  freshet results               this table again (--json for programs)
  freshet plan                  what would run now, and why
  freshet ui                    Dagster on http://127.0.0.1:3000, MLflow on http://127.0.0.1:5000
"""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130  # the exit code that Typer makes of Ctrl-C, which it does not pass on
SHOWN_REFUSED = 10
CLONE = Path(__file__).parents[2]
Stages = Annotated[
    list[str] | None,
    typer.Argument(help="Stages such as corpus, train@hce or train; all by default."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Edit params.yaml first, such as training.temperature=0.02.",
    ),
]


def settings(
    describe: Annotated[
        bool, typer.Option("--describe", help="As a table; what happens anyway.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="The page docs/settings.md.")
    ] = False,
) -> None:
    """Describe every key of params.yaml: type, default, bounds and what it is for."""
    from orchestration import parameters

    rows = parameters.settings_reference()
    if as_json:
        print_message(json.dumps([asdict(row) for row in rows], indent=2, ensure_ascii=False))
    elif markdown:
        print_message(parameters.settings_page(), nl=False)
    else:
        print_message(
            table_text(
                ["key", "type", "default", "bounds", "what it is"],
                [list(astuple(row)) for row in rows],
            )
        )


def init(
    folder: Annotated[
        Path, typer.Argument(help="Where the project shall lie; made if it is not there.")
    ],
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="SOURCE",
            help="A folder of documents, a file of rows, or a hub data set.",
        ),
    ] = None,
) -> None:
    """Make a project of your own, for the documents of a folder, a file or a data set."""
    from orchestration.pipeline.new_project import make_project

    print_message(make_project(folder, source))
    print_message(f"next: cd {folder} && freshet demo")


def ingest() -> None:
    """Look at the corpus's source and renew corpus.lock.json."""
    from orchestration.pipeline.dvc import initialise
    from orchestration.pipeline.ingest import ingest as renew

    project = Project.find()
    lock = renew(project)
    initialise(project)  # so that a bare `dvc repro` may follow
    print_message(f"corpus.lock.json: {lock['source']}, content {lock['content_hash'][:12]}")


def run(
    stages: Stages = None,
    assignments: Assignments = None,
    force: Annotated[bool, typer.Option(help="Run the stages even if nothing changed.")] = False,
) -> None:
    """Bring stages up to date (those before them too), running only what changed."""
    from orchestration import parameters
    from orchestration.pipeline import ingest as ingestion
    from orchestration.pipeline import repro
    from orchestration.pipeline import stages as table

    project = Project.find()
    with project.lock():
        _, settings = parameters.apply_overrides(project.params_file, assignments or [])
        all_stages = table.expand(settings.retrievers, settings.fusions)
        targets = [stage.address for name in stages or [] for stage in table.find(name, all_stages)]
        # only now, as a misspelt stage stops here
        parameters.write_overrides(project.params_file, assignments or [])
        if ingestion.read_lock(project) is None:
            ingestion.ingest(project)
        ended = list(repro.repro(project, targets, force=force))
    print_message(f"{len(ended)} stages ran" + (": " + ", ".join(ended) if ended else ""))


def plan(
    stages: Stages = None,
    as_json: Annotated[bool, typer.Option("--json", help="As a JSON list.")] = False,
) -> None:
    """Show what `freshet run` would do, and why."""
    from orchestration.pipeline.repro import plan as make_plan

    planned = make_plan(Project.find(), stages or [])
    if as_json:
        print_message(
            json.dumps([asdict(stage) for stage in planned], indent=2, ensure_ascii=False)
        )
        return
    for stage in planned:
        print_message(f"{stage.action:5} {stage.address:24} {'; '.join(stage.reasons)}")


def results(
    as_json: Annotated[
        bool, typer.Option("--json", help="One object per system, each metric with its interval.")
    ] = False,
    all_tables: Annotated[
        bool, typer.Option("--all", help="Every table: paired differences, parts of the queries.")
    ] = False,
    costs: Annotated[
        int,
        typer.Option(
            "--costs",
            min=0,
            metavar="QUERIES",
            help="Time so many queries; show what systems cost.",
        ),
    ] = 0,
) -> None:
    """Compare all systems on the test queries: effectiveness, and with --costs what it takes; write
    the report.
    """
    project = Project.find()
    comparison = load_comparison(project)
    if as_json:
        print_message(json.dumps(comparison["systems"], indent=2, ensure_ascii=False))
    else:
        show_results(project, comparison, costs, all_tables)


def load_comparison(project: Project) -> dict[str, Any]:
    """`artifacts/comparison/comparison.json`; raises `FreshetError` before the first comparison."""
    path = project.artifacts / "comparison" / "comparison.json"
    if not path.exists():
        raise FreshetError("there are no results yet: run `freshet run` (or `make demo`)")
    return read_json(path)


def show_results(
    project: Project, comparison: dict[str, Any], costs: int = 0, all_tables: bool = False
) -> None:
    """Print sentences and tables, and write the page. all_tables: every table, not the first alone."""
    from model_code.evaluation.plots import systems_plot
    from model_code.evaluation.report import (
        headline_metrics,
        render_page,
        report_tables,
        summary_sentence,
    )
    from orchestration.pipeline.costs import cost_table

    sentences = [summary_sentence(comparison), standing(project)]
    print_message("\n".join(sentences))
    if not comparison["systems"]:
        return
    shown = report_tables(comparison)
    first = next(iter(shown))
    printed = shown if all_tables else {first: shown[first]}
    if costs:
        measured = {
            f"Costs: {costs} queries, one at a time": cost_table(
                project, comparison["split"], costs
            )
        }
        shown, printed = shown | measured, printed | measured
    for title, table in printed.items():
        print_message(f"\n{title}\n{table_text(list(table.columns), table.to_numpy().tolist())}")
    picture = systems_plot(comparison["systems"], headline_metrics(comparison)[:4])
    path = project.state / "report.html"
    write_text(path, render_page("Comparison", sentences, picture, shown))
    print_message(f"\nAll tables, with a picture: {path}")


def table_text(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Rows under their columns' names, aligned.

    >>> print(table_text(["system", "hit@1"], [["bm25", "0.5"], ["zero_shot", "0.625"]]))
    system     hit@1
    bm25       0.5
    zero_shot  0.625
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for column in columns:
        table.add_column(Text(column), no_wrap=True)
    for row in rows:
        table.add_row(*map(Text, row))
    stream = io.StringIO()
    Console(file=stream, width=10_000, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in stream.getvalue().splitlines())


def standing(project: Project) -> str:
    """What is live and what the gate said last, in one sentence."""
    from model_code.collection.generations.generation_store import default_retriever, retrievers
    from orchestration.registry import history

    lines = history.read(project)
    if not lines:
        return "No retriever was registered and judged yet: freshet register, then freshet promote."
    last, live = lines[-1], project.live
    why = f": {'; '.join(last['verdict']['reasons'])}" if last["verdict"] else ""
    searched = f"Live is {default_retriever(live)}. " if retrievers(live) else ""
    return f"{searched}Last move: {last['action']} of version {last['to']} on {last['when'][:10]}{why}."


def demo() -> None:
    """Run the main job in Dagster, then show results, three searches, and where to look."""
    started, project = time.monotonic(), Project.find()
    with ended_by_signals():
        run_job(project)
        print_message("")
        show_results(project, load_comparison(project))
        _show_refused(project)
        _show_searches(project)
    print_message(NEXT_STEPS)
    print_message(f"Done in {time.monotonic() - started:.0f} s.")


def run_job(project: Project, job: str = "full_build") -> None:
    """Run one job in this process; raises `FreshetError` if it fails."""
    # what is imported stays: to look through it again and again is a sixth of an idle build
    gc.set_threshold(300_000)
    from orchestration.definitions import definitions
    from orchestration.instance import fail_abandoned_runs, known_by_the_page, open_instance
    from orchestration.pipeline.dvc import initialise

    initialise(project)
    fail_abandoned_runs(project)  # else this build waits for the slot of a training that was killed
    with open_instance(project) as instance, known_by_the_page(instance, job):
        resolved = definitions(project).resolve_job_def(job)
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        result = resolved.execute_in_process(
            run_config=quiet, instance=instance, raise_on_error=False
        )
    if not result.success:
        raise FreshetError(
            f"the Dagster job {job!r} failed (run {result.run_id}): {_first_failure(result)}"
        )


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let a signal end this process and all that it started, at once, as `kill -9` may: nothing is
    lost by it.

    Dagster would take the signal for a failure of the step, and by the step's retry policy begin it
    again.
    """
    import psutil

    terminal = os.dup(sys.stderr.fileno())  # which Dagster takes for the log of a step

    def end(number: int, frame: FrameType | None) -> None:
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        os.write(terminal, f"{stopped()}\n".encode())
        os._exit(INTERRUPTED)

    with stopped_by(end):
        # which takes seconds, in which a signal may come, too
        from dagster._core.execution import compute_logs
        from dagster._utils import interrupts

        replace, interrupts._replace_interrupt_signal = (
            interrupts._replace_interrupt_signal,
            lambda handler: None,
        )
        # its helpers print a traceback each at Ctrl-C, unless it does not reach them
        compute_logs.subprocess = SimpleNamespace(
            Popen=partial(subprocess.Popen, start_new_session=True)
        )
        try:
            yield
        finally:
            interrupts._replace_interrupt_signal, compute_logs.subprocess = replace, subprocess
            os.close(terminal)


@contextmanager
def stopped_by(stop: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Let `stop` take every signal that tells this process to stop."""
    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def stopped() -> str:
    """What is kept, and what goes on where it was, if anything does."""
    resumes = ""
    with suppress(FreshetError):  # outside of a project
        if any((Project.find().state / "checkpoints").glob("*/*")):
            resumes = ", training resumes from its last checkpoint"
    return f"stopped; finished stages are kept{resumes}"


def _first_failure(result: ExecuteInProcessResult) -> str:
    """The innermost message of the first step that failed."""
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            error = event.step_failure_data.error
            while error.cause:
                error = error.cause
            return error.message.strip()
    return "see the run's log"


def _show_refused(project: Project) -> None:
    """Name the documents that could not be read, the first ones if they are many."""
    import pandas as pd

    rows = pd.read_parquet(project.artifacts / "corpus" / "quarantine.parquet")
    refused = rows[rows["table"] == "documents"]
    if len(refused):
        documents = f"{len(refused):,} document{'s' * (len(refused) > 1)}"
        print_message(f"\n{documents} could not be read (artifacts/corpus/quarantine.parquet)")
    for row in refused.head(SHOWN_REFUSED).itertuples():
        print_message(f"  {row.location}  {row.reason}: {row.detail}")


def _show_searches(project: Project) -> None:
    from model_code.collection.generations.searcher import Searcher
    from orchestration.cli.live import hits_text

    searcher = Searcher.open(project.live)
    for text in example_queries(project):
        print_message(f'\nfreshet search "{text}" -k 3')
        print_message(hits_text(searcher.search(text, 3)))
    print_message("")


def example_queries(project: Project) -> tuple[str, ...]:
    """Three queries that make sense for the corpus."""
    import pandas as pd

    from orchestration import parameters

    if parameters.load(project.params_file).corpus.source == "installed_packages":
        return EXAMPLES
    queries = pd.read_parquet(project.artifacts / "corpus" / "queries.parquet")
    tested = queries[queries["split"] == "test"]
    if tested.empty:
        tested = pd.read_parquet(project.artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    return tuple(tested["text"].head(3))


def bench(context: typer.Context) -> None:
    """Measure one part against its peer, or all of them, one after the other; `--help` tells the
    options.
    """
    if not (CLONE / "benchmarks").is_dir():
        raise FreshetError(
            "benchmarks run from a clone of the repository: the installed package is without them"
        )
    path = os.pathsep.join(filter(None, [str(CLONE), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks", *context.args]
    raise typer.Exit(subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode)
