"""A project whose live collection holds documents but no vectors, and its generation builder.

This is enough to test in milliseconds everything between a user's documents and
`GenerationBuilder.apply`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from model_code.collection.generations.generation import (
    Generation,
    removed_by_segment,
    write_removed,
)
from model_code.collection.generations.generation_builder import ApplyResult
from model_code.collection.generations.generation_store import (
    GenerationStore,
    set_default_retriever,
)
from model_code.collection.index.live_index import LiveIndex, document_rows
from model_code.collection.index.project_ledger import open_ledger
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.collection.segments.documents import (
    COLUMNS,
    DOCUMENTS,
    document_row,
    read_columns,
    write_rows,
)
from model_code.project import Project
from model_code.text.documents import Change, Document

NOWHERE = LedgerCursor()
NO_QUERIES: Mapping[str, Sequence[str]] = {}
BASE = {
    "numpy.sort": "Return a sorted copy of an array.",
    "str.split": "Split a string into words.",
}


def make_project(root: Path) -> Project:
    """Make a project with the two documents `BASE` in generation 0 of the retriever hce."""
    (root / "params.yaml").write_text("{retrievers: {hce: {}}}\n")
    (root / "dvc.yaml").touch()
    project = Project(root)
    open_build(project, BASE)
    set_default_retriever(project.live, "hce")
    return project


def open_build(
    project: Project,
    documents: Mapping[str, str],
    cursor: LedgerCursor = NOWHERE,
    retriever: str = "hce",
    queries: Mapping[str, Sequence[str]] = NO_QUERIES,
) -> Generation:
    """Make another build current. `queries` are the known queries of its documents."""
    rows = []
    for document_id, text in documents.items():
        known_queries = tuple(queries.get(document_id, ()))
        rows.append(document_row(Document(document_id, document_id, text, queries=known_queries)))
    return _switch(GenerationStore(project.live, retriever), rows, None, cursor, {})


def position_at(project: Project, event: int) -> Position:
    """Return the position of an event in the project's log."""
    with open_ledger(project) as ledger:
        return ledger.position(event)


def trained_at(project: Project, event: int) -> LedgerCursor:
    """Return the cursor of a build that was trained on the documents up to an event."""
    return LedgerCursor(position_at(project, event), trained=event)


def collection_of(project: Project, retriever: str = "hce") -> LiveIndex:
    """Return the live index of a retriever, with the stand-in builder."""
    collection = LiveIndex(project, retriever)
    collection.__dict__["builder"] = StandInBuilder(project.live, retriever)
    return collection


def row(document_id: str, text: str = "some text", **more: object) -> dict[str, object]:
    """Return the row of a document that arrives."""
    return {"id": document_id, "title": document_id, "text": text, **more}


def receive(project: Project, *document_ids: str) -> None:
    """Let documents arrive, without making them searchable."""
    collection_of(project).receive([row(document_id) for document_id in document_ids], "api")


def add(collection: LiveIndex, *rows: Mapping[str, object]) -> ApplyResult | None:
    """Let documents arrive and make them searchable; return what changed."""
    collection.receive(list(rows), "api")
    return collection.apply()


def texts(project: Project, asked: Iterable[str], retriever: str = "hce") -> dict[str, str]:
    """Return the texts that the current generation holds of some documents, by id."""
    rows = document_rows(GenerationStore(project.live, retriever).current(), asked)
    return {document_id: row["text"] for document_id, row in sorted(rows.items())}


