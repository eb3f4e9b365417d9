"""Lexical retrieval (SVDR): texts as weights over the vocabulary, searched by tokens, by embeddings or by both.

Segments of a live collection hold the tokens of new passages, and their embeddings or texts, as the base has them.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from model_code.context import StageContext
from model_code.files import read_json
from model_code.index.id_map import IdMap
from model_code.lexical.embedding_index import TEXTS, EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import EMBEDDINGS, FORMAT, KIND, PASSAGES, TOKENS, LexicalIndex, build_folder, open_folder
from model_code.lexical.layout import load_encoder
from model_code.lexical.settings import MainSearch
from model_code.manifest import read_manifest, seal, verify
from model_code.retriever import Ranking, Search, TokenMatch
from model_code.retrievers.base import IndexedRetriever, NewPassages
from model_code.token_index.bags import TokenBags
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Sparse

if TYPE_CHECKING:
    from model_code.training.tables import TrainingTables

PROJECTED = 256  # components that a vocabulary is projected to for the hierarchy; a cosine errs by about 1 / 16


class LexicalRetriever(IndexedRetriever[list[Sparse]]):
    """A lexical encoder and the indexes of its passages; see `Retriever`. Encoded queries are their sparse weights.

    main: which of the searches is `search`; the others are variants.
    """

    explains = True

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
        own_tokens, name = set(encoder.bags([text])[0].tolist()), encoder.tokenizer.convert_ids_to_tokens
        matches = self.index.matches(self.main, text, document_id)
        return [TokenMatch(name(token), weight, token not in own_tokens) for token, weight in matches]

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index the tokens of passages in `folder`, and what else the base has of its own."""
        encoder, base, ids = self.index.encoder, self.index.passages, list(new.document_ids)
        bags = _token_bags(encoder)
        TokenIndex.build(bags(new.texts), ids, bags.fingerprint).save(folder / TOKENS)
        if isinstance(base, EmbeddingIndex):
            self._embedding_index(encoder.encode(new.texts), ids).save(folder / EMBEDDINGS)
        elif base is not None:
            PassagesOnTheFly.save(folder / PASSAGES, new.texts, ids, self.fingerprint)
        self._seal(folder, ids)

    def reopen(self, folder: Path) -> Self:
        """The same encoder over the indexes in `folder`."""
        verify(folder, read_manifest(folder, FORMAT))
        index, base = copy.copy(self.index), self.index.passages
        index.tokens = TokenIndex.load(folder / TOKENS, check=False)
        if isinstance(base, EmbeddingIndex):
            index.passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
        elif base is not None:
            table = read_json(folder / PASSAGES / TEXTS)
            ids = IdMap(table["document_ids"])
            index.passages = PassagesOnTheFly(table["texts"], ids, base.encoder, base.precision)
        return type(self)(index, self.main)

    @classmethod
    def merge(cls, parts: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Index the named documents of each retriever in `folder`, with the tokens and embeddings that they have."""
        chosen = [(retriever.index, retriever.index.tokens.ids.rows_of(documents)) for retriever, documents in parts]
        ids = [part.tokens.document_ids[row] for part, rows in chosen for row in rows.tolist()]
        bags = [part.tokens.blocks.bag(row) for part, rows in chosen for row in rows.tolist()]
        first = parts[0][0]
        TokenIndex.build(bags, ids, first.index.tokens.fingerprint).save(folder / TOKENS)
        if isinstance(first.index.passages, EmbeddingIndex):
            embeddings = [embedding for part, rows in chosen for embedding in _embeddings(part.passages, rows)]
            first._embedding_index(embeddings, ids).save(folder / EMBEDDINGS)
        elif first.index.passages is not None:
            texts = [part.passages.texts[row] for part, rows in chosen for row in rows.tolist()]
            PassagesOnTheFly.save(folder / PASSAGES, texts, ids, first.fingerprint)
        first._seal(folder, ids)

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
            projected[row] = signs[self.index.tokens.blocks.bag(row)].sum(axis=0, dtype=np.float32)
        return projected

    def _embedding_index(self, embeddings: Sequence[Sparse], document_ids: Sequence[str]) -> EmbeddingIndex:
        """An index beside the base's, of its precision."""
        base = self._embedded
        return EmbeddingIndex.build(embeddings, document_ids, base.size, self.fingerprint, str(base.weights.dtype))

    def _seal(self, folder: Path, document_ids: Sequence[str]) -> None:
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "search": self.main}
        facts |= {"passages": len(document_ids), "documents": len(set(document_ids))}
        seal(folder, FORMAT, facts)


def train(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train the lexical encoder; writes `encoder/`, `history.json` and, of two stages, `first_stage.json`."""
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
    return LexicalRetriever(opened, manifest["search"])


@lru_cache(maxsize=1)
def _token_bags(encoder: LexicalEncoder) -> TokenBags:
    """As `index_tokens` makes them; kept, as copying a tokenizer costs more than a segment's few texts."""
    return TokenBags(encoder.tokenizer)


@lru_cache(maxsize=1)
def _signs(size: int) -> np.ndarray:
    """(V, D) of +-1, the same for ever."""
    return np.random.default_rng(0).integers(0, 2, (size, PROJECTED), dtype=np.int8) * np.int8(2) - np.int8(1)


def _embeddings(index: EmbeddingIndex, rows: np.ndarray) -> Iterator[Sparse]:
    """The embeddings of some passages, read back from the lists of entries; float16 weights survive exactly."""
    entries = np.repeat(np.arange(index.size), np.diff(index.starts))
    order = np.lexsort((entries, index.passages))
    ends = np.cumsum(np.bincount(index.passages, minlength=len(index.ids)))
    for row in rows.tolist():
        places = order[ends[row - 1] if row else 0 : ends[row]]
        yield entries[places], index.weights[places].astype(np.float32)
