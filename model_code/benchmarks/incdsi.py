"""Adding documents: our exact solver against IncDSI's optimiser as its authors published it, on the same inputs.

The published loop is written anew from its description and runs with the authors' flags (L-BFGS with strong Wolfe line
search, tolerance 1e-3, up to 30 steps from a random start). As in the paper, its time leaves out the search for the
best rival, which ours includes.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from model_code.benchmarks.measuring import row
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import NewDocument
from model_code.incdsi.problem import Problem
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState

MARGINS = {"small margins": 0.1, "large margins": 0.25}


def rows(documents: int = 10_000, dimension: int = 384, added: int = 32, published: int = 8) -> list[dict[str, Any]]:
    """Documents per second and objective, with margins that rarely and that often touch old documents' queries."""
    vectors, queries = collection(documents + added, dimension)
    state = IncDsiState(vectors[:documents], queries[:documents].mean(axis=1), [f"{i:09d}" for i in range(documents)])
    new = [NewDocument(f"new {i}", queries[documents + i]) for i in range(added)]
    found = []
    for name, margin in MARGINS.items():
        settings = IncDsiSettings(gamma1=margin, gamma2=margin, margins_in="scores", batch_size=added)
        found += _compare(f"{documents:,} x {dimension}, {name}", state, new, settings, published)
    return found


def _compare(
    size: str, state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, published: int
) -> list[dict[str, Any]]:
    one_by_one, batched = (_run(state, new, settings, batch) for batch in (False, True))
    theirs = [published_loop(problem, seed) for seed, problem in enumerate(_problems(state, new, settings, published))]
    peer = 1 / float(np.median([one.seconds for one in theirs]))
    solutions = [one.solution for one in one_by_one.added]
    ratio = np.median([theirs[i].objective / solutions[i].objective for i in range(published)])
    lowest = min(theirs[i].objective / solutions[i].objective for i in range(published))
    proven = np.mean([solution.certificate.proven for solution in solutions])
    same = np.mean([np.array_equal(a.vector, b.vector) for a, b in zip(one_by_one.added, batched.added, strict=True)])
    return [
        row(f"documents/s one by one, {size}, against L-BFGS as published", one_by_one.speed, peer, goal=7.0),
        row(f"documents/s in batches of {len(new)}, {size}, against L-BFGS as published", batched.speed, peer, goal=10),
        row(f"objective of L-BFGS over ours, median, {size}", float(ratio), 1.0, goal=1.0),
        row(f"objective of L-BFGS over ours, least, {size}", float(lowest), 1.0, goal=1 - 1e-9),
        row(f"share of vectors proven optimal, {size}", float(proven), 1.0, goal=1.0),
        row(f"share of vectors equal in a batch and one by one, {size}", float(same), 1.0, goal=1.0),
    ]


@dataclass(frozen=True)
class Run:
    """What was added, and how many documents per second."""

    added: list[Any]
    speed: float


def _run(state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, batch: bool) -> Run:
    adder = IncDsiAdder(state.copy(), settings)
    adder.add(NewDocument("warm-up", new[0].queries))  # makes room for more, once
    adder.delete(["warm-up"])
    seconds, added = [], []
    for some in [new] if batch else [[one] for one in new]:
        start = time.perf_counter()
        added += adder.add_batch(some)
        seconds.append((time.perf_counter() - start) / len(some))
    return Run(added, 1 / float(np.median(seconds)))


def _problems(state: IncDsiState, new: list[NewDocument], settings: IncDsiSettings, count: int) -> list[Problem]:
    """The objectives of the first `count` documents, each over all documents before it."""
    adder, problems = IncDsiAdder(state.copy(), settings), []
    for document in new[:count]:
        queries, scores = adder.state.queries.view.copy(), adder.state.own_scores.view.copy()
        rivals = adder.state.vectors.view.astype(np.float64)
        query = adder.add(document).query.astype(np.float64)
        best = float((rivals @ query).max())
        problems.append(Problem.of(query, best, queries, scores, np.zeros(len(query)), settings))
    return problems


@dataclass(frozen=True)
class Published:
    """A vector's objective in float64, and the seconds it took."""

    objective: float
    seconds: float


def published_loop(problem: Problem, seed: int) -> Published:
    """IncDSI's optimiser on `problem`, in float32 as published."""
    import torch

    queries, query = torch.from_numpy(np.float32(problem.rows[1:])), torch.from_numpy(np.float32(-problem.rows[0]))
    limits, own_limit = torch.from_numpy(np.float32(problem.limits[1:])), -float(problem.limits[0])
    bound = query.shape[0] ** -0.5
    uniform = torch.rand(len(query), generator=torch.Generator().manual_seed(seed))
    vector = ((2 * uniform - 1) * bound).requires_grad_()
    own, other = (float(weight) for weight in problem.weights[:2])
    optimizer = torch.optim.LBFGS([vector], lr=1, line_search_fn="strong_wolfe", tolerance_change=1e-3)

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        wins = torch.relu(own_limit - query @ vector) ** 2
        losses = (torch.relu(queries @ vector - limits) ** 2).sum()
        value = own * wins + other * losses + problem.lambda2 * (vector @ vector)
        value.backward()
        return value

    start = time.perf_counter()
    for _ in range(30):
        before = vector.detach().clone()
        value = float(optimizer.step(loss))
        if float((vector.detach() - before).norm()) < 1e-3 or value == 0:
            break
    seconds = time.perf_counter() - start
    return Published(problem.value(vector.detach().numpy().astype(np.float64)), seconds)


def collection(documents: int, dimension: int, queries: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors (n, H) with a falling spectrum, in clusters of about 40 with near-duplicates, and their queries.

    queries: (n, queries, H), of length 0.8: most are closest to their own document, as a trained encoder has it.
    """
    chance = np.random.default_rng(0)
    spectrum = np.arange(1, dimension + 1) ** -0.5

    def noise(*shape: int) -> np.ndarray:
        return _unit(chance.normal(size=(*shape, dimension)) * spectrum)

    clusters, pages = noise(documents // 40 + 1), documents // 3 + 1
    centres = _unit(clusters[chance.integers(len(clusters), size=pages)] + 0.9 * noise(pages))
    vectors = _unit(centres[chance.integers(pages, size=documents)] + 0.3 * noise(documents))
    asked = 0.8 * _unit(vectors[:, None] + 0.8 * noise(documents, queries))
    return vectors.astype(np.float32), asked.astype(np.float32)


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)
