"""Results that drift checks of one build keep: encodings of queries, and scores of documents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model_code.files import read_json, write_json
from model_code.retrieval.cached_queries import QueryCache

RANKS = "ranks.json"
QUERIES = "queries"


@dataclass
class CheckCache:
    """Results of earlier drift checks of a build.

    Attributes:
        folder: Folder of the cache, which may be deleted at any time. None: nothing is kept.
        queries: Encodings of queries.
        tuned: Number of the generation that has the weights of a retune, or None.
        former_ranks: Rank at which the base segment finds the former version of a changed document
            by its pseudo-query, by document id. 0 means not found.
        changed_scores: Three numbers by the id of the event that changed a document. They are the
            score of the former version, the score of the changed one when a check first measured
            it, and the loss that growth explained then.
    """

    folder: Path | None = None
    queries: QueryCache = field(default_factory=QueryCache)
    tuned: int | None = None
    former_ranks: dict[str, int] = field(default_factory=dict)
    changed_scores: dict[str, Sequence[float]] = field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path, tuned: int | None) -> CheckCache:
        """Read the cache of a build.

        Args:
            folder: Folder of the cache, which may be missing.
            tuned: Number of the generation in which a retune changed the weights of the fusion.
                None without a retune. Scores that other weights gave are not used.
        """
        cache = cls(folder, QueryCache(folder / QUERIES), tuned)
        if (folder / RANKS).is_file():
            ranks = read_json(folder / RANKS)
            if ranks["tuned"] != tuned:
                return cache
            cache.former_ranks = ranks["former"]
            cache.changed_scores = ranks["changed"]
        return cache

    def save(self) -> None:
        """Write what is new."""
        if self.folder is None:
            return
        self.queries.save()
        ranks = {
            "tuned": self.tuned,
            "former": self.former_ranks,
            "changed": self.changed_scores,
        }
        write_json(self.folder / RANKS, ranks, lines=False)