class StandInBuilder:
    """Make generations as `GenerationBuilder` does, without vectors."""

    solves_vectors = False

    def __init__(self, live: Path, retriever: str) -> None:
        self.collection = GenerationStore(live, retriever)
        self.opened: Generation | None = None

    def apply(
        self,
        changes: Sequence[Change],
        cursor: LedgerCursor,
        provenance: Mapping[str, object],
        guard: object = None,
        rewritten: object = (),
        solve_for: object = (),
    ) -> ApplyResult:
        before = self.opened or self.collection.current()
        last_changes = {change.document_id: change for change in changes}
        old_rows = document_rows(before, last_changes)
        result: dict[str, list[str]] = {"added": [], "updated": [], "deleted": [], "unchanged": []}
        new_rows = []
        for document_id, change in sorted(last_changes.items()):
            status = change_status(old_rows.get(document_id), change)
            result[status].append(document_id)
            if status in ("added", "updated"):
                new_rows.append(document_row(change))

        removed = {*result["updated"], *result["deleted"]}
        after = _switch(self.collection, new_rows, before, cursor, provenance, removed)
        return ApplyResult(after, **{status: tuple(ids) for status, ids in result.items()})

    def find_documents_to_solve(self, pending: Mapping[str, Change]) -> dict[str, frozenset[str]]:
        return {}

    def compact(self, cursor: LedgerCursor, rewrite: bool = False) -> Generation:
        before = self.collection.current()
        removed = removed_by_segment(before)
        rows = []
        for segment in before.segments:
            columns = read_columns(before.sibling(segment) / DOCUMENTS, *COLUMNS)
            for values in zip(*columns, strict=True):
                segment_row = dict(zip(COLUMNS, values, strict=True))
                if segment_row["document_id"] not in removed.get(segment, ()):
                    rows.append(segment_row)
        return _switch(self.collection, rows, before, cursor, {"compact": True}, merged=True)

    def collect_garbage(self, keep: int, registered: Iterable[int] = ()) -> tuple[int, ...]:
        return self.collection.collect_garbage(keep, set(registered))


def change_status(old_row: Mapping[str, str] | None, change: Change) -> str:
    """Return what a change does to a document with a row, or without any."""
    if not isinstance(change, Document):
        return "unchanged" if old_row is None else "deleted"
    if old_row is None:
        return "added"
    if old_row["content_hash"] == change.content_hash:
        return "unchanged"
    return "updated"


def _switch(collection: GenerationStore, *arguments: object, **options: object) -> Generation:
    return collection.set_current(make_generation(collection, *arguments, **options))


def make_generation(
    collection: GenerationStore,
    rows: Iterable[dict[str, str]],
    before: Generation | None,
    cursor: LedgerCursor,
    provenance: Mapping[str, object],
    gone: Iterable[str] = (),
    merged: bool = False,
) -> Generation:
    """Make a generation that is not current yet.

    Args:
        collection: Store of the generations.
        rows: Rows of the documents that its segment adds.
        before: The generation that it follows. None: it is the generation of a build.
        cursor: Events that it holds.
        provenance: Where it comes from.
        gone: Documents that are removed from all earlier segments.
        merged: Whether its rows replace all segments of the generation before.
    """
    rows = list(rows)
    number = collection.next_number()
    base = number
    build = number
    old_segments: list[int] = []
    segments: list[int] = []
    removed: dict[int, frozenset[str]] = {}
    documents = len(rows)
    before_number = None
    if before is not None:
        base = before.base
        build = before.build
        before_number = before.number
        if not merged:
            old_segments = list(before.segments)
        segments = list(old_segments)
        if rows:
            segments.append(number)
        removed_before = removed_by_segment(before)
        for segment in (base, *old_segments):
            removed[segment] = removed_before.get(segment, frozenset()) | frozenset(gone)
            (segment_ids,) = read_columns(before.sibling(segment) / DOCUMENTS, "document_id")
            documents += len(set(segment_ids) - removed[segment])

    with collection.staging_dir(after=before_number) as folder:
        write_rows(rows, folder / DOCUMENTS)
        write_removed(folder, removed)
        # Two generations of equal content stay two.
        (folder / "number").write_text(str(number))
        facts = {
            "provenance": dict(provenance),
            "fingerprint": "f",
            "documents": documents,
            "passages": documents,
            "text": None,
            "base": base,
            "build": build,
            "segments": segments,
            "removed": number,
            "known": None,
            "tuned": None,
        }
        collection.write_manifest(folder, facts, cursor, before_number)
        return collection.commit(folder, number)
