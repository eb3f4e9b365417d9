"""What new documents are compared with: a sample of what the retriever was trained for, as a sealed folder of arrays.

The sample should be of documents whose own queries the encoder was not trained on (those with dev or test queries):
training moves documents, and a classifier can tell a moved document from one that merely resembles it.

Documents that a clustering was made from lie nearer to its centroids than later ones, in no drift at all: it settled
around them, and leaving each out of its own centroid takes back but four fifths of that (measured on docstrings, 16
documents per node). So reference and new documents are both placed in a twin of the hierarchy, clustered without the
reference.

Of old documents it keeps queries, not scores, to be searched anew for every report: in a larger collection a document
has more rivals, so beside scores from before it grew, documents like the old ones would look harmed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.drift.settings import DriftSettings
from model_code.files import read_json, replacing, write_json
from model_code.manifest import read_manifest, seal, verify

if TYPE_CHECKING:
    from model_code.hierarchy.tree import Hierarchy

FORMAT, KIND = 5, "drift_reference"
TENSORS, QUESTIONS = "drift_reference.safetensors", "questions.json"
CHUNK = 1024  # documents compared with all centroids at once
CLUSTERED, PER_LEAF, ITERATIONS = 20_000, 8, 20  # of a twin: most passages, passages per leaf node, of k-means


@dataclass(frozen=True)
class Question:
    """A query that stands for `document_id`, and all documents that answer it."""

    document_id: str
    text: str
    answers: frozenset[str]


@dataclass(frozen=True)
class ProtectedQuery:
    """A query that additions must not harm, the old documents that answer it, and the rank of the first of them before
    any addition, from 1; 0 if it was not found."""

    text: str
    answers: tuple[str, ...]
    rank: int


@dataclass(frozen=True)
class Questions:
    """For old documents: `made` from them, `asked` by people (judged in the corpus), and `protected` from additions."""

    made: tuple[Question, ...] = ()
    asked: tuple[Question, ...] = ()
    protected: tuple[ProtectedQuery, ...] = ()

    def save(self, path: Path) -> None:
        """Write a JSON file; equal questions give equal bytes."""
        stated = {
            "made": [_stated(question) for question in self.made],
            "asked": [_stated(question) for question in self.asked],
        }
        write_json(path, stated | {"protected": [asdict(query) for query in self.protected]})

    @classmethod
    def load(cls, path: Path) -> Questions:
        """Read what `save` wrote."""
        stated = read_json(path)
        made, asked = (
            tuple(Question(row["document_id"], row["text"], frozenset(row["answers"])) for row in stated[kind])
            for kind in ("made", "asked")
        )
        protected = (ProtectedQuery(row["text"], tuple(row["answers"]), row["rank"]) for row in stated["protected"])
        return cls(made, asked, tuple(protected))


def _stated(question: Question) -> dict[str, Any]:
    return {"document_id": question.document_id, "text": question.text, "answers": sorted(question.answers)}


@dataclass(frozen=True, eq=False)
class DriftReference:
    """n documents, and queries for old documents to search anew.

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
        questions: Questions | None = None,
        note: str = "",
    ) -> DriftReference:
        """Keep `settings.reference_documents` of the passages that `hierarchy` was built from, `vectors` (N, H), and at
        most half of them: the others make the twin of the hierarchy that documents are placed in.

        rows: those that may be kept, one per document; None: all. trained: number of documents; None: N. questions,
        note: see the class.
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
        names = ("vectors", "topics", "cosines", "centroids", "nodes")
        return {name: np.ascontiguousarray(getattr(self, name)) for name in names}


def topic_level(hierarchy: Hierarchy, batch: int) -> int:
    """The deepest level with two or more documents of a batch per node on average, or 1 if there is none: finer ones
    leave most nodes of a batch empty.
    """
    fitting = [t for t in range(1, hierarchy.depth + 1) if 2 * len(hierarchy.parents[t - 1]) <= batch]
    return max(fitting, default=1)


def _kept(eligible: np.ndarray, most: int, settings: DriftSettings) -> np.ndarray:
    chance = np.random.default_rng([settings.seed, len(eligible)])
    return eligible[np.sort(chance.permutation(len(eligible))[:most])]


def place(vectors: np.ndarray, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nearest of unit `centroids` (L, H) to each of (n, H) unit vectors: nodes (n,) and cosines (n,) float64."""
    nodes, cosines = np.empty(len(vectors), np.int64), np.empty(len(vectors))
    for start in range(0, len(vectors), CHUNK):
        part = slice(start, start + CHUNK)
        scores = vectors[part] @ centroids.T
        nodes[part], cosines[part] = scores.argmax(axis=1), scores.max(axis=1)
    return nodes, cosines


def twin(
    vectors: np.ndarray, hierarchy: Hierarchy, rows: np.ndarray, level: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Centroids (L, H) of leaf nodes made without the passages `rows`, and the node (L,) at `level` that each is under.

    vectors: (N, H) of all passages of `hierarchy`, which has as many leaf nodes, unless the twin's would have fewer
    than PER_LEAF passages on average. At most CLUSTERED of the others are clustered.
    """
    from model_code.hierarchy.build import unit_vectors
    from model_code.hierarchy.kmeans import KMeans
    from model_code.hierarchy.settings import HierarchySettings

    others = np.setdiff1d(np.arange(len(vectors)), rows)
    others = np.sort(np.random.default_rng([seed, len(others)]).permutation(others)[:CLUSTERED])
    leaves = min(len(hierarchy.centroids[-1]), max(1, len(others) // PER_LEAF))
    settings = HierarchySettings(max_iterations=ITERATIONS, device="cpu")
    clustering = KMeans(settings, seed).divide(unit_vectors(vectors[others], "cpu"), leaves)
    centroids = clustering.centroids.cpu().numpy()
    return centroids, hierarchy.place(centroids)[:, level - 1]
