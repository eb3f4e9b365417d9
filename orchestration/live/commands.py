"""What `freshet add`, `update` and `delete` do: record here, then make searchable, and say what came of it.

If the service runs it does the latter, its encoder being warm; if not, this process does. What most calls do without is
imported inside of functions, as each `freshet add` is a process of its own.
"""

from __future__ import annotations

import logging
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.corpus.cleaning import is_possible_id
from model_code.corpus.rows import printable
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.documents import Remove
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.ledger.events import Receipt
from model_code.live.collection import Collection, default_retriever, retrievers
from model_code.live.generation import DOCUMENTS, read_columns
from orchestration.live.client import client_of
from orchestration.live.collection import DAMAGED, LiveCollection, forecast, ledger_file, subscribers
from orchestration.live.rows import COLUMNS, CleanRows, clean, read_file, require_known_columns
from orchestration.project import Project, file_lock

log = logging.getLogger(__name__)
BEFORE_NAME = re.compile("^[0-9a-f]{12}-")  # what the inbox puts before a name that is taken
PIECE = 100  # changes that a retriever takes in at a time
COLLECTED = 10  # as soon as so many old generations can go, they do
STANDARD_INPUT = Path("-")
CHANGES = ("added", "updated", "deleted")


@dataclass
class Outcome:
    """What came of a command: document ids by what became of them, refused rows as plain values, the generation.

    erased: those whose texts were removed as well; waiting: recorded, and not searchable yet; behind: which other live
    retrievers could not take the documents in, and why.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)
    erased: list[str] = field(default_factory=list)
    unchanged: int = 0
    rejected: list[dict[str, Any]] = field(default_factory=list)
    generation: int | None = None
    behind: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> list[str]:
        """The documents that are to change for who searches."""
        return [*self.added, *self.updated, *self.deleted]

    @property
    def failed(self) -> bool:
        """Whether rows were refused and none was accepted."""
        return bool(self.rejected) and not (self.unchanged or self.changed or self.waiting)

    def __str__(self) -> str:
        """A line, and a line for each refused row."""
        lists = {name: len(getattr(self, name)) for name in (*CHANGES, "erased", "waiting", "rejected")}
        counts = (lists | {"unchanged": self.unchanged}).items()
        line = ", ".join(f"{number:,} {name}" for name, number in counts if number) or "nothing to do"
        end = "" if self.generation is None else f" (generation {self.generation})"
        behind = (f"  behind    {name}  {reason}" for name, reason in sorted(self.behind.items()))
        return "\n".join([line + end, *map(_refused_text, self.rejected), *behind])


def add_files(
    live: LiveCollection, files: Sequence[Path], suffix: str = ".jsonl", only_known: bool = False, dry_run: bool = False
) -> Outcome:
    """Add the documents of files and of folders, "-" for standard input of the format `suffix`.

    only_known: refuse unknown ids; dry_run: only say what would come of it.
    """
    named = [named for file in files for named in _named(live, file)]
    if len(named) > 1:
        _require_own_ids(named)
    batches = [_read(live, name, file, suffix, only_known) for name, file in named]
    documents = [document for _, rows in batches for document in rows.documents]
    rejected = [{"file": name} | vars(row) for name, rows in batches for row in rows.rejected]
    ids = forecast(live.generation, documents)
    outcome = Outcome(ids["added"], ids["updated"], rejected=rejected)
    outcome.unchanged = len({document.document_id for document in documents}) - len(outcome.changed)
    if not dry_run:
        apply(live, outcome, [live.receive(rows, name) for name, rows in batches])
    return outcome


def delete_documents(live: LiveCollection, document_ids: Sequence[str], source: str = "freshet delete") -> Outcome:
    """Remove documents."""
    before = forecast(live.generation, map(Remove, filter(is_possible_id, document_ids)))
    receipt = live.remove(document_ids, source)
    rejected = [{"file": source} | vars(row) for row in receipt.rejected]
    outcome = Outcome(deleted=before["deleted"], rejected=rejected)
    outcome.unchanged = receipt.received - len(rejected) - len(outcome.deleted)
    apply(live, outcome, [receipt])
    return outcome


def apply(
    live: LiveCollection, outcome: Outcome, receipts: Iterable[Receipt], make: Callable[[], int | None] | None = None
) -> None:
    """Make what was recorded searchable, or have the service do it; nothing if the rows said nothing new.

    A document that a process recorded which was killed then is new to who searches, though its row says nothing new.
    make: another way to do it, such as that of the service itself; the generation in which searches find the documents.
    """
    made = None
    if outcome.changed or any(receipt.events for receipt in receipts):
        may_ask = make is None and live.retriever == default_retriever(live.project.live)
        if make is not None:
            made = make()
        elif may_ask and (service := client_of(live.project)) is not None:  # which changes no other's collection
            made = service.apply().generation
        else:
            applied = live.apply()
            outcome.behind = Upkeep(live.project, {live.retriever: live}.get).finish(but=live.retriever)
            made = (applied or live).generation.number
        if made is None:
            outcome.waiting, outcome.added, outcome.updated, outcome.deleted = outcome.changed, [], [], []
    outcome.generation = live.generation.number if made is None else made


def _named(live: LiveCollection, file: Path) -> Iterator[tuple[str, Path]]:
    """What to call a file, or each of a folder: the same as in the corpus where that is a folder around it.

    The name is one that any ledger can hold.
    """
    if file == STANDARD_INPUT:
        yield "standard input", file
        return
    if file.suffix.lower() not in DOCUMENT_SUFFIXES and not file.is_dir():
        yield printable(file.name, len(file.name)), file
        return
    path, settings = file.resolve(), live.settings
    files: Iterable[Path] = [path]
    if path.is_dir():
        from model_code.corpus.sources.folder import FolderSource

        files = FolderSource(settings.replace(source="folder", path=str(path)), path).files.values()
    home = (live.project.root / settings.path).resolve() if settings.path else path
    for each in files:
        inside = home if home.is_dir() and each.is_relative_to(home) else path if path.is_dir() else path.parent
        name = each.relative_to(inside).as_posix()
        yield printable(name, len(name)), each


def _require_own_ids(named: Sequence[tuple[str, Path]]) -> None:
    """FreshetError if two files of one document each would be the same document."""
    first: dict[str, Path] = {}
    for name, file in named:
        if file.suffix.lower() in DOCUMENT_SUFFIXES and first.setdefault(name, file).resolve() != file.resolve():
            raise FreshetError(
                f"{first[name]} and {file} would both be the document {name!r}: add the folder around them instead, in "
                "which their paths are their ids"
            )


def _read(live: LiveCollection, name: str, file: Path, suffix: str, only_known: bool) -> tuple[str, CleanRows]:
    """What a file is called, and its rows, sound and refused ones."""
    if file == STANDARD_INPUT:  # as a file, which can be read twice and tells its format by its name
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / f"input{suffix}"
            copy.write_bytes(sys.stdin.buffer.read())
            return _read(live, name, copy, suffix, only_known)
    columns = live.settings.columns if file.suffix.lower() in DOCUMENT_SUFFIXES else COLUMNS
    rows = live.clean(read_file(file, name, columns), name, only_known)
    if not rows.documents and rows.rejected:
        require_known_columns(file, name, live.settings.columns)
    return name, rows


def _refused_text(row: Mapping[str, Any]) -> str:
    place = f"{row['file']}:{row['row']}  " if row["row"] is not None else ""
    return f"  rejected  {place}{row['document_id'] or '(no id)'}  {row['reason']}"


def erase_documents(live: LiveCollection, document_ids: Sequence[str], source: str = "freshet delete") -> Outcome:
    """Delete documents, and then remove their texts from the generations of every retriever, and from the log.

    FreshetError names what still holds one of them: everything else is done then, and asked again, it goes on.
    """
    outcome = delete_documents(live, document_ids, source)
    refused = {row["document_id"] for row in outcome.rejected}
    outcome.erased = [each for each in dict.fromkeys(document_ids) if each not in refused]
    others = (name for name in retrievers(live.project.live) if name != live.retriever)
    collections = [live, *(LiveCollection(live.project, name) for name in others)]
    remains = [line for each in collections for line in _erase(each, outcome.erased)]
    remains += _copies(live, set(outcome.erased))
    live.ledger.erase(outcome.erased)
    file = ledger_file(live.project)  # an upgrade or a repair may have kept copies of it, and generations
    ledger_copies = file.parent.glob(f"{file.name}.*") if file else ()
    copies = sorted([*ledger_copies, *live.project.live.glob(f"*/{DAMAGED}")])
    remains += [f"{path}, which was set aside: delete it if you miss nothing" for path in copies]
    if remains:
        raise FreshetError("deleted, and no search finds them; but texts remain: " + "; ".join(remains))
    return outcome


def _erase(live: LiveCollection, document_ids: Sequence[str]) -> Iterator[str]:
    """Delete a retriever's generations that hold the texts of deleted documents; tells those that have to stay."""
    from orchestration.live.retrain_plan import planned

    live.apply()
    live.compact()
    holders = _holders(live, document_ids)
    free = {each.number for each in live.collection.generations() if not each.needs & holders}
    live.collect_garbage(1, free | planned(live.project, live.retriever))
    for number in sorted(_holders(live, document_ids)):
        reason = "which is read just now: do the same again later"
        if number in live.generation.needs:
            reason = "the build that is searched: take them out of the corpus's source, and build again"
        yield f"generation {number} of {live.retriever}, {reason}"


