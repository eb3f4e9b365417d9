"""What `freshet add`, `update` and `delete` do: record here, then make searchable, and say what
came of it.

If the service runs it does the latter, its encoder being warm; if not, this process does. What most
calls do without is imported inside of functions, as each `freshet add` is a process of its own.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from model_code.collection.generations.generation_store import default_retriever
from model_code.collection.index.live_index import LiveIndex, forecast_changes
from model_code.collection.index.maintenance import BackgroundMaintenance
from model_code.collection.ledger.events import Receipt
from model_code.corpus.clean_rows import CleanRows, read_file, require_known_columns
from model_code.corpus.cleaning import is_possible_id
from model_code.corpus.rows import printable
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError
from model_code.text.documents import Remove

log = logging.getLogger(__name__)
STANDARD_INPUT = Path("-")
CHANGES = ("added", "updated", "deleted")


@dataclass
class ChangeReport:
    """What came of a command: document ids by what became of them, refused rows as plain values,
    the generation.

    erased: those whose texts were removed as well; waiting: recorded, and not searchable yet;
    behind: which other live retrievers could not take the documents in, and why.
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
        lists = {
            name: len(getattr(self, name)) for name in (*CHANGES, "erased", "waiting", "rejected")
        }
        counts = (lists | {"unchanged": self.unchanged}).items()
        line = (
            ", ".join(f"{number:,} {name}" for name, number in counts if number) or "nothing to do"
        )
        end = "" if self.generation is None else f" (generation {self.generation})"
        behind = (f"  behind    {name}  {reason}" for name, reason in sorted(self.behind.items()))
        return "\n".join([line + end, *map(_refused_text, self.rejected), *behind])


def add_files(
    live: LiveIndex,
    files: Sequence[Path],
    suffix: str = ".jsonl",
    only_known: bool = False,
    dry_run: bool = False,
) -> ChangeReport:
    """Add the documents of files and of folders, "-" for standard input of the format `suffix`.

    only_known: refuse unknown ids; dry_run: only say what would come of it.
    """
    named = [named for file in files for named in _named(live, file)]
    if len(named) > 1:
        _require_own_ids(named)
    batches = [_read(live, name, file, suffix, only_known) for name, file in named]
    documents = [document for _, rows in batches for document in rows.documents]
    rejected = [{"file": name} | vars(row) for name, rows in batches for row in rows.rejected]
    ids = forecast_changes(live.generation, documents)
    outcome = ChangeReport(ids["added"], ids["updated"], rejected=rejected)
    outcome.unchanged = len({document.document_id for document in documents}) - len(outcome.changed)
    if not dry_run:
        apply_changes(live, outcome, [live.receive(rows, name) for name, rows in batches])
    return outcome


def delete_documents(
    live: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Remove documents."""
    before = forecast_changes(live.generation, map(Remove, filter(is_possible_id, document_ids)))
    receipt = live.remove(document_ids, source)
    rejected = [{"file": source} | vars(row) for row in receipt.rejected]
    outcome = ChangeReport(deleted=before["deleted"], rejected=rejected)
    outcome.unchanged = receipt.received - len(rejected) - len(outcome.deleted)
    apply_changes(live, outcome, [receipt])
    return outcome


def apply_changes(
    live: LiveIndex,
    outcome: ChangeReport,
    receipts: Iterable[Receipt],
    make: Callable[[], int | None] | None = None,
) -> None:
    """Make what was recorded searchable, or have the service do it; nothing if the rows said
    nothing new.

    A document that a process recorded which was killed then is new to who searches, though its row
    says nothing new. make: another way to do it, such as that of the service itself; the generation
    in which searches find the documents.
    """
    made = None
    if outcome.changed or any(receipt.events for receipt in receipts):
        may_ask = make is None and live.retriever == default_retriever(live.project.live)
        if make is not None:
            made = make()
        elif (
            may_ask and (service := live.find_service(live.project)) is not None
        ):  # which changes no other's collection
            made = service.apply().generation
        else:
            applied = live.apply()
            outcome.behind = BackgroundMaintenance(
                live.project, {live.retriever: live}.get
            ).run_all(except_retriever=live.retriever)
            made = (applied or live).generation.number
        if made is None:
            outcome.waiting, outcome.added, outcome.updated, outcome.deleted = (
                outcome.changed,
                [],
                [],
                [],
            )
    outcome.generation = live.generation.number if made is None else made


def _named(live: LiveIndex, file: Path) -> Iterator[tuple[str, Path]]:
    """What to call a file, or each of a folder: the same as in the corpus where that is a folder
    around it.

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
        inside = (
            home
            if home.is_dir() and each.is_relative_to(home)
            else path
            if path.is_dir()
            else path.parent
        )
        name = each.relative_to(inside).as_posix()
        yield printable(name, len(name)), each


def _require_own_ids(named: Sequence[tuple[str, Path]]) -> None:
    """FreshetError if two files of one document each would be the same document."""
    first: dict[str, Path] = {}
    for name, file in named:
        if (
            file.suffix.lower() in DOCUMENT_SUFFIXES
            and first.setdefault(name, file).resolve() != file.resolve()
        ):
            raise FreshetError(
                f"{first[name]} and {file} would both be the document {name!r}: add the folder around them instead, in "
                "which their paths are their ids"
            )


def _read(
    live: LiveIndex, name: str, file: Path, suffix: str, only_known: bool
) -> tuple[str, CleanRows]:
    """What a file is called, and its rows, sound and refused ones."""
    # as a file, which can be read twice and tells its format by its name
    if file == STANDARD_INPUT:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / f"input{suffix}"
            copy.write_bytes(sys.stdin.buffer.read())
            return _read(live, name, copy, suffix, only_known)
    rows = live.clean_rows(read_file(file, name, live.settings.columns), name, only_known)
    if not rows.documents and rows.rejected:
        require_known_columns(file, name, live.settings.columns)
    return name, rows


def _refused_text(row: Mapping[str, Any]) -> str:
    place = f"{row['file']}:{row['row']}  " if row["row"] is not None else ""
    return f"  rejected  {place}{row['document_id'] or '(no id)'}  {row['reason']}"
