"""What changes come to in a collection that holds some of their documents already."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from model_code.live.changes import Change, Put, net_effect
from model_code.live.part import View
from model_code.live.removed import Removed


@dataclass
class NetChanges:
    """The documents to add, by ascending id, the status of every document that was named, and what each part loses."""

    puts: list[Put] = field(default_factory=list)
    statuses: dict[str, str] = field(default_factory=dict)
    lost: dict[int, set[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, changes: Iterable[Change], views: Sequence[View]) -> NetChanges:
        """The effect of `changes`, in their order, on the parts of a generation.

        A put of equal content, and the removal of a document that is not there, leave their document "unchanged".
        """
        net = cls()
        for change in net_effect(changes):
            owner = next((view for view in reversed(views) if change.document_id in view), None)
            net.statuses[change.document_id] = net._take(change, owner)
        return net

    def _take(self, change: Change, owner: View | None) -> str:
        document_id = change.document_id
        if isinstance(change, Put):
            if owner is not None and owner.part.content_hashes[document_id] == change.content_hash:
                return "unchanged"
            self.puts.append(change)
        elif owner is None:
            return "unchanged"
        if owner is not None:
            self.lost.setdefault(owner.part.number, set()).add(document_id)
        return ("added" if owner is None else "updated") if isinstance(change, Put) else "deleted"

    @property
    def nothing(self) -> bool:
        """Whether no document changes."""
        return not self.puts and not self.lost

    def with_status(self, status: str) -> tuple[str, ...]:
        """The documents of a status, ascending."""
        return tuple(document for document, own in self.statuses.items() if own == status)

    def removed(self, views: Sequence[View]) -> Removed:
        """All that the parts have lost when the changes are made."""
        return {view.part.number: view.removed | self.lost.get(view.part.number, set()) for view in views}
