"""What changes come to in a collection that holds some of their documents already."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from model_code.documents import Change, Document
from model_code.live.generation import Generation, Removed
from model_code.live.part import PartView
from model_code.live.searcher import Searcher


@dataclass(frozen=True)
class Applied:
    """What became of a call's changes: the ids of documents, ascending, and the status of each by its id.

    generation: the one that is current now. A status is "added", "updated", "deleted" or "unchanged".
    """

    generation: Generation
    added: tuple[str, ...]
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    unchanged: tuple[str, ...]
    statuses: Mapping[str, str]

    @classmethod
    def of(cls, generation: Generation, net: NetChanges) -> Applied:
        """What the net changes came to, of which `generation` was made."""
        kinds = {kind: net.with_status(kind) for kind in ("added", "updated", "deleted", "unchanged")}
        return cls(generation, **kinds, statuses=net.statuses)


Guard = Callable[[Searcher, Applied], None]
"""Told what an addition came to, with a searcher of the generation that is about to become current; raises to refuse"""


def net_effect(changes: Iterable[Change]) -> list[Change]:
    """The last change of each document, by ascending id: so the order of different documents does not matter.

    >>> from model_code.documents import Remove
    >>> [change.document_id for change in net_effect([Document("b", "B", "old"), Remove("a"), Document("b", "B", "")])]
    ['a', 'b']
    """
    last = {change.document_id: change for change in changes}
    return [last[document_id] for document_id in sorted(last)]


@dataclass
class NetChanges:
    """The documents to add, by ascending id, the status of every document that was named, and what each part loses."""

    puts: list[Document] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)
    lost: dict[int, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[Change], views: Sequence[PartView], anew: Collection[str] = ()) -> NetChanges:
        """The effect of `changes`, in their order, on the parts of a generation.

        A put of equal content, and the removal of a document that is not there, leave their document "unchanged".
        anew: documents that are put also with equal content, as they were changed in between.
        """
        net = cls()
        for change in net_effect(changes):
            document_id = change.document_id
            net.statuses[document_id] = net._take(change, _owner(views, document_id), document_id in anew)
        return net

    def _take(self, change: Change, owner: PartView | None, anew: bool) -> str:
        document_id = change.document_id
        if isinstance(change, Document):
            if not anew and owner is not None and owner.part.content_hashes[document_id] == change.content_hash:
                return "unchanged"
            self.puts.append(change)
        elif owner is None:
            return "unchanged"
        if owner is not None:
            self.lost.setdefault(owner.part.number, set()).add(document_id)
        return ("added" if owner is None else "updated") if isinstance(change, Document) else "deleted"

    def with_status(self, status: str) -> tuple[str, ...]:
        """The documents of a status, ascending."""
        return tuple(document for document, own in self.statuses.items() if own == status)

    def removed(self, views: Sequence[PartView]) -> Removed:
        """All that the parts have lost when the changes are made."""
        return {view.part.number: view.removed | self.lost.get(view.part.number, set()) for view in views}


def steps(changes: Iterable[Change], views: Sequence[PartView]) -> list[Change]:
    """Those of `changes` that change a document when all are made one after the other, in their order.

    Unlike the net effect they hold what later ones undo or overwrite: vectors that were found in between depend on it.
    """
    found: list[Change] = []
    contents: dict[str, str | None] = {}
    for change in changes:
        document_id, after = change.document_id, change.content_hash if isinstance(change, Document) else None
        before = contents[document_id] if document_id in contents else _content_hash(views, document_id)
        if before != after:
            found.append(change)
        contents[document_id] = after
    return found


def _owner(views: Sequence[PartView], document_id: str) -> PartView | None:
    """The part that has a document."""
    return next((view for view in reversed(views) if document_id in view), None)


def _content_hash(views: Sequence[PartView], document_id: str) -> str | None:
    owner = _owner(views, document_id)
    return None if owner is None else owner.part.content_hashes[document_id]
