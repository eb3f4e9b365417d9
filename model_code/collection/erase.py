"""Erase documents: delete their texts from all files that this program can change.

These files are:

- the generations of all retrievers, which are snapshots of the index
- the ledger, which is the log of changes
- the references of drift checks, with which new documents are compared
- the caches of IncDSI

Texts in other files are reported, so that the user can delete them.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence, Set
from pathlib import Path

from model_code.collection.backup.export import DOCUMENTS_FILE
from model_code.collection.backup.import_ import IMPORTED_FOLDER
from model_code.collection.follow.publish import record_erasure
from model_code.collection.generations.generation import Generation, verify_checksums_on_error
from model_code.collection.generations.generation_store import retrievers
from model_code.collection.generations.refinements import documents_solved_with
from model_code.collection.index.builder_factory import additions_folder
from model_code.collection.index.changes import ChangeReport, delete_documents
from model_code.collection.index.live_index import (
    DAMAGED,
    ERASED_SOURCE,
    LiveIndex,
)
from model_code.collection.index.project_ledger import ledger_file
from model_code.collection.index.retrain_plan import FOLDER, planned_generations
from model_code.collection.query_copies import CORPUS_FOLDER, read_column
from model_code.collection.segments.documents import CORPUS_DOCUMENTS, DOCUMENTS, read_columns
from model_code.collection.segments.known_overrides import KNOWN_OVERRIDES, load_overrides
from model_code.collection.segments.solved import SolvedDocuments
from model_code.collection.sync.inbox import DONE, FAILED, INBOX
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import file_lock

# Prefix of a file name in the inbox. The inbox adds a part of a hash if the name exists already.
_HASH_PREFIX = re.compile("^[0-9a-f]{12}-")

# Number of characters above which the inbox may have cut off the beginning of a file name.
MIN_CUT_NAME_CHARACTERS = 100


def erase_documents(
    index: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Remove documents, and delete their texts from all generations and the ledger.

    Generations are snapshots of the index, and the ledger is the log of changes. Both would keep
    the texts of deleted documents.

    Args:
        index: Live index of any retriever. The documents are erased from all retrievers.
        document_ids: Ids of the documents.
        source: Origin of the removal, which the ledger records.

    Raises:
        FreshetError: If a text remains in some file. All other texts are deleted then. The message
            names each file and what to do about it. Afterwards the same call can be repeated.
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
    # The caches of IncDSI are last, because solving vectors again uses them.
    erase_from_solver_caches(index, document_ids=erased_ids)
    remains.extend(_find_inbox_files(index, erased_ids))
    remains.extend(_find_corpus_copies(index, erased_ids))
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
    """Yield the live indexes of all retrievers, the given index first."""
    yield index
    for name in retrievers(index.project.live):
        if name != index.retriever:
            yield LiveIndex(index.project, name)


def _erase_from_generations(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Delete the generations of a retriever that contain some documents.

    A generation is a snapshot of the index. It may hold documents that a later one has removed.

    Args:
        index: Live index of the retriever.
        document_ids: Ids of the documents.

    Yields:
        A message for each generation that contains a document and cannot be deleted.
    """
    index.apply()
    # IncDSI solves the vector of a document so that queries find it. It may have used known queries
    # of the erased documents. The vectors are solved again without these queries.
    dependent_ids = documents_solved_with(index.generation, document_ids)
    index.solve_again(dependent_ids, ERASED_SOURCE)
    numbers = erase_generations(index, lambda generation: _holds_document(generation, document_ids))
    for number in numbers:
        reason = "which is read just now: do the same again later"
        if number in index.generation.needs:
            reason = (
                "the build that is searched: take them out of the corpus's source, and build again"
            )
        yield f"generation {number} of {index.retriever}, {reason}"


def erase_generations(index: LiveIndex, holds_text: Callable[[Generation], bool]) -> list[int]:
    """Delete the generations of a retriever that contain a text.

    All added segments are merged to a new one first. It does not contain removed documents, so
    that the old segments can be deleted. If the new generation still reads an older folder with the
    text, all its files are written again. For example, a folder may have a segment that is still
    searched, and former known queries of other documents.

    Args:
        index: Live index of the retriever, which has applied all changes.
        holds_text: Function that returns whether the folder of a generation contains the text.

    Returns:
        Numbers of the generations that contain the text and could not be deleted, ascending.
    """
    # The erasure is recorded before and after, because a generation that is published in between
    # may contain the text.
    record_erasure(index.project)
    index.compact()

    # A generation is deleted if its folder, or a folder that it reads, contains the text.
    # Generations that a planned retrain reads are kept.
    holders = _generations_with(index, holds_text)
    current = index.generation
    if not holders.isdisjoint(current.needs - {current.base}):
        index.compact(rewrite=True)
        holders = _generations_with(index, holds_text)
    protected = set(planned_generations(index.project, index.retriever))
    for generation in index.store.generations():
        if generation.needs.isdisjoint(holders):
            protected.add(generation.number)
    index.collect_garbage(1, protected)
    record_erasure(index.project)
    return sorted(_generations_with(index, holds_text))


