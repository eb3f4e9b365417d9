"""Rerank the best documents of a search with a cross-encoder.

A cross-encoder reads a query and a passage together. This is more accurate than a comparison of
their vectors, and slower. So it reads only the best passage of each of the first `depth` documents.

sentence-transformers takes seconds to import, so it is imported when a model is loaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from model_code.errors import FreshetError
from model_code.settings import Field, Settings

if TYPE_CHECKING:
    from sentence_transformers import CrossEncoder

# Pairs of query and passage that the cross-encoder reads at a time.
BATCH_SIZE = 32


class RerankSettings(Settings):
    """Which model reranks the best documents of a search, and how many."""

    model: str | None = Field(
        None,
        description=(
            "Cross-encoder that reranks the best documents of a search: a folder or a hub name. "
            "null: none. It needs sentence-transformers."
        ),
    )
    depth: int = Field(
        50, ge=1, le=1000, description="Number of best documents that are reranked and returned."
    )


class Reranker:
    """A loaded cross-encoder.

    Attributes:
        depth: Number of documents that are reranked.
    """

    def __init__(self, model: CrossEncoder, depth: int) -> None:
        self.model = model
        self.depth = depth

    @classmethod
    def load(cls, settings: RerankSettings) -> Reranker | None:
        """Load the model of the settings, or return None if they name no model.

        A process keeps the loaded models, so that repeated calls are fast.

        Raises:
            FreshetError: If sentence-transformers is not installed, or the model cannot be loaded.
        """
        if settings.model is None:
            return None
        return cls(_load_model(settings.model), settings.depth)

    def score(self, query: str, passages: Sequence[str]) -> np.ndarray:
        """Return the relevance of each passage for a query, shape (n,), float64."""
        pairs = [(query, passage) for passage in passages]
        scores = self.model.predict(pairs, batch_size=BATCH_SIZE, show_progress_bar=False)
        return np.asarray(scores, dtype=np.float64).reshape(len(pairs))


@lru_cache(maxsize=2)
def _load_model(name: str) -> CrossEncoder:
    """Load a cross-encoder from a folder or the hub; FreshetError if that fails."""
    try:
        from sentence_transformers import CrossEncoder
    except ImportError:
        raise FreshetError(
            "rerank.model needs sentence-transformers: pip install -e '.[rerank]', or set "
            "rerank.model to null"
        ) from None

    try:
        model = CrossEncoder(name)
    # The libraries raise errors of many types for a missing or damaged model, so all are caught.
    except Exception as error:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise FreshetError(
            f"rerank.model {name!r} cannot be loaded: {reason}; name a folder or a model of the hub"
        ) from None
    if model.num_labels != 1:
        raise FreshetError(
            f"rerank.model {name!r} has {model.num_labels} outputs, but a reranker has one: the "
            "relevance; choose another model"
        )
    return model.eval()
