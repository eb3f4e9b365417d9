"""What is searched, kept up to date and whole: search, add, update, delete, sync; verify, repair,
export, backup, restore; among the tools compact and gc.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from model_code.collection.index.changes import ChangeReport
    from model_code.collection.results import Hit
    from model_code.retrieval.protocol import TokenMatch

SHOWN_TOKENS = 12  # of those that matched, the heaviest
Files = Annotated[
    list[Path],
    typer.Argument(
        help="Rows (.jsonl, .csv, .tsv, .parquet), documents (.md, .html, .txt, .rst, .pdf, .docx), folders; - for "
        "standard input."
    ),
]
Format = Literal["jsonl", "csv", "tsv", "parquet"]
InputFormat = Annotated[Format, typer.Option("--format", help="Of standard input.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would happen.")]
Retriever = Annotated[
    str | None,
    typer.Option(help="Another retriever that is live than the one searched by default."),
]
AsJson = Annotated[bool, typer.Option("--json", help="As one JSON object.")]


def search(
    text: Annotated[str, typer.Argument(help="What you are looking for.")],
    k: Annotated[int, typer.Option("-k", min=1, help="How many documents.")] = 10,
    retriever: Annotated[
        str | None, typer.Option(help="Another retriever that is live than the champion.")
    ] = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            help="Only documents that fit: package=numpy, year>=2020, or JSON; repeatable.",
        ),
    ] = None,
    hybrid: Annotated[bool, typer.Option("--hybrid", hidden=True)] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show which tokens matched (lexical retrievers).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Hits as a JSON list.")] = False,
) -> None:
    """Search the live collection: by the running service (freshet serve) if there is one, else in
    this process.
    """
    if hybrid:
        raise FreshetError(
            "--hybrid is gone: freshet register untrained, or a fusion of params.yaml, searches by both"
        )
    project, filters = Project.find(), filters or []
    service = find_running_service(project)
    if service is None:
        from model_code.collection.generations.searcher import Searcher

        hits = Searcher.open(project.live, retriever).search(text, k, filters, explain)
    else:
        hits = service.search(text, k, retriever=retriever, filters=filters, explain=explain).hits
    print_message(
        json.dumps([plain(hit) for hit in hits], indent=2, ensure_ascii=False)
        if as_json
        else hits_text(hits)
    )


def hits_text(hits: Sequence[Hit]) -> str:
    """Rank, score, id, path in the hierarchy, title and snippet of each hit, and what its score is
    made of if known.
    """
    return "\n".join(map(_hit_text, hits)) or "no documents found"


def tokens_text(tokens: Sequence[TokenMatch]) -> str:
    """Tokens with their weights; + marks what the query's encoder added.

    >>> from model_code.retrieval.protocol import TokenMatch
    >>> tokens_text([TokenMatch("split", 1.25), TokenMatch("divide", 0.5, expanded=True)])
    'split 1.25  +divide 0.50'
    """
    if not tokens:
        return "no token matched"
    shown = [
        f"{'+' if token.expanded else ''}{token.token} {token.weight:.2f}"
        for token in tokens[:SHOWN_TOKENS]
    ]
    others = len(tokens) - len(shown)
    return "  ".join(shown) + (f"  and {others} more" if others else "")


def _hit_text(hit: Hit) -> str:
    path = " › ".join(hit.topics) or "/".join(str(node) for node in hit.path)
    lines = [
        f"{hit.rank:3}  {hit.score:.3f}  {hit.title}",
        f"{hit.document_id}  [{path}]",
        hit.snippet,
    ]
    return f"\n{' ' * 12}".join(lines if hit.tokens is None else [*lines, tokens_text(hit.tokens)])


def plain(hit: Hit) -> dict[str, Any]:
    """A hit as JSON has it; `tokens` only where they were asked for."""
    return {
        name: value
        for name, value in dataclasses.asdict(hit).items()
        if name != "tokens" or value is not None
    }


def add(
    files: Files,
    input_format: InputFormat = "jsonl",
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Add documents, or update those whose id is there; the same again changes nothing."""
    _put(files, input_format, dry_run, retriever, as_json, only_known=False)


def update(
    files: Files,
    input_format: InputFormat = "jsonl",
    dry_run: DryRun = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Update documents; unknown ids are refused."""
    _put(files, input_format, dry_run, retriever, as_json, only_known=True)


def sync(
    source: Annotated[
        str | None,
        typer.Argument(help="Another source than the project's own: a folder, a file, a data set."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Delete even if much of the source is gone.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make the index hold exactly what the source holds: add, update and delete what changed there."""
    from model_code.collection.index.live_index import LiveIndex
    from model_code.collection.sync.sync import sync as make_equal

    _show(
        make_equal(
            LiveIndex(Project.find(), find_service=find_running_service),
            source,
            force,
            dry_run,
        ),
        as_json,
        dry_run,
    )


def delete(
    ids: Annotated[list[str], typer.Argument(help="Ids of documents.")],
    erase: Annotated[
        bool,
        typer.Option(
            "--erase", help="Remove their texts for good, from every generation and the ledger."
        ),
    ] = False,
    retriever: Retriever = None,
    as_json: AsJson = False,
) -> None:
    """Delete documents; `freshet rollback --generation` brings them back, unless they were erased."""
    from model_code.collection.erase import erase_documents
    from model_code.collection.index.changes import delete_documents
    from model_code.collection.index.live_index import LiveIndex

    live = LiveIndex(Project.find(), retriever, find_service=find_running_service)
    _show((erase_documents if erase else delete_documents)(live, ids), as_json)


def verify() -> None:
    """Check all that is live: every checksum, the log, index against documents; exit code 1 if
    something is wrong.

    Every file is read: about a second per gigabyte. Each problem is a line that ends with the
    command that mends it.
    """
    from model_code.collection.backup.repair import problems

    lines = list(problems(Project.find()))
    print_message("\n".join(lines) or "all that is live is whole")
    if lines:
        raise typer.Exit(1)


def repair(
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt", help="Go on with a ledger that is not the one the live retrievers came from."
        ),
    ] = False,
) -> None:
    """Mend what is live where a file is damaged or the ledger is lost; nothing is deleted, and no
    document is lost.
    """
    from model_code.collection.backup.repair import repair as mend
    from orchestration.registry import versions

    project = Project.find()
    champion = versions.version_with_alias(project)
    done = mend(project, champion and champion.retriever, adopt)
    print_message("\n".join(done) or "there was nothing to mend")


