"""What an addition came to, and what may look at it before anyone searches it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from model_code.live.generation import Generation
from model_code.live.net_changes import NetChanges
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
