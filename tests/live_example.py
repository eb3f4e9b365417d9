"""A project whose live collection holds documents but no vectors, and a writer that makes
generations of it.

Enough for everything between a user's documents and `GenerationBuilder.apply`, in milliseconds.
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
    """A project with the two documents `BASE` in generation 0 of the retriever hce."""
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
    """Another build becomes current. `queries` are what its documents are known to answer."""
    rows = (
        document_row(Document(one, one, text, queries=tuple(queries.get(one, ()))))
        for one, text in documents.items()
    )
    return _switch(GenerationStore(project.live, retriever), rows, None, cursor, {})


def position_at(project: Project, event: int) -> Position:
    """The position of an event in the project's log."""
    with open_ledger(project) as ledger:
        return ledger.position(event)


def trained_at(project: Project, event: int) -> LedgerCursor:
    """Where a build stands that was trained on the documents up to an event."""
    return LedgerCursor(position_at(project, event), trained=event)


def collection_of(project: Project, retriever: str = "hce") -> LiveIndex:
    """A collection with the stand-in writer."""
    collection = LiveIndex(project, retriever)
    collection.__dict__["builder"] = StandInBuilder(project.live, retriever)
    return collection


def row(document_id: str, text: str = "some text", **more: object) -> dict[str, object]:
    """A document as it arrives."""
    return {"id": document_id, "title": document_id, "text": text, **more}


def receive(project: Project, *document_ids: str) -> None:
    """Documents arrive, and wait."""
    collection_of(project).receive([row(one) for one in document_ids], "api")


def add(collection: LiveIndex, *rows: Mapping[str, object]) -> ApplyResult | None:
    """Documents arrive and become searchable; what that changed."""
    collection.receive(list(rows), "api")
    return collection.apply()


def texts(project: Project, asked: Iterable[str], retriever: str = "hce") -> dict[str, str]:
    """What the current generation holds of the documents asked for: id -> text."""
    found = document_rows(GenerationStore(project.live, retriever).current(), asked)
    return {one: row["text"] for one, row in sorted(found.items())}


class StandInBuilder:
    """Changes generations as `GenerationBuilder` does, without vectors."""

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
        last = {change.document_id: change for change in changes}
        there, statuses, rows = document_rows(before, last), {}, []
        for one, change in sorted(last.items()):
            row = there.get(one)
            if isinstance(change, Document):
                same = row is not None and row["content_hash"] == change.content_hash
                statuses[one] = "unchanged" if same else "updated" if row else "added"
                if not same:
                    rows.append(document_row(change))
            else:
                statuses[one] = "deleted" if row else "unchanged"
        gone = {one for one, status in statuses.items() if status in ("updated", "deleted")}
        after = _switch(self.collection, rows, before, cursor, provenance, gone)
        ids = {
            kind: tuple(one for one in statuses if statuses[one] == kind)
            for kind in ("added", "updated", "deleted", "unchanged")
        }
        return ApplyResult(after, **ids)

    def find_documents_to_solve(self, pending: Mapping[str, Change]) -> dict[str, frozenset[str]]:
        return {}

    def compact(self, cursor: LedgerCursor) -> Generation:
        before = self.collection.current()
        gone = removed_by_segment(before)
        parts = ((each, before.sibling(each) / DOCUMENTS) for each in before.segments)
        tables = ((each, zip(*read_columns(file, *COLUMNS), strict=True)) for each, file in parts)
        rows = [
            dict(zip(COLUMNS, row, strict=True))
            for each, table in tables
            for row in table
            if row[0] not in gone.get(each, ())
        ]
        return _switch(self.collection, rows, before, cursor, {"compact": True}, merged=True)

    def collect_garbage(self, keep: int, registered: Iterable[int] = ()) -> tuple[int, ...]:
        return self.collection.collect_garbage(keep, set(registered))


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
    """A generation that nobody searches yet; merged: its rows stand for all segments of the one
    before.
    """
    with collection.staging_dir(after=before and before.number) as folder:
        number = collection.next_number()
        rows = list(rows)
        write_rows(rows, folder / DOCUMENTS)
        parts = (before.base, *(() if merged else before.segments)) if before else ()
        removed = removed_by_segment(before) if before else {}
        write_removed(
            folder, {part: removed.get(part, frozenset()) | frozenset(gone) for part in parts}
        )
        (folder / "number").write_text(str(number))  # two generations of equal content stay two
        facts = {
            "provenance": dict(provenance),
            "fingerprint": "f",
            "documents": 0,
            "passages": 0,
            "text": None,
            "base": before.base if before else number,
            "build": before.build if before else number,
            "segments": [*parts[1:], *([number] if rows else [])] if before else [],
            "removed": number,
            "known": None,
            "tuned": None,
        }
        collection.write_manifest(folder, facts, cursor, before and before.number)
        return collection.commit(folder, number)
