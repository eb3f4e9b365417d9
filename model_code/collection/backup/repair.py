"""`freshet verify`: whether all that is live is as it was written, and says the same; reads only.

Every file of every generation is read once: about a second per gigabyte, and as much memory as the
documents' ids.

`freshet repair`: what is live goes on from what is whole, in a log that every live retriever stands
in. Nothing is deleted. Folders and databases that are damaged are set aside, and what a retriever
loses with them it takes from the log again. Where the log itself is lost, is another one or an
older copy, the documents come from the generations: the newest watermark's contents win, and what
only another retriever or the log holds is put again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Collection as Ids
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model_code.collection.generations.generation import (
    REPAIR,
    Generation,
    document_hashes,
    removed_by_segment,
)
from model_code.collection.generations.generation_store import (
    CURRENT,
    GENERATIONS,
    GenerationStore,
    default_retriever,
    set_default_retriever,
)
from model_code.collection.index.live_index import DAMAGED, LiveIndex
from model_code.collection.index.project_ledger import (
    LEDGER_URL_VARIABLE,
    WRITER_LOCK,
    ledger_file,
    ledger_url,
    open_ledger,
    open_ledger_if_exists,
    open_matching_ledger,
    read_contents,
)
from model_code.collection.ledger.events import ANOTHER, LedgerCursor
from model_code.collection.ledger.ledger import Ledger
from model_code.collection.ledger.salvage import (
    salvage_changes,
    salvage_document_sources,
    salvage_feedback,
)
from model_code.collection.segments.documents import DOCUMENTS, INDEX, PASSAGES, read_columns
from model_code.errors import Damaged, FreshetError
from model_code.files import MANIFEST, read_json, write_text
from model_code.project import Project, file_lock
from model_code.text.documents import Change, Document


def problems(project: Project) -> Iterator[str]:
    """What is wrong, a line each that ends with the command that mends it."""
    yield from _errors(default_retriever, project.live)
    yield from _errors(_require_whole_log, project)
    for collection in _collections(project):
        folders = sorted((collection.folder / GENERATIONS).glob("[0-9]*"))
        damaged = [
            line
            for each in folders
            for line in _errors(lambda folder=each: Generation.read(folder).verify())
        ]
        yield from damaged
        yield from (
            _errors(collection.current)
            if damaged
            else _errors(_require_agreement, project, collection)
        )


def _collections(project: Project) -> list[GenerationStore]:
    """Those of which anything is there."""
    names = {
        path.parent.name
        for kind in (CURRENT, GENERATIONS)
        for path in project.live.glob(f"*/{kind}")
    }
    return [GenerationStore(project.live, name) for name in sorted(names)]


def _errors(check: Callable[..., object], *arguments: object) -> list[str]:
    """The message of the error that a check ends with."""
    try:
        check(*arguments)
    except FreshetError as error:
        return [str(error)]
    return []


def _require_whole_log(project: Project) -> None:
    ledger = open_ledger_if_exists(project)
    if ledger is not None:
        with ledger:
            damage = ledger.damage()
        if damage is not None:
            raise Damaged(f"the ledger is damaged ({damage})", REPAIR)


def _require_agreement(project: Project, collection: GenerationStore) -> None:
    """FreshetError where index, documents, counts and log of the current generation, whose files
    are whole, say different things.
    """
    generation = collection.current()
    for number in removed_by_segment(generation):
        folder = generation.sibling(number)
        if not (folder / INDEX / MANIFEST).is_file():
            continue
        (ids,) = read_columns(folder / DOCUMENTS, "document_id")
        stated = read_json(folder / INDEX / MANIFEST)["documents"]
        if set(ids) != set(read_json(folder / PASSAGES)) or len(ids) != stated:
            raise Damaged(
                f"{folder} keeps {len(ids)} documents, but its index holds others ({stated})",
                REPAIR,
            )
    documents, stated = len(document_hashes(generation)), generation.manifest["documents"]
    if documents != stated and (generation.folder / INDEX).is_dir():
        raise Damaged(
            f"{generation.folder} holds {documents} documents, but states {stated}", REPAIR
        )
    _require_log(project, generation)


def _require_log(project: Project, generation: Generation) -> None:
    """FreshetError where the log is not the generation's own, or says of a document that it holds
    something else.
    """
    ledger = open_matching_ledger(project, generation)
    if ledger is None:
        return
    with ledger:
        cursor, hashes = generation.cursor, document_hashes(generation)
        arrived = ledger.view_at(cursor).snapshot()
        wrong = [
            each.document_id
            for each in arrived
            if hashes.get(each.document_id) != each.content_hash
        ]
    if wrong:
        raise Damaged(
            f"generation {generation.number} of {generation.retriever!r} lacks what its log says of {len(wrong)} "
            f"documents, first {wrong[0]!r}",
            f"search an older index, which takes them in: freshet rewind --retriever {generation.retriever} "
            f"--generation {generation.build}",
        )


SOURCE = "freshet repair"


@dataclass(frozen=True)
class Files:
    """What the files of a live retriever still say.

    number: of the current generation, None if the pointer is torn; texts, whole: the newest
    generations whose documents can be read, and of which every file is as it was; damaged: folders
    that are not.
    """

    collection: GenerationStore
    number: int | None
    texts: Generation | None
    whole: Generation | None
    damaged: tuple[Path, ...]
    builds: tuple[Generation, ...]

    @classmethod
    def inspect(cls, collection: GenerationStore) -> Files:
        """Read every file."""
        number, generations, damaged = None, [], []
        with suppress(Damaged):
            number = collection.current_number()
        sound: set[int] = set()
        for folder in sorted((collection.folder / GENERATIONS).glob("[0-9]*")):
            try:
                generations.append(Generation.read(folder))
                generations[-1].verify()
                sound.add(int(folder.name))
            except Damaged:
                damaged.append(folder)
        searched = [each for each in generations if number is None or each.number <= number]
        texts = [each for each in searched if not _errors(each.verify_documents)]
        whole = [each for each in searched if each.needs <= sound]
        builds = [each for each in texts if each.number == each.build]
        newest = (each[-1] if each else None for each in (texts, whole))
        return cls(collection, number, *newest, tuple(damaged), tuple(builds))

    @property
    def name(self) -> str:
        """The retriever's."""
        return self.collection.retriever


