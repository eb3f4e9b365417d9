"""The effect of a batch of changes on the documents of a generation."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from model_code.collection.generations.generation import Removed
from model_code.collection.segments.segment import SegmentView
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
        puts: list[Document] = []
        ids: dict[str, list[str]] = {status: [] for status in STATUSES}
        only_solved: list[str] = []
        removed = {view.segment.number: set(view.removed) for view in views}
        for document_id, change in sorted(last_changes.items()):
            owner = _find_owner(views, document_id)
            before = None
            if owner is not None:
                before = owner.segment.content_hashes[document_id]
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
    effective: list[Change] = []
    # Content hash of each document after the changes so far. None if it does not exist.
    current_hashes: dict[str, str | None] = {}
    for change in changes:
        document_id = change.document_id
        if document_id not in current_hashes:
            owner = _find_owner(views, document_id)
            current_hashes[document_id] = None
            if owner is not None:
                current_hashes[document_id] = owner.segment.content_hashes[document_id]
        if current_hashes[document_id] != change.content_hash:
            effective.append(change)
        current_hashes[document_id] = change.content_hash
    return effective


def _find_owner(views: Sequence[SegmentView], document_id: str) -> SegmentView | None:
    """Return the segment that holds a live document, or None.

    The newest segment is asked first, because recent documents change most often.
    """
    for view in reversed(views):
        if document_id in view:
            return view
    return None
