"""Null distributions: the values of a drift measure if new documents were like the reference.

The reference is a sample of the documents that the retriever was trained on. A real value compares
the batch of new documents with the reference. A null value compares a batch that is drawn from the
reference with the rest of the reference. Batches are drawn without replacement. A document is
therefore never compared with itself, and is never twice in a batch. Otherwise a classifier could
not tell its two copies apart.
"""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from model_code.drift.measures import (
    MEASURES,
    DriftMeasure,
    OldScores,
    Scope,
    Statistic,
    canonical,
)
from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.files import canonical_json, hash_text, read_json, write_json

# The reference must have at least this many times the documents of a batch. The documents that
# remain after a batch is drawn must still represent the whole reference.
MIN_REFERENCE_RATIO = 3
# Number of the format of stored null distributions. Raise it when the statistic of a measure
# changes.
FORMAT = 4
# Ratio of each allowed batch size to the next smaller one. Batches are cut to one of these few
# sizes, so that most batches find the null distribution for their size already stored.
SIZE_STEP = 1.25


class Calibration:
    """Measures new documents against old ones, and tells which values chance alone would give.

    The null distributions are drawn from the reference, a sample of old documents, when needed.

    Args:
        reference: The documents that new ones are compared with.
        settings: Number of draws, sizes of batches, and random seed.
        folder: Folder that caches null distributions. It may be deleted. None: no cache.
        scores: Scores of old documents, measured in the live collection for the present report.
    """

    def __init__(
        self,
        reference: DriftReference,
        settings: DriftSettings,
        folder: Path | None = None,
        scores: OldScores | None = None,
    ) -> None:
        self.reference = reference
        self.settings = settings
        self.folder = folder
        self.scores = scores or OldScores()
        self.null = cache(self._null)

    def old(self, measure: DriftMeasure) -> np.ndarray:
        """Return the values of old documents that a measure compares, one row per document.

        These are the vectors of the reference, or scores that were measured for this report.
        """
        return measure.old(self.reference, self.scores)

    def observe(self, measure: DriftMeasure, values: np.ndarray, scope: Scope) -> Statistic:
        """Measure new documents, and return the value with its null distribution.

        Args:
            measure: The measure.
            values: Values of the new documents, (m, ...). They are sampled if there are more than
                a batch that the reference can be compared with.
            scope: Whether the values come from the newest batch alone or from the window of the
                last batches.
        """
        settings = self.settings
        old = self.old(measure)
        size = max_batch_size(len(old), settings.largest_batch)
        if not measure.of_scores:
            # Null distributions of vectors are stored by the size of the batch, so few sizes are
            # used. Those of scores are drawn again for each report.
            size = rounded_size(min(size, len(values)), settings.minimum_batch)
        # Scores have the shape (m,), and `sample_rows` needs rows: here, rows of one number.
        new = sample_rows(values.reshape(len(values), -1), size, settings.seed)
        if measure.of_scores:
            new = new[:, 0]

        null = self.null(measure.name, len(new))
        detail = measure.detail(old, new)
        if measure.margin:
            # A loss within the margin counts as no harm, even if it is statistically certain. The
            # null distribution is shifted by the margin, so that only a larger loss exceeds it.
            null = null - settings.quality_margin
            detail["margin"] = settings.quality_margin
        if not measure.of_scores:
            # Each batch of the null distribution was compared with so many documents. The new
            # documents must be compared with as many.
            contrast = min(len(old) - len(new), settings.classifier_contrast)
            old = contrast_rows(old, contrast, settings.seed)
        value = measure.statistic(old, new, settings.seed)
        return Statistic(measure.name, value, null, measure.tail, scope, detail)

    def _null(self, name: str, size: int) -> np.ndarray:
        """Return the values that a measure has without drift, (B,), drawn or from the cache.

        Each value compares a random batch of the reference with its other documents.

        Args:
            name: Name of the measure.
            size: Number of documents in a batch.
        """
        measure = MEASURES[name]
        # Scores depend on the whole live collection, so their null distributions are not stored.
        if self.folder is None or measure.of_scores:
            return self._draw(measure, size)

        path = self.folder / f"{measure.name}-{size}.json"
        if path.is_file():
            stored = read_json(path)
            if stored["key"] == self.key:
                return np.array(stored["null"])
        null = self._draw(measure, size)
        write_json(path, {"key": self.key, "null": null.tolist()})
        return null

    def _draw(self, measure: DriftMeasure, size: int) -> np.ndarray:
        """Draw a null distribution, (B,).

        Each value compares a random batch of old documents with the other old documents.

        Args:
            measure: The measure.
            size: Number of documents in a batch.
        """
        settings = self.settings
        values = self.old(measure)
        batches = draw_batches(len(values), size, settings.draws, settings.seed)

        null = []
        for number, is_in_batch in enumerate(batches):
            others = values[~is_in_batch]
            if not measure.of_scores:
                seed = (settings.seed, number)
                others = contrast_rows(others, settings.classifier_contrast, seed)
            null.append(measure.statistic(others, values[is_in_batch], settings.seed))
        return np.array(null)

    @cached_property
    def key(self) -> str:
        """SHA-256 of the reference, the settings and the format that null distributions depend on.

        The measure and the size of the batch are in the name of the cached file.
        """
        vectors = np.ascontiguousarray(self.reference.vectors)
        digest = hashlib.sha256()
        digest.update(f"{vectors.dtype} {vectors.shape}\0".encode())
        digest.update(vectors.tobytes())

        names = ("draws", "seed", "classifier_contrast")
        facts = {name: getattr(self.settings, name) for name in names}
        facts["format"] = FORMAT
        return hash_text(digest.hexdigest() + canonical_json(facts))