@dataclass(frozen=True)
class Statement:
    """What a source says there is: the content hash of each document, "" for one that was deleted."""

    name: str
    hashes: Mapping[str, str]
    read: Callable[[Ids[str]], Iterable[Document]]

    @classmethod
    def of_files(cls, files: Files) -> Statement:
        """That of a live retriever."""
        generation = files.texts
        if generation is None:
            return cls(files.name, {}, lambda ids: ())
        hashes = document_hashes(generation)
        return cls(files.name, hashes, lambda ids: read_contents(generation, ids).values())

    @classmethod
    def of_changes(cls, changes: Mapping[str, Change]) -> Statement:
        """That of a log which can be read in part."""
        hashes = {
            id_: each.content_hash if isinstance(each, Document) else ""
            for id_, each in changes.items()
        }
        return cls("the damaged ledger", hashes, lambda ids: (changes[id_] for id_ in ids))  # type: ignore[misc]


def repair(
    project: Project,
    champion: str | None = None,
    adopt: bool = False,
    collection_of: Callable[[Project, str], LiveIndex] = LiveIndex,
) -> list[str]:
    """Mend what is live; a line for each thing that was done, none if all was well.

    champion: which retriever is searched by default where nothing says so any more; adopt: go on
    with a log that another project may use. FreshetError if that would be needed; then nothing was
    changed.
    """
    done: list[str] = []
    with file_lock(project.live / WRITER_LOCK):
        live = [
            files
            for files in map(Files.inspect, _collections(project))
            if files.whole or files.damaged
        ]
        ledger, rescued, origins = _open_log(
            project, max((each.texts.watermark for each in live if each.texts), default=0), done
        )
        with ledger:
            lost = _lost(ledger, live)
            if lost or rescued:
                _require_consent(project, ledger, live, lost, adopt)
                done += append_missing_events(
                    ledger, _statements(ledger, live, lost, rescued), live, origins
                )
            for files in live:
                done += _go_on(ledger, files, files.name in lost)
        done += _name_default(project, champion)
    for collection in (collection_of(project, files.name) for files in live if files.whole):
        if (applied := collection.apply()) is not None:
            changed = len(applied.added) + len(applied.updated) + len(applied.deleted)
            done.append(
                f"{collection.retriever} took in {changed:,} changes, as generation {applied.generation.number}"
            )
    return done


