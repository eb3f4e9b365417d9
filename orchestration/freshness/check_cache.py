"""Results that the drift checks of one build keep for later checks.

They are the encodings of queries, and the scores of documents that were searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model_code.files import read_json, write_json
from model_code.retrieval.query_cache import QueryCache

RANKS = "paired_ranks.json"
QUERIES = "queries"


@dataclass
class CheckCache:
    """Results of earlier drift checks of a build.

    Attributes:
        folder: Folder of the cache, which may be deleted at any time. None: nothing is kept.
        queries: Vectors of the queries that earlier checks encoded.
        tuned: Number of the generation in which a retune changed the weights of the fusion. None
            without a retune. Scores belong to these weights.
        former_ranks: Rank of the former version of each changed document, by document id. The base
            segment, the index of the build, is searched for a query made from that version. 0 means
            not found.
        changed_scores: Three numbers for each changed document, by its content hash and id. They
            are the score of its former version, the score of the changed version at its first
            check, and the loss by growth. The last one is the loss that the growth of the
            collection alone explained then.
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
        """Write the encodings and scores to the folder, if there is one."""
        if self.folder is None:
            return
        self.queries.save()
        ranks = {
            "tuned": self.tuned,
            "former": self.former_ranks,
            "changed": self.changed_scores,
        }
        write_json(self.folder / RANKS, ranks, lines=False)
