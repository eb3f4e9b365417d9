"""What new documents are compared with: a sample of what the retriever was trained for, as a sealed folder of arrays.

The sample should be of documents whose own queries the encoder was not trained on (those with dev or test queries):
training moves documents, and a classifier can tell a moved document from one that merely resembles it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model_code.drift.draws import most_measured
from model_code.drift.fit import place, twin
from model_code.drift.quality import ProtectedQuery
from model_code.drift.settings import DriftSettings
from model_code.errors import FreshetError
from model_code.files import read_json, replacing, write_json
from model_code.index.manifest import read_manifest, seal, verify

if TYPE_CHECKING:
    from model_code.hierarchy.tree import Hierarchy

FORMAT, KIND = 3, "drift_reference"
TENSORS, PROTECTED = "drift_reference.safetensors", "protected_queries.json"


def _empty() -> np.ndarray:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class DriftReference:
    """n documents, and optionally scores of p and a old documents, q vectors of training queries, protected queries.

    topics, cosines: of each document, in a twin of the hierarchy that was clustered without it. nodes: the node of
    the hierarchy that each leaf node of the twin counts under. trained: documents that the retriever was trained on.
    fingerprint: of the encoder. note: what a reader of reports should know of the documents.
    """

    vectors: np.ndarray  # (n, H) float32, unit norm
    topics: np.ndarray  # (n,) int32
    cosines: np.ndarray  # (n,) float32
    centroids: np.ndarray  # (L, H) float32, of the twin's leaf nodes
    nodes: np.ndarray  # (L,) int32
    trained: int
    fingerprint: str
    quality: np.ndarray = field(default_factory=_empty)  # (p,) float32, mean score of a document's pseudo-queries
    asked: np.ndarray = field(default_factory=_empty)  # (a,) float32, the same of its judged queries
    queries: np.ndarray = field(default_factory=_empty)  # (q, H) float32
    protected: tuple[ProtectedQuery, ...] = ()
    note: str = ""

    @classmethod
    def build(
        cls,
        vectors: np.ndarray,
        hierarchy: Hierarchy,
        fingerprint: str,
        settings: DriftSettings,
        rows: np.ndarray | None = None,
        trained: int | None = None,
        quality: np.ndarray | None = None,
        asked: np.ndarray | None = None,
        queries: np.ndarray | None = None,
        protected: Sequence[ProtectedQuery] = (),
        note: str = "",
    ) -> DriftReference:
        """Keep `settings.reference_documents` of the passages that `hierarchy` was built from, `vectors` (N, H), and at
        most half of them: the others make the twin of the hierarchy that documents are placed in.

        rows: those that may be kept, one per document, by date if batches are drawn in order; None: all. In order the
        last ones are kept, else any. trained: number of documents; None: N. quality to note: see the class.
        """
        eligible = np.arange(len(vectors)) if rows is None else np.asarray(rows)
        kept = _kept(eligible, min(settings.reference_documents, len(vectors) // 2), settings)
        level = topic_level(hierarchy, settings.minimum_batch)
        centroids, nodes = twin(vectors, hierarchy, kept, level, settings.seed)
        leaves, cosines = place(vectors[kept], centroids)
        return cls(
            np.ascontiguousarray(vectors[kept], np.float32),
            nodes[leaves],
            cosines.astype(np.float32),
            centroids,
            nodes,
            len(vectors) if trained is None else trained,
            fingerprint,
            _empty() if quality is None else np.asarray(quality, np.float32),
            _empty() if asked is None else np.asarray(asked, np.float32),
            _empty() if queries is None else _sample(np.asarray(queries, np.float32), settings),
            tuple(protected),
            note,
        )

    @property
    def topic_count(self) -> int:
        """Number of nodes that topics are counted over."""
        return int(self.nodes.max()) + 1

    def place(self, vectors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Topics (m,) and cosines (m,) of new documents (m, H)."""
        leaves, cosines = place(vectors, self.centroids)
        return self.nodes[leaves], cosines

    def save(self, folder: Path) -> None:
        """Write and seal the folder; equal references give equal bytes."""
        from safetensors.numpy import save_file

        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / TENSORS) as aside:
            save_file(self._arrays(), aside)
        write_json(folder / PROTECTED, [asdict(one) for one in self.protected])
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "trained": self.trained, "note": self.note}
        seal(folder, FORMAT, facts | {"documents": len(self.vectors), "topics": self.topic_count})

    @classmethod
    def load(cls, folder: Path) -> DriftReference:
        """Read what `save` wrote; FreshetError if a file is not what the manifest says."""
        from safetensors.numpy import load_file

        manifest = read_manifest(folder, FORMAT)
        verify(folder, manifest)
        facts = {name: manifest[name] for name in ("trained", "fingerprint", "note")}
        stated = read_json(folder / PROTECTED)
        protected = (ProtectedQuery(one["text"], tuple(one["answers"]), one["rank"]) for one in stated)
        return cls(**load_file(folder / TENSORS), **facts, protected=tuple(protected))

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("vectors", "topics", "cosines", "centroids", "nodes", "quality", "asked", "queries")
        return {name: np.ascontiguousarray(getattr(self, name)) for name in names}


def topic_level(hierarchy: Hierarchy, batch: int) -> int:
    """The deepest level with two or more documents of a batch per node on average, or 1 if there is none: finer ones
    leave most nodes of a batch empty.
    """
    fitting = [t for t in range(1, hierarchy.depth + 1) if 2 * len(hierarchy.parents[t - 1]) <= batch]
    return max(fitting, default=1)


def _kept(eligible: np.ndarray, most: int, settings: DriftSettings) -> np.ndarray:
    found = min(len(eligible), most)
    if most_measured(found, settings.largest_batch) < settings.minimum_batch:
        raise FreshetError(
            f"{found} documents are too few for a drift reference: batches of drift.minimum_batch = "
            f"{settings.minimum_batch} are drawn from it, so it must have 3 times as many, and the corpus 6 times; "
            "lower minimum_batch"
        )
    if settings.batches == "in_order":
        return eligible[-most:]
    chance = np.random.default_rng([settings.seed, len(eligible)])
    return eligible[np.sort(chance.permutation(len(eligible))[:most])]


def _sample(queries: np.ndarray, settings: DriftSettings) -> np.ndarray:
    chance = np.random.default_rng([settings.seed, len(queries), 1])
    return queries[np.sort(chance.permutation(len(queries))[: settings.reference_documents])]
