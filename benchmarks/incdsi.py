"""Compare our exact IncDSI solver with the published optimiser, on the same inputs.

IncDSI finds the vector of a new document by optimisation. For its own mean query, the document must
score above its best rival, which is the old document with the highest score. For the mean query of
each old document, it must score below that document.

The published loop is implemented from its description with the authors' flags: L-BFGS with strong
Wolfe line search and tolerance 1e-3, up to 30 steps from a random start, in float32. As published,
its time includes the scores of all documents for their own queries, which are computed again for
every addition. Its time excludes the search for the best rival. Our time includes the search for
the best rival, the proof, and storing the vector. The objectives of both are evaluated in float64
over all documents.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.measurement import row
from model_code.incdsi.adder import Added, IncDsiAdder, NewDocument, mean_query
from model_code.incdsi.scanned_rows import row_dots
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.solver import HingeProblem
from model_code.incdsi.state import IncDsiState

# The standard deviation of direction i of the synthetic vectors is i^-decay. These are the two
# values of `decay`: as in real encoders, and without structure.
FALLING = 0.5
FLAT = 0.0
DOCUMENTS_PER_CLUSTER = 40
# Number of near-duplicate documents that share one page.
COPIES_PER_PAGE = 3
QUERIES_PER_DOCUMENT = 3
# Number of documents that are drawn at once, which limits the memory.
BLOCK_SIZE = 50_000
# Largest number of steps of the published loop, and its tolerance.
MAX_STEPS = 30
TOLERANCE = 1e-3
# A margin is the difference in score by which a document must be above or below another one. With
# small margins, the queries of old documents rarely restrict a new one; with large margins, often.
MARGINS = {"small margins": 0.1, "large margins": 0.25}
# Collections with at least this number of documents have the goals `LARGE_GOALS`.
LARGE = 100_000
# Collections (documents, dimension) that are measured, and those that `large` measures.
SIZES = ((10_000, 384), (LARGE, 384))
LARGER_SIZES = ((LARGE, 768), (1_000_000, 384))
# Goals: how many times faster than the published loop, for documents one by one, and in batches.
GOALS = (7.0, 10.0)
LARGE_GOALS = (15.0, 50.0)
# Goal: the time of one addition, in multiples of the time to read all document and query vectors.
MAX_READINGS = 1.7
# Number of runs of the batch, of which the median counts.
BATCH_ROUNDS = 3
# A solution counts as optimal if its objective exceeds the dual bound relatively by at most this.
MAX_PROVEN_GAP = 1e-9
# Smaller objectives are rounding errors. They are not used as divisors.
SMALLEST_OBJECTIVE = 1e-12


@dataclass(frozen=True)
class SyntheticCollection:
    """Synthetic documents and queries, all float32.

    Attributes:
        vectors: V, vectors (n, H) of the old documents.
        queries: Z, mean queries (n, H) of the old documents.
        new: Queries (a, 3, H) of the new documents.
    """

    vectors: np.ndarray
    queries: np.ndarray
    new: np.ndarray


def make_collection(
    documents: int, added: int, dimension: int, decay: float = FALLING
) -> SyntheticCollection:
    """Return synthetic documents and queries.

    Documents are unit vectors in clusters of about 40, with near-duplicates. Queries have length
    0.8 and are near their documents.

    With the decay `FALLING`, direction i has the standard deviation i^-1/2. The first 32, 96 and
    192 of 384 directions then hold .59, .78 and .90 of the energy. For 31,513 pages encoded by
    all-MiniLM-L6-v2, the shares are .48, .75 and .93. With `FLAT`, all directions have the same
    deviation. The directions are rotated at random against the axes, as in an encoder.

    Args:
        documents: Number of old documents.
        added: Number of new documents.
        dimension: Numbers per vector, H.
        decay: The standard deviation of direction i is i^-decay.
    """
    random = np.random.default_rng(0)
    spectrum = np.arange(1, dimension + 1, dtype=np.float32) ** -np.float32(decay)
    sampler = _UnitVectorSampler(random, spectrum)

    # A page lies near a cluster's centre, and the documents of a page are near-duplicates.
    total = documents + added
    clusters = sampler.draw(total // DOCUMENTS_PER_CLUSTER + 1)
    pages = total // COPIES_PER_PAGE + 1
    page_clusters = clusters[random.integers(len(clusters), size=pages)]
    page_centres = _unit(page_clusters + np.float32(0.9) * sampler.draw(pages))

    # The Q of a random matrix's QR decomposition is a random rotation.
    square = random.standard_normal((dimension, dimension))
    rotation = np.linalg.qr(square)[0].astype(np.float32)

    vectors = np.empty((documents, dimension), np.float32)
    mean_queries = np.empty((documents, dimension), np.float32)
    for start in range(0, documents, BLOCK_SIZE):
        stop = min(start + BLOCK_SIZE, documents)
        block_vectors, block_queries = _draw_documents(sampler, page_centres, stop - start)
        vectors[start:stop] = block_vectors @ rotation
        mean_queries[start:stop] = block_queries.mean(axis=1) @ rotation

    _, new_queries = _draw_documents(sampler, page_centres, added)
    return SyntheticCollection(vectors, mean_queries, new_queries @ rotation)


class _UnitVectorSampler:
    """Draws unit vectors. Direction i has a standard deviation proportional to `spectrum[i]`."""

    def __init__(self, random: np.random.Generator, spectrum: np.ndarray) -> None:
        self.random = random
        self.spectrum = spectrum

    def draw(self, *shape: int) -> np.ndarray:
        """Return unit vectors (*shape, H) float32."""
        normal = self.random.standard_normal((*shape, len(self.spectrum)), np.float32)
        return _unit(normal * self.spectrum)


def _draw_documents(
    sampler: _UnitVectorSampler, centres: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw documents around random centres, with `QUERIES_PER_DOCUMENT` queries near each.

    Returns:
        Vectors (count, H), and queries (count, 3, H) of length .8.
    """
    document_centres = centres[sampler.random.integers(len(centres), size=count)]
    vectors = _unit(document_centres + np.float32(0.3) * sampler.draw(count))
    query_noise = np.float32(0.8) * sampler.draw(count, QUERIES_PER_DOCUMENT)
    queries = np.float32(0.8) * _unit(vectors[:, None] + query_noise)
    return vectors, queries


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