def export(
    retriever: Retriever = None,
    feedback: Annotated[
        bool, typer.Option("--feedback", help="What people said of hits instead.")
    ] = False,
    everything: Annotated[
        Path | None,
        typer.Option(
            "--all",
            help="Write everything to this new folder, for freshet import, and print nothing.",
        ),
    ] = None,
) -> None:
    """Print every live document as one JSON line, which freshet add reads.

    With --all, write documents, judgements, feedback and history to a folder.
    """
    from model_code.collection.backup.export import export_documents, export_project
    from model_code.collection.generations.generation_store import default_retriever
    from model_code.collection.index.project_ledger import read_feedback

    project = Project.find()
    if everything is not None:
        rows = export_project(project, everything)
        counts = ", ".join(f"{number:,} in {name}" for name, number in rows.items())
        print_message(f"{everything} holds the project as JSON lines: {counts}")
        return

    if feedback:
        for opinion in read_feedback(project):
            print_message(json.dumps(vars(opinion), ensure_ascii=False))
        return

    for row in export_documents(project, retriever or default_retriever(project.live)):
        print_message(json.dumps(row, ensure_ascii=False))


def import_(
    folder: Annotated[Path, typer.Argument(help="What freshet export --all wrote.")],
    as_json: AsJson = False,
) -> None:
    """Bring an export into this project: documents, judgements and feedback.

    If nothing is live yet, the export becomes the project's corpus. Importing again changes nothing.
    """
    from model_code.collection.backup.import_ import import_project
    from model_code.collection.generations.generation_store import retrievers
    from model_code.collection.index.live_index import LiveIndex
    from orchestration import parameters

    project = Project.find()
    index = None
    if retrievers(project.live):
        index = LiveIndex(project, find_service=find_running_service)

    report = import_project(
        project,
        folder,
        index,
        lambda settings: parameters.write_overrides(project.params_file, settings),
    )
    _show(report, as_json)
    if report.corpus_documents and not as_json:
        print_message("build it with: freshet ingest && freshet run && freshet register")


def backup(folder: Annotated[Path, typer.Argument(help="A new folder.")]) -> None:
    """Copy what is live, the ledger and the settings into a folder, while the project works."""
    from model_code.collection.backup.backup import backup as copy

    advice = copy(Project.find(), folder)
    print_message(
        f"{folder} holds what is live, the ledger and the settings" if advice is None else advice
    )


def restore(
    folder: Annotated[Path, typer.Argument(help="What freshet backup made.")],
    into: Annotated[
        Path, typer.Option(help="The project's folder; nothing may be live there.")
    ] = Path("."),
) -> None:
    """Put a backup into a project in which nothing is live, and check it."""
    from model_code.collection.backup.backup import restore as put_back

    project = put_back(folder, into.resolve())
    print_message(
        f"{project.live} is restored and whole, as it was then: what was erased since is here again, so erase it again"
    )


def compact(retriever: Retriever = None) -> None:
    """Merge what was added into one segment, without what was deleted; searches find the same,
    faster.
    """
    from model_code.collection.index.live_index import LiveIndex

    generation = LiveIndex(Project.find(), retriever).compact()
    print_message(
        f"{generation.retriever} generation {generation.number}, {generation.manifest['documents']:,} documents"
    )


def _put(
    files: list[Path],
    input_format: Format,
    dry_run: bool,
    retriever: str | None,
    as_json: bool,
    only_known: bool,
) -> None:
    from model_code.collection.index.changes import add_files
    from model_code.collection.index.live_index import LiveIndex

    live = LiveIndex(Project.find(), retriever, find_service=find_running_service)
    _show(add_files(live, files, f".{input_format}", only_known, dry_run), as_json, dry_run)


def _show(outcome: ChangeReport, as_json: bool, dry_run: bool = False) -> None:
    plain = dataclasses.asdict(outcome) | {"dry_run": dry_run}
    print_message(
        json.dumps(plain, indent=2, ensure_ascii=False)
        if as_json
        else f"{'would be: ' * dry_run}{outcome}"
    )
    if outcome.failed:
        raise typer.Exit(1)


def gc(
    delete: Annotated[
        bool, typer.Option("--delete", help="Free it; without this, only say what would be freed.")
    ] = False,
    keep: Annotated[
        int, typer.Option(min=1, help="Model versions and live generations to keep.")
    ] = 3,
) -> None:
    """Free old models, caches and checkpoints (says what it would free)."""
    from orchestration.cli.garbage import collect, find_garbage

    project = Project.find()
    garbage = find_garbage(project, keep)
    if delete:
        collect(project, garbage)
    total = sum(item.megabytes for item in garbage)
    items = [(item.megabytes, item.label) for item in garbage]
    items.append((total, "freed" if delete else "could be freed: freshet tools gc --delete"))
    print_message("\n".join(f"{megabytes:10.1f} MB  {label}" for megabytes, label in items))