def _generations_with(index: LiveIndex, holds_text: Callable[[Generation], bool]) -> set[int]:
    """Return the numbers of the generations whose folders contain a text.

    Args:
        index: Live index of the retriever.
        holds_text: Function that returns whether the folder of a generation contains the text.
    """
    numbers: set[int] = set()
    for generation in index.store.generations():
        with verify_checksums_on_error(generation):
            if holds_text(generation):
                numbers.add(generation.number)
    return numbers


def _holds_document(generation: Generation, document_ids: Set[str]) -> bool:
    """Return whether the folder of a generation contains a given document or its queries.

    Records of IncDSI can contain known queries of other documents: the constraints of a solved
    vector.
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


def erase_from_solver_caches(
    index: LiveIndex,
    document_ids: Set[str] = frozenset(),
    forgotten: Set[str] = frozenset(),
) -> None:
    """Delete documents and queries from the caches of IncDSI, which have known queries.

    IncDSI solves the vector of a document so that its known queries find it.

    Args:
        index: Live index of any retriever.
        document_ids: Ids of the documents.
        forgotten: Hashes of the queries; see `query_hash`.
    """
    # Imported here because the module loads the solver, which takes time.
    from model_code.incdsi.constraints import erase_from_caches

    erase_from_caches(additions_folder(index.project), document_ids, forgotten)


def delete_drift_references(index: LiveIndex) -> None:
    """Delete the files with which drift checks compare new documents, because they quote documents.

    The next drift check computes them again.
    """
    folder = index.project.state / "drift"
    with file_lock(index.project.state / "drift.lock"):
        if folder.exists():
            shutil.rmtree(folder)


def _find_inbox_files(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield a message for each file that the inbox has received and that names a document.

    The inbox is a folder whose files are added to the collection. It keeps the received files.
    """
    inbox = index.project.root / INBOX
    received = list((inbox / DONE).glob("*"))
    received.extend((inbox / FAILED).glob("*"))
    for path in sorted(received):
        if _file_names_document(path, document_ids, index.settings):
            yield f"{path}, which names one: delete it"


def _file_names_document(path: Path, document_ids: Set[str], settings: CorpusSettings) -> bool:
    """Return whether a file in `inbox/done` or `inbox/failed` contains a given document."""
    if not path.suffix or path.suffix == ".reason":
        return False

    name = _HASH_PREFIX.sub("", path.name)
    if path.suffix.lower() in DOCUMENT_SUFFIXES:
        if name in document_ids:
            return True
        # The inbox cuts off the beginning of a long name.
        may_be_cut = len(name) > MIN_CUT_NAME_CHARACTERS
        return may_be_cut and any(document_id.endswith(name) for document_id in document_ids)

    try:
        rows = clean_rows(read_file(path, name, settings.columns), settings)
    except (FreshetError, ValueError):
        # The file cannot be read as rows, so no document in it can be recognised.
        return False
    named_ids: set[str | None] = set(rows.document_ids)
    named_ids.update(row.record_id for row in rows.refused)
    return not document_ids.isdisjoint(named_ids)


def _find_corpus_copies(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield a message if the corpus of the last build has a given document.

    The live collection may have another build, such as that of a retrain.
    """
    folder = index.project.artifacts / CORPUS_FOLDER
    ids = read_column(folder / CORPUS_DOCUMENTS, "document_id")
    if not document_ids.isdisjoint(ids):
        yield f"{folder}: take them out of the corpus's source, and build again"


def _find_retrain_copies(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield a message for each retrain that has a copy of a given document."""
    for path in sorted((index.project.state / FOLDER).glob("*/*/snapshot/documents.parquet")):
        if not document_ids.isdisjoint(read_column(path, "id")):
            retrain_folder = path.parents[2]
            yield f"{retrain_folder}, the work of a retrain: delete it once that has ended"


def _find_imported_copies(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield a message if documents to erase are also in the file that `freshet import` copied.

    Erasing does not change this file, so the user has to edit it.
    """
    path = index.project.root / IMPORTED_FOLDER / DOCUMENTS_FILE
    if path.is_file():
        rows = clean_rows(read_file(path, DOCUMENTS_FILE), index.settings)
        if not document_ids.isdisjoint(rows.document_ids):
            yield f"{path}, which names one: take the line out, or delete the file"


def _find_synced_sources(index: LiveIndex, document_ids: Set[str]) -> Iterator[str]:
    """Yield a message for each document that a synced source contained when it was last read.

    The next sync would add such a document again.
    """
    for path in sorted((index.project.state / "sync").glob("*.json")):
        memory = read_json(path)
        source = memory.get("source", "sync")
        source_ids: set[str] = set()
        for unit in memory.get("units", {}).values():
            # The first value of each entry is the id of the document.
            source_ids.update(entry[0] for entry in unit["documents"])
        for document_id in sorted(document_ids & source_ids):
            yield (
                f"{document_id!r} in what `freshet {source}` reads: delete it there, then do that, "
                "or it comes again"
            )


def find_damaged_copies(index: LiveIndex) -> Iterator[str]:
    """Yield a message for each damaged ledger or generation that a repair has moved away.

    It may contain any text, and nothing reads it any more.
    """
    copies = list(index.project.live.glob(f"*/{DAMAGED}"))
    file = ledger_file(index.project)
    if file is not None:
        copies.extend(file.parent.glob(f"{file.name}.*"))
    for path in sorted(copies):
        yield f"{path}, which was set aside: delete it if you miss nothing"
