"""`freshet sync`: afterwards the index holds what the source holds, and only what changed was read,
encoded and moved.

What each file of a source came to is remembered under the hash of its content (`.freshet/sync/`),
so that an unchanged one is hashed and not read; what it came to is compared with what the index
holds, whoever put it there. Documents that `freshet add`, the inbox or another source brought stay:
a sync deletes only what came from its own source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from model_code import corpus as reader
from model_code.collection.index.changes import CHANGES, ChangeReport, apply_changes
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Receipt
from model_code.corpus import clean_rows as arriving
from model_code.corpus.clean_rows import CleanRows, clean_document_with_queries, flatten_fields
from model_code.corpus.cleaning import clean_document, merge_duplicates, read_id, text_key
from model_code.corpus.rows import Quarantine, RefusedRow, Rejection, Row, RowError
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import Source, open_source, resolve_source_kind
from model_code.corpus.sources.document_files import read_document
from model_code.corpus.sources.folder import FolderSource, fingerprint
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text, read_json, write_json
from model_code.project import Project, file_lock
from model_code.text.documents import Document

# of a source's documents, and how many at least, that vanish without a question
SHARE, FEW = 0.2, 3
SHOWN = 20  # changes that are named
Rows = Callable[[], Iterator[Row | RefusedRow]]
Units = dict[str, tuple[str, Rows]]
# `source`; `rules`: a hash of how rows are read; `units`: by name, what each came to
Memory = dict[str, Any]
Hashes = tuple[
    str, str
]  # of a document's content as it arrives, and as the corpus stage reads it, which knows no queries


@dataclass
class SyncReport(ChangeReport):
    """What came of a sync; beside: how many documents of other origin the index holds, which stay
    as they are; kept: how many of its own stay although no row names them, as they may be in rows
    that cannot be read.
    """

    beside: int = 0
    kept: int = 0

    @property
    def rejections(self) -> list[Rejection]:
        """The refused rows as a receipt names them, each with its file in the reason."""
        return [
            Rejection(row["row"] or 1, row["document_id"], f"{row['file']}: {row['reason']}")
            for row in self.rejected
        ]

    def __str__(self) -> str:
        """The counts, then the names of what changed."""
        named = [f"  {change:9} {id_}" for change in CHANGES for id_ in getattr(self, change)]
        more = (
            [f"  and {len(named) - SHOWN:,} more: --json names all"] if len(named) > SHOWN else []
        )
        beside = [f"  {self.beside:,} documents of another origin stay"] if self.beside else []
        why = "no row names them, but one of the rows without an id may be theirs: mend those, or use --force"
        kept = [f"  {self.kept:,} documents stay: {why}"] if self.kept else []
        return "\n".join([super().__str__(), *named[:SHOWN], *more, *beside, *kept])


@dataclass(frozen=True)
class SourceContents:
    """What a source holds: the hash of each document's content, the unit that it stands in, and the
    rows refused.

    earlier: the documents that it held when it was looked at before, with their hashes then.
    """

    hashes: dict[str, Hashes]
    units: dict[str, str]
    refused: list[dict[str, Any]]
    earlier: dict[str, Hashes]


def sync(
    live: LiveIndex,
    path: str | None = None,
    force: bool = False,
    dry_run: bool = False,
    cwd: Path | None = None,
    make: Callable[[], int | None] | None = None,
) -> SyncReport:
    """Make the index hold what the source holds: the project's own by default, else the one at
    `path`.

    A document whose file or row cannot be read stays as it is; where a refused row does not even
    tell an id, so do all that no row names, unless `force`. FreshetError, and nothing is changed,
    if the source cannot be read, or lacks more than `SHARE` of the documents that came from it;
    then `force` deletes them. make: see `apply_changes`.
    """
    project_settings = resolve_source_kind(live.settings, live.project.root)
    settings = project_settings if path is None else _named(live, path, cwd or Path.cwd())
    is_own = _place(settings, live.project) == _place(project_settings, live.project)
    label = "sync" if is_own else f"sync {_place(settings, live.project)}"
    with file_lock(live.project.state / "sync.lock", "waiting for another sync of this project"):
        units = _units(open_source(settings, live.project.root), settings)
        path_of_memory = live.project.state / "sync" / f"{hash_text(label)[:12]}.json"
        memory = (
            read_json(path_of_memory) if path_of_memory.is_file() else {"rules": None, "units": {}}
        )
        remembered = {"source": label} | _remembered(units, settings, memory)
        source = _contents(remembered, memory, settings)
        index = live.content_hashes()
        ledger = live.ledger_if_exists
        origins = {} if ledger is None else ledger.document_sources()
        mine = {
            id_
            for id_, content in index.items()
            if origins.get(id_, "sync") == label or content in source.earlier.get(id_, ())
        }
        puts = [id_ for id_, hashes in source.hashes.items() if index.get(id_) not in hashes]
        outcome = _outcome(source, index.keys(), mine, puts, force)
        gone = outcome.deleted
        if not dry_run:
            if (
                not force
                and gone
                and (not source.hashes or len(gone) > max(FEW, SHARE * len(mine)))
            ):
                raise FreshetError(
                    f"{len(gone):,} of {len(mine):,} documents are no longer in the source, {gone[0]!r} among them: "
                    "nothing is changed. If the source is whole, `freshet sync --force` deletes them"
                )
            receipts = _record(live, outcome, _documents(units, settings, source, set(puts)), label)
            apply_changes(live, outcome, receipts, make)
            _prove(live, outcome, index, {id_: source.hashes[id_][0] for id_ in puts})
            # What is kept was the source's once, and that must not be forgotten.
            if remembered != memory and not outcome.kept:
                write_json(path_of_memory, remembered)
    return outcome


def _outcome(
    source: SourceContents, there: Set[str], mine: set[str], puts: list[str], force: bool
) -> SyncReport:
    """What is to come of a sync; there: all documents; mine: those that came from the source; puts:
    those to write.
    """
    refused_ids = {refused["document_id"] for refused in source.refused}
    gone, kept = sorted(mine - source.hashes.keys() - refused_ids), 0
    if None in refused_ids and not force:
        gone, kept = [], len(gone)
    return SyncReport(
        added=sorted(id_ for id_ in puts if id_ not in there),
        updated=sorted(id_ for id_ in puts if id_ in there),
        deleted=gone,
        unchanged=len(source.hashes) - len(puts),
        rejected=source.refused,
        beside=len(there - mine - source.hashes.keys()),
        kept=kept,
    )


def _named(live: LiveIndex, path: str, cwd: Path) -> CorpusSettings:
    """The settings of another source, with the project's rules; a path is taken from where the
    command is typed.
    """
    place = cwd / Path(path).expanduser()
    where = str(place.resolve()) if place.exists() else path
    return resolve_source_kind(live.settings.replace(source="auto", path=where), live.project.root)


def _place(settings: CorpusSettings, project: Project) -> str:
    """What tells one source from another."""
    if settings.source == "hub":
        return f"hub {settings.hub.name}"
    return str((project.root / settings.path).resolve()) if settings.path else settings.source


def _units(source: Source, settings: CorpusSettings) -> Units:
    """The pieces that a source is read in, by name: the hash of each, and its rows."""
    if isinstance(source, FolderSource):
        files = islice(source.files.items(), settings.limit)
        read = lambda path, name: iter([read_document(path, name, name)])  # noqa: E731
        return {name: (fingerprint(path), partial(read, path, name)) for name, path in files}
    rows = lambda: islice(source.rows("documents"), settings.limit)  # noqa: E731
    return {"documents": (source.describe()["content_hash"], rows)}


def _remembered(units: Units, settings: CorpusSettings, memory: Memory) -> Memory:
    """What each unit came to, read only where it is another one than in `memory`, or the rules of
    reading are.
    """
    code = [
        hash_path(path)
        for path in (Path(reader.__file__).parent, Path(arriving.__file__), Path(__file__))
    ]
    rules = hash_text(canonical_json({"corpus": settings.model_dump(mode="json"), "code": code}))
    old = memory["units"] if memory["rules"] == rules else {}
    new = {
        name: old[name]
        if name in old and old[name]["hash"] == content
        else _summary(rows, content, settings)
        for name, (content, rows) in units.items()
    }
    return {"rules": rules, "units": new}


def _contents(remembered: Memory, before: Memory, settings: CorpusSettings) -> SourceContents:
    """What the source holds, as the corpus stage would find it."""
    light: dict[str, Document] = {}  # with the keys of title and text in their place
    hashes, places, refused = {}, {}, []
    for name, unit in remembered["units"].items():
        refused += unit["refused"]
        for id_, *content, title, text, date in unit["documents"]:
            if id_ in light:
                reason = "duplicate id: an earlier row has it"
                refused.append({"file": name, "row": None, "document_id": id_, "reason": reason})
            else:
                light[id_], hashes[id_], places[id_] = (
                    Document(id_, title, text, date=date),
                    tuple(content),
                    name,
                )
    remaining = [
        document.document_id
        for document in merge_duplicates(light.values(), settings.merge_duplicates)[0]
    ]
    earlier = {
        row[0]: (row[1], row[2]) for unit in before["units"].values() for row in unit["documents"]
    }
    return SourceContents({id_: hashes[id_] for id_ in remaining}, places, refused, earlier)


def _read(row: Row, max_characters: int) -> tuple[Document, Document]:
    """The document of a row as `freshet add` reads it, and as the corpus stage does; raises `RowError`
    as that does.
    """
    built = clean_document(row, max_characters)
    if not {"queries", "fields"} & built.fields.keys():
        return built, built
    try:
        return clean_document_with_queries(flatten_fields(row), max_characters), built
    except RowError:  # a column of the source's that is called so, and holds something else
        return built, built


def _summary(rows: Rows, content: str, settings: CorpusSettings) -> dict[str, Any]:
    """What a unit came to: of each sound document its id, hashes, what tells it from a duplicate,
    and its date.
    """
    quarantine, ids = Quarantine(), dict[str, str | None]()

    def check(row: Row) -> tuple[Document, Document]:
        ids[row.location] = None
        ids[row.location] = read_id(row.values, "id")
        return _read(row, settings.max_characters)

    documents = [
        [
            new.document_id,
            new.content_hash,
            built.content_hash,
            _key(new.title),
            _key(new.text),
            new.date,
        ]
        for new, built in quarantine.admit(rows(), check)
    ]
    refused = [_refusal(row, ids.get(row.location, row.record_id)) for row in quarantine.refused]
    return {"hash": content, "documents": documents, "refused": refused}


def _refusal(row: RefusedRow, document_id: str | None) -> dict[str, Any]:
    """A row that was refused, as `ChangeReport` tells it; that of a file of one document has no number."""
    file, _, number = row.location.rpartition(":")
    place = {"file": file, "row": None if file == row.record_id else int(number)}
    return place | {"document_id": document_id, "reason": f"{row.reason}: {row.detail}"}


def _key(text: str) -> str:
    return hash_text(text_key(text))[:32] if text else ""


def _documents(
    units: Units, settings: CorpusSettings, source: SourceContents, puts: set[str]
) -> list[Document]:
    """The documents to put, read again: each as it first stands in its unit."""
    documents: dict[str, Document] = {}
    for name in sorted({source.units[id_] for id_ in puts}):
        check = partial(_read, max_characters=settings.max_characters)
        for document, _ in Quarantine().admit(units[name][1](), check):
            if document.document_id in puts:
                documents.setdefault(document.document_id, document)
    return list(documents.values())


def _record(
    live: LiveIndex, outcome: SyncReport, documents: list[Document], label: str
) -> list[Receipt]:
    receipts = []
    if documents:
        rows = CleanRows(
            tuple(documents), tuple(range(1, len(documents) + 1)), tuple(outcome.rejections)
        )
        receipts.append(live.receive(rows, label))
    if outcome.deleted:
        receipts.append(live.remove(outcome.deleted, label))
    return receipts


def _prove(
    live: LiveIndex, outcome: SyncReport, before: dict[str, str], puts: dict[str, str]
) -> None:
    """FreshetError unless the index holds what it held, with the source's changes."""
    after = live.content_hashes()
    should = {
        id_: content for id_, content in before.items() if id_ not in set(outcome.deleted)
    } | puts
    wrong = sorted(id_ for id_ in after.keys() | should.keys() if after.get(id_) != should.get(id_))
    if wrong:
        raise FreshetError(
            f"{len(wrong):,} documents are not as the source has them, {wrong[0]!r} among them: it changed meanwhile, "
            "or another command changed them; run `freshet sync` again"
        )