@dataclass(frozen=True)
class Case:
    """The addition of one document.

    Attributes:
        query: q, mean query (H) of the new document.
        best_rival: M, score of the best old document for `query`.
        vectors: V, vectors (n, H) of the old documents.
        queries: Z, mean queries (n, H) of the old documents.
    """

    query: np.ndarray
    best_rival: float
    vectors: np.ndarray
    queries: np.ndarray


def published_loop(case: Case, settings: IncDsiSettings, seed: int) -> tuple[np.ndarray, float]:
    """Solve an addition with the published optimiser. Margins are differences of scores.

    It minimises lambda1 relu(M + gamma1 - q v)^2 + (1 - lambda1) sum_i relu(z_i v - z_i v_i +
    gamma2)^2 + lambda2 |v|^2 over v. q is the new document's mean query and M its best rival's
    score. z_i and v_i are the mean query and the vector of old document i.

    Args:
        case: The addition.
        settings: Margins and weights of the objective.
        seed: Seed of the random start.

    Returns:
        The vector (H) in float64, and the seconds.
    """
    import torch

    queries = torch.from_numpy(case.queries)
    documents = torch.from_numpy(case.vectors)
    query = torch.from_numpy(np.float32(case.query))
    min_score = case.best_rival + settings.gamma1

    started = time.perf_counter()
    # Score that the new document may have at most for the query of each old document, (n,).
    max_scores = (queries * documents).sum(dim=1) - settings.gamma2

    # Numbers from -1 to 1, divided by the square root of H.
    generator = torch.Generator().manual_seed(seed)
    uniform = 2 * torch.rand(len(query), generator=generator) - 1
    vector = uniform * len(query) ** -0.5
    vector.requires_grad_()
    optimizer = torch.optim.LBFGS(
        [vector], lr=1, line_search_fn="strong_wolfe", tolerance_change=TOLERANCE
    )

    def compute_loss() -> torch.Tensor:
        """Return the published objective with its gradients, as LBFGS requires."""
        optimizer.zero_grad()
        new_loss = torch.relu(min_score - query @ vector) ** 2
        old_loss = (torch.relu(queries @ vector - max_scores) ** 2).sum()
        objective = (
            settings.lambda1 * new_loss
            + (1 - settings.lambda1) * old_loss
            + settings.lambda2 * (vector @ vector)
        )
        objective.backward()
        return objective

    for _ in range(MAX_STEPS):
        previous = vector.detach().clone()
        objective = optimizer.step(compute_loss).item()
        change = (vector.detach() - previous).norm().item()
        if change < TOLERANCE or objective == 0:
            break
    return vector.detach().double().numpy(), time.perf_counter() - started


def rows(
    large: bool = False,
    sizes: Sequence[tuple[int, int]] | None = None,
    added: int = 128,
    published: int = 6,
) -> list[dict[str, Any]]:
    """Return all rows for collections of `sizes` (documents, dimension).

    Args:
        large: Measure `LARGER_SIZES`, up to a million documents, and leave out vectors without
            structure. This takes minutes and about 12 GB of memory (estimated).
        sizes: Numbers of documents and dimensions of the collections. The last collection is also
            measured with vectors without structure.
        added: Documents that our solver adds.
        published: Documents that both solvers add.
    """
    if sizes is None:
        sizes = LARGER_SIZES if large else SIZES
    results = []
    for documents, dimension in sizes:
        results.extend(_collection_rows(documents, dimension, FALLING, MARGINS, added, published))

    if not large:
        documents, dimension = sizes[-1]
        small_margins = {"small margins": MARGINS["small margins"]}
        results.extend(
            _collection_rows(documents, dimension, FLAT, small_margins, added, published)
        )
    return results


