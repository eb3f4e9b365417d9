"""Decide which documents a sync adds, updates and deletes.

The functions of this module only compute. They read no files and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from model_code.collection.sync.source_contents import SourceContents

# Largest share of a source's documents that a sync deletes without `force`. More missing documents
# are probably an error, such as a disk that is not mounted.
MAX_VANISHED_SHARE = 0.2

# Number of documents that a sync may delete without `force`, however small the source is.
MIN_VANISHED_DOCUMENTS = 3


@dataclass(frozen=True)
class SyncPlan:
    """The changes that a sync makes. All lists of ids are ascending.

    Attributes:
        added: Ids of the documents that are in the source and not in the index.
        updated: Ids of the documents that have another content in the index.
        deleted: Ids of the documents that came from the source and are not in it any more.
        unchanged: Number of documents that have the same content in source and index.
        kept: Number of documents that are missing in the source but are not deleted. The reason is
            a refused row without a readable id, which may belong to any of them.
        from_other_sources: Number of documents in the index that came from elsewhere.
        from_this_source: Number of documents in the index that came from this source.
    """

    added: list[str]
    updated: list[str]
    deleted: list[str]
    unchanged: int
    kept: int
    from_other_sources: int
    from_this_source: int

    @property
    def to_put(self) -> list[str]:
        """Ids of the documents to add or update."""
        return [*self.added, *self.updated]


def plan_sync(
    contents: SourceContents,
    index_hashes: Mapping[str, str],
    origins: Mapping[str, str],
    label: str,
    force: bool,
) -> SyncPlan:
    """Compare a source with the index.

    Only documents that came from the source can be deleted. A document came from the source if the
    ledger says so. It also did if the last sync read it from the source with its present content.

    If the row of a document is refused, the document does not change. If a refused row has no
    readable id, it may belong to any document that is missing in the source. Then no document is
    deleted, unless `force` is set.

    Args:
        contents: Documents of the source.
        index_hashes: Content hash of each document that is searchable or waiting, by document id.
        origins: Origin of each document, by document id.
        label: Origin of the documents of this source.
        force: Whether to delete documents even if a refused row has no readable id.
    """
    own_ids: set[str] = set()
    for document_id, content_hash in index_hashes.items():
        is_recorded = origins.get(document_id) == label
        was_read = contents.earlier_hashes.get(document_id) == content_hash
        if is_recorded or was_read:
            own_ids.add(document_id)

    added: list[str] = []
    updated: list[str] = []
    for document_id, content_hash in sorted(contents.hashes.items()):
        if document_id not in index_hashes:
            added.append(document_id)
        elif index_hashes[document_id] != content_hash:
            updated.append(document_id)

    refused_ids = {row["document_id"] for row in contents.refused}
    has_row_without_id = None in refused_ids
    vanished = sorted(own_ids - contents.hashes.keys() - refused_ids)
    kept = 0
    if has_row_without_id and not force:
        kept = len(vanished)
        vanished = []

    return SyncPlan(
        added,
        updated,
        vanished,
        unchanged=len(contents.hashes) - len(added) - len(updated),
        kept=kept,
        from_other_sources=len(index_hashes.keys() - own_ids - contents.hashes.keys()),
        from_this_source=len(own_ids),
    )


def deletion_doubt(plan: SyncPlan, contents: SourceContents, label: str) -> str:
    """Return why a sync without `force` refuses its deletions. Empty if they are plausible.

    A sync refuses if it would delete more documents than is allowed, or if the source is empty. The
    reason may be an error, such as a disk that is not mounted. Expired documents do not count.

    Args:
        plan: Changes of the sync.
        contents: Documents of the source.
        label: Origin of the documents of this source: the command that syncs it.
    """
    missing = [name for name in plan.deleted if name not in contents.expired]
    limit = max(MIN_VANISHED_DOCUMENTS, MAX_VANISHED_SHARE * plan.from_this_source)
    is_source_empty = len(contents.hashes) == 0
    is_suspicious = is_source_empty or len(missing) > limit
    if not missing or not is_suspicious:
        return ""
    return (
        f"{len(missing):,} of {plan.from_this_source:,} documents are no longer in the source, "
        f"{missing[0]!r} among them: nothing is changed. If the source is whole, "
        f"`freshet {label} --force` deletes them"
    )


def expected_hashes(
    plan: SyncPlan, contents: SourceContents, index_hashes: Mapping[str, str]
) -> dict[str, str]:
    """Return the content hash that each document in the index has after the sync, by id."""
    hashes = dict(index_hashes)
    for document_id in plan.deleted:
        del hashes[document_id]
    for document_id in plan.to_put:
        hashes[document_id] = contents.hashes[document_id]
    return hashes


def differing_ids(hashes: Mapping[str, str], expected: Mapping[str, str]) -> Set[str]:
    """Return the ids whose content hashes differ, or that only one of the mappings has."""
    differing: set[str] = set()
    for document_id in hashes.keys() | expected.keys():
        if hashes.get(document_id) != expected.get(document_id):
            differing.add(document_id)
    return differing
