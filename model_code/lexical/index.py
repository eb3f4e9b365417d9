"""The indexes of a lexical retriever in one sealed folder, and the ways to search them.

| name | query | passage | needs |
|---|---|---|---|
| full | E(q) | E(p) | embeddings of all passages |
| alpha | T(q) | E(p) | the same, but no encoder for the query: as fast as term search |
| beta | E(q) | T(p) | the token index alone, built by the tokenizer |
| beta_own | E(q) on its own tokens | T(p) | the same |
| beta_rerank | E(q) | T(p), then E(p) of the best | the same, and embeddings of those few |

(Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 5; beta_own is ours.) In the
folder, `tokens/` is a `TokenIndex`: with it alone "beta" searches, seconds after a corpus arrives.
Where the main search is full or alpha `embeddings/` is an `EmbeddingIndex`; where it is beta_rerank
`passages/` has the texts, which it embeds as they come.

For each vocabulary entry an `EmbeddingIndex` holds the passages that have weight there, ascending,
and the weights: three flat arrays, memory-mapped. A query adds up the lists of its own entries;
nothing else is read. A score is the float64 sum over the query's entries, in ascending order, of
query weight times stored weight, rounded to float32: the same for any batch and order of insertion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np

from model_code.distributed.encoding import Arrays, keep_shards
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json, read_manifest, verify_checksums, write_json, write_manifest
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import EMBEDDED, LexicalSettings, MainSearch
from model_code.lexical.token_index.bags import TokenBags
from model_code.lexical.token_index.index import SparseIndex, TokenIndex
from model_code.lexical.token_index.postings import Sparse
from model_code.progress import Progress, no_progress
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.protocol import Ranking, Retriever, Search, TokenMatch

NAMES: tuple[MainSearch, ...] = ("full", "alpha", "beta", "beta_own", "beta_rerank")
BY_TOKENS: tuple[MainSearch, ...] = ("beta", "beta_own")
QUERIES_KEPT = 16  # whose hits are explained one by one
FORMAT, KIND = 1, "lexical"
KIND_OF_EMBEDDINGS, KIND_OF_TEXTS = "lexical_embeddings", "lexical_passages"
ARRAYS, TEXTS = ("starts", "passages", "weights"), "passages.json"
PRECISION = "float16"  # of stored weights: three digits
CACHE = 4096  # passages' embeddings that are kept where they are made when a query needs them
TOKENS, EMBEDDINGS, PASSAGES = "tokens", "embeddings", "passages"


class EmbeddingIndex(SparseIndex):
    """Arrays starts: (V + 1,) int64; passages: (n,) int32 and weights: (n,) float16, entry after
    entry.

    >>> embedding = (np.array([0, 2]), np.array([1.0, 3.0], np.float32))
    >>> index = EmbeddingIndex.build([embedding], ["a"], size=4)
    >>> index.search([(np.array([2, 3]), np.array([0.5, 9.0], np.float32))], k=1)
    [[('a', 1.5)]]
    """

    def __init__(
        self, starts: np.ndarray, passages: np.ndarray, weights: np.ndarray, ids: IdMap
    ) -> None:
        self.starts, self.passages, self.weights, self.ids = starts, passages, weights, ids

    @classmethod
    def build(
        cls, embeddings: Sequence[Sparse], document_ids: Sequence[str], size: int
    ) -> EmbeddingIndex:
        """Index the embeddings of passages, number i of document `document_ids[i]`, over `size`
        vocabulary entries.
        """
        if len(embeddings) != len(document_ids):
            raise FreshetError(
                f"{len(embeddings)} embeddings do not fit {len(document_ids)} passages"
            )
        entries = np.concatenate([*(ids for ids, _ in embeddings), np.empty(0, np.int64)])
        weights = np.concatenate(
            [*(values for _, values in embeddings), np.empty(0, np.float32)]
        ).astype(np.float32)
        passages = np.repeat(
            np.arange(len(embeddings), dtype=np.int32), [len(ids) for ids, _ in embeddings]
        )
        largest = float(np.finfo(PRECISION).max)
        if not np.isfinite(weights).all() or np.abs(weights).max(initial=0.0) > largest:
            raise FreshetError(
                f"weights are not finite in {PRECISION}; the encoder diverged: train it again"
            )
        if entries.max(initial=-1) >= size:
            raise FreshetError(
                f"entry {int(entries.max())} is outside the vocabulary of {size} entries"
            )
        order = np.argsort(entries, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(entries, minlength=size))]).astype(
            np.int64
        )
        return cls(starts, passages[order], weights[order].astype(PRECISION), IdMap(document_ids))

    @property
    def size(self) -> int:
        """Number of vocabulary entries."""
        return len(self.starts) - 1

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """See `SparseIndex.scores`."""
        for query in queries:
            scores = np.zeros(len(self.ids))
            for entry, weight in zip(*query, strict=True):
                postings = slice(self.starts[entry], self.starts[entry + 1])
                scores[self.passages[postings]] += float(weight) * self.weights[postings].astype(
                    np.float64
                )
            yield scores

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """See `SparseIndex.scores_at`."""
        return next(self.scores([query]))[passages]

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """What each of the query's entries adds to the document's best passage, where it adds any;
        heaviest first.
        """
        passage = int(self.ids.rows_of([document_id])[self.best_passage(query, document_id)])
        pairs = zip(query[0].tolist(), query[1].tolist(), strict=True)
        parts = [(entry, weight * self._weight(entry, passage)) for entry, weight in pairs]
        return sorted(
            (part for part in parts if part[1] > 0), key=lambda match: (-match[1], match[0])
        )

    def embeddings(self, passages: np.ndarray) -> Iterator[Sparse]:
        """E(p) of some passages, read back from the lists of entries."""
        entries = np.repeat(np.arange(self.size), np.diff(self.starts))
        order = np.lexsort((entries, self.passages))
        ends = np.cumsum(np.bincount(self.passages, minlength=len(self.ids)))
        for row in passages.tolist():
            places = order[ends[row - 1] if row else 0 : ends[row]]
            yield entries[places], self.weights[places].astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the folder that `load` reads."""
        facts = {"kind": KIND_OF_EMBEDDINGS, "entries": self.size, "weights": len(self.weights)}
        self._write(folder, {name: getattr(self, name) for name in ARRAYS}, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> EmbeddingIndex:
        """See `SparseIndex._read`."""
        _, arrays, ids = cls._read(folder, ARRAYS, check)
        return cls(**arrays, ids=ids)

    def _weight(self, entry: int, passage: int) -> float:
        start, end = self.starts[entry], self.starts[entry + 1]
        place = start + np.searchsorted(self.passages[start:end], passage)
        return (
            float(self.weights[place]) if place < end and self.passages[place] == passage else 0.0
        )


class PassagesOnTheFly:
    """Ranks candidates as an `EmbeddingIndex` of the same passages would, from their texts.

    Some embeddings are kept; threads may share one.
    """

    def __init__(self, texts: Sequence[str], ids: IdMap, encoder: LexicalEncoder) -> None:
        self.texts, self.ids, self.encoder = texts, ids, encoder
        self._cache: dict[int, Sparse] = {}

    def rank(
        self, queries: Sequence[Sparse], candidates: Sequence[Collection[str]]
    ) -> list[Ranking]:
        """For each query all of its candidate documents, best first."""
        pairs = zip(queries, candidates, strict=True)
        return [self._index(documents).rank([query], [documents])[0] for query, documents in pairs]

    def best_passage(self, query: Sparse, document_id: str) -> int:
        """See `SparseIndex.best_passage`."""
        return self._index([document_id]).best_passage(query, document_id)

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """See `EmbeddingIndex.matches`."""
        return self._index([document_id]).matches(query, document_id)

    def _index(self, documents: Collection[str]) -> EmbeddingIndex:
        rows = self.ids.rows_of(documents).tolist()
        names = [self.ids.document_ids[row] for row in rows]
        return EmbeddingIndex.build(self._embeddings(rows), names, self.encoder.vocabulary_size)

    def _embeddings(self, rows: Sequence[int]) -> list[Sparse]:
        if len(self._cache) > CACHE:
            self._cache = {}
        embeddings = self._cache  # another thread may begin anew meanwhile
        missing = [row for row in rows if row not in embeddings]
        embeddings.update(
            zip(missing, self.encoder.encode([self.texts[row] for row in missing]), strict=True)
        )
        return [embeddings[row] for row in rows]

    def save(self, folder: Path) -> None:
        """Write the texts and the document of each."""
        folder.mkdir(parents=True)
        write_json(
            folder / TEXTS, {"document_ids": self.ids.document_ids, "texts": list(self.texts)}
        )
        write_manifest(folder, FORMAT, {"kind": KIND_OF_TEXTS, "passages": len(self.texts)})

    @classmethod
    def load(cls, folder: Path, encoder: LexicalEncoder) -> PassagesOnTheFly:
        """Read what `save` wrote."""
        table = read_json(folder / TEXTS)
        return cls(table["texts"], IdMap(table["document_ids"]), encoder)


Passages = EmbeddingIndex | PassagesOnTheFly


class LexicalSearch(Retriever[list[Sparse]]):
    """One of the searches, `main`, by an encoder over the indexes of one corpus; encoded queries
    are their weights.

    tokens: of the passages, in the order of `passages`; passages: their embeddings, indexed or made
    on the fly, or None where only the token index is searched. rerank_depth: documents of beta that
    "beta_rerank" ranks again.
    """

    can_explain = True

    def __init__(
        self,
        encoder: LexicalEncoder,
        tokens: TokenIndex,
        passages: Passages | None,
        main: MainSearch,
        rerank_depth: int,
        fingerprint: str = "",
    ) -> None:
        self.encoder, self.tokens, self.passages, self.fingerprint = (
            encoder,
            tokens,
            passages,
            fingerprint,
        )
        self.main, self.rerank_depth = main, rerank_depth
        self.candidate_depth = rerank_depth if main == "beta_rerank" else None
        self._query = lru_cache(QUERIES_KEPT)(lambda text: self.encode_queries([text])[0])

    @classmethod
    def open(cls, folder: Path, encoder: LexicalEncoder, fingerprint: str | None = None) -> Self:
        """The indexes of a folder; FreshetError if it is damaged or another encoder's.

        fingerprint: the encoder's, for callers that have computed it before.
        """
        manifest = read_manifest(folder, FORMAT)
        if manifest.get("kind") != KIND:
            raise FreshetError(
                f"{folder} holds no lexical index but one of kind {manifest.get('kind')}; name the right one"
            )
        verify_checksums(folder, manifest)
        fingerprint = fingerprint or encoder.fingerprint()
        if manifest["fingerprint"] != fingerprint:
            raise FingerprintMismatch(
                f"{folder} was built with encoder {manifest['fingerprint'][:12]}, this is {fingerprint[:12]}; "
                "build the index again with this encoder"
            )
        passages: Passages | None = None
        if (folder / EMBEDDINGS).is_dir():
            passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
        elif (folder / PASSAGES).is_dir():
            passages = PassagesOnTheFly.load(folder / PASSAGES, encoder)
        tokens = TokenIndex.load(folder / TOKENS, check=False)
        return cls(
            encoder, tokens, passages, manifest["search"], manifest["rerank_depth"], fingerprint
        )

    def over(self, tokens: TokenIndex, passages: Passages | None) -> Self:
        """The same search over other indexes."""
        return type(self)(
            self.encoder, tokens, passages, self.main, self.rerank_depth, self.fingerprint
        )

    def by(self, main: MainSearch) -> Self:
        """Another search of the same indexes."""
        return type(self)(
            self.encoder, self.tokens, self.passages, main, self.rerank_depth, self.fingerprint
        )

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the sealed folder that `open` reads; returns the facts of its manifest."""
        self.tokens.save(folder / TOKENS)
        stored = isinstance(self.passages, EmbeddingIndex)
        if self.passages is not None:
            self.passages.save(folder / (EMBEDDINGS if stored else PASSAGES))
        facts = {"kind": KIND, "fingerprint": self.fingerprint, "search": self.main}
        facts |= {"passages": len(self.tokens.ids), "documents": self.tokens.ids.documents}
        facts |= {"rerank_depth": self.rerank_depth, "embeddings": stored}
        write_manifest(folder, FORMAT, facts)
        return facts

    @property
    def names(self) -> list[MainSearch]:
        """The searches that these indexes allow."""
        if self.passages is None:
            return list(BY_TOKENS)
        return [
            name
            for name in NAMES
            if isinstance(self.passages, EmbeddingIndex) or name not in EMBEDDED
        ]

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """The query side of the search."""
        if self.main == "alpha":
            return [(bag, np.ones(len(bag), np.float32)) for bag in self.encoder.bags(texts)]
        return (
            self.encoder.encode_own(texts)
            if self.main == "beta_own"
            else self.encoder.encode_queries(texts)
        )

    def search_encoded(
        self, queries: list[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query, or those by the tokens that beta_rerank begins with.

        Documents that share no entry with a query are left out.
        """
        index = self.scored_by if self.main in EMBEDDED else self.tokens
        if isinstance(index, PassagesOnTheFly):
            raise FreshetError(
                f"search {self.main!r} reads the embeddings of all passages; build the index for it"
            )
        return index.search(queries, k, allowed)

    @property
    def scored_by(self) -> TokenIndex | Passages:
        """What scores come from in the end."""
        index = self.tokens if self.main in BY_TOKENS else self.passages
        if index is None:
            raise FreshetError(
                "this search reads embeddings of passages, and there are none; build the index for it"
            )
        return index

    def score_encoded(
        self, queries: list[Sparse], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """The scores of each query's candidates, as the search gives them."""
        tables = map(dict, self.scored_by.rank(queries, candidates))
        each = zip(candidates, tables, strict=True)
        return [
            np.array([table[document] for document in documents], np.float64)
            for documents, table in each
        ]

    def best_passage_encoded(self, query: list[Sparse], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) answers the query best."""
        return self.scored_by.best_passage(query[0], document_id)

    def variants(self) -> Mapping[str, Search]:
        """The searches that the indexes allow, but for this one: full, alpha, beta, beta_own,
        beta_rerank.

        Those that read the whole encoding of the same texts share it, for as long as somebody holds
        one of them.
        """
        encode = cache(self.encoder.encode_queries)

        def search(
            index: Self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
        ) -> list[Ranking]:
            queries = (
                index.encode_queries(texts)
                if index.main in ("alpha", "beta_own")
                else encode(tuple(texts))
            )
            return index.search_and_rerank(queries, k, allowed)

        return {name: partial(search, self.by(name)) for name in self.names if name != self.main}

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """The tokens that matched in the best passage, the heaviest first; their weights sum to the
        score.
        """
        own_tokens, name = (
            set(self.encoder.bags([text])[0].tolist()),
            self.encoder.tokenizer.convert_ids_to_tokens,
        )
        matches = self.scored_by.matches(self._query(text), document_id)
        return [
            TokenMatch(name(token), weight, token not in own_tokens) for token, weight in matches
        ]


def build_folder(
    folder: Path,
    encoder: LexicalEncoder,
    texts: Sequence[str],
    document_ids: Sequence[str],
    settings: LexicalSettings,
    shards: Path,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Write the sealed folder and return its facts; finished shards of embeddings are kept in
    `shards`.
    """
    tokens = index_tokens(encoder, texts, document_ids)
    passages: Passages | None = None
    if settings.search in EMBEDDED:
        embeddings = encode_resumably(encoder, texts, shards, progress)
        passages = EmbeddingIndex.build(embeddings, document_ids, encoder.vocabulary_size)
    elif settings.search == "beta_rerank":
        passages = PassagesOnTheFly(texts, tokens.ids, encoder)
    built = LexicalSearch(
        encoder, tokens, passages, settings.search, settings.rerank_depth, encoder.fingerprint()
    )
    return built.save(folder)


def encode_resumably(
    encoder: LexicalEncoder, texts: Sequence[str], folder: Path, progress: Progress = no_progress
) -> list[Sparse]:
    """`encoder.encode(texts)`, shard by shard, each kept in `folder` once it is done: resumed or
    not, equal bytes.
    """

    def arrays(embeddings: Sequence[Sparse]) -> Arrays:
        ids, weights = zip(*embeddings, strict=True)
        return {"ids": np.stack(ids), "weights": np.stack(weights)}

    shards = keep_shards(encoder, texts, folder, arrays, progress)
    return [
        embedding
        for shard in shards
        for embedding in zip(shard["ids"], shard["weights"], strict=True)
    ]


@lru_cache(maxsize=1)
def _token_bags(encoder: LexicalEncoder) -> TokenBags:
    """The bags of an encoder, kept, as copying a tokenizer costs more than a segment's few texts."""
    return TokenBags(encoder.tokenizer)


def index_tokens(
    encoder: LexicalEncoder, texts: Sequence[str], document_ids: Sequence[str]
) -> TokenIndex:
    """Index the tokens of whole passages, longer ones than the encoder sees included. Nothing is
    encoded.

    Tokens that may carry no weight are indexed, too: they match nothing, as no query gives them
    any.
    """
    return TokenIndex.build(_token_bags(encoder)(texts), document_ids)
