"""The indexes of a lexical retriever in one folder, and the searches that they support.

A search scores a passage p for a query q by the inner product of two vectors over the vocabulary.
E(x) are the weights that the encoder gives a text x, and T(x) is 1 for each token of x.

| name | query | passage | needs |
|---|---|---|---|
| full | E(q) | E(p) | embeddings of all passages |
| alpha | T(q) | E(p) | embeddings of all passages, but no query encoder: as fast as term search |
| beta | E(q) | T(p) | the token index alone, which the tokenizer builds |
| beta_own | E(q) at its own tokens | T(p) | the token index alone |
| beta_rerank | E(q) | T(p), then E(p) of the best | the token index and embeddings of the best |

Source: Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 5; beta_own is ours.

An embedding is E(p). The folder has these parts:

- `tokens/`: a `TokenIndex`. It needs no encoder, so that beta can search a new corpus after
  seconds.
- `known/`: the tokens of known queries, if known queries count.
- `embeddings/`: an `EmbeddingIndex`, if the main search is full or alpha.
- `passages/`: the texts of the passages, if the main search is beta_rerank. It embeds a passage
  when a query needs it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np

from model_code.distributed.encoding import Arrays, keep_shards
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json, read_manifest, verify_checksums, write_json, write_manifest
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import EMBEDDED, KNOWN_WORDS, LexicalSettings, MainSearch
from model_code.lexical.token_index.bags import TokenBags
from model_code.lexical.token_index.index import SparseIndex, TokenIndex
from model_code.lexical.token_index.known_tokens import KnownTokens, TokensWithKnown
from model_code.lexical.token_index.postings import Sparse
from model_code.progress import Progress, no_progress
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.protocol import Ranking, Retriever, Search, TokenMatch
from model_code.text.known_queries import KnownQuery

NAMES: tuple[MainSearch, ...] = ("full", "alpha", "beta", "beta_own", "beta_rerank")
BY_TOKENS: tuple[MainSearch, ...] = ("beta", "beta_own")
"""Names of the searches that read the token index only, and no learned weights of passages."""

# Version of the format of the index folders, and the kinds of folders in their manifests.
FORMAT = 1
KIND = "lexical"
KIND_OF_EMBEDDINGS = "lexical_embeddings"
KIND_OF_TEXTS = "lexical_passages"
TOKENS = "tokens"
KNOWN = "known"
EMBEDDINGS = "embeddings"
PASSAGES = "passages"
ARRAYS = ("starts", "passages", "weights")
TEXTS = "passages.json"
PRECISION = "float16"
"""Number format of stored weights. It has three significant digits."""

# Name of the variant that searches without the tokens of queries that documents are known to
# answer.
WITHOUT_KNOWN = "without_known"

NO_KNOWN_QUERIES: Mapping[str, Sequence[KnownQuery]] = MappingProxyType({})
"""No known queries: the default for passages whose documents have none."""

# Number of encoded queries that are cached, because `explain` is called once per hit of a query.
MAX_CACHED_QUERIES = 16
# The cache of passages' embeddings is emptied when it holds so many.
MAX_CACHED_EMBEDDINGS = 4096


class EmbeddingIndex(SparseIndex):
    """An inverted index: for each vocabulary entry, the passages that have a weight there.

    It consists of three flat, memory-mapped arrays. A query reads only the lists of its entries. A
    score is the float64 sum of (query weight) * (stored weight) over the query's entries in
    ascending order, rounded to float32. So it depends neither on the batch nor on the order of
    insertion.

    Attributes:
        starts: Start of each entry's list, (V + 1,) int64.
        passages: Passage numbers of all lists, ascending within a list, (n,) int32.
        weights: Weight of each entry of `passages`, (n,) float16.
        ids: Document id of each passage.

    >>> embedding = (np.array([0, 2]), np.array([1.0, 3.0], np.float32))
    >>> index = EmbeddingIndex.build([embedding], ["a"], size=4)
    >>> index.search([(np.array([2, 3]), np.array([0.5, 9.0], np.float32))], k=1)
    [[('a', 1.5)]]
    """

    def __init__(
        self, starts: np.ndarray, passages: np.ndarray, weights: np.ndarray, ids: IdMap
    ) -> None:
        """Keep the arrays of an index; see the attributes. `build` and `load` make them."""
        self.starts = starts
        self.passages = passages
        self.weights = weights
        self.ids = ids

    @classmethod
    def build(
        cls, embeddings: Sequence[Sparse], document_ids: Sequence[str], size: int
    ) -> EmbeddingIndex:
        """Index the embeddings of passages.

        Args:
            embeddings: Entries and weights of each passage.
            document_ids: The document of each passage.
            size: Number of vocabulary entries V.

        Raises:
            FreshetError: If the numbers differ, a weight does not fit into float16, or an entry is
                outside the vocabulary.
        """
        if len(embeddings) != len(document_ids):
            raise FreshetError(
                f"{len(embeddings)} embeddings do not fit {len(document_ids)} passages"
            )
        # Three flat arrays with an item for each weight: its entry, its value and its passage. The
        # empty arrays keep the types if there is no passage.
        all_entries = [np.empty(0, np.int64)]
        all_weights = [np.empty(0, np.float32)]
        for passage_entries, passage_weights in embeddings:
            all_entries.append(passage_entries)
            all_weights.append(passage_weights)
        entries = np.concatenate(all_entries)
        weights = np.concatenate(all_weights).astype(np.float32)
        weights_per_passage = [len(passage_entries) for passage_entries, _ in embeddings]
        passages = np.repeat(np.arange(len(embeddings), dtype=np.int32), weights_per_passage)

        largest_storable = float(np.finfo(PRECISION).max)
        if not np.isfinite(weights).all() or np.abs(weights).max(initial=0.0) > largest_storable:
            raise FreshetError(
                f"weights are not finite in {PRECISION}; the encoder diverged: train it again"
            )
        if entries.max(initial=-1) >= size:
            raise FreshetError(
                f"entry {int(entries.max())} is outside the vocabulary of {size} entries"
            )

        # A stable sort by entry keeps the passages of each entry ascending.
        order = np.argsort(entries, kind="stable")
        list_lengths = np.bincount(entries, minlength=size)
        starts = np.concatenate([[0], np.cumsum(list_lengths)]).astype(np.int64)
        return cls(starts, passages[order], weights[order].astype(PRECISION), IdMap(document_ids))

    @property
    def size(self) -> int:
        """Number of vocabulary entries."""
        return len(self.starts) - 1

    def scores(self, queries: Sequence[Sparse]) -> Iterator[np.ndarray]:
        """Yield the score of every passage for each query; see `SparseIndex.scores`."""
        for entries, weights in queries:
            scores = np.zeros(len(self.ids))
            for entry, weight in zip(entries, weights, strict=True):
                # The place of the entry's list, which names the passages with a weight for it.
                postings = slice(self.starts[entry], self.starts[entry + 1])
                stored_weights = self.weights[postings].astype(np.float64)
                scores[self.passages[postings]] += float(weight) * stored_weights
            yield scores

    def scores_at(self, query: Sparse, passages: np.ndarray) -> np.ndarray:
        """Return the scores of the given passages; see `SparseIndex.scores_at`."""
        return next(self.scores([query]))[passages]

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """Return the contribution of each query entry to the score of the document's best passage.

        Args:
            query: Vocabulary entries and their weights.
            document_id: A document of the index.

        Returns:
            Pairs of an entry and its positive contribution, largest contribution first.
        """
        best = self.best_passage(query, document_id)
        passage = int(self.ids.rows_of([document_id])[best])

        shares = []
        for entry, weight in zip(query[0].tolist(), query[1].tolist(), strict=True):
            share = weight * self._weight(entry, passage)
            if share > 0:
                shares.append((entry, share))
        return sorted(shares, key=lambda match: (-match[1], match[0]))

    def embeddings(self, passages: np.ndarray) -> Iterator[Sparse]:
        """Yield the embedding of each given passage, collected from the lists of entries.

        An embedding consists of vocabulary entries, ascending, and their weights.

        Args:
            passages: Numbers of the passages, (p,).
        """
        # The vocabulary entry of each stored weight. Weights are stored entry by entry.
        entries = np.repeat(np.arange(self.size), np.diff(self.starts))
        # Places of the stored weights, passage by passage, with ascending entries in each passage.
        by_passage = np.lexsort((entries, self.passages))
        weight_counts = np.bincount(self.passages, minlength=len(self.ids))
        starts = np.concatenate([[0], np.cumsum(weight_counts)])
        for passage in passages.tolist():
            places = by_passage[starts[passage] : starts[passage + 1]]
            yield entries[places], self.weights[places].astype(np.float32)

    def save(self, folder: Path) -> None:
        """Write the index to a folder, from which `load` opens it."""
        facts = {"kind": KIND_OF_EMBEDDINGS, "entries": self.size, "weights": len(self.weights)}
        arrays = {name: getattr(self, name) for name in ARRAYS}
        self._write(folder, arrays, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> EmbeddingIndex:
        """Open a folder that `save` wrote.

        Args:
            folder: The folder.
            check: Whether to compare checksums, which reads every file once.

        Raises:
            FreshetError: If a file does not match the manifest.
        """
        _, arrays, ids = cls._read(folder, ARRAYS, check)
        return cls(**arrays, ids=ids)

    def _weight(self, entry: int, passage: int) -> float:
        """Return the stored weight of an entry in a passage, 0 if there is none."""
        start = self.starts[entry]
        end = self.starts[entry + 1]
        # The passages of an entry are ascending, so a binary search finds the passage.
        place = start + np.searchsorted(self.passages[start:end], passage)
        if place < end and self.passages[place] == passage:
            return float(self.weights[place])
        return 0.0


class PassagesOnTheFly:
    """Ranks candidates like an `EmbeddingIndex` of the same passages, but stores only their texts.

    A passage is embedded when a query needs it, and its embedding is cached. Threads may share an
    instance.

    Attributes:
        texts: The passages.
        ids: The document of each passage.
        encoder: The encoder that embeds a passage when a query needs it.
    """

    def __init__(self, texts: Sequence[str], ids: IdMap, encoder: LexicalEncoder) -> None:
        """Keep passages, whose embeddings are computed on demand; see the attributes."""
        self.texts = texts
        self.ids = ids
        self.encoder = encoder
        self._cache: dict[int, Sparse] = {}

    def rank(
        self, queries: Sequence[Sparse], candidates: Sequence[Collection[str]]
    ) -> list[Ranking]:
        """Rank all candidate documents of each query, best first."""
        rankings = []
        for query, documents in zip(queries, candidates, strict=True):
            rankings.extend(self._index(documents).rank([query], [documents]))
        return rankings

    def best_passage(self, query: Sparse, document_id: str) -> int:
        """Return the number of the document's best passage; see `SparseIndex.best_passage`."""
        return self._index([document_id]).best_passage(query, document_id)

    def matches(self, query: Sparse, document_id: str) -> list[tuple[int, float]]:
        """Return what each query entry adds to a document's score, as `EmbeddingIndex` does."""
        return self._index([document_id]).matches(query, document_id)

    def _index(self, documents: Collection[str]) -> EmbeddingIndex:
        """Return a small index of the passages of some documents, and embed them if necessary."""
        rows = self.ids.rows_of(documents).tolist()
        names = [self.ids.document_ids[row] for row in rows]
        return EmbeddingIndex.build(self._embeddings(rows), names, self.encoder.vocabulary_size)

    def _embeddings(self, rows: Sequence[int]) -> list[Sparse]:
        """Return the embeddings of the passages in some rows, from the cache if it has them."""
        if len(self._cache) > MAX_CACHED_EMBEDDINGS:
            self._cache = {}
        # Another thread may put a new dictionary in `self._cache`, so this call keeps the present
        # one.
        cache = self._cache
        missing = [row for row in rows if row not in cache]
        embeddings = self.encoder.encode([self.texts[row] for row in missing])
        cache.update(zip(missing, embeddings, strict=True))
        return [cache[row] for row in rows]

    def save(self, folder: Path) -> None:
        """Write the texts of the passages, and the document id of each, to a folder."""
        folder.mkdir(parents=True)
        table = {"document_ids": list(self.ids.document_ids), "texts": list(self.texts)}
        write_json(folder / TEXTS, table)
        write_manifest(folder, FORMAT, {"kind": KIND_OF_TEXTS, "passages": len(self.texts)})

    @classmethod
    def load(cls, folder: Path, encoder: LexicalEncoder) -> PassagesOnTheFly:
        """Read the passages from a folder that `save` wrote; `encoder` embeds them."""
        table = read_json(folder / TEXTS)
        return cls(table["texts"], IdMap(table["document_ids"]), encoder)


