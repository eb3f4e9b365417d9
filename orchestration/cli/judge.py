"""The command `freshet judge`: record which documents answer which questions."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.known_queries import normalize_query
from model_code.text.words import is_valid_utf8, print_message, split_lines
from orchestration.cli.options import AsJson, DryRun
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from freshet.results import Hit
    from model_code.corpus.judgement_file import JudgedPair
    from model_code.corpus.judgement_input import JudgementInput

# Number of refused rows that are printed; --json prints all.
MAX_SHOWN_REFUSALS = 10
# Answers to "does it answer the question?", with the grade that each one gives.
GRADES = {"y": 1, "n": 0}
# Answers that give no grade: skip the hit, end the question, end the command.
NEXT_HIT = "s"
NEXT_QUESTION = "d"
QUIT = "q"

Find = Callable[[str], "Sequence[Hit]"]
"""A function that returns the hits of a question."""


def judge(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="A table with a question and a document in each row (.csv, .tsv, .jsonl, "
            ".parquet), TREC qrels with --queries, or a BEIR folder. With --interactive: a text "
            "with one question per line."
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(help="Queries of TREC qrels: lines ID<tab>TEXT, or a table with id and text."),
    ] = None,
    question: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the questions.")
    ] = None,
    document: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Column of the documents' ids.")
    ] = None,
    grade: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Column of the grades; 0 means not relevant."),
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", help="Ask for questions, and judge the hits of each.")
    ] = False,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits to judge per question.")] = 5,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Record which documents answer which questions.

    Use it to let Freshet train on your judgements and test with them. They are kept in
    judgements.jsonl, and the next build or retrain reads them.

    Example: freshet judge questions.csv
    """
    project = Project.find()
    if interactive:
        has_columns = not (question is None and document is None and grade is None)
        has_options_of_files = dry_run or as_json or queries is not None or has_columns
        if has_options_of_files:
            raise typer.BadParameter(
                "--interactive cannot be combined with --dry-run, --json, --queries, --question, "
                "--document or --grade"
            )
        _judge_interactively(project, file, k)
        return
    if file is None:
        raise typer.BadParameter("name a file of judgements, or use --interactive")

    from model_code.corpus.judgement_input import JudgementColumns, read_judgement_input
    from model_code.corpus.settings import CorpusSettings
    from orchestration.freshness.judged_pairs import judgeable_documents

    judged = read_judgement_input(
        file,
        judgeable_documents(project),
        project.settings("corpus", CorpusSettings).max_characters,
        queries,
        JudgementColumns(question, document, grade),
    )
    _record(project, judged, dry_run, as_json)


