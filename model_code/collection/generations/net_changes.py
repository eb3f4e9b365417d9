"""The effect of a batch of changes on the documents of a generation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from model_code.collection.generations.generation import Removed
from model_code.collection.segments.segment import LoadedSegment, SegmentView
from model_code.retrieval.indexed import find_segment
from model_code.text.documents import STATUSES, Change, Document, status_of


@dataclass
class NetChanges:
    """The net effect of a batch of changes.

    Attributes:
        puts: Documents to write, by ascending id.
        ids: Ids of the changed and unchanged documents by status, such as "added", ascending.
        removed: Removed documents of each segment after the changes. An updated document is removed
            from the segment that has its earlier content.
        solved_again: Ids of the documents with unchanged content that are written only to solve
            their vectors again, ascending. They are not in `ids`.
    """

    puts: list[Document]
    ids: dict[str, list[str]]
    removed: Removed
    solved_again: list[str]

    @classmethod
    def compute(
        cls,
        changes: Iterable[Change],
        views: Sequence[SegmentView],
        rewritten: Collection[str] = (),
        solved_again: Collection[str] = (),
    ) -> NetChanges:
        """Compute the net effect of changes on the segments of a generation.

        Only the last change of each document counts. If it adds equal content, or removes a
        document that does not exist, the document is "unchanged".

        Args:
            changes: Changes in their order.
            views: Segments of the generation.
            rewritten: Ids of documents that count as updated also if their content is unchanged.
                An example are documents that were changed and changed back.
            solved_again: Ids of documents that are written also if their content is unchanged, so
                that their vectors are solved again.
        """
        last_changes = {change.document_id: change for change in changes}
        owners = _find_owners(views, last_changes)
        hashes_before = _content_hashes(owners)
        puts: list[Document] = []
        ids: dict[str, list[str]] = {status: [] for status in STATUSES}
        only_solved: list[str] = []
        removed = {view.segment.number: set(view.removed) for view in views}
        for document_id, change in sorted(last_changes.items()):
            owner = owners.get(document_id)
            before = hashes_before.get(document_id)
            status = status_of(change, before)
            has_equal_content = status == "unchanged" and before is not None
            if has_equal_content and document_id in rewritten:
                ids["updated"].append(document_id)
            elif has_equal_content and document_id in solved_again:
                only_solved.append(document_id)
            else:
                ids[status].append(document_id)
                if status == "unchanged":
                    # An unchanged document is neither written nor removed.
                    continue

            if isinstance(change, Document):
                puts.append(change)
            if owner is not None:
                removed[owner.segment.number].add(document_id)

        frozen = {number: frozenset(documents) for number, documents in removed.items()}
        return cls(puts, ids, frozen, only_solved)


def effective_changes(changes: Iterable[Change], views: Sequence[SegmentView]) -> list[Change]:
    """Return the changes without those that have no effect, such as adding equal content again.

    Unlike `NetChanges`, the result keeps changes that a later change undoes or overwrites. IncDSI,
    which solves vectors so that queries find their documents, needs them. Such a vector depends on
    the documents that exist when it is computed.

    Args:
        changes: Changes in their order.
        views: Segments of the generation that is changed.
    """
    changes = list(changes)
    owners = _find_owners(views, {change.document_id for change in changes})
    # Content hash of each document after the changes so far. It is missing or None if the document
    # does not exist.
    current_hashes: dict[str, str | None] = dict(_content_hashes(owners))
    effective: list[Change] = []
    for change in changes:
        if current_hashes.get(change.document_id) != change.content_hash:
            effective.append(change)
        current_hashes[change.document_id] = change.content_hash
    return effective


def _find_owners(
    views: Sequence[SegmentView], document_ids: Iterable[str]
) -> dict[str, SegmentView]:
    """Return the segment that holds each live document. Other documents are left out."""
    owners: dict[str, SegmentView] = {}
    for document_id in document_ids:
        owner = find_segment(views, document_id)
        if owner is not None:
            owners[document_id] = owner
    return owners


def _content_hashes(owners: Mapping[str, SegmentView]) -> dict[str, str]:
    """Return the content hash of each document.

    Only the records of these documents are read, because a segment may have a million others.

    Args:
        owners: Segment of each document.
    """
    ids_by_segment: dict[int, list[str]] = {}
    segments: dict[int, LoadedSegment] = {}
    for document_id, view in owners.items():
        number = view.segment.number
        segments[number] = view.segment
        ids_by_segment.setdefault(number, []).append(document_id)

    hashes: dict[str, str] = {}
    for number, document_ids in ids_by_segment.items():
        rows = segments[number].document_file.read(document_ids, ("content_hash",))
        for document_id, row in rows.items():
            hashes[document_id] = row["content_hash"]
    return hashes
