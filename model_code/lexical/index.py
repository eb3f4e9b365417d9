"""The indexes of a lexical retriever in one sealed folder, and the ways to search them.

| name | query | passage | needs |
|---|---|---|---|
| full | E(q) | E(p) | embeddings of all passages |
| alpha | T(q) | E(p) | the same, but no encoder for the query: as fast as term search |
| beta | E(q) | T(p) | the token index alone, built by the tokenizer |
| beta_own | E(q) on its own tokens | T(p) | the same |
| beta_rerank | E(q) | T(p), then E(p) of the best | the same, and embeddings of those few |

(Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 5; beta_own is ours.) In the folder, `tokens/`
is a `TokenIndex`: with it alone "beta" searches, seconds after a corpus arrives. `embeddings/` is an `EmbeddingIndex`;
where the settings do without, `passages/` has the texts, for re-ranking.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.lexical.embedding_index import PRECISION, EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import LexicalSettings, MainSearch
from model_code.manifest import read_manifest, seal, verify
from model_code.progress import Progress, silent
from model_code.retriever import Ranking
from model_code.scale.encoding import keep_shards
from model_code.token_index.bags import TokenBags
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Sparse

NAMES: tuple[MainSearch, ...] = ("full", "alpha", "beta", "beta_own", "beta_rerank")
BY_TOKENS: tuple[MainSearch, ...] = ("beta", "beta_own")
QUERIES_KEPT = 16  # whose hits are explained one by one
FORMAT, KIND = 1, "lexical"
TOKENS, EMBEDDINGS, PASSAGES = "tokens", "embeddings", "passages"


class LexicalIndex:
    """The indexes of one encoder over one corpus, and every search of them.

    tokens: of the passages, in the order of `passages`; passages: their embeddings, indexed or made on the fly, or None
    where only the token index is searched. rerank_depth: documents of beta that "beta_rerank" ranks again.
    """

    def __init__(
        self,
        encoder: LexicalEncoder,
        tokens: TokenIndex,
        passages: EmbeddingIndex | PassagesOnTheFly | None,
        rerank_depth: int,
    ) -> None:
        self.encoder, self.tokens, self.passages, self.rerank_depth = encoder, tokens, passages, rerank_depth
        self.fingerprint = encoder.fingerprint()
        self._query = lru_cache(QUERIES_KEPT)(lambda name, text: self.queries(name, [text])[0])

    @property
    def names(self) -> list[MainSearch]:
        """The searches that these indexes allow."""
        if self.passages is None:
            return list(BY_TOKENS)
        indexed = isinstance(self.passages, EmbeddingIndex)
        return [name for name in NAMES if indexed or name not in ("full", "alpha")]

    def queries(self, name: MainSearch, texts: Sequence[str]) -> list[Sparse]:
        """The query side of a search."""
        if name == "alpha":
            return [(bag, np.ones(len(bag), np.float32)) for bag in self.encoder.bags(texts)]
        return self.encoder.encode_own(texts) if name == "beta_own" else self.encoder.encode_queries(texts)

    def search(
        self, name: MainSearch, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each text, best first; documents that share no entry with it are left out."""
        return self.find(name, self.queries(name, texts), k, allowed)

    def find(
        self, name: MainSearch, queries: list[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """`search` for what `queries` gives."""
        if name in BY_TOKENS:
            return self.tokens.search(queries, k, self.tokens.fingerprint, allowed)
        if name == "beta_rerank":
            proposals = self.tokens.search(queries, max(k, self.rerank_depth), self.tokens.fingerprint, allowed)
            candidates = [[document for document, _ in ranking] for ranking in proposals]
            return [ranking[:k] for ranking in self._embedded.rank(queries, candidates, self.fingerprint)]
        index = self._embedded
        if not isinstance(index, EmbeddingIndex):
            raise FreshetError(f"search {name!r} reads the embeddings of all passages; build the index with embeddings")
        return index.search(queries, k, self.fingerprint, allowed)

    def matches(self, name: MainSearch, text: str, document_id: str) -> list[tuple[int, float]]:
        """What each token adds to the score of the document's best passage, where it adds anything; heaviest first."""
        query = self._query(name, text)
        if name in BY_TOKENS:
            return self.tokens.matches(query, document_id, self.tokens.fingerprint)
        rows = self._embedded.ids.rows_of([document_id])
        parts = self._embedded.parts(query, int(rows[np.argmax(self._embedded.scores_at(query, rows))]))
        matches = zip(query[0][parts > 0].tolist(), parts[parts > 0].tolist(), strict=True)
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    @property
    def _embedded(self) -> EmbeddingIndex | PassagesOnTheFly:
        if self.passages is None:
            raise FreshetError("this search reads embeddings of passages, and there are none; build an index with them")
        return self.passages


def build_folder(
    folder: Path,
    encoder: LexicalEncoder,
    texts: Sequence[str],
    document_ids: Sequence[str],
    settings: LexicalSettings,
    shards: Path,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write the sealed folder and return its facts; finished shards of embeddings are kept in `shards`."""
    fingerprint = encoder.fingerprint()
    tokens = index_tokens(encoder, texts, document_ids)
    tokens.save(folder / TOKENS)
    if settings.embeddings:
        embeddings = encode_resumably(encoder, texts, shards, progress)
        size = encoder.vocabulary_size
        index = EmbeddingIndex.build(embeddings, document_ids, size, fingerprint)
        index.save(folder / EMBEDDINGS)
    else:
        PassagesOnTheFly.save(folder / PASSAGES, texts, document_ids, fingerprint)
    facts = {"kind": KIND, "fingerprint": fingerprint, "passages": len(texts), "documents": len(set(document_ids))}
    facts |= {"search": settings.search, "rerank_depth": settings.rerank_depth, "embeddings": settings.embeddings}
    seal(folder, FORMAT, facts | {"weights": PRECISION})
    return facts


def open_folder(folder: Path, encoder: LexicalEncoder) -> tuple[LexicalIndex, dict[str, Any]]:
    """The indexes of a folder, and its manifest; FreshetError if it is damaged or another encoder's."""
    manifest = read_manifest(folder, FORMAT)
    if manifest.get("kind") != KIND:
        raise FreshetError(
            f"{folder} holds no lexical index but one of kind {manifest.get('kind')}; name the right one"
        )
    verify(folder, manifest)
    fingerprint = encoder.fingerprint()
    if manifest["fingerprint"] != fingerprint:
        raise FingerprintMismatch(
            f"{folder} was built with encoder {manifest['fingerprint'][:12]}, this is {fingerprint[:12]}; "
            "build the index again with this encoder"
        )
    passages: EmbeddingIndex | PassagesOnTheFly
    if manifest["embeddings"]:
        passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
    else:
        passages = PassagesOnTheFly.load(folder / PASSAGES, encoder, manifest["weights"])
    tokens = TokenIndex.load(folder / TOKENS, check=False)
    return LexicalIndex(encoder, tokens, passages, manifest["rerank_depth"]), manifest


def encode_resumably(
    encoder: LexicalEncoder, texts: Sequence[str], folder: Path, progress: Progress = silent
) -> list[Sparse]:
    """`encoder.encode(texts)`, shard by shard, each kept in `folder` once it is done: resumed or not, equal bytes."""
    embeddings: list[Sparse] = []
    for path in keep_shards(encoder, texts, folder, ".npz", _write, progress):
        with np.load(path) as shard:
            embeddings += list(zip(shard["ids"], shard["weights"], strict=True))
    return embeddings


def _write(stream: BinaryIO, found: Sequence[Sparse]) -> None:
    np.savez(stream, ids=np.stack([ids for ids, _ in found]), weights=np.stack([weights for _, weights in found]))


def index_tokens(encoder: LexicalEncoder, texts: Sequence[str], document_ids: Sequence[str]) -> TokenIndex:
    """Index the tokens of whole passages, longer ones than the encoder sees included. Nothing is encoded.

    Tokens that may carry no weight are indexed, too: they match nothing, as no query gives them any.
    """
    bags = TokenBags(encoder.tokenizer)
    return TokenIndex.build(bags(texts), document_ids, bags.fingerprint)
