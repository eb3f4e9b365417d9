"""The command `freshet demo`: a full build in Dagster, its results, and three searches."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.results import load_comparison, show_results
from orchestration.cli.signals import exit_on_signals, run_without_signals

if TYPE_CHECKING:
    from dagster import ExecuteInProcessResult

EXAMPLE_COUNT = 3
NEXT_STEPS = """\
Next
  freshet search "your words"   search the live collection
  freshet results               this table again (--json for programs)
  freshet plan                  what would run now, and why
  freshet ui                    Dagster on http://127.0.0.1:3000, MLflow on http://127.0.0.1:5000
"""
MAX_LISTED_DOCUMENTS = 10
# Titles with at least `MIN_TITLE_WORDS` words are preferred as example queries. All titles are cut
# to `MAX_TITLE_WORDS` words.
MIN_TITLE_WORDS = 2
MAX_TITLE_WORDS = 10
# Number of new objects after which the garbage collector runs. With Python's default of 700 it
# checks the many objects of imported libraries so often that this takes a sixth of the time of a
# build with nothing to do.
GC_THRESHOLD = 300_000


def demo() -> None:
    """Build everything once, show the results, and run three searches.

    Use it once in a new project. It runs the same stages as freshet run, as a job of Dagster.

    Example: freshet demo
    """
    started = time.monotonic()
    project = Project.find()
    with exit_on_signals():
        run_without_signals(lambda: run_job(project))
        print_message("")
        show_results(project, load_comparison(project))
        _show_rejected_documents(project)
        _show_merged_documents(project)
        _show_reading_notes(project)
        _show_searches(project)
    print_message(NEXT_STEPS)
    print_message(f"Done in {time.monotonic() - started:.0f} s.")


def run_job(project: Project, job: str = "full_build") -> None:
    """Run a Dagster job in this process.

    Raises:
        FreshetError: If the job fails. The message has the reason of the first failed step.
    """
    gc.set_threshold(GC_THRESHOLD)
    # These modules import Dagster, which takes seconds.
    from orchestration.instance import fail_abandoned_runs, open_instance, show_runs_in_ui
    from orchestration.pipeline.dvc import initialise
    from orchestration.project_definitions import definitions

    initialise(project)
    # Dagster lets only one training run at a time. A killed training still counts as running, and
    # the build would wait for it without end.
    fail_abandoned_runs(project)
    with open_instance(project) as instance, show_runs_in_ui(instance, job):
        resolved_job = definitions(project).resolve_job_def(job)
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        result = resolved_job.execute_in_process(
            run_config=quiet, instance=instance, raise_on_error=False
        )
    if not result.success:
        reason = first_failure(result)
        raise FreshetError(f"the Dagster job {job!r} failed (run {result.run_id}): {reason}")


def first_failure(result: ExecuteInProcessResult) -> str:
    """Return the innermost error message of the first step that failed."""
    for event in result.all_events:
        if event.is_step_failure and event.step_failure_data.error:
            error = event.step_failure_data.error
            while error.cause:
                error = error.cause
            return error.message.strip()
    return "see the log of the run"


def _show_rejected_documents(project: Project) -> None:
    """Print the first `MAX_LISTED_DOCUMENTS` documents that could not be read, with reasons."""
    import pandas as pd

    quarantine = pd.read_parquet(project.artifacts / "corpus" / "quarantine.parquet")
    rejected = quarantine[quarantine["table"] == "documents"]
    if len(rejected) == 0:
        return

    noun = "document" if len(rejected) == 1 else "documents"
    print_message(
        f"\n{len(rejected):,} {noun} could not be read (artifacts/corpus/quarantine.parquet)"
    )
    for row in rejected.head(MAX_LISTED_DOCUMENTS).itertuples():
        print_message(f"  {row.location}  {row.reason}: {row.detail}")


def _show_merged_documents(project: Project) -> None:
    """Print how many documents were left out because another one has the same text or title."""
    merged = read_json(project.artifacts / "corpus" / "report.json")["documents_merged"]
    if merged:
        noun = "document was" if merged == 1 else "documents were"
        print_message(
            f"\n{merged:,} {noun} left out, because others say the same (corpus.merge_duplicates)"
        )


def _show_reading_notes(project: Project) -> None:
    """Print the parts of the source's files that were not read, or were read by a guess."""
    from model_code.collection.index.reading_notes_file import read_reading_notes
    from model_code.corpus.reading_notes import REFUSED_FILE, note_lines

    notes = [note for note in read_reading_notes(project) if note.kind != REFUSED_FILE]
    if notes:
        files = len({note.file for note in notes})
        unit = "file has" if files == 1 else "files have"
        print_message(f"\n{files:,} {unit} notes from reading (freshet status shows them again)")
        print_message("\n".join(note_lines(notes)))


def _show_searches(project: Project) -> None:
    """Run example searches, and show that known queries find the documents that answer them."""
    from model_code.collection.generations.searcher import Searcher
    from orchestration.cli.known_queries_demo import known_queries_lines
    from orchestration.cli.search import hits_text

    searcher = Searcher.open(project.live)
    for query in example_queries(project):
        print_message(f'\nfreshet search "{query}" -k 3')
        print_message(hits_text(searcher.search(query, 3)))
    print_message("")
    for line in known_queries_lines(searcher, project.state):
        print_message(line)
    print_message("")


def example_queries(project: Project) -> tuple[str, ...]:
    """Return up to three example queries for the corpus.

    They are natural questions for the default corpus. For other corpora they are judged test
    queries or, without judgements, titles of documents.
    """
    import pandas as pd

    from model_code.corpus.tables import read_public_queries
    from orchestration import parameters
    from orchestration.service.example_questions import docstring_questions

    questions = docstring_questions(parameters.load(project.params_file).corpus)
    if questions:
        return questions
    queries = read_public_queries(project.artifacts / "corpus")
    test_queries = queries[queries["split"] == "test"]
    if not test_queries.empty:
        return tuple(test_queries["text"].head(EXAMPLE_COUNT))

    documents = pd.read_parquet(project.artifacts / "corpus" / "documents.parquet")
    return example_titles(documents["title"].tolist(), documents["text"].tolist())


def example_titles(titles: Sequence[str], texts: Sequence[str]) -> tuple[str, ...]:
    """Return example queries made of documents from different parts of the corpus.

    A query is the title of a document, or its first sentence if it has no title. Titles of several
    words are preferred.

    Args:
        titles: Title of each document.
        texts: Text of each document.
    """
    from model_code.text.headlines import make_headline, readable_title
    from model_code.text.markup import strip_markup
    from model_code.text.words import split_words

    # A dict keeps the order of the documents, and finds a repeated query at once.
    unique_queries: dict[str, None] = {}
    for title, text in zip(titles, texts, strict=True):
        query = strip_markup(readable_title(title) or make_headline("", text))
        query = " ".join(query.split()[:MAX_TITLE_WORDS])
        if split_words(query):
            unique_queries[query] = None
    candidates = list(unique_queries)

    long_titles = [query for query in candidates if len(split_words(query)) >= MIN_TITLE_WORDS]
    if len(long_titles) >= EXAMPLE_COUNT:
        candidates = long_titles
    # The examples are spread evenly over the candidates.
    count = min(EXAMPLE_COUNT, len(candidates))
    positions = [i * len(candidates) // count for i in range(count)]
    return tuple(candidates[position] for position in positions)