def _open_log(
    project: Project, after: int, done: list[str]
) -> tuple[Ledger, dict[str, Change], dict[str, str]]:
    """The project's log, and of one that is torn and set aside: the changes behind the event
    `after`, and origins.
    """
    try:
        ledger = open_ledger(project)
        if ledger.damage() is None:
            return ledger, {}, {}
        ledger.close()
    except Damaged:
        pass

    file = ledger_file(project)
    assert file is not None, "only SQLite's file can be found torn"
    aside = _free_name(file.with_name(f"{file.name}.{DAMAGED}"))
    for suffix in ("-wal", "-shm", ""):
        if (path := file.with_name(file.name + suffix)).exists():
            path.rename(aside.with_name(aside.name + suffix))
    done.append(f"the ledger was damaged: it is set aside as {aside}, and a new one is written")
    ledger = open_ledger(project)
    for said in salvage_feedback(aside):
        ledger.record_feedback(said, said.received)
    return ledger, salvage_changes(aside, after), salvage_document_sources(aside)


def _free_name(path: Path) -> Path:
    """The path, or with a number if it is taken."""
    names = (path.with_name(f"{path.name}-{number}") for number in range(1, 1_000_000))
    return path if not path.exists() else next(name for name in names if not name.exists())


def _lost(ledger: Ledger, live: Sequence[Files]) -> dict[str, str]:
    """The retrievers that do not stand in the log, and why."""
    lost: dict[str, str] = {}
    for files in live:
        for generation in filter(None, (files.texts, files.whole)):
            if (reason := ledger.mismatch(generation.cursor.position)) is not None:
                lost.setdefault(files.name, reason)
    return lost


def _require_consent(
    project: Project, ledger: Ledger, live: Sequence[Files], lost: Mapping[str, str], adopt: bool
) -> None:
    foreign = len(lost) == len(live) and ANOTHER in lost.values()
    if foreign and ledger.position().event > 0 and not adopt:
        raise FreshetError(
            f"{ledger_url(project)} is another log, which may be another project's: name the right one in {LEDGER_URL_VARIABLE}, or go "
            "on with this one, to which all documents of this project are added: freshet repair --adopt"
        )


def _statements(
    ledger: Ledger, live: Sequence[Files], lost: Mapping[str, str], rescued: Mapping[str, Change]
) -> list[Statement]:
    """All that is said, the newest first.

    What stands in the log says nothing that the log does not. An older copy of a log knows less
    than what was filled from the whole one, and of another log nobody knows when it was written.
    """
    newest = sorted(live, key=lambda files: -(files.texts.watermark if files.texts else -1))
    ahead = [files for files in newest if lost.get(files.name) not in (None, ANOTHER)]
    sound = [files for files in newest if files.name not in lost]
    foreign = [files for files in newest if lost.get(files.name) == ANOTHER]
    log = Statement("the ledger", ledger.content_hashes(), lambda ids: ())  # which has them already
    order: list[Files | None] = (
        [*ahead, None, *sound, *foreign] if sound else [*ahead, *foreign, None]
    )
    said = [log if files is None else Statement.of_files(files) for files in order]
    return [Statement.of_changes(rescued), *said] if rescued else said


def append_missing_events(
    ledger: Ledger,
    statements: Sequence[Statement],
    live: Sequence[Files],
    origins: Mapping[str, str],
) -> Iterator[str]:
    """Append the events that lead from any generation and any build to what the statements say.

    The first statement that names a document decides about it.

    Args:
        ledger: The ledger to append to.
        statements: What the retrievers, the ledger and a damaged ledger say, the newest first.
        live: The files of the live retrievers.
        origins: Known sources of documents, so that a sync still follows what its source deletes.

    Yields:
        A line for each thing that was done.
    """
    deciding: dict[str, Statement] = {}
    for statement in statements:
        for document_id in statement.hashes.keys() - deciding.keys():
            deciding[document_id] = statement

    logged_hashes = ledger.content_hashes()
    start_hashes = _starting_points(live)
    newest = next((statement for statement in statements if statement.hashes), None)

    for statement in statements:
        ids = sorted(id_ for id_, decider in deciding.items() if decider is statement)
        to_put: list[str] = []
        to_remove: list[str] = []
        for document_id in ids:
            content_hash = statement.hashes[document_id]
            if _is_known(document_id, content_hash, logged_hashes, start_hashes):
                continue
            if content_hash:
                to_put.append(document_id)
            else:
                to_remove.append(document_id)

        _put_documents(ledger, statement, to_put, origins)
        ledger.remove(to_remove, SOURCE)

        existing = [document_id for document_id in ids if statement.hashes[document_id]]
        if statement is not newest and existing:
            yield f"put again, as only {statement.name} held them: {', '.join(existing)}"
        elif to_put:
            yield f"{len(to_put):,} documents of {statement.name} are written to the log again"

    # A document that no statement names is removed. If the texts of a retriever cannot be read, the
    # document may have been among them, and stays.
    if all(files.texts for files in live):
        started_ids = {document_id for hashes in start_hashes for document_id in hashes}
        ledger.remove(sorted(started_ids - deciding.keys()), SOURCE)