def _record(project: Project, judged: JudgementInput, dry_run: bool, as_json: bool) -> None:
    """Record judgements, and print what changed; exit with code 1 if all rows were refused."""
    from orchestration.freshness.judged_pairs import add_judgements, count_judgements

    changes = None
    if judged.pairs and not dry_run:
        changes = add_judgements(project, judged.pairs)
    counts = count_judgements(project)

    if as_json:
        refused_rows = [{"location": row.location, "reason": row.message} for row in judged.refused]
        change_counts = asdict(changes) if changes is not None else None
        record: dict[str, Any] = {
            "judgements": len(judged.pairs),
            "changes": change_counts,
            "refused": refused_rows,
            "questions": counts.as_dict(),
            "dry_run": dry_run,
        }
        print_message(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        for line in _report_lines(judged, dry_run):
            print_message(line)
        if changes is not None:
            print_message(
                f"judgements.jsonl: {changes.added:,} new, {changes.changed:,} changed, "
                f"{changes.unchanged:,} unchanged"
            )
        print_message(str(counts))
        if counts.enough_for_training and changes is not None:
            print_message("next: freshet retrain, or freshet run if nothing is live yet")
    if judged.refused and not judged.pairs:
        raise typer.Exit(1)


def _report_lines(judged: JudgementInput, dry_run: bool) -> Iterator[str]:
    """Yield lines with the number of judgements that were read, and the first refused rows."""
    # Questions that differ only in case or punctuation are one question.
    questions = len({normalize_query(pair.question) for pair in judged.pairs})
    judgements = len(judged.pairs)
    verb = "would be recorded" if dry_run else "read"
    judgement_noun = "judgement" if judgements == 1 else "judgements"
    question_noun = "question" if questions == 1 else "questions"
    yield f"{judgements:,} {judgement_noun} of {questions:,} {question_noun} {verb}"
    if judged.refused:
        noun = "row" if len(judged.refused) == 1 else "rows"
        yield f"{len(judged.refused):,} {noun} refused:"
        for row in judged.refused[:MAX_SHOWN_REFUSALS]:
            yield f"  {row.location}  {row.message}"
        omitted = len(judged.refused) - MAX_SHOWN_REFUSALS
        if omitted > 0:
            yield f"  and {omitted:,} more, which --json lists"


def _judge_interactively(project: Project, file: Path | None, k: int) -> None:
    """Search for each question, ask the user about each hit, and record the answers.

    The judgements of a question are recorded before the next question, so that an interruption
    loses only those of the present question.

    Args:
        project: The project.
        file: File with one question per line. None: the user types the questions.
        k: Number of hits per question.
    """
    from orchestration.freshness.judged_pairs import add_judgements, count_judgements

    find = _searcher(project, k)
    print_message(
        "Judge each hit: y it answers the question, n it does not, s skip it, d next question, "
        "q quit."
    )
    for question in _questions(file):
        pairs, is_over = _judge_hits(question, find(question))
        if pairs:
            add_judgements(project, pairs)
            print_message(str(count_judgements(project)))
        if is_over:
            break


def _searcher(project: Project, k: int) -> Find:
    """Return a search by the running service, or in this process if there is none."""
    service = find_running_service(project)
    if service is not None:
        return lambda question: service.search(question, k).hits

    from model_code.collection.generations.searcher import Searcher

    searcher = Searcher.open(project.live)
    return lambda question: searcher.search(question, k)


def _questions(file: Path | None) -> Iterator[str]:
    """Yield the questions in the lines of a file.

    Without a file, ask the user for questions until the answer is empty.
    """
    lines: Iterable[str]
    if file is not None:
        lines = _read_lines(file)
    else:
        # Ask for questions until the user gives an empty answer.
        lines = iter(lambda: _ask("question (empty: end): "), "")
    for line in lines:
        question = " ".join(line.split())
        if question:
            yield question


def _read_lines(file: Path) -> list[str]:
    """Return the lines of a text file, in the encoding that its content suggests.

    Raises:
        FreshetError: If it is not a text file.
    """
    from model_code.corpus.sources.readers import open_text

    if not file.is_file():
        raise FreshetError(f"{file} is not a file; name a file with one question per line")
    remedy = "save it as text in UTF-8, with one question per line"
    try:
        with open_text(file) as stream:
            text = stream.read()
    except UnicodeDecodeError:
        raise FreshetError(f"{file} is not a whole text file; {remedy}") from None
    if not is_valid_utf8(text):
        raise FreshetError(f"{file} is not a text file; {remedy}")
    return split_lines(text)


def _judge_hits(question: str, hits: Sequence[Hit]) -> tuple[list[JudgedPair], bool]:
    """Ask for a verdict on each hit.

    Returns:
        The judgements, and whether the user wants to quit.
    """
    from model_code.corpus.judgement_file import JudgedPair

    print_message(f"\n{question}")
    if not hits:
        print_message("no documents found")
    pairs = []
    for hit in hits:
        print_message(f"\n{hit.rank:3}  {hit.title}  ({hit.document_id})\n     {hit.snippet}")
        answer = _ask_verdict()
        if answer in GRADES:
            pairs.append(JudgedPair(question, hit.document_id, GRADES[answer]))
        elif answer == QUIT:
            return pairs, True
        elif answer == NEXT_QUESTION:
            break
    return pairs, False


def _ask_verdict() -> str:
    """Ask until the answer is one of the allowed letters. The end of the input means "quit"."""
    allowed = (*GRADES, NEXT_HIT, NEXT_QUESTION, QUIT)
    while True:
        answer = _ask("     y/n/s/d/q: ", at_end=QUIT).lower()
        if answer in allowed:
            return answer
        print_message(f"     {answer!r} is none of {', '.join(allowed)}")


def _ask(prompt: str, at_end: str = "") -> str:
    """Return the user's answer; `at_end` if the input has ended, as by Ctrl-D."""
    try:
        return input(prompt).strip()
    except EOFError:
        print_message("")
        return at_end