def _collection_rows(
    documents: int,
    dimension: int,
    decay: float,
    margins: dict[str, float],
    added: int,
    published: int,
) -> list[dict[str, Any]]:
    """Return the rows of one synthetic collection, for each size of the margins.

    Args:
        documents: Number of old documents.
        dimension: Numbers per vector.
        decay: `FALLING` or `FLAT`, the structure of the vectors.
        margins: Margins by the name that rows give them.
        added: Documents that our solver adds.
        published: Documents that both solvers add.
    """
    data = make_collection(documents, added, dimension, decay)
    ids = [f"{i:09d}" for i in range(documents)]
    state = IncDsiState(data.vectors, data.queries, ids, score_deviation=1.0)
    new = [NewDocument(f"new {i}", queries) for i, queries in enumerate(data.new)]

    kind = ", no structure" if decay == FLAT else ""
    results = []
    for name, margin in margins.items():
        settings = IncDsiSettings(gamma1=margin, gamma2=margin)
        size = f"{documents:,} x {dimension}{kind}, {name}"
        results.extend(_compare(size, state, new, settings, published))
    return results


def _compare(
    size: str, state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, published: int
) -> list[dict[str, Any]]:
    """Add the new documents one by one and in a batch, and return the rows.

    Args:
        size: Name of the collection and its margins, for the rows' names.
        state: The old documents with their mean queries. It is not changed.
        new: Documents that our solver adds.
        settings: Margins and weights of the objective.
        published: Number of documents that the published loop adds as well. They are the first.
    """
    single = _add_one_by_one(state, new, settings, published)
    batch, batch_rate = _add_batch(state, new, settings)
    goals = LARGE_GOALS if len(state) >= LARGE else GOALS

    results = _speed_rows(size, single, batch_rate, goals)
    results.extend(_quality_rows(size, single, batch))
    return results


def _speed_rows(
    size: str, single: SingleAdditions, batch_rate: float, goals: tuple[float, float]
) -> list[dict[str, Any]]:
    """Return the rows on speed.

    Args:
        size: Name of the collection and its margins, for the rows' names.
        single: Additions one by one.
        batch_rate: Documents per second that our solver adds in a batch of all documents.
        goals: Ratios to the published loop that are required one by one, and in the batch.
    """
    our_rate = 1 / float(np.median(single.our_seconds))
    published_rate = 1 / float(np.median(single.published_seconds))
    reading_rate = 1 / float(np.median(single.reading_seconds))
    single_goal, batch_goal = goals
    return [
        row(
            f"{size}: documents/s one by one, against L-BFGS as published",
            our_rate,
            published_rate,
            goal=single_goal,
        ),
        row(
            f"{size}: documents/s in batches of {len(single.added)}, the same",
            batch_rate,
            published_rate,
            goal=batch_goal,
        ),
        row(
            f"{size}: documents/s one by one, against reading V and Z once",
            our_rate,
            reading_rate,
            goal=1 / MAX_READINGS,
        ),
    ]


def _quality_rows(size: str, single: SingleAdditions, batch: list[Added]) -> list[dict[str, Any]]:
    """Return the rows on the solutions, which do not depend on time.

    Args:
        size: Name of the collection and its margins, for the rows' names.
        single: Additions one by one.
        batch: Results of our solver for the same documents in one batch.
    """
    is_equal = [
        np.array_equal(alone.vector, batched.vector)
        for alone, batched in zip(single.added, batch, strict=True)
    ]
    return [
        row(
            f"{size}: objective of L-BFGS over ours, median",
            float(np.median(single.objective_ratios)),
            1.0,
            goal=1.0,
        ),
        row(
            f"{size}: objective of L-BFGS over ours, least",
            min(single.objective_ratios),
            1.0,
            goal=1 - 1e-9,
        ),
        row(
            f"{size}: share of vectors proven optimal",
            float(np.mean(single.proven)),
            1.0,
            goal=1.0,
        ),
        row(
            f"{size}: share of vectors equal in a batch and one by one",
            float(np.mean(is_equal)),
            1.0,
            goal=1.0,
        ),
    ]