def _copies(live: LiveCollection, erased: Set[str]) -> Iterator[str]:
    """Tell where else in the project a text lies: files of the inbox, copies of the corpus, and where sync saw it.

    Drift references, which quote documents, are made again when they are needed.
    """
    from pyarrow import parquet  # `freshet add`, too, imports this module, and needs none of these

    from orchestration.live.inbox import DONE, FAILED, INBOX
    from orchestration.live.retrain_plan import FOLDER

    inbox, state = live.project.root / INBOX, live.project.state
    with file_lock(state / "drift.lock"):
        if (state / "drift").exists():
            shutil.rmtree(state / "drift")
    for path in sorted([*(inbox / DONE).glob("*"), *(inbox / FAILED).glob("*")]):
        if _names_one(path, erased, live.settings):
            yield f"{path}, which names one: delete it"
    for path in sorted((state / FOLDER).glob("*/*/snapshot/documents.parquet")):
        if not erased.isdisjoint(parquet.read_table(path, columns=["id"])["id"].to_pylist()):
            yield f"{path.parents[2]}, the work of a retrain: delete it once that has ended"
    for path in sorted((state / "sync").glob("*.json")):
        memory = read_json(path)
        for id_ in sorted(erased & {row[0] for unit in memory["units"].values() for row in unit["documents"]}):
            source = memory.get("source", "sync")
            yield f"{id_!r} in what `freshet {source}` reads: delete it there, then do that, or it comes again"


