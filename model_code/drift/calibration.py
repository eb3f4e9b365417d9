"""Null distributions of one reference, drawn once per measure and batch size and kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from model_code.drift.classifier import null_auc
from model_code.drift.draws import draw_batches
from model_code.drift.fit import null_mean_difference
from model_code.drift.kernel import mean_kernel, median_bandwidth, mmd, null_mmd
from model_code.drift.quality import OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.drift.topics import null_divergence
from model_code.files import canonical_json, hash_text, read_json, write_json

SCORES = ("new_quality", "asked_quality")  # drawn anew for each report, as its scores are
ORDERED = ("domain_auc", "mmd", "topics", "fit")  # the measures whose batches may be drawn in the order of documents


class Calibration:
    """The null distributions of `reference` under `settings`, in `folder` if one is given, which may be deleted.

    scores: of old documents, as of the report that they are for.
    """

    def __init__(
        self,
        reference: DriftReference,
        settings: DriftSettings,
        folder: Path | None = None,
        scores: OldScores | None = None,
    ) -> None:
        self.reference, self.settings, self.folder, self.scores = reference, settings, folder, scores or OldScores()
        self._drawn: dict[tuple[str, int], np.ndarray] = {}
        self._nulls: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
            "domain_auc": lambda members: self._auc(reference.vectors, members),
            "mmd": lambda members: null_mmd(reference.vectors, members, self._kernel_of_documents[1]),
            "topics": self._topics,
            "fit": lambda members: null_mean_difference(reference.cosines, members),
            "new_quality": lambda members: null_mean_difference(self.scores.made, members),
            "asked_quality": lambda members: null_mean_difference(self.scores.asked, members),
            "query_auc": lambda members: self._auc(reference.queries, members),
            "query_mmd": lambda members: null_mmd(reference.queries, members, self._kernel_of_queries[1]),
        }

    def mmd(self, vectors: np.ndarray, of_queries: bool = False) -> float:
        """MMD^2 of new vectors (m, H) from the reference's documents, or from its queries."""
        old, bandwidth, within = self._kernel_of_queries if of_queries else self._kernel_of_documents
        return mmd(old, vectors, bandwidth, within)

    @cached_property
    def _kernel_of_documents(self) -> tuple[np.ndarray, float, float]:
        return _kernel(self.reference.vectors)

    @cached_property
    def _kernel_of_queries(self) -> tuple[np.ndarray, float, float]:
        return _kernel(self.reference.queries)

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that decides the kept null distributions beside measure and size."""
        chosen = self.settings
        digest = hashlib.sha256()
        for name in ("vectors", "topics", "cosines", "nodes", "queries"):
            array = np.ascontiguousarray(getattr(self.reference, name))
            digest.update(f"{name} {array.dtype} {array.shape}\0".encode() + array.tobytes())
        names = ("draws", "seed", "batches", "classifier_contrast", "topic_divergence")
        return hash_text(digest.hexdigest() + canonical_json({name: getattr(chosen, name) for name in names}))

    def null(self, measure: str, size: int) -> np.ndarray:
        """What `measure` gives for batches of `size` like the reference: (B,)."""
        if (measure, size) not in self._drawn:
            self._drawn[measure, size] = self._read(measure, size)
        return self._drawn[measure, size]

    def _read(self, measure: str, size: int) -> np.ndarray:
        path = self.folder / f"{measure}-{size}.json" if self.folder and measure not in SCORES else None
        if path and path.is_file():
            kept = read_json(path)
            if kept["key"] == self.key:
                return np.array(kept["null"])
        null = self._nulls[measure](self.members(measure, size))
        if path:
            write_json(path, {"key": self.key, "null": null.tolist()})
        return null

    def members(self, measure: str, size: int) -> np.ndarray:
        """The batches that the null of `measure` is drawn from: (B, n) bool. Only vectors have an order."""
        chosen = self.settings
        batches = chosen.batches if measure in ORDERED else "random"
        return draw_batches(len(self._population(measure)), size, chosen.draws, chosen.seed, batches)

    def _population(self, measure: str) -> np.ndarray:
        """What of the reference is compared: one row per document, or per query."""
        reference = self.reference
        scores = {"new_quality": self.scores.made, "asked_quality": self.scores.asked}
        queries = {"query_auc": reference.queries, "query_mmd": reference.queries}
        return (scores | queries).get(measure, reference.vectors)

    def _auc(self, vectors: np.ndarray, members: np.ndarray) -> np.ndarray:
        return null_auc(vectors, members, self.settings.classifier_contrast, self.settings.seed)

    def _topics(self, members: np.ndarray) -> np.ndarray:
        reference, divergence = self.reference, self.settings.topic_divergence
        return null_divergence(reference.topics, reference.topic_count, members, divergence)


def _kernel(vectors: np.ndarray) -> tuple[np.ndarray, float, float]:
    """The vectors, the bandwidth for them, and the kernel's mean over their pairs."""
    bandwidth = median_bandwidth(vectors)
    return vectors, bandwidth, mean_kernel(vectors, bandwidth)
