"""What a query generator learns from: (document, query) pairs as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from model_code.corpus.tables import Corpus, frame, judged
from model_code.errors import FreshetError
from model_code.queries.held_out import split_of

IGNORED = -100  # a label that is no target


class GeneratorPair(NamedTuple):
    """A document and a query that it answers."""

    document_id: str
    document: str
    query: str


def generator_pairs(
    corpus: Corpus, held_out_share: float, seed: int
) -> tuple[list[GeneratorPair], list[GeneratorPair]]:
    """The pairs of the corpus's own training qrels: to train on, and those of the share of documents held out.

    FreshetError if there are none to train on: no query may be made up to learn from.
    """
    texts = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    train = judged(corpus, frame("pseudo_queries", []), "train")
    pairs: list[GeneratorPair] = []
    if train.source == "qrels":
        rows = ((document, query) for query, found in train.qrels.items() for document in found)
        pairs = [GeneratorPair(document, texts[document], train.queries[query]) for document, query in rows]
    splits = {pair.document_id: split_of(pair.document_id, held_out_share, 0.0, seed) for pair in pairs}
    learned = [pair for pair in pairs if splits[pair.document_id] == "train"]
    if not learned:
        raise FreshetError(
            "a query generator learns from training qrels, and the corpus has none left to train on; "
            "set pseudo_queries.training.base to null"
        )
    return learned, [pair for pair in pairs if splits[pair.document_id] != "train"]


class PairTokens:
    """Pairs as a model reads them: a section of the document in, the query out.

    Of a long document it is the section with most of the query's tokens (the first of equals): a generator is given
    every section, and should learn to ask what that very section answers.
    """

    def __init__(self, tokenizer: Any, section_tokens: int, query_tokens: int, start_token: int) -> None:
        """start_token: what decoding begins with; a tokenizer that puts it before every text must not repeat it."""
        self.tokenizer, self.start_token = tokenizer, start_token
        self.section_tokens, self.query_tokens = section_tokens, query_tokens

    def batch(self, pairs: Sequence[GeneratorPair]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask` (B, T) and `labels` (B, L) int64, the labels padded with `IGNORED`."""
        queries = [self._query(pair.query) for pair in pairs]
        own = self._sections([pair.document for pair in pairs])
        chosen = [max(sections, key=lambda s: len(set(s) & set(q))) for sections, q in zip(own, queries, strict=True)]
        padded = self.tokenizer.pad({"input_ids": chosen}, return_tensors="pt")
        labels = torch.full((len(queries), max(map(len, queries))), IGNORED)
        for row, query in enumerate(queries):
            labels[row, : len(query)] = torch.tensor(query)
        return {"input_ids": padded["input_ids"], "attention_mask": padded["attention_mask"], "labels": labels}

    def _query(self, text: str) -> list[int]:
        ids = self.tokenizer(text_target=text, truncation=True, max_length=self.query_tokens)["input_ids"]
        return ids[1:] if ids[0] == self.start_token else ids

    def _sections(self, documents: list[str]) -> list[list[list[int]]]:
        encoded = self.tokenizer(
            documents, truncation=True, max_length=self.section_tokens, return_overflowing_tokens=True
        )
        own: list[list[list[int]]] = [[] for _ in documents]
        for document, ids in zip(encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True):
            own[int(document)].append(ids)
        return own


def document_numbers(pairs: Sequence[GeneratorPair]) -> np.ndarray:
    """The number of each pair's document: (n,) int64."""
    return np.unique([pair.document_id for pair in pairs], return_inverse=True)[1].astype(np.int64)
