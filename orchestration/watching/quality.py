"""How well documents are found by queries made from them: the same measure for what is new and for what is old."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from model_code.live.searcher import Searcher
from model_code.progress import silent
from model_code.queries.generators import make_generator
from model_code.queries.settings import PseudoQuerySettings

DEPTH = 10


def document_scores(
    searcher: Searcher, texts: Mapping[str, str], settings: PseudoQuerySettings, seed: int, folder: Path
) -> dict[str, float]:
    """The mean reciprocal rank at 10 of each document over its pseudo-queries, searched among all that is live.

    texts: by document id; one whose text gives no query is left out. folder: where a generator keeps long work.
    """
    generator = make_generator(settings.held_out_generator, settings)
    queries = generator.generate(texts, seed, folder, silent)
    rankings = searcher.retriever.search([query.text for query in queries], DEPTH)
    found: dict[str, list[float]] = {}
    for query, ranking in zip(queries, rankings, strict=True):
        ids = [document for document, _ in ranking]
        rank = ids.index(query.document_id) + 1 if query.document_id in ids else None
        found.setdefault(query.document_id, []).append(1 / rank if rank else 0.0)
    return {document: float(np.mean(scores)) for document, scores in found.items()}
