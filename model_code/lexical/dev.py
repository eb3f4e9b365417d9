"""The dev metric of a lexical encoder: of the very search that will be used, over the same passages and queries."""

from __future__ import annotations

from typing import Any

import numpy as np

from model_code.evaluation.metrics import Metric, evaluate_run
from model_code.lexical.embedding_index import EmbeddingIndex
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.searches import BY_TOKENS, Searches
from model_code.lexical.settings import LexicalSettings, MainSearch
from model_code.lexical.token_side import index_tokens
from model_code.training.dev import DEPTH, DevEvaluator

DIGITS = 12  # of a document's number, so that ties, which token searches have many of, break as by the documents' ids


class LexicalDev:
    """Stands for a `DevEvaluator` in a `Trainer`, for one encoder.

    search: the one that is evaluated. Passages are embedded at each evaluation if it needs them; their tokens are
    indexed once.
    """

    def __init__(
        self, evaluator: DevEvaluator, encoder: LexicalEncoder, settings: LexicalSettings, search: MainSearch
    ) -> None:
        self.evaluator, self.encoder, self.settings, self.search = evaluator, encoder, settings, search
        self.metric, self.rows, self.covers_corpus = evaluator.metric, evaluator.rows, evaluator.covers_corpus
        self.texts = [evaluator.passages.texts[row] for row in evaluator.rows]
        documents = evaluator.passages.documents[evaluator.rows]
        self.names = [f"{document:0{DIGITS}}" for document in documents]
        self.tokens = index_tokens(encoder, self.texts, self.names)

    def encode_passages(self, _: Any = None) -> EmbeddingIndex | None:
        """The ranked passages as the encoder embeds them now; None if the search reads tokens only."""
        if self.search in BY_TOKENS:
            return None
        embeddings = self.encoder.encode(self.texts)
        fingerprint, size = self.encoder.fingerprint(), self.encoder.vocabulary_size
        return EmbeddingIndex.build(embeddings, self.names, size, fingerprint, self.settings.weights)

    def score(self, _: Any, passages: EmbeddingIndex | None) -> float:
        """The mean metric of the search with the encoder as it is now."""
        evaluator = self.evaluator
        searches = Searches(self.encoder, self.tokens, passages, self.settings.rerank_depth)
        depth = Metric.parse(self.metric).cutoff or DEPTH
        rankings = searches.search(self.search, evaluator.queries, depth)
        run = {
            str(row): [(name.lstrip("0") or "0", score) for name, score in found] for row, found in enumerate(rankings)
        }
        return float(np.mean(list(evaluate_run(run, evaluator.qrels, [self.metric])[self.metric].values())))