def _names_one(path: Path, document_ids: Set[str], settings: CorpusSettings) -> bool:
    """Whether a file that the inbox moved, perhaps with a hash before its name, has one of the documents."""
    name = BEFORE_NAME.sub("", path.name)
    if not path.suffix or path.suffix == ".reason":
        return False
    if path.suffix.lower() in DOCUMENT_SUFFIXES:  # of a long name, the end is left
        return any(id_ == name or len(id_) > len(name) > 100 and id_.endswith(name) for id_ in document_ids)
    try:
        rows = clean(read_file(path, name, settings.columns), settings, name)
    except (FreshetError, ValueError):
        return False  # nothing in it can be read
    return not document_ids.isdisjoint([*rows.document_ids, *(row.document_id for row in rows.rejected)])


def _holders(live: LiveCollection, document_ids: Sequence[str]) -> set[int]:
    """The numbers of the generations whose own files hold one of the documents."""
    ids = set(document_ids)
    return {
        each.number
        for each in live.collection.generations()
        if (file := each.folder / DOCUMENTS).is_file() and not ids.isdisjoint(read_columns(file, "document_id")[0])
    }


class Upkeep:
    """What is due after an addition and no search waits for: the other live retrievers, and generations nobody needs.

    Documents arrive for every retriever at once, in one ledger, and each live collection takes them in by itself. The
    one that is searched by default comes first; this is the rest, in pieces that a waiting addition is not kept long
    by. `failures`: why a retriever could not take in what arrived, by its name."""

    def __init__(self, project: Project, loaded: Callable[[str], LiveCollection | None] = lambda name: None) -> None:
        """loaded: a retriever's collection if it is open already, with encoder and index in memory."""
        self.project, self._loaded = project, loaded
        self.failures: dict[str, str] = {}
        self._collections: dict[str, LiveCollection] = {}
        self._failed_now: set[str] = set()

    def step(self, limit: int | None = PIECE, but: str | None = None) -> bool:
        """Do one piece, of at most `limit` changes; False if none is left but that of retrievers that failed.

        but: a retriever that has just taken in what there was.
        """
        names = subscribers(self.project)
        for gone in self.failures.keys() - set(names):
            del self.failures[gone]
        waiting = (name for name in names if name != but and name not in self._failed_now)
        if any(self._try(name, self._take_in, limit) for name in waiting):
            return True
        for name in names:
            self._try(name, self._collect)
        self._failed_now.clear()  # the next addition is another attempt
        return False

    def finish(self, but: str | None = None) -> dict[str, str]:
        """Do all of it; the `failures`. but: see `step`."""
        while self.step(limit=None, but=but):
            pass
        return self.failures

    def _try(self, name: str, action: Callable[..., bool], *arguments: int | None) -> bool:
        """Whether there was something to do, and it was done."""
        try:
            return action(name, *arguments)
        except Exception as error:  # the other retrievers do not suffer from it
            self.failures[name] = str(error) or type(error).__name__
            self._failed_now.add(name)
            log.error("%s: %s", name, self.failures[name], exc_info=not isinstance(error, FreshetError))
            return False

    def _take_in(self, name: str, limit: int | None) -> bool:
        applied = self._collection(name).apply(limit)
        self.failures.pop(name, None)
        return applied is not None

    def _collect(self, name: str) -> bool:
        """Delete old generations, if enough can go.

        The builds that were opened stay, as a rollback of the champion returns to them, and so does what a retrain that
        has just begun reads. `freshet tools gc` asks the registry, too, which builds may go.
        """
        collection = Collection(self.project.live, name)
        if collection.next_number() < COLLECTED:
            return False
        from orchestration import parameters
        from orchestration.live.builds import opened_builds
        from orchestration.live.retrain_plan import planned

        if (keep := parameters.load(self.project.params_file).live.keep_generations) is None:
            return False

        protected = {build.number for build in opened_builds(collection)} | planned(self.project, name)
        if len(collection.unneeded_generations(keep, protected)) < COLLECTED:
            return False
        return bool(self._collection(name).collect_garbage(keep, protected))

    def _collection(self, name: str) -> LiveCollection:
        if (loaded := self._loaded(name)) is not None:
            self._collections.pop(name, None)
            return loaded
        if name not in self._collections:
            self._collections[name] = LiveCollection(self.project, name)
        return self._collections[name]