def _starting_points(live: Sequence[Files]) -> list[dict[str, str]]:
    """Return the content hashes of the generations that the ledger has to lead on from.

    These are the newest whole generation of each retriever, and the builds, which may be opened
    again.
    """
    starting_points: list[dict[str, str]] = []
    for files in live:
        for build in files.builds:
            starting_points.append(document_hashes(build))
        if files.whole is not None:
            starting_points.append(document_hashes(files.whole))
    return starting_points


def _is_known(
    document_id: str,
    content_hash: str,
    logged_hashes: Mapping[str, str],
    start_hashes: Sequence[Mapping[str, str]],
) -> bool:
    """Return whether the ledger, or without an event every starting point, has the content."""
    if document_id in logged_hashes:
        return logged_hashes[document_id] == content_hash
    return all(hashes.get(document_id, "") == content_hash for hashes in start_hashes)


def _put_documents(
    ledger: Ledger, statement: Statement, document_ids: Sequence[str], origins: Mapping[str, str]
) -> None:
    """Record documents of a statement, each with the source that it came from."""
    by_origin: dict[str, list[str]] = {}
    for document_id in document_ids:
        by_origin.setdefault(origins.get(document_id, SOURCE), []).append(document_id)
    for origin, ids in sorted(by_origin.items()):
        ledger.receive(statement.read(ids), origin)


def _go_on(ledger: Ledger, files: Files, lost: bool) -> Iterator[str]:
    """Set aside what is damaged, and search the newest generation that is whole, in the log."""
    collection, whole = files.collection, files.whole
    aside = collection.folder / DAMAGED
    folders = files.damaged if whole else tuple((collection.folder / GENERATIONS).glob("[0-9]*"))
    for folder in folders:
        aside.mkdir(exist_ok=True)
        folder.rename(target := _free_name(aside / folder.name))
        yield f"{folder} is set aside as {target}"
    if whole is None:
        with suppress(FileNotFoundError):
            (collection.folder / CURRENT).rename(_free_name(aside / CURRENT))
        yield f"nothing of {files.name} is whole: make it live again by freshet promote, or first register {files.name}"
        return
    if files.number is None:
        write_text(collection.folder / CURRENT, f"{whole.number}\n")
        yield f"{collection.folder / CURRENT} names generation {whole.number} again"
    if lost:
        current = collection.publish_again(
            whole, LedgerCursor(ledger.position(0), replay=True), {"adopted": ledger.id}
        )
        yield f"{files.name} goes on with the log {ledger.id}, as generation {current.number}"
    elif files.number is not None and whole.number != files.number:
        current = collection.publish_again(whole, whole.cursor, {"rewound_to": whole.number})
        yield f"{files.name} is at generation {whole.number} again, as {current.number}, and takes in what it lacks"


def _name_default(project: Project, champion: str | None) -> Iterator[str]:
    """Let `live/current` name a retriever that is live."""
    live = {path.parent.name: path.stat().st_mtime for path in project.live.glob(f"*/{CURRENT}")}
    pointer = project.live / CURRENT
    with suppress(FreshetError):
        if default_retriever(project.live) in live:
            return
    if live:
        name = champion if champion in live else max(live, key=lambda name: (live[name], name))
        set_default_retriever(project.live, name)
        yield f"{pointer} names {name} again"
    elif pointer.exists():
        pointer.rename(target := _free_name(pointer.with_name(f"{CURRENT}.{DAMAGED}")))
        yield f"{pointer} is set aside as {target}: nothing is live"
