"""Erase documents: remove their texts from every generation, the ledger and drift references."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from model_code.collection.generations.generation_store import retrievers
from model_code.collection.index.changes import ChangeReport, delete_documents
from model_code.collection.index.live_index import DAMAGED, LiveIndex
from model_code.collection.index.project_ledger import ledger_file
from model_code.collection.segments.documents import DOCUMENTS, read_columns
from model_code.corpus.clean_rows import clean_rows, read_file
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.document_files import DOCUMENT_SUFFIXES
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import file_lock

BEFORE_NAME = re.compile("^[0-9a-f]{12}-")  # what the inbox puts before a name that is taken


def erase_documents(
    live: LiveIndex, document_ids: Sequence[str], source: str = "freshet delete"
) -> ChangeReport:
    """Delete documents, and then remove their texts from the generations of every retriever, and
    from the log.

    FreshetError names what still holds one of them: everything else is done then, and asked again,
    it goes on.
    """
    outcome = delete_documents(live, document_ids, source)
    refused = {row["document_id"] for row in outcome.rejected}
    outcome.erased = [each for each in dict.fromkeys(document_ids) if each not in refused]
    others = (name for name in retrievers(live.project.live) if name != live.retriever)
    collections = [live, *(LiveIndex(live.project, name) for name in others)]
    remains = [line for each in collections for line in _erase(each, outcome.erased)]
    remains += _copies(live, set(outcome.erased))
    live.ledger.erase(outcome.erased)
    # an upgrade or a repair may have kept copies of it, and generations
    file = ledger_file(live.project)
    ledger_copies = file.parent.glob(f"{file.name}.*") if file else ()
    copies = sorted([*ledger_copies, *live.project.live.glob(f"*/{DAMAGED}")])
    remains += [f"{path}, which was set aside: delete it if you miss nothing" for path in copies]
    if remains:
        raise FreshetError(
            "deleted, and no search finds them; but texts remain: " + "; ".join(remains)
        )
    return outcome


def _erase(live: LiveIndex, document_ids: Sequence[str]) -> Iterator[str]:
    """Delete a retriever's generations that hold the texts of deleted documents; tells those that
    have to stay.
    """
    from model_code.collection.index.retrain_plan import planned_generations

    live.apply()
    live.compact()
    holders = _holders(live, document_ids)
    free = {each.number for each in live.collection.generations() if not each.needs & holders}
    live.collect_garbage(1, free | planned_generations(live.project, live.retriever))
    for number in sorted(_holders(live, document_ids)):
        reason = "which is read just now: do the same again later"
        if number in live.generation.needs:
            reason = (
                "the build that is searched: take them out of the corpus's source, and build again"
            )
        yield f"generation {number} of {live.retriever}, {reason}"


def _copies(live: LiveIndex, erased: Set[str]) -> Iterator[str]:
    """Tell where else in the project a text lies: files of the inbox, copies of the corpus, and
    where sync saw it.

    Drift references, which quote documents, are made again when they are needed.
    """
    from pyarrow import parquet  # `freshet add`, too, imports this module, and needs none of these

    from model_code.collection.index.retrain_plan import FOLDER
    from model_code.collection.sync.inbox import DONE, FAILED, INBOX

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
        for id_ in sorted(
            erased & {row[0] for unit in memory["units"].values() for row in unit["documents"]}
        ):
            source = memory.get("source", "sync")
            yield f"{id_!r} in what `freshet {source}` reads: delete it there, then do that, or it comes again"


def _names_one(path: Path, document_ids: Set[str], settings: CorpusSettings) -> bool:
    """Whether a file that the inbox moved, perhaps with a hash before its name, has one of the
    documents.
    """
    name = BEFORE_NAME.sub("", path.name)
    if not path.suffix or path.suffix == ".reason":
        return False
    if path.suffix.lower() in DOCUMENT_SUFFIXES:  # of a long name, the end is left
        return any(
            id_ == name or len(id_) > len(name) > 100 and id_.endswith(name) for id_ in document_ids
        )
    try:
        rows = clean_rows(read_file(path, name, settings.columns), settings, name)
    except (FreshetError, ValueError):
        return False  # nothing in it can be read
    return not document_ids.isdisjoint(
        [*rows.document_ids, *(row.document_id for row in rows.rejected)]
    )


def _holders(live: LiveIndex, document_ids: Sequence[str]) -> set[int]:
    """The numbers of the generations whose own files hold one of the documents."""
    ids = set(document_ids)
    return {
        each.number
        for each in live.collection.generations()
        if (file := each.folder / DOCUMENTS).is_file()
        and not ids.isdisjoint(read_columns(file, "document_id")[0])
    }
