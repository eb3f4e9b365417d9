"""What new documents are compared with: a sample of what the retriever was trained for, as a sealed folder of arrays.

The sample should be of documents whose own queries the encoder was not trained on (those with dev or test queries):
training moves documents, and a classifier can tell a moved document from one that merely resembles it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from model_code.drift.fit import place, twin
from model_code.drift.questions import Questions
from model_code.drift.settings import DriftSettings
from model_code.files import replacing
from model_code.manifest import read_manifest, seal, verify

if TYPE_CHECKING:
    from model_code.hierarchy.tree import Hierarchy

FORMAT, KIND = 4, "drift_reference"
TENSORS, QUESTIONS = "drift_reference.safetensors", "questions.json"


def _empty() -> np.ndarray:
    return np.zeros(0, np.float32)


@dataclass(frozen=True, eq=False)
class DriftReference:
    """n documents, and optionally q vectors of training queries, and queries for old documents to search anew.

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
    queries: np.ndarray = field(default_factory=_empty)  # (q, H) float32
    questions: Questions = Questions()
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
        queries: np.ndarray | None = None,
        questions: Questions | None = None,
        note: str = "",
    ) -> DriftReference:
        """Keep `settings.reference_documents` of the passages that `hierarchy` was built from, `vectors` (N, H), and at
        most half of them: the others make the twin of the hierarchy that documents are placed in.

        rows: those that may be kept, one per document, by date if batches are drawn in order; None: all. In order the
        last ones are kept, else any. trained: number of documents; None: N. queries to note: see the class.
        However few are kept: what they are too few for is not measured, and reports say so.
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
            _empty() if queries is None else _sample(np.asarray(queries, np.float32), settings),
            questions or Questions(),
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
        self.questions.save(folder / QUESTIONS)
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "trained": self.trained, "note": self.note}
        seal(folder, FORMAT, facts | {"documents": len(self.vectors), "topics": self.topic_count})

    @classmethod
    def load(cls, folder: Path) -> DriftReference:
        """Read what `save` wrote; FreshetError if a file is not what the manifest says."""
        from safetensors.numpy import load_file

        manifest = read_manifest(folder, FORMAT)
        verify(folder, manifest)
        facts = {name: manifest[name] for name in ("trained", "fingerprint", "note")}
        return cls(**load_file(folder / TENSORS), **facts, questions=Questions.load(folder / QUESTIONS))

    def _arrays(self) -> dict[str, np.ndarray]:
        names = ("vectors", "topics", "cosines", "centroids", "nodes", "queries")
        return {name: np.ascontiguousarray(getattr(self, name)) for name in names}


def topic_level(hierarchy: Hierarchy, batch: int) -> int:
    """The deepest level with two or more documents of a batch per node on average, or 1 if there is none: finer ones
    leave most nodes of a batch empty.
    """
    fitting = [t for t in range(1, hierarchy.depth + 1) if 2 * len(hierarchy.parents[t - 1]) <= batch]
    return max(fitting, default=1)


def _kept(eligible: np.ndarray, most: int, settings: DriftSettings) -> np.ndarray:
    if settings.batches == "in_order":
        return eligible[max(0, len(eligible) - most) :]
    chance = np.random.default_rng([settings.seed, len(eligible)])
    return eligible[np.sort(chance.permutation(len(eligible))[:most])]


def _sample(queries: np.ndarray, settings: DriftSettings) -> np.ndarray:
    chance = np.random.default_rng([settings.seed, len(queries), 1])
    return queries[np.sort(chance.permutation(len(queries))[: settings.reference_documents])]
