"""Lexical retrieval (SVDR): texts as weights over the vocabulary, searched by tokens, by embeddings or by both."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from model_code.context import StageContext
from model_code.retriever import Ranking, Search, TokenMatch
from model_code.retrievers.encoded import TextSearches

if TYPE_CHECKING:
    from model_code.lexical.index import LexicalIndex
    from model_code.lexical.settings import MainSearch
    from model_code.token_index.queries import Sparse
    from model_code.training.tables import TrainingTables


class LexicalRetriever(TextSearches["list[Sparse]"]):
    """A lexical encoder and the indexes of its passages; see `Retriever`. Encoded queries are their sparse weights.

    main: which of the searches is `search`; the others are variants.
    """

    def __init__(self, index: LexicalIndex, main: MainSearch) -> None:
        self.index, self.main, self.fingerprint = index, main, index.fingerprint
        self.proposed = index.rerank_depth if main == "beta_rerank" else None

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """The query side of the main search."""
        return self.index.queries(self.main, texts)

    def search_encoded(self, queries: list[Sparse], k: int, allowed: Collection[str] | None = None) -> list[Ranking]:
        """The k best documents for each query by the main search, or by the tokens that it begins with."""
        part = self._embedded if self.main in ("full", "alpha") else self.index.tokens
        return part.search(queries, k, part.fingerprint, allowed)

    def rerank_encoded(self, queries: list[Sparse], candidates: Sequence[Collection[str]]) -> list[Ranking]:
        """Each query's candidates, scored and sorted as the main search does."""
        part = self.index.tokens if self._by_tokens else self._embedded
        return part.rank(queries, candidates, part.fingerprint)

    def best_passage_encoded(self, query: list[Sparse], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        if self._by_tokens:
            return self.index.tokens.best_passage(query[0], document_id, self.index.tokens.fingerprint)
        rows = self._embedded.ids.rows_of([document_id])
        return int(np.argmax(self._embedded.scores_at(query[0], rows)))

    @property
    def _by_tokens(self) -> bool:
        return self.main in ("beta", "beta_own")

    @property
    def _embedded(self) -> Any:
        """The passages' embeddings, indexed or made when they are needed: the settings refuse a search without."""
        return self.index.passages

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
        own, name = set(encoder.bags([text])[0].tolist()), encoder.tokenizer.convert_ids_to_tokens
        matches = self.index.matches(self.main, text, document_id)
        return [TokenMatch(name(token), weight, token not in own) for token, weight in matches]


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical encoder; writes `encoder/`, `history.json` and, of two stages, `first_stage.json`."""
    from model_code.lexical.fit import fit_lexical_encoder

    return fit_lexical_encoder(context, tables)


def index(context: StageContext) -> dict[str, Any]:
    """Index the corpus's passages: their tokens, and with the encoder in `inputs["trained"]` their embeddings."""
    from model_code.corpus.tables import load_corpus, passage_texts
    from model_code.lexical.index import build_folder
    from model_code.lexical.layout import load_encoder

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
    from model_code.lexical.index import open_folder
    from model_code.lexical.layout import load_encoder

    opened, manifest = open_folder(index, load_encoder(encoder, **loading))
    return LexicalRetriever(opened, manifest["search"])
