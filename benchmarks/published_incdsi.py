"""IncDSI's optimiser as its authors published it, written anew from its description, with their flags.

L-BFGS with strong Wolfe line search and tolerance 1e-3, up to 30 steps from a random start, in float32. Its time, as
published, takes in the scores of all documents for their own queries, computed anew for every addition, and leaves out
the search for the best rival.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from model_code.incdsi.settings import IncDsiSettings

STEPS, TOLERANCE = 30, 1e-3


@dataclass(frozen=True)
class Case:
    """One addition: the mean query q (H), its best rival's score M, and V and Z (n, H) as they are before it."""

    query: np.ndarray
    best_rival: float
    vectors: np.ndarray
    queries: np.ndarray


def published_loop(case: Case, settings: IncDsiSettings, seed: int) -> tuple[np.ndarray, float]:
    """The vector (H) found from the random start `seed`, and the seconds it took; margins are scores."""
    import torch

    queries, documents = torch.from_numpy(case.queries), torch.from_numpy(case.vectors)
    query, own_limit = torch.from_numpy(np.float32(case.query)), case.best_rival + settings.gamma1
    start = time.perf_counter()
    limits = (queries * documents).sum(dim=1) - settings.gamma2
    vector = (2 * torch.rand(len(query), generator=torch.Generator().manual_seed(seed)) - 1) * len(query) ** -0.5
    optimizer = torch.optim.LBFGS(
        [vector.requires_grad_()], lr=1, line_search_fn="strong_wolfe", tolerance_change=TOLERANCE
    )

    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        missed = torch.relu(own_limit - query @ vector) ** 2
        lost = (torch.relu(queries @ vector - limits) ** 2).sum()
        value = settings.lambda1 * missed + (1 - settings.lambda1) * lost + settings.lambda2 * (vector @ vector)
        value.backward()
        return value

    for _ in range(STEPS):
        before = vector.detach().clone()
        value = optimizer.step(loss).item()
        if (vector.detach() - before).norm().item() < TOLERANCE or value == 0:
            break
    return vector.detach().double().numpy(), time.perf_counter() - start
