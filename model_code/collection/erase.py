"""Erase documents: remove their texts from every generation, the ledger and drift references."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from model_code.collection.follow.publish import record_erasure
from model_code.collection.generations.generation import Generation, verify_checksums_on_error
from model_code.collection.generations.generation_store import retrievers
from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.index.changes import ChangeReport, delete_documents
from model_code.collection.index.live_index import DAMAGED, LiveIndex
from model_code.collection.index.project_ledger import ledger_file
from model_code.collection.segments.documents import DOCUMENTS, read_columns
from model_code.collection.segments.known_overrides import KNOWN_OVERRIDES, load_overrides
from model_code.collection.segments.solved import SolvedDocuments
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import file_lock

# The inbox puts the beginning of a hash before a name that is taken.
_HASH_PREFIX = re.compile("^[0-9a-f]{12}-")

# The inbox may cut the beginning of an id of more characters off the name of a file.
MIN_CUT_NAME_CHARACTERS = 100


def erase_documents(
    index: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Delete documents, and remove their texts from all generations and the ledger.

    Args:
        index: Live index of one retriever. The generations of all retrievers are searched.
        document_ids: Ids of the documents.
        source: Where the removal comes from.

    Raises:
        FreshetError: If a text remains somewhere. Everything else is done then, and the message
            names each place. Erasing the same ids again goes on.
    """
    report = delete_documents(index, document_ids, source)
    refused_ids = {row["document_id"] for row in report.rejected}
    for document_id in dict.fromkeys(document_ids):
        if document_id not in refused_ids:
            report.erased.append(document_id)
    erased_ids = set(report.erased)

    remains: list[str] = []
    for live_index in all_indexes(index):
        remains.extend(_erase_from_generations(live_index, erased_ids))
    delete_drift_references(index)
    remains.extend(_find_inbox_files(index, erased_ids))
    remains.extend(_find_retrain_copies(index, erased_ids))
    remains.extend(_find_imported_copies(index, erased_ids))
    remains.extend(_find_synced_sources(index, erased_ids))
    index.ledger.erase(report.erased)
    remains.extend(find_damaged_copies(index))

    if remains:
        raise FreshetError(
            "deleted, and no search finds them; but texts remain: " + "; ".join(remains)
        )
    return report


def all_indexes(index: LiveIndex) -> Iterator[LiveIndex]:
    """Yield the live index of every retriever, the given one first."""
    yield index
    for name in retrievers(index.project.live):
        if name != index.retriever:
            yield LiveIndex(index.project, name)