@dataclass(frozen=True)
class SingleAdditions:
    """Documents that were added one by one.

    Attributes:
        added: Results of our solver.
        our_seconds: Time of each of our additions.
        published_seconds: Time of each run of the published loop.
        reading_seconds: Time of reading V and Z once.
        objective_ratios: Objectives of the published loop divided by ours.
        proven: Whether each of our solutions is proven optimal.
    """

    added: list[Added] = field(default_factory=list)
    our_seconds: list[float] = field(default_factory=list)
    published_seconds: list[float] = field(default_factory=list)
    reading_seconds: list[float] = field(default_factory=list)
    objective_ratios: list[float] = field(default_factory=list)
    proven: list[bool] = field(default_factory=list)


def _add_one_by_one(
    state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, published: int
) -> SingleAdditions:
    """Add documents with both solvers in turn, so that other work on the machine slows both.

    The proofs come after all additions, because they read all vectors in float64.

    Args:
        state: The old documents with their mean queries. It is copied.
        new: Documents that our solver adds, each to the old documents and those before it.
        settings: Margins and weights of the objective.
        published: Number of documents that the published loop adds as well. They are the first.
    """
    adder = IncDsiAdder(deepcopy(state), settings)
    additions = SingleAdditions()
    solved_cases = []
    for number, document in enumerate(new):
        old_count = len(adder.state)
        started = time.perf_counter()
        added = adder.add(document)
        additions.our_seconds.append(time.perf_counter() - started)
        additions.added.append(added)

        # The state before the addition, on which the other solver has to work, too.
        vectors = adder.state.vectors.view[:old_count]
        queries = adder.state.queries.view[:old_count]
        query = mean_query(document.queries).astype(np.float32)
        started = time.perf_counter()
        best_rival = (vectors @ query).max()
        # The result is not used. Only the time to read the query vectors is measured.
        queries @ query
        additions.reading_seconds.append(time.perf_counter() - started)

        case = Case(query.astype(np.float64), float(best_rival), vectors, queries)
        solved_cases.append((case, added.solution.vector))
        if number < published:
            vector, seconds = published_loop(case, settings, seed=number)
            additions.published_seconds.append(seconds)
            published_objective = _objective(case, settings, vector)
            our_objective = _objective(case, settings, added.solution.vector)
            additions.objective_ratios.append(published_objective / our_objective)

    for case, vector in solved_cases:
        additions.proven.append(gap(case, settings, vector) < MAX_PROVEN_GAP)
    return additions


def _active_problem(case: Case, settings: IncDsiSettings, vector: np.ndarray) -> HingeProblem:
    """Return the objective with only those terms of old documents that are not 0 at `vector`.

    At `vector`, it has the same value as the objective with all terms. A `HingeProblem` penalises
    each row's product with the vector as far as it exceeds the row's limit.
    """
    min_score = float(row_dots(case.vectors, case.query).max()) + settings.gamma1
    max_scores = row_dots(case.vectors, case.queries) - settings.gamma2
    active = np.flatnonzero(row_dots(case.queries, vector) > max_scores)

    # The first row demands a score of at least `min_score`, so it and its limit are negated.
    rows = np.concatenate([-case.query[None], case.queries[active].astype(np.float64)])
    limits = np.concatenate([[-min_score], max_scores[active]])
    weights = np.full(1 + len(active), 1 - settings.lambda1)
    weights[0] = settings.lambda1
    return HingeProblem(rows, limits, weights, np.zeros(len(vector)), settings.lambda2)


def _objective(case: Case, settings: IncDsiSettings, vector: np.ndarray) -> float:
    return _active_problem(case, settings, vector).value(vector)


def gap(case: Case, settings: IncDsiSettings, vector: np.ndarray) -> float:
    """Return the relative gap between the objective of `vector` and a dual bound.

    No vector has an objective below the bound, so a gap of 0 proves that `vector` is optimal. The
    multiplier of a violated constraint is its excess divided by its diagonal element. All other
    multipliers are 0.

    Args:
        case: The addition.
        settings: Margins and weights of the objective.
        vector: A solution (H).
    """
    problem = _active_problem(case, settings, vector)
    value = problem.value(vector)
    multipliers = problem.multipliers(vector)
    combined_row = multipliers @ problem.rows
    dual = (
        combined_row @ combined_row
        + multipliers @ (problem.diagonal * multipliers)
        + 2 * problem.limits @ multipliers
    )
    bound = -problem.lambda2 * float(dual)
    return (value - bound) / max(value, SMALLEST_OBJECTIVE)


def _add_batch(
    state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings
) -> tuple[list[Added], float]:
    """Add all documents in one batch; return the results, and the median documents per second."""
    seconds = []
    for _ in range(BATCH_ROUNDS):
        adder = IncDsiAdder(deepcopy(state), settings)
        started = time.perf_counter()
        added = adder.add_batch(new)
        seconds.append(time.perf_counter() - started)
    return added, len(new) / float(np.median(seconds))