def draw_batches(documents: int, size: int, draws: int, seed: int) -> np.ndarray:
    """Draw random batches from a reference. Equal arguments give equal batches.

    Args:
        documents: Number of documents of the reference.
        size: Number of documents in a batch.
        draws: Number of batches.
        seed: Random seed.

    Returns:
        One row per batch, (draws, documents) bool. The `size` documents of the batch are true.
    """
    generator = np.random.default_rng([seed, documents, size])
    is_drawn = np.zeros((draws, documents), bool)
    for row in is_drawn:
        row[generator.choice(documents, size, replace=False)] = True
    return is_drawn


def max_batch_size(documents: int, largest: int) -> int:
    """Return the largest size of a batch that can be compared with a reference.

    Args:
        documents: Number of documents of the reference.
        largest: Largest size that the settings allow for a batch.
    """
    return min(largest, documents // MIN_REFERENCE_RATIO)


def rounded_size(documents: int, smallest: int) -> int:
    """Round the size of a batch down to one of a few allowed sizes.

    Each distinct size needs a null distribution of its own, so few sizes are used.

    Args:
        documents: Number of documents of the batch.
        smallest: The smallest allowed size. A smaller batch keeps its size.

    >>> [rounded_size(documents, 100) for documents in (60, 100, 124, 233)]
    [60, 100, 100, 195]
    """
    size = float(smallest)
    if documents < size:
        return documents
    while int(size * SIZE_STEP) <= documents:
        size *= SIZE_STEP
    return int(size)


def sample_rows(vectors: np.ndarray, size: int, seed: int) -> np.ndarray:
    """Sample at most `size` rows of `vectors` (n, H).

    The sample does not depend on the order of the rows.
    """
    ordered = vectors[canonical(vectors)]
    if len(ordered) <= size:
        return ordered
    generator = np.random.default_rng([seed, len(vectors), size])
    rows = generator.choice(len(vectors), size, replace=False)
    return ordered[np.sort(rows)]


def contrast_rows(reference: np.ndarray, contrast: int, seed: int | tuple[int, ...]) -> np.ndarray:
    """Sample at most `contrast` rows of the reference (n, H) without replacement."""
    if len(reference) <= contrast:
        return reference
    rows = np.random.default_rng(seed).choice(len(reference), contrast, replace=False)
    return reference[rows]
