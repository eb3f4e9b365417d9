"""`freshet verify`: whether all that is live is as it was written, and says the same; reads only.

Every file of every generation is read once: about a second per gigabyte, and as much memory as the documents' ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from model_code.errors import Damaged, FreshetError
from model_code.files import read_json
from model_code.live.collection import CURRENT, GENERATIONS, Collection, default_retriever
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, INDEX, PASSAGES, REPAIR, Generation, document_hashes, removed_by_part
from model_code.manifest import MANIFEST
from orchestration.live.ledger import existing_ledger, own_ledger, standing_of
from orchestration.project import Project


def problems(project: Project) -> Iterator[str]:
    """What is wrong, a line each that ends with the command that mends it."""
    names = sorted({path.parent.name for kind in (CURRENT, GENERATIONS) for path in project.live.glob(f"*/{kind}")})
    yield from _told(default_retriever, project.live)
    yield from _told(_require_whole_log, project)
    for collection in (Collection(project.live, name) for name in names):
        folders = sorted((collection.folder / GENERATIONS).glob("[0-9]*"))
        damaged = [line for folder in folders for line in _told(lambda folder=folder: Generation.read(folder).verify())]
        yield from damaged
        yield from _told(collection.current) if damaged else _told(_require_agreement, project, collection)


def _told(check: Callable[..., object], *arguments: object) -> list[str]:
    """The message of the error that a check ends with."""
    try:
        check(*arguments)
    except FreshetError as error:
        return [str(error)]
    return []


def _require_whole_log(project: Project) -> None:
    ledger = existing_ledger(project)
    if ledger is not None:
        with ledger:
            found = ledger.damage()
        if found is not None:
            raise Damaged(f"the ledger is damaged ({found})", REPAIR)


def _require_agreement(project: Project, collection: Collection) -> None:
    """FreshetError where index, documents, counts and log of the current generation, whose files are whole, say
    different things.
    """
    generation = collection.current()
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
    _require_log(project, generation)


def _require_log(project: Project, generation: Generation) -> None:
    """FreshetError where the log is not the generation's own, or says of a document that it holds something else."""
    ledger = own_ledger(project, generation)
    if ledger is None:
        return
    with ledger:
        standing, held = standing_of(ledger, generation), document_hashes(generation)
        arrived = ledger.seen_from(standing).snapshot()
        wrong = [each.document_id for each in arrived if held.get(each.document_id) != each.content_hash]
    if wrong:
        raise Damaged(
            f"generation {generation.number} of {generation.retriever!r} lacks what its log says of {len(wrong)} "
            f"documents, first {wrong[0]!r}",
            f"search an older index, which takes them in: freshet rewind --retriever {generation.retriever} "
            f"--generation {generation.build}",
        )
