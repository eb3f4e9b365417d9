"""Vectors that need no optimisation: priors of the objective, and the baselines that every refinement must beat."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from model_code.incdsi.settings import IncDsiSettings
from model_code.settings import require

SCALES = (0.25, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.1, 1.25, 1.5)


def prior_vector(settings: IncDsiSettings, query: np.ndarray, encoding: np.ndarray | None) -> np.ndarray:
    """v0 (H), float64, for the mean query `query` (H) and the document's `encoding` (H).

    Raises SettingsError where the prior needs an encoding and there is none.

    >>> mixed = IncDsiSettings(prior="mixed", query_share=.25, prior_scale=2.0)
    >>> prior_vector(mixed, np.array([4.0]), np.array([0.0])).tolist()
    [2.0]
    """
    share = {"zero": 0.0, "encoder": 0.0, "mixed": settings.query_share}[settings.prior]
    if settings.prior == "zero":
        return np.zeros(len(query))
    if share == 1.0:
        return settings.prior_scale * query
    require(
        encoding is not None,
        f"prior {settings.prior!r} needs the document's own vector, but it has none: give its encoding, or choose "
        "the prior zero",
    )
    return settings.prior_scale * ((1 - share) * np.asarray(encoding, np.float64) + share * query)


def baselines(settings: IncDsiSettings, encodings: bool = True) -> dict[str, IncDsiSettings]:
    """The unrefined ways to add a document, by name; `settings` gives what they share (batch size, device).

    encodings: whether the documents have vectors of their own; else only the mean query is left.

    >>> list(baselines(IncDsiSettings()))[:3]
    ['encoder vector', 'mean query', 'half encoder vector, half mean query']
    """
    plain = replace(settings, refine=False, prior="encoder", prior_scale=1.0, query_share=0.5)
    mean_query = {"mean query": replace(plain, prior="mixed", query_share=1.0)}
    if not encodings:
        return mean_query
    mixed = {"half encoder vector, half mean query": replace(plain, prior="mixed")}
    scaled = {f"encoder vector x {scale:g}": replace(plain, prior_scale=scale) for scale in SCALES}
    return {"encoder vector": plain} | mean_query | mixed | scaled
