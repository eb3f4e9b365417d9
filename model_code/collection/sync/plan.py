"""Decide what a sync changes: a pure function of the source, the index and the origins."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass

from model_code.collection.sync.source_contents import SourceContents
from model_code.errors import FreshetError

# So many of a source's documents may vanish without `force`: this share, and at least this number.
MAX_VANISHED_SHARE = 0.2
MIN_VANISHED_DOCUMENTS = 3


@dataclass(frozen=True)
class SyncPlan:
    """The changes of a sync, all ids in ascending order.

    Attributes:
        added: Documents that the index lacks.
        updated: Documents that the index holds with another content.
        deleted: Documents that the source held and lacks now.
        unchanged: Number of documents that the index holds as the source has them.
        kept: Number of documents that no row names, but that a row without an id may hold.
        from_other_sources: Number of documents in the index that never came from this source.
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
        """The documents to add or update."""
        return [*self.added, *self.updated]


def plan_sync(
    contents: SourceContents,
    index_hashes: Mapping[str, str],
    origins: Mapping[str, str],
    label: str,
    force: bool,
) -> SyncPlan:
    """Compare a source with the index.

    A document belongs to the source if it arrived from there, or if the source held it with the
    content that the index has. Only such documents are deleted. A document whose row is refused
    stays as it is. If a refused row has no readable id, every document that no row names may be
    its document, and all of them stay unless `force` is set.

    Args:
        contents: The documents of the source.
        index_hashes: Content hash of each document that is searchable or waiting.
        origins: Source that each document last arrived from.
        label: Name of this source as an origin.
        force: Delete documents even if a refused row has no readable id.
    """
    own_ids: set[str] = set()
    for document_id, content_hash in index_hashes.items():
        came_from_here = origins.get(document_id) == label
        if came_from_here or contents.earlier_hashes.get(document_id) == content_hash:
            own_ids.add(document_id)

    added: list[str] = []
    updated: list[str] = []
    for document_id, content_hash in sorted(contents.hashes.items()):
        if document_id not in index_hashes:
            added.append(document_id)
        elif index_hashes[document_id] != content_hash:
            updated.append(document_id)

    refused_ids = {row["document_id"] for row in contents.refused}
    vanished = sorted(own_ids - contents.hashes.keys() - refused_ids)
    kept = 0
    if None in refused_ids and not force:
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


def require_plausible_deletions(plan: SyncPlan, contents: SourceContents, label: str) -> None:
    """Check that the source has not lost much, as it does if a disk is missing.

    Args:
        plan: The changes of the sync.
        contents: The documents of the source.
        label: Name of this source as an origin, which is the command that follows it.

    Raises:
        FreshetError: If it lacks more documents than may vanish without `force`, or all of them.
    """
    limit = max(MIN_VANISHED_DOCUMENTS, MAX_VANISHED_SHARE * plan.from_this_source)
    is_plausible = bool(contents.hashes) and len(plan.deleted) <= limit
    if plan.deleted and not is_plausible:
        raise FreshetError(
            f"{len(plan.deleted):,} of {plan.from_this_source:,} documents are no longer in the "
            f"source, {plan.deleted[0]!r} among them: nothing is changed. If the source is whole, "
            f"`freshet {label} --force` deletes them"
        )


def expected_hashes(
    plan: SyncPlan, contents: SourceContents, index_hashes: Mapping[str, str]
) -> dict[str, str]:
    """Return the content hash of each document after the sync."""
    hashes = dict(index_hashes)
    for document_id in plan.deleted:
        del hashes[document_id]
    for document_id in plan.to_put:
        hashes[document_id] = contents.hashes[document_id]
    return hashes


def differing_ids(hashes: Mapping[str, str], expected: Mapping[str, str]) -> Set[str]:
    """Return the ids whose content hashes differ, or that only one of the two has."""
    return {
        document_id
        for document_id in hashes.keys() | expected.keys()
        if hashes.get(document_id) != expected.get(document_id)
    }
