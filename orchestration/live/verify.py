"""`freshet verify`: whether all that is live is as it was written, and says the same; reads only.

Every file of every generation is read once: about a second per gigabyte, and as much memory as the documents' ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from model_code.errors import Damaged, FreshetError
from model_code.files import read_json
from model_code.live.collection import CURRENT, GENERATIONS, Collection, default_retriever
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, INDEX, PASSAGES, REPAIR, Generation, document_hashes, removed_by_part
from model_code.manifest import MANIFEST
from orchestration.live.ledger import existing_ledger, in_a_log, lost, require_sound
from orchestration.project import Project


def problems(project: Project) -> Iterator[str]:
    """What is wrong, a line each that ends with the command that mends it."""
    names = sorted({path.parent.name for kind in (CURRENT, GENERATIONS) for path in project.live.glob(f"*/{kind}")})
    with _told() as told:
        default_retriever(project.live)
    yield from told
    yield from _problems_of_log(project)
    for name in names:
        yield from _problems_of(project, Collection(project.live, name))


class _told(list[str]):  # noqa: N801 - read as a statement
    """The message of an error that ends a block."""

    def __enter__(self) -> _told:
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> bool:
        if isinstance(error, FreshetError):
            self.append(str(error))
        return isinstance(error, FreshetError)


def _problems_of_log(project: Project) -> Iterator[str]:
    with _told() as told:
        ledger = existing_ledger(project)
        if ledger is not None:
            with ledger:
                found = ledger.damage()
            if found is not None:
                raise Damaged(f"the ledger is damaged ({found})", REPAIR)
    yield from told


def _problems_of(project: Project, collection: Collection) -> Iterator[str]:
    damaged = False
    for folder in sorted((collection.folder / GENERATIONS).glob("[0-9]*")):
        with _told() as told:
            Generation.read(folder).verify()
        damaged = damaged or bool(told)
        yield from told
    with _told() as told:
        current = collection.current()
        if not damaged:
            _require_agreement(current)
            _require_log(project, current)
    yield from told


def _require_agreement(generation: Generation) -> None:
    """FreshetError where index, documents and counts of a generation, whose files are whole, say different things."""
    for number in removed_by_part(generation):
        folder = generation.sibling(number)
        if not (folder / INDEX / MANIFEST).is_file():
            continue
        (kept,) = read_columns(folder / DOCUMENTS, "document_id")
        stated = read_json(folder / INDEX / MANIFEST)["documents"]
        if set(kept) != set(read_json(folder / PASSAGES)) or len(kept) != stated:
            raise Damaged(f"{folder} keeps {len(kept)} documents, but its index holds others ({stated})", REPAIR)
    found, stated = len(document_hashes(generation)), generation.manifest["documents"]
    if found != stated and (generation.folder / INDEX).is_dir():
        raise Damaged(f"{generation.folder} holds {found} documents, but states {stated}", REPAIR)


def _require_log(project: Project, generation: Generation) -> None:
    """FreshetError where the log is not the generation's own, or says of a document that it holds something else."""
    ledger = existing_ledger(project)
    if ledger is None:
        if in_a_log(generation):
            raise FreshetError(lost(generation, "there is none here"))
        return
    with ledger:
        standing, held = require_sound(ledger, generation), document_hashes(generation)
        arrived = ledger.seen_from(standing).snapshot()
        wrong = [each.document_id for each in arrived if held.get(each.document_id) != each.content_hash]
    if wrong:
        raise Damaged(
            f"generation {generation.number} of {generation.retriever!r} lacks what its log says of {len(wrong)} "
            f"documents, first {wrong[0]!r}",
            f"search an older index, which takes them in: freshet rewind --retriever {generation.retriever} "
            f"--generation {generation.build}",
        )
