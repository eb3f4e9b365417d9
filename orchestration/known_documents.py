"""Which documents there are: searchable in a generation, or on their way through the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from model_code.documents import Document
from model_code.ledger.records import PENDING, PUT

if TYPE_CHECKING:
    from model_code.ledger.ledger import Ledger
    from model_code.live.generation import Generation


def held(generation: Generation, document_ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Those of `document_ids` that the generation finds, with title, text, fields and content hash."""
    from model_code.live.documents import read_documents
    from model_code.live.generation import DOCUMENTS
    from model_code.live.removed import removed_by_part

    wanted, found = set(document_ids), {}
    for number, gone in removed_by_part(generation).items():
        rows = read_documents(generation.sibling(number) / DOCUMENTS, wanted)
        found |= {one: row for one, row in rows.items() if one not in gone}
    return found


def known(
    ledger: Ledger | None, generation: Generation, document_ids: Iterable[str], removed_too: bool = False
) -> set[str]:
    """Those of `document_ids` whose latest event put them, or that are searchable without any event.

    removed_too: also those whose latest event removed them, so that removing twice is no error.
    """
    wanted = set(document_ids)
    said = ledger.latest(wanted) if ledger else {}
    put = {one for one, kind in said.items() if removed_too or kind == PUT}
    silent = wanted - said.keys()
    return put | (held(generation, silent).keys() if silent else set())


def forecast(
    generation: Generation, documents: Iterable[Document], ledger: Ledger | None = None
) -> dict[str, list[str]]:
    """What making `documents` searchable would come to: ids that would be "added", "updated" or are "unchanged".

    Of a repeated id the last row counts. A document that the ledger has already, but no search finds yet, becomes
    searchable with the others, so it is none of the unchanged ones. ledger: the generation's, None if there is none.
    """
    last = {one.document_id: one for one in documents}
    rows, said = held(generation, last), ledger.newest(last) if ledger else {}
    told = {
        one for one, event in said.items() if event.state != PENDING and event.content_hash == last[one].content_hash
    }
    found: dict[str, list[str]] = {"added": [], "updated": [], "unchanged": []}
    for one, content in sorted(last.items()):
        if one not in rows:
            found["added"].append(one)
        else:
            same = (
                one in told or rows[one]["content_hash"] == content.content_hash
            )  # a model may have written queries since
            found["unchanged" if same else "updated"].append(one)
    return found
