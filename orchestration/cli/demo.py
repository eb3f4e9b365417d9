"""The main job from start to end, and then what it was good for: results, three searches, where to look."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from orchestration import parameters
from orchestration.project import Project

if TYPE_CHECKING:
    from dagster import ExecuteInProcessResult

EXAMPLES = ("split a string on whitespace", "solve a system of linear equations", "read a table from a csv file")

NEXT_STEPS = """\
Next
  freshet search "your words"   search the live collection
  freshet results               this table again (--json for programs)
  freshet plan                  what would run now, and why
  freshet ui                    Dagster on http://127.0.0.1:3000, MLflow on http://127.0.0.1:5000
The full report with plots is artifacts/comparison/comparison.html
"""


def demo(project: Project, show: Callable[[str], None] = print) -> None:
    """Run `full_build` in the project's Dagster instance and show what came out of it."""
    started = time.monotonic()
    build(project)
    from orchestration.pipeline.results import load_comparison, results_table

    show("\nResults on the test queries\n")
    show(results_table(load_comparison(project)))
    _show_searches(project, show)
    show(NEXT_STEPS)
    show(f"Done in {time.monotonic() - started:.0f} s.")


def build(project: Project, job: str = "full_build") -> None:
    """Run one job in this process; raises `FreshetError` if it fails."""
    from orchestration.definitions import definitions
    from orchestration.instance import open_instance
    from orchestration.pipeline.repro import initialise

    initialise(project)
    with open_instance(project) as instance:
        result = (
            definitions(project)
            .resolve_job_def(job)
            .execute_in_process(
                instance=instance,
                raise_on_error=False,
                run_config={"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}},
            )
        )
    if not result.success:
        raise FreshetError(f"the Dagster job {job!r} failed (run {result.run_id}): {_first_failure(result)}")


def _first_failure(result: ExecuteInProcessResult) -> str:
    """The innermost message of the first step that failed."""
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            error = event.step_failure_data.error
            while error.cause:
                error = error.cause
            return error.message.strip()
    return "see the run's log"


def _show_searches(project: Project, show: Callable[[str], None]) -> None:
    from model_code.live.searcher import Searcher
    from orchestration.cli.hits import hits_text

    searcher = Searcher.open(project.live)
    for text in example_queries(project):
        show(f'\nfreshet search "{text}" -k 3')
        show(hits_text(searcher.search(text, 3)))
    show("")


def example_queries(project: Project) -> tuple[str, ...]:
    """Three queries that make sense for the corpus."""
    if parameters.load(project.params_file).corpus.source == "installed_packages":
        return EXAMPLES
    return _first_test_queries(project.artifacts)


def _first_test_queries(artifacts: Path) -> tuple[str, ...]:
    import pandas as pd

    queries = pd.read_parquet(artifacts / "corpus" / "queries.parquet")
    if not (queries["split"] == "test").any():
        queries = pd.read_parquet(artifacts / "pseudo_queries" / "pseudo_queries.parquet")
    return tuple(queries[queries["split"] == "test"]["text"].head(3))
