"""Null distributions: what a measure would be if arriving documents were like those of the
reference.

A null value compares a batch that is drawn from the reference with the rest of it, as the real
value compares the real batch with the reference. Batches are drawn without replacement, so no
document is compared with itself and none is in a batch twice, which a classifier would take for
closeness.
"""

from __future__ import annotations

import hashlib
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from model_code.drift.measures import MEASURES, DriftMeasure, OldScores, Scope, Statistic, canonical
from model_code.drift.reference import DriftReference
from model_code.drift.settings import DriftSettings
from model_code.files import canonical_json, hash_text, read_json, write_json

# a batch is at most this part of the reference: the rest must stand for the reference
MIN_REFERENCE_RATIO = 3
FORMAT = 3  # of kept null distributions: another one where a measure's statistic changes


class Calibration:
    """The null distributions of `reference` under `settings`, in `folder` if one is given, which
    may be deleted.

    scores: of old documents, as of the report that they are for.
    """

    def __init__(
        self,
        reference: DriftReference,
        settings: DriftSettings,
        folder: Path | None = None,
        scores: OldScores | None = None,
    ) -> None:
        self.reference, self.settings, self.folder, self.scores = (
            reference,
            settings,
            folder,
            scores or OldScores(),
        )
        self.null = cache(self._null)

    def old(self, measure: DriftMeasure) -> np.ndarray:
        """What of the reference is compared: a row per document."""
        return measure.old(self.reference, self.scores)

    def observe(self, measure: DriftMeasure, values: np.ndarray, scope: Scope) -> Statistic:
        """A measure of what arrived, (m, ...), of which as many are looked at as the reference
        lends batches of.
        """
        old, chosen = self.old(measure), self.settings
        values = sample_rows(
            values.reshape(len(values), -1),
            most_measured(len(old), chosen.largest_batch),
            chosen.seed,
        )
        new = values[:, 0] if measure.of_scores else values
        null, detail = self.null(measure.name, len(new)), measure.detail(old, new)
        if measure.margin:  # a loss that is no harm, however sure it is
            null, detail = null - chosen.quality_margin, detail | {"margin": chosen.quality_margin}
        if not measure.of_scores:  # as many as the null's batches are told from
            old = contrast_rows(
                old, min(len(old) - len(new), chosen.classifier_contrast), chosen.seed
            )
        return Statistic(
            measure.name,
            measure.statistic(old, new, chosen.seed),
            null,
            measure.tail,
            scope,
            detail,
        )

    def _null(self, name: str, size: int) -> np.ndarray:
        """What the measure gives for batches of `size` like the reference: (B,)."""
        measure = MEASURES[name]
        path = (
            self.folder / f"{measure.name}-{size}.json"
            if self.folder and not measure.of_scores
            else None
        )
        if path and path.is_file():
            cache = read_json(path)
            if cache["key"] == self.key:
                return np.array(cache["null"])
        null = self._draw(measure, size)
        if path:
            write_json(path, {"key": self.key, "null": null.tolist()})
        return null

    def _draw(self, measure: DriftMeasure, size: int) -> np.ndarray:
        values, chosen = self.old(measure), self.settings
        null = []
        for number, batch in enumerate(draw_batches(len(values), size, chosen.draws, chosen.seed)):
            others = values[~batch]
            if not measure.of_scores:
                others = contrast_rows(others, chosen.classifier_contrast, (chosen.seed, number))
            null.append(measure.statistic(others, values[batch], chosen.seed))
        return np.array(null)

    @cached_property
    def key(self) -> str:
        """SHA-256 of all that decides the kept null distributions beside measure and size."""
        digest = hashlib.sha256()
        array = np.ascontiguousarray(self.reference.vectors)
        digest.update(f"{array.dtype} {array.shape}\0".encode() + array.tobytes())
        names = ("draws", "seed", "classifier_contrast")
        facts = {name: getattr(self.settings, name) for name in names} | {"format": FORMAT}
        return hash_text(digest.hexdigest() + canonical_json(facts))


def draw_batches(documents: int, size: int, draws: int, seed: int) -> np.ndarray:
    """Which of the reference's documents are in each batch: (draws, documents) bool, `size` true
    per row.

    The same numbers give the same batches.
    """
    chance = np.random.default_rng([seed, documents, size])
    members = np.zeros((draws, documents), bool)
    for row in members:
        row[chance.choice(documents, size, replace=False)] = True
    return members


def most_measured(documents: int, largest: int) -> int:
    """The most documents of a batch that can be compared with a reference of `documents`."""
    return min(largest, documents // MIN_REFERENCE_RATIO)


def sample_rows(vectors: np.ndarray, size: int, seed: int) -> np.ndarray:
    """At most `size` rows of `vectors` (n, H), the same whatever the order of the rows."""
    ordered = vectors[canonical(vectors)]
    if len(ordered) <= size:
        return ordered
    return ordered[
        np.sort(
            np.random.default_rng([seed, len(vectors), size]).choice(
                len(vectors), size, replace=False
            )
        )
    ]


def contrast_rows(reference: np.ndarray, contrast: int, seed: int | tuple[int, ...]) -> np.ndarray:
    """At most `contrast` rows of the reference, drawn without replacement."""
    if len(reference) <= contrast:
        return reference
    return reference[np.random.default_rng(seed).choice(len(reference), contrast, replace=False)]
