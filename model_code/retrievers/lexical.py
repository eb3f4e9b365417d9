"""Lexical retrieval (SVDR): texts as weights over the vocabulary, searched by tokens, by embeddings or by both.

Segments of a live collection hold the tokens of new passages, and their embeddings or texts, as the base has them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from model_code.context import StageContext
from model_code.lexical.embedding_index import EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.index import (
    EMBEDDINGS,
    FORMAT,
    PASSAGES,
    TOKENS,
    LexicalIndex,
    build_folder,
    open_folder,
    read_folder,
)
from model_code.lexical.layout import load_encoder
from model_code.lexical.settings import MainSearch
from model_code.manifest import read_manifest, verify
from model_code.retriever import Ranking, Search, TokenMatch
from model_code.retrievers.base import IndexedRetriever, NewPassages
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Sparse

if TYPE_CHECKING:
    from model_code.training.tables import TrainingTables

PROJECTED = 256  # components that a vocabulary is projected to for the hierarchy; a cosine errs by about 1 / 16


class LexicalRetriever(IndexedRetriever[list[Sparse]]):
    """A lexical encoder and the indexes of its passages; see `Retriever`. Encoded queries are their sparse weights.

    main: which of the searches is `search`; the others are variants. fingerprint: the encoder's.
    """

    explains = True

    def __init__(self, index: LexicalIndex, main: MainSearch, fingerprint: str) -> None:
        self.index, self.main, self.fingerprint = index, main, fingerprint
        self.proposed = index.rerank_depth if main == "beta_rerank" else None

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """The query side of the main search."""
        return self.index.queries(self.main, texts)

    def search_encoded(self, queries: list[Sparse], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query by the main search, or by the tokens that it begins with."""
        return self.index.propose(self.main, queries, k, allowed)

    def rerank_encoded(self, queries: list[Sparse], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each query's candidates, scored and sorted as the main search does."""
        return self.index.scored_by(self.main).rank(queries, candidates)

    def best_passage_encoded(self, query: list[Sparse], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        return self.index.scored_by(self.main).best_passage(query[0], document_id)

    def variants(self) -> Mapping[str, Search]:
        """The searches that the indexes allow, but for the main one: full, alpha, beta, beta_own, beta_rerank.

        Those that read the whole encoding of the same texts share it, for as long as somebody holds one of them.
        """
        whole = cache(lambda texts: self.index.queries("full", texts))

        def search(
            name: MainSearch, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
        ) -> list[Ranking]:
            queries = self.index.queries(name, texts) if name in ("alpha", "beta_own") else whole(tuple(texts))
            return self.index.find(name, queries, k, allowed)

        return {name: partial(search, name) for name in self.index.names if name != self.main}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """The tokens that matched, the heaviest first; their weights sum to the document's score."""
        encoder = self.index.encoder
        own_tokens, name = set(encoder.bags([text])[0].tolist()), encoder.tokenizer.convert_ids_to_tokens
        matches = self.index.matches(self.main, text, document_id)
        return [TokenMatch(name(token), weight, token not in own_tokens) for token, weight in matches]

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index the tokens of passages in `folder`, and what else the base has of its own."""
        self.index.write(folder, new.texts, new.document_ids)
        self.index.seal(folder, new.document_ids, self.main, self.fingerprint)

    def reopen(self, folder: Path) -> Self:
        """The same encoder over the indexes in `folder`."""
        verify(folder, read_manifest(folder, FORMAT))
        index = read_folder(folder, self.index.encoder, self.index.rerank_depth)
        return type(self)(index, self.main, self.fingerprint)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of each retriever in `folder`, with the tokens and embeddings that they have."""
        chosen = [(retriever.index, retriever.index.tokens.ids.rows_of(documents)) for retriever, documents in parts]
        ids = [part.tokens.document_ids[row] for part, rows in chosen for row in rows.tolist()]
        bags = [part.tokens.bag(row) for part, rows in chosen for row in rows.tolist()]
        first, passages = parts[0][0], [(part.passages, rows) for part, rows in chosen]
        TokenIndex.build(bags, ids).save(folder / TOKENS)
        if isinstance(passages[0][0], EmbeddingIndex):
            embeddings = [embedding for index, rows in passages for embedding in index.embeddings(rows)]  # type: ignore[union-attr]
            size = first.index.encoder.vocabulary_size
            EmbeddingIndex.build(embeddings, ids, size).save(folder / EMBEDDINGS)
        elif passages[0][0] is not None:
            texts = [index.texts[row] for index, rows in passages for row in rows.tolist()]  # type: ignore[union-attr]
            PassagesOnTheFly.save(folder / PASSAGES, texts, ids)
        first.index.seal(folder, ids, first.main, first.fingerprint)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """(n, D): learned weights (without an index of them: tokens), projected to few components by random signs.

        Inner products survive on average, with a standard deviation of at most |a| |b| sqrt(2 / D) (Achlioptas 2003,
        Database-friendly random projections): good enough to place passages among topics, at a hundredth of the memory.
        """
        projected = np.zeros((len(document_ids), PROJECTED), np.float32)
        signs = _signs(self.index.encoder.vocabulary_size)
        index = self.index.passages
        if isinstance(index, EmbeddingIndex):
            for entry in np.flatnonzero(np.diff(index.starts)).tolist():
                postings = slice(index.starts[entry], index.starts[entry + 1])
                projected[index.passages[postings]] += index.weights[postings, None].astype(np.float32) * signs[entry]
            return projected
        for row in range(len(document_ids)):
            projected[row] = signs[self.index.tokens.bag(row)].sum(axis=0, dtype=np.float32)
        return projected


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical encoder; writes `encoder/` and `history.json`."""
    from model_code.lexical.fit import fit_lexical_encoder

    return fit_lexical_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Index the corpus's passages: their tokens, and with the encoder in `inputs["trained"]` their embeddings."""
    from model_code.corpus.tables import load_corpus, passage_texts  # with pandas, which a search does without

    base = context.settings["encoder"]
    folder = context.inputs["trained"] / "encoder"
    encoder = load_encoder(folder, base.max_tokens, base.precision, base.device, for_search=True)
    passages = load_corpus(context.inputs["corpus"]).passages
    return build_folder(
        context.output / "index",
        encoder,
        passage_texts(passages, base.include_title),
        passages["document_id"].tolist(),
        context.settings["retriever"].lexical,
        context.checkpoints,
        context.progress("encode"),
    )


def open_folders(encoder: Path, index: Path, **loading: Any) -> LexicalRetriever:
    """The retriever in two folders; loading: `max_tokens`, `precision`, `device` and `for_search` of `load_encoder`."""
    opened, manifest = open_folder(index, load_encoder(encoder, **loading))
    return LexicalRetriever(opened, manifest["search"], manifest["fingerprint"])


@lru_cache(maxsize=1)
def _signs(size: int) -> np.ndarray:
    """(V, D) of +-1, the same for ever."""
    return np.random.default_rng(0).integers(0, 2, (size, PROJECTED), dtype=np.int8) * np.int8(2) - np.int8(1)