Passages = EmbeddingIndex | PassagesOnTheFly


class LexicalSearch(Retriever[list[Sparse]]):
    """One of the searches of the module's table, over the indexes of one corpus.

    An encoded query consists of vocabulary entries and their weights.

    Attributes:
        encoder: Encodes queries.
        tokens: Token index of the passages.
        passages: Embeddings of the same passages, indexed or computed on demand. None if only the
            token index is searched.
        main: Name of the search in the module's table, such as beta.
        rerank_depth: Number of best documents of beta that beta_rerank ranks again.
        fingerprint: Fingerprint of the encoder.
        known: Tokens of known queries of the same documents. None if known queries do not count.
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
        known: KnownTokens | None = None,
    ) -> None:
        """Combine an encoder with the indexes that its searches read; see the attributes."""
        self.encoder = encoder
        self.tokens = tokens
        self.known = known
        self.passages = passages
        self.main = main
        self.rerank_depth = rerank_depth
        self.fingerprint = fingerprint
        self.candidate_depth = rerank_depth if main == "beta_rerank" else None
        # A page of hits explains each hit by the same query, so encoded queries are cached.
        self._encode_cached = lru_cache(MAX_CACHED_QUERIES)(
            lambda text: self.encode_queries([text])[0]
        )

    @classmethod
    def open(cls, folder: Path, encoder: LexicalEncoder, fingerprint: str | None = None) -> Self:
        """Open the indexes in a folder.

        Args:
            folder: The folder.
            encoder: The encoder that the folder was built with.
            fingerprint: Fingerprint of the encoder, if it is already known.

        Raises:
            FingerprintMismatch: If the folder was built with another encoder.
            FreshetError: If the folder is damaged or holds another kind of index.
        """
        manifest = read_manifest(folder, FORMAT)
        if manifest.get("kind") != KIND:
            raise FreshetError(
                f"{folder} holds no lexical index but one of kind "
                f"{manifest.get('kind')}; name the right one"
            )
        # The checksums cover the indexes inside of the folder, which are therefore not checked
        # again below.
        verify_checksums(folder, manifest)
        fingerprint = fingerprint or encoder.fingerprint()
        if manifest["fingerprint"] != fingerprint:
            raise FingerprintMismatch(
                f"{folder} was built with encoder {manifest['fingerprint'][:12]}, this is "
                f"{fingerprint[:12]}; build the index again with this encoder"
            )

        tokens = TokenIndex.load(folder / TOKENS, check=False)
        passages: Passages | None = None
        if (folder / EMBEDDINGS).is_dir():
            passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
        elif (folder / PASSAGES).is_dir():
            passages = PassagesOnTheFly.load(folder / PASSAGES, encoder)
        known = None
        if KNOWN_WORDS in manifest:
            words = KnownWords.from_facts(manifest[KNOWN_WORDS])
            known = KnownTokens(TokenIndex.load(folder / KNOWN, check=False), words)
        return cls(
            encoder,
            tokens,
            passages,
            manifest["search"],
            manifest["rerank_depth"],
            fingerprint,
            known,
        )

    def with_indexes(
        self, tokens: TokenIndex, passages: Passages | None, known: KnownTokens | None = None
    ) -> Self:
        """Return a search with the encoder and settings of this one, over other indexes."""
        return type(self)(
            self.encoder, tokens, passages, self.main, self.rerank_depth, self.fingerprint, known
        )

    def with_main_search(self, main: MainSearch) -> Self:
        """Return the search that `main` names, over the same indexes."""
        return type(self)(
            self.encoder,
            self.tokens,
            self.passages,
            main,
            self.rerank_depth,
            self.fingerprint,
            self.known,
        )

    def without_known_words(self) -> Self:
        """Return the same search without known queries; this one if no known query counts."""
        if self.known is None:
            return self
        return self.with_indexes(self.tokens, self.passages)

    @cached_property
    def searched_tokens(self) -> TokenIndex | TokensWithKnown:
        """The token index that searches read, with the tokens of known queries if they count."""
        if self.known is None:
            return self.tokens
        return TokensWithKnown(self.tokens, self.known)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write all indexes to a folder that `open` reads, and return the facts of its manifest."""
        self.tokens.save(folder / TOKENS)
        has_embeddings = isinstance(self.passages, EmbeddingIndex)
        if self.passages is not None:
            name = EMBEDDINGS if has_embeddings else PASSAGES
            self.passages.save(folder / name)
        if self.known is not None:
            self.known.index.save(folder / KNOWN)

        facts: dict[str, Any] = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "search": self.main,
            "passages": len(self.tokens.ids),
            "documents": self.tokens.ids.documents,
            "rerank_depth": self.rerank_depth,
            "embeddings": has_embeddings,
        }
        if self.known is not None:
            facts[KNOWN_WORDS] = asdict(self.known.words)
        write_manifest(folder, FORMAT, facts)
        return facts

    @property
    def names(self) -> list[MainSearch]:
        """Names of the searches for which all needed indexes exist."""
        if self.passages is None:
            return list(BY_TOKENS)
        if isinstance(self.passages, EmbeddingIndex):
            return list(NAMES)
        return [name for name in NAMES if name not in EMBEDDED]

    def encode_queries(self, texts: Sequence[str]) -> list[Sparse]:
        """Encode queries in the form that the main search needs.

        Each token of a query weighs 1 for the search alpha. The search beta_own reads the learned
        weights of the query's own tokens, and the other searches those of the whole vocabulary.
        """
        if self.main == "alpha":
            bags = self.encoder.bags(texts)
            return [(bag, np.ones(len(bag), np.float32)) for bag in bags]
        if self.main == "beta_own":
            return self.encoder.encode_own(texts)
        return self.encoder.encode_queries(texts)

    def search_encoded(
        self, queries: list[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best documents of each query.

        The search beta_rerank ranks documents twice, first by their tokens. Its documents here are
        those of the first ranking. Documents that share no entry with a query are left out.
        """
        index = self.scored_by if self.main in EMBEDDED else self.searched_tokens
        if isinstance(index, PassagesOnTheFly):
            raise FreshetError(
                f"search {self.main!r} reads the embeddings of all passages; build the index for it"
            )
        return index.search(queries, k, allowed)

    @property
    def scored_by(self) -> TokenIndex | TokensWithKnown | Passages:
        """The index that computes the final scores: of tokens or of embeddings, by the search.

        Raises:
            FreshetError: If the search reads embeddings, and there are none.
        """
        index = self.searched_tokens if self.main in BY_TOKENS else self.passages
        if index is None:
            raise FreshetError(
                "this search reads embeddings of passages, and "
                "there are none; build the index for it"
            )
        return index

    def score_encoded(
        self, queries: list[Sparse], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Return the scores that finally rank each query's candidates, (n,) float64."""
        all_scores = []
        rankings = self.scored_by.rank(queries, candidates)
        for documents, ranking in zip(candidates, rankings, strict=True):
            # A ranking is ordered by score. The scores are returned in the order of the candidates.
            score_by_document = dict(ranking)
            scores = [score_by_document[document] for document in documents]
            all_scores.append(np.array(scores, np.float64))
        return all_scores

    def best_passage_encoded(self, query: list[Sparse], document_id: str) -> int:
        """Return the number (0, 1, ...) of the document's passage that answers the query best."""
        return self.scored_by.best_passage(query[0], document_id)

    def variants(self) -> Mapping[str, Search]:
        """Return the other searches that these indexes support, by name.

        Searches for the same texts share the encoded queries, so that texts are encoded once.
        """
        encode_shared = cache(self.encoder.encode_queries)

        def search(
            index: Self, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
        ) -> list[Ranking]:
            """Return the k best documents of each text by the main search of `index`."""
            # Searches share the weights of the whole vocabulary. These two need other weights:
            # alpha the plain tokens, and beta_own those of the query's own tokens.
            if index.main in ("alpha", "beta_own"):
                queries = index.encode_queries(texts)
            else:
                queries = encode_shared(tuple(texts))
            return index.search_and_rerank(queries, k, allowed)

        variants = {}
        for name in self.names:
            if name != self.main:
                variants[name] = partial(search, self.with_main_search(name))
        if self.known is not None and self.main in BY_TOKENS:
            variants[WITHOUT_KNOWN] = partial(search, self.without_known_words())
        return variants

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return the tokens that matched in the document's best passage, largest weight first.

        The weights sum to the score. A token that the query does not contain is marked as an
        expansion. A token is marked as known if the passage has it only from a known query.
        """
        query_tokens = set(self.encoder.bags([text])[0].tolist())
        query = self._encode_cached(text)
        index = self.scored_by
        known_tokens: set[int] = set()
        if isinstance(index, TokensWithKnown):
            known_tokens = index.known_tokens(query, document_id)
        matches = []
        for token, weight in index.matches(query, document_id):
            name = self.encoder.tokenizer.convert_ids_to_tokens(token)
            is_expansion = token not in query_tokens
            matches.append(TokenMatch(name, weight, is_expansion, token in known_tokens))
        return matches


def build_folder(
    folder: Path,
    encoder: LexicalEncoder,
    texts: Sequence[str],
    document_ids: Sequence[str],
    settings: LexicalSettings,
    shards: Path,
    progress: Progress = no_progress,
    known: Mapping[str, Sequence[KnownQuery]] = NO_KNOWN_QUERIES,
    words: KnownWords | None = None,
) -> dict[str, Any]:
    """Index passages for the main search, and write the folder of their indexes.

    Args:
        folder: Folder to write.
        encoder: Encodes the passages, if the search reads embeddings.
        texts: The passages.
        document_ids: The document of each passage.
        settings: The main search, and the depth of re-ranking.
        shards: Folder of finished shards of embeddings, from which an interrupted call resumes.
        progress: Called after each shard.
        known: Known queries by document id.
        words: How known queries count; None ignores them.

    Returns:
        The facts of the folder's manifest.
    """
    tokens, known_tokens = index_tokens(encoder, texts, document_ids, known, words)
    passages: Passages | None = None
    if settings.search in EMBEDDED:
        embeddings = encode_resumably(encoder, texts, shards, progress)
        passages = EmbeddingIndex.build(embeddings, document_ids, encoder.vocabulary_size)
    elif settings.search == "beta_rerank":
        passages = PassagesOnTheFly(texts, tokens.ids, encoder)
    built = LexicalSearch(
        encoder,
        tokens,
        passages,
        settings.search,
        settings.rerank_depth,
        encoder.fingerprint(),
        known_tokens,
    )
    return built.save(folder)


def encode_resumably(
    encoder: LexicalEncoder, texts: Sequence[str], folder: Path, progress: Progress = no_progress
) -> list[Sparse]:
    """Encode texts shard by shard, so that an interrupted call can be resumed.

    The result of a resumed call has the same bytes. It may differ from `encoder.encode(texts)` in
    the last digits, because a shard is divided into other batches.

    Args:
        encoder: The encoder.
        texts: The texts.
        folder: Folder of finished shards. No other encoder or texts may use it.
        progress: Called after each shard.
    """

    def to_arrays(embeddings: Sequence[Sparse]) -> Arrays:
        # All texts have the same number of weights, so they fit into arrays (n, k).
        entries = np.stack([entries for entries, _ in embeddings])
        weights = np.stack([weights for _, weights in embeddings])
        return {"ids": entries, "weights": weights}

    embeddings: list[Sparse] = []
    for shard in keep_shards(encoder, texts, folder, to_arrays, progress, "encode"):
        embeddings.extend(zip(shard["ids"], shard["weights"], strict=True))
    return embeddings


@lru_cache(maxsize=1)
def token_bags(encoder: LexicalEncoder) -> TokenBags:
    """Return a cached `TokenBags` of the encoder's tokenizer.

    Copying a tokenizer would take longer than finding the tokens of a small segment.
    """
    return TokenBags(encoder.tokenizer)


def index_tokens(
    encoder: LexicalEncoder,
    texts: Sequence[str],
    document_ids: Sequence[str],
    known: Mapping[str, Sequence[KnownQuery]] = NO_KNOWN_QUERIES,
    words: KnownWords | None = None,
) -> tuple[TokenIndex, KnownTokens | None]:
    """Index the tokens of passages, and of known queries if they count. Nothing is encoded.

    Passages are not cut, even if they are longer than the encoder's limit. Tokens that never have a
    weight, such as punctuation, are indexed as well. They have no effect, since no query has them.

    Args:
        encoder: The encoder, whose tokenizer is used.
        texts: The passages.
        document_ids: The document of each passage.
        known: Known queries by document id.
        words: How known queries count; None ignores them.

    Returns:
        The index of the passages, and the tokens of known queries if they count.
    """
    find_tokens = token_bags(encoder)
    tokens = TokenIndex.from_texts(find_tokens, texts, document_ids)
    if words is None or not words.weight:
        return tokens, None
    return tokens, KnownTokens.build(known, tokens, words, find_tokens)
