"""Commands that change or print documents: add, update, delete, sync, import, export."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.collection.handover.engines import EngineName
from model_code.errors import SettingsError
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.change_report import print_change_report
from orchestration.cli.handover import DEFAULT_NAME, CollectionName, export_to_engine
from orchestration.cli.options import (
    AsJson,
    DocumentFiles,
    DryRun,
    InputFormat,
    Retriever,
    RowFormat,
)
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from model_code.collection.sync.sync import AllSourcesReport

# The commands import the live index inside their functions, because it imports pandas and
# SQLAlchemy, which takes half a second.


def add(
    files: DocumentFiles,
    input_format: InputFormat = "jsonl",
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Add documents, or update documents with the same id.

    Use it for new documents. Adding the same document twice changes nothing.

    Example: freshet add notes/ new.jsonl
    """
    _add_files(files, input_format, dry_run, retriever, as_json, only_known=False)


def update(
    files: DocumentFiles,
    input_format: InputFormat = "jsonl",
    dry_run: DryRun = False,
    partial: Annotated[
        bool,
        typer.Option(
            "--partial",
            help="The rows hold only the values to change; null removes a field.",
        ),
    ] = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Update documents, and refuse unknown ids.

    Use it in place of add if a new id would be a mistake.

    Example: freshet update changed.jsonl
    """
    if partial:
        from model_code.collection.index.changes import update_partially
        from model_code.collection.index.live_index import LiveIndex

        if dry_run:
            raise SettingsError("--partial has no dry run; leave out --dry-run")
        index = LiveIndex(Project.find(), retriever, find_service=find_running_service)
        print_change_report(update_partially(index, files, f".{input_format}"), as_json)
        return
    _add_files(files, input_format, dry_run, retriever, as_json, only_known=True)


def _add_files(
    files: list[Path],
    input_format: RowFormat,
    dry_run: bool,
    retriever: str | None,
    as_json: bool,
    only_known: bool,
) -> None:
    """Add or update the documents in files, and print the outcome.

    Args:
        files: Files and folders of documents; "-" is standard input.
        input_format: Format of standard input.
        dry_run: Whether to only print what would be changed.
        retriever: Name of a live retriever; None for the default one.
        as_json: Whether to print one JSON object.
        only_known: Whether to refuse documents with unknown ids.
    """
    from model_code.collection.index.changes import add_files
    from model_code.collection.index.live_index import LiveIndex

    index = LiveIndex(Project.find(), retriever, find_service=find_running_service)
    report = add_files(index, files, f".{input_format}", only_known, dry_run)
    print_change_report(report, as_json, dry_run)


def delete(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of documents; none with --filter.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Delete all documents that match, as in freshet search. Can be repeated.",
        ),
    ] = None,
    dry_run: DryRun = False,
    erase: Annotated[
        bool,
        typer.Option(
            "--erase",
            help="Remove the texts permanently, from all generations and from the ledger.",
        ),
    ] = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Delete documents.

    Use it for documents that must not be found. freshet rollback --generation restores deleted
    documents; with --erase, nothing can.

    Example: freshet delete numpy.sort numpy.argsort
    """
    from model_code.collection.erase import erase_documents
    from model_code.collection.index.changes import delete_documents, delete_matching
    from model_code.collection.index.live_index import LiveIndex

    # Both are given, or neither is. The command needs exactly one.
    if bool(ids) == bool(filters):
        raise SettingsError("give either ids or --filter, as in: freshet delete --filter year<2000")
    if filters and erase:
        raise SettingsError("--erase needs ids; list them with --filter and --dry-run first")
    if ids and dry_run:
        raise SettingsError("--dry-run is for --filter; the ids say what is deleted")

    index = LiveIndex(Project.find(), retriever, find_service=find_running_service)
    if filters:
        report = delete_matching(index, filters, dry_run)
        if not as_json and dry_run:
            print_message("\n".join(report.deleted) or "no document matches")
    elif erase:
        report = erase_documents(index, ids or [])
    else:
        report = delete_documents(index, ids or [])
    print_change_report(report, as_json, dry_run)


def forget(
    query: Annotated[
        str, typer.Option("--query", metavar="TEXT", help="The query, whatever its case.")
    ],
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Forget a query that documents are known to answer.

    Use it for personal data. The query no longer helps to find any document, feedback on it is
    deleted, and its text is removed from documents, indexes and the ledger.

    Example: freshet forget --query "who is Jane Doe"
    """
    from model_code.collection.forget import forget_query
    from model_code.collection.index.live_index import LiveIndex

    index = LiveIndex(Project.find(), retriever, find_service=find_running_service)
    report = forget_query(index, query)
    if as_json:
        print_message(json.dumps(dataclasses.asdict(report), indent=2, ensure_ascii=False))
    else:
        print_message(str(report))


def sync(
    path: Annotated[
        str | None,
        typer.Argument(
            metavar="[PATH]",
            help="A folder, a file of rows or a data set; the project's source by default.",
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            "--source",
            metavar="NAME",
            help="Name of a source beside the project's own one; by default the last part of PATH.",
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Sync the project's own source and all named sources.")
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Delete documents even if much of the source is missing."),
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the index equal to its source.

    Use it after the source has changed: documents are added, updated and deleted as needed. Any
    number of sources can feed an index. The documents of source NAME have ids NAME:FILE.

    Example: freshet sync --source wiki ../wiki
    """
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.sync import sync as sync_index
    from model_code.collection.sync.sync import sync_all

    if everything and (path is not None or source is not None):
        raise SettingsError("--all syncs every source; leave out the path and --source")
    index = LiveIndex(Project.find(), find_service=find_running_service)
    if everything:
        reports = sync_all(index, force, dry_run)
        _print_sync_reports(reports, as_json, dry_run)
        reports.require_complete()
        return
    report = sync_index(index, path, force, dry_run, name=source)
    print_change_report(report, as_json, dry_run)


def _print_sync_reports(reports: AllSourcesReport, as_json: bool, dry_run: bool) -> None:
    """Print the outcome for each source; one JSON list with `as_json`."""
    if as_json:
        records: list[dict[str, Any]] = []
        for report in reports.reports:
            record = dataclasses.asdict(report)
            record["dry_run"] = dry_run
            records.append(record)
        print_message(json.dumps(records, indent=2, ensure_ascii=False))
        return
    for report in reports.reports:
        prefix = "would be: " if dry_run else ""
        print_message(f"{prefix}{report}")


def export(
    target: Annotated[
        str | None, typer.Argument(help="With --to: the address or folder of the engine.")
    ] = None,
    to: Annotated[
        EngineName | None,
        typer.Option("--to", help="Write documents with their vectors to another search engine."),
    ] = None,
    name: CollectionName = DEFAULT_NAME,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="With --to: delete a collection that has this name."),
    ] = False,
    retriever: Retriever = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="Print the feedback on hits, and no documents.")
    ] = False,
    known_queries: Annotated[
        bool,
        typer.Option(
            "--known-queries",
            help="Print the known queries of each document, and no documents.",
        ),
    ] = False,
    everything: Annotated[
        Path | None,
        typer.Option(
            "--all",
            metavar="FOLDER",
            help="Write everything to this new folder, from which freshet import makes a project.",
        ),
    ] = None,
) -> None:
    """Write all live documents to standard output, a folder or another search engine.

    Use it to copy documents. Without options, each document is printed as one line of JSON, which
    freshet add reads. With --all, documents, judgements, feedback and history are written to a
    folder. With --to, another engine gets documents and vectors, and freshet sync-to brings it up
    to date later.

    Example: freshet export > all.jsonl
    """
    wanted = {
        "--to": to is not None,
        "--feedback": feedback,
        "--known-queries": known_queries,
        "--all": everything is not None,
    }
    given = [option for option, is_given in wanted.items() if is_given]
    if len(given) > 1:
        raise typer.BadParameter(f"{' and '.join(given)} cannot be combined; give one of them")
    if to is not None:
        export_to_engine(to, target, name, retriever, replace)
        return
    if target is not None:
        raise SettingsError(
            f"{target!r} is named without an engine: freshet export --to qdrant {target}, or "
            "freshet export --all FOLDER for a folder of JSON lines"
        )

    from model_code.collection.backup.export import (
        export_documents,
        export_project,
        known_query_rows,
    )
    from model_code.collection.generations.generation_store import (
        GenerationStore,
        default_retriever,
    )
    from model_code.collection.index.project_ledger import read_feedback

    project = Project.find()
    if everything is not None:
        counts = export_project(project, everything)
        files = [f"{number:,} in {name}" for name, number in counts.items()]
        print_message(f"{everything} holds the project as JSON lines: {', '.join(files)}")
        return

    retriever_name = retriever or default_retriever(project.live)
    rows: Iterable[dict[str, Any]]
    if feedback:
        rows = (vars(entry) for entry in read_feedback(project))
    elif known_queries:
        generation = GenerationStore(project.live, retriever_name).current()
        rows = known_query_rows(project, generation)
    else:
        rows = export_documents(project, retriever_name)
    for row in rows:
        print_message(json.dumps(row, ensure_ascii=False))


def import_(
    folder: Annotated[Path, typer.Argument(help="A folder that freshet export --all wrote.")],
    as_json: AsJson = False,
) -> None:
    """Import documents, judgements and feedback of another project.

    Use it to move a project to another format or machine. If nothing is live yet, the export
    becomes the project's corpus. Importing twice changes nothing.

    Example: freshet import /mnt/export
    """
    from model_code.collection.backup.import_ import import_project
    from model_code.collection.generations.generation_store import retrievers
    from model_code.collection.index.live_index import LiveIndex
    from orchestration import parameters

    project = Project.find()
    index = None
    if retrievers(project.live):
        index = LiveIndex(project, find_service=find_running_service)

    def assign_settings(assignments: Sequence[str]) -> None:
        parameters.change_settings(project, assignments)

    report = import_project(project, folder, index, assign_settings)
    print_change_report(report, as_json)
    if report.corpus_documents and not as_json:
        print_message("build it and make it live with: freshet demo")