def _erase_from_generations(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Delete the generations of a retriever that hold a text; yield the ones that have to stay."""
    index.apply()
    # Vectors that were solved with queries of these documents must not depend on them any more.
    index.solve_again(documents_solved_with(index.generation, document_ids))
    for number in erase_generations(index, lambda one: _holds_document(one, document_ids)):
        reason = "which is read just now: do the same again later"
        if number in index.generation.needs:
            reason = (
                "the build that is searched: take them out of the corpus's source, and build again"
            )
        yield f"generation {number} of {index.retriever}, {reason}"


def erase_generations(index: LiveIndex, holds_text: Callable[[Generation], bool]) -> list[int]:
    """Delete the generations of a retriever whose own files hold a text.

    The added segments are merged first, so that no removed document is left in them.

    Args:
        index: Live index of the retriever, which has applied all changes.
        holds_text: Returns whether the own files of a generation hold the text.

    Returns:
        Numbers of the generations that hold the text and have to stay, ascending.
    """
    # `freshet add` imports this module as well, and needs no plan of a retrain.
    from model_code.collection.index.retrain_plan import planned_generations

    # Marked before and after: a generation that is published in between may hold the text.
    record_erasure(index.project)
    index.compact()

    holders = _generations_with(index, holds_text)
    protected = set(planned_generations(index.project, index.retriever))
    for generation in index.store.generations():
        if not generation.needs & holders:
            protected.add(generation.number)
    index.collect_garbage(1, protected)
    record_erasure(index.project)
    return sorted(_generations_with(index, holds_text))


def _generations_with(index: LiveIndex, holds_text: Callable[[Generation], bool]) -> set[int]:
    numbers: set[int] = set()
    for generation in index.store.generations():
        with verify_checksums_on_error(generation):
            if holds_text(generation):
                numbers.add(generation.number)
    return numbers


def _holds_document(generation: Generation, document_ids: Set[str]) -> bool:
    """Return whether the own files of a generation hold one of the documents, or its queries.

    The record of a solved document holds known queries of the documents that it was solved beside.
    """
    for document in SolvedDocuments.load(generation.folder).documents.values():
        member_ids = [member.document_id for member in document.members]
        if not document_ids.isdisjoint(member_ids):
            return True
    documents = generation.folder / DOCUMENTS
    if documents.is_file():
        (ids,) = read_columns(documents, "document_id")
        if not document_ids.isdisjoint(ids):
            return True
    if (generation.folder / KNOWN_OVERRIDES).is_file():
        return not document_ids.isdisjoint(load_overrides(generation.folder))
    return False


def delete_drift_references(index: LiveIndex) -> None:
    """Delete the references of drift checks, which quote documents and are made when needed."""
    folder = index.project.state / "drift"
    with file_lock(index.project.state / "drift.lock"):
        if folder.exists():
            shutil.rmtree(folder)


def _find_inbox_files(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield the received files that name one of the documents."""
    from model_code.collection.sync.inbox import DONE, FAILED, INBOX

    inbox = index.project.root / INBOX
    for path in sorted([*(inbox / DONE).glob("*"), *(inbox / FAILED).glob("*")]):
        if _file_names_document(path, document_ids, index.settings):
            yield f"{path}, which names one: delete it"


def _file_names_document(path: Path, document_ids: Set[str], settings: CorpusSettings) -> bool:
    """Return whether a file that the inbox has moved has one of the documents."""
    if not path.suffix or path.suffix == ".reason":
        return False

    name = _HASH_PREFIX.sub("", path.name)
    if path.suffix.lower() in DOCUMENT_SUFFIXES:
        if name in document_ids:
            return True
        # The inbox keeps the end of a long name.
        may_be_cut = len(name) > MIN_CUT_NAME_CHARACTERS
        return may_be_cut and any(document_id.endswith(name) for document_id in document_ids)

    try:
        rows = clean_rows(read_file(path, name, settings.columns), settings)
    except (FreshetError, ValueError):
        # Nothing in the file can be read.
        return False
    named_ids = {*rows.document_ids, *(row.record_id for row in rows.refused)}
    return not document_ids.isdisjoint(named_ids)


def _find_retrain_copies(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield the workspaces of retrains whose snapshot has one of the documents."""
    # pyarrow takes long to import, and `freshet add`, which imports this module, does without it.
    from pyarrow import parquet

    from model_code.collection.index.retrain_plan import FOLDER

    for path in sorted((index.project.state / FOLDER).glob("*/*/snapshot/documents.parquet")):
        ids = parquet.read_table(path, columns=["id"])["id"].to_pylist()
        if not document_ids.isdisjoint(ids):
            yield f"{path.parents[2]}, the work of a retrain: delete it once that has ended"


def _find_imported_copies(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield the export that is the project's corpus, if it has one of the documents."""
    from model_code.collection.backup.export import DOCUMENTS_FILE
    from model_code.collection.backup.import_ import IMPORTED_FOLDER

    path = index.project.root / IMPORTED_FOLDER / DOCUMENTS_FILE
    if path.is_file():
        rows = clean_rows(read_file(path, DOCUMENTS_FILE), index.settings)
        if not document_ids.isdisjoint(rows.document_ids):
            yield f"{path}, which names one: take the line out, or delete the file"


def _find_synced_sources(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield the documents that a source of `freshet sync` held when it was last read."""
    for path in sorted((index.project.state / "sync").glob("*.json")):
        memory = read_json(path)
        source = memory.get("source", "sync")
        source_ids: set[str] = set()
        for unit in memory.get("units", {}).values():
            source_ids.update(row[0] for row in unit["documents"])
        for document_id in sorted(document_ids & source_ids):
            yield (
                f"{document_id!r} in what `freshet {source}` reads: delete it there, then do that, "
                "or it comes again"
            )


def find_damaged_copies(index: LiveIndex) -> Iterator[str]:
    """Yield the ledgers and generations that a repair has set aside."""
    copies = list(index.project.live.glob(f"*/{DAMAGED}"))
    file = ledger_file(index.project)
    if file is not None:
        copies.extend(file.parent.glob(f"{file.name}.*"))
    for path in sorted(copies):
        yield f"{path}, which was set aside: delete it if you miss nothing"
