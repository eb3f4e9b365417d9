"""The vectors of old documents that additions are measured in: their encodings, or learned ones as in atomic DSI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from model_code.dsi.settings import DocumentVectorSettings, Start
from model_code.dsi.start import random_vectors

Space = Callable[[np.ndarray, np.ndarray, np.ndarray, int], np.ndarray]
"""(encodings (n, H), train queries (m, H), the document of each (m), seed) -> vectors (n, H)."""


def own_vectors(documents: np.ndarray, queries: np.ndarray, targets: np.ndarray, seed: int) -> np.ndarray:
    """The encodings as they are: a dense index."""
    return documents


def learned(documents: np.ndarray, queries: np.ndarray, targets: np.ndarray, seed: int, start: Start) -> np.ndarray:
    """V of an atomic DSI with a frozen query encoder: the softmax over all documents, minimised by Adam.

    Defaults of `DocumentVectorSettings`; no dev set and no early stop, so that nothing is chosen here.
    """
    import torch

    settings = DocumentVectorSettings(start=start)
    first = documents if start == "documents" else random_vectors(*documents.shape, seed)
    vectors = torch.nn.Parameter(torch.from_numpy(first.copy()))
    chance = torch.Generator().manual_seed(seed)
    asked, right = torch.from_numpy(queries), torch.from_numpy(targets)
    steps = int(settings.passes * -(-len(right) // settings.batch_size))
    optimizer = torch.optim.Adam([vectors], lr=settings.rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
    for _ in range(steps):
        rows = torch.randint(len(right), (settings.batch_size,), generator=chance)
        loss = torch.nn.functional.cross_entropy(settings.logit_scale * asked[rows] @ vectors.T, right[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return vectors.detach().numpy()


SPACES: Mapping[str, Space] = {
    "own_vectors": own_vectors,
    "dsi": partial(learned, start="documents"),
    "dsi_random_start": partial(learned, start="random"),
}
