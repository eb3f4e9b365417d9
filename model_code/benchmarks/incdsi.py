"""Adding documents: our exact solver against IncDSI's optimiser as published, on the same inputs in the same run.

Ours takes in everything: the best rival, the proof, and storing the vector. Objectives are evaluated in float64 over
all documents, for both alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model_code.benchmarks.measuring import row
from model_code.benchmarks.published_incdsi import Case, published_loop
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import Added, NewDocument
from model_code.incdsi.problem import Problem
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

MARGINS = {"small margins": 0.1, "large margins": 0.25}  # that rarely, and that often, touch old documents' queries
LARGE = 100_000
GOALS = {False: (7.0, 10.0), True: (15.0, 50.0)}  # one by one and in batches: below LARGE, and from there on
READING = 1.7
ROUNDS = 3  # of the batch, of which the median counts


def rows(
    sizes: Sequence[int] = (10_000, LARGE), dimension: int = 384, added: int = 32, published: int = 6
) -> list[dict[str, Any]]:
    """All rows for collections of `sizes` documents: `added` documents by ours, the first `published` by both."""
    found = []
    for documents in sizes:
        vectors, queries = collection(documents + added, dimension)
        ids = [f"{i:09d}" for i in range(documents)]
        state = IncDsiState(vectors[:documents], queries[:documents].mean(axis=1), ids)
        new = [NewDocument(f"new {i}", queries[documents + i]) for i in range(added)]
        for name, margin in MARGINS.items():
            settings = IncDsiSettings(gamma1=margin, gamma2=margin, margins_in="scores", batch_size=added)
            found += _compare(f"{documents:,} x {dimension}, {name}", state, new, settings, published)
    return found


def _compare(
    size: str, state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, published: int
) -> list[dict[str, Any]]:
    alone = _one_by_one(state, new, settings, published)
    batched, many = _batched(state, new, settings)
    one, peer, reading = (1 / float(np.median(seconds)) for seconds in (alone.ours, alone.published, alone.reading))
    proven = np.mean([added.solution.certificate.proven for added in alone.added])
    same = np.mean([np.array_equal(a.vector, b.vector) for a, b in zip(alone.added, batched, strict=True)])
    single_goal, batch_goal = GOALS[len(state) >= LARGE]
    return [
        row(f"{size}: documents/s one by one, against L-BFGS as published", one, peer, goal=single_goal),
        row(f"{size}: documents/s in batches of {len(new)}, the same", many, peer, goal=batch_goal),
        row(f"{size}: documents/s one by one, against reading V and Z once", one, reading, 1 / READING),
        row(f"{size}: objective of L-BFGS over ours, median", float(np.median(alone.ratios)), 1.0, goal=1.0),
        row(f"{size}: objective of L-BFGS over ours, least", min(alone.ratios), 1.0, goal=1 - 1e-9),
        row(f"{size}: share of vectors proven optimal", float(proven), 1.0, goal=1.0),
        row(f"{size}: share of vectors equal in a batch and one by one", float(same), 1.0, goal=1.0),
    ]


@dataclass(frozen=True)
class Alone:
    """What was added one by one; seconds of each by ours, by the published loop, and of reading V and Z once.

    ratios: the published loop's objectives over ours.
    """

    added: list[Added] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    published: list[float] = field(default_factory=list)
    reading: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)


def _one_by_one(state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, published: int) -> Alone:
    """All take turns, so that a busy minute hits all alike."""
    adder, found = IncDsiAdder(state.copy(), settings), Alone()
    for number, document in enumerate(new):
        count = len(adder.state)
        start = time.perf_counter()
        added = adder.add(document)
        found.ours.append(time.perf_counter() - start)
        found.added.append(added)
        vectors, queries = (rows.view[:count] for rows in (adder.state.vectors, adder.state.queries))
        start = time.perf_counter()
        best = (vectors @ added.query).max()
        queries @ added.query
        found.reading.append(time.perf_counter() - start)
        if number < published:
            case = Case(added.query.astype(np.float64), float(best), vectors, queries)
            vector, seconds = published_loop(case, settings, seed=number)
            found.published.append(seconds)
            found.ratios.append(_objective(case, settings, vector) / _objective(case, settings, added.solution.vector))
    return found


def _objective(case: Case, settings: IncDsiSettings, vector: np.ndarray) -> float:
    scores = np.einsum("ij,ij->i", case.vectors, case.queries, dtype=np.float64)
    best = float(np.einsum("ij,j->i", case.vectors, case.query, dtype=np.float64).max())
    return Problem.of(case.query, best, case.queries, scores, np.zeros(len(vector)), settings).value(vector)


def _batched(state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings) -> tuple[list[Added], float]:
    """What one batch added, and documents per second, the median of some rounds."""
    seconds = []
    for _ in range(ROUNDS):
        adder = IncDsiAdder(state.copy(), settings)
        start = time.perf_counter()
        added = adder.add_batch(new)
        seconds.append(time.perf_counter() - start)
    return added, len(new) / float(np.median(seconds))


def collection(documents: int, dimension: int, queries: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (n, H) with a falling spectrum, in clusters of about 40 with near-duplicates, and their queries.

    queries: (n, queries, H), of length 0.8: most are closest to their own document, as a trained encoder has it.
    """
    chance = np.random.default_rng(0)
    spectrum = np.arange(1, dimension + 1, dtype=np.float32) ** -0.5

    def noise(*shape: int) -> np.ndarray:
        return _unit(chance.standard_normal((*shape, dimension), np.float32) * spectrum)

    clusters, pages = noise(documents // 40 + 1), documents // 3 + 1
    centres = _unit(clusters[chance.integers(len(clusters), size=pages)] + np.float32(0.9) * noise(pages))
    vectors = _unit(centres[chance.integers(pages, size=documents)] + np.float32(0.3) * noise(documents))
    return vectors, np.float32(0.8) * _unit(vectors[:, None] + np.float32(0.8) * noise(documents, queries))


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
