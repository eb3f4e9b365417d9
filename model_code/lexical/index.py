"""The indexes of a lexical retriever in one sealed folder, and the ways to search them.

| name | query | passage | needs |
|---|---|---|---|
| full | E(q) | E(p) | embeddings of all passages |
| alpha | T(q) | E(p) | the same, but no encoder for the query: as fast as term search |
| beta | E(q) | T(p) | the token index alone, built by the tokenizer |
| beta_own | E(q) on its own tokens | T(p) | the same |
| beta_rerank | E(q) | T(p), then E(p) of the best | the same, and embeddings of those few |

(Zhou et al., Semi-Parametric Retrieval via Binary Token Index, section 5; beta_own is ours.) In the folder, `tokens/`
is a `TokenIndex`: with it alone "beta" searches, seconds after a corpus arrives. Where the main search is full or alpha
`embeddings/` is an `EmbeddingIndex`; where it is beta_rerank `passages/` has the texts, which it embeds as they come.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.lexical.embedding_index import EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.settings import EMBEDDED, LexicalSettings, MainSearch
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
Passages = EmbeddingIndex | PassagesOnTheFly


class LexicalIndex:
    """The indexes of one encoder over one corpus, and every search of them.

    tokens: of the passages, in the order of `passages`; passages: their embeddings, indexed or made on the fly, or None
    where only the token index is searched. rerank_depth: documents of beta that "beta_rerank" ranks again.
    """

    def __init__(
        self, encoder: LexicalEncoder, tokens: TokenIndex, passages: Passages | None, rerank_depth: int
    ) -> None:
        self.encoder, self.tokens, self.passages, self.rerank_depth = encoder, tokens, passages, rerank_depth
        self._query = lru_cache(QUERIES_KEPT)(lambda name, text: self.queries(name, [text])[0])

    @property
    def names(self) -> list[MainSearch]:
        """The searches that these indexes allow."""
        if self.passages is None:
            return list(BY_TOKENS)
        return [name for name in NAMES if isinstance(self.passages, EmbeddingIndex) or name not in EMBEDDED]

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
        if name != "beta_rerank":
            return self.propose(name, queries, k, allowed)
        proposals = self.propose(name, queries, max(k, self.rerank_depth), allowed)
        candidates = [[document for document, _ in ranking] for ranking in proposals]
        return [ranking[:k] for ranking in self.scored_by(name).rank(queries, candidates)]

    def propose(
        self, name: MainSearch, queries: list[Sparse], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """What a search begins with: all of it, but for beta_rerank."""
        index = self.scored_by(name) if name in EMBEDDED else self.tokens
        if isinstance(index, PassagesOnTheFly):
            raise FreshetError(f"search {name!r} reads the embeddings of all passages; build the index for it")
        return index.search(queries, k, allowed)

    def scored_by(self, name: MainSearch) -> TokenIndex | Passages:
        """What a search's scores come from in the end."""
        index = self.tokens if name in BY_TOKENS else self.passages
        if index is None:
            raise FreshetError("this search reads embeddings of passages, and there are none; build the index for it")
        return index

    def matches(self, name: MainSearch, text: str, document_id: str) -> list[tuple[int, float]]:
        """What each token adds to the score of the document's best passage, where it adds anything; heaviest first."""
        return self.scored_by(name).matches(self._query(name, text), document_id)

    def write(self, folder: Path, texts: Sequence[str], document_ids: Sequence[str]) -> None:
        """Index other passages in `folder`, as these are; `seal` it then."""
        index_tokens(self.encoder, texts, document_ids).save(folder / TOKENS)
        if isinstance(self.passages, EmbeddingIndex):
            size = self.encoder.vocabulary_size
            EmbeddingIndex.build(self.encoder.encode(texts), document_ids, size).save(folder / EMBEDDINGS)
        elif self.passages is not None:
            PassagesOnTheFly.save(folder / PASSAGES, texts, document_ids)

    def seal(self, folder: Path, document_ids: Sequence[str], search: MainSearch, fingerprint: str) -> dict[str, Any]:
        """The manifest of such a folder, which it returns the facts of."""
        facts = {"kind": KIND, "fingerprint": fingerprint, "search": search}
        facts |= {"passages": len(document_ids), "documents": len(set(document_ids))}
        facts |= {"rerank_depth": self.rerank_depth, "embeddings": isinstance(self.passages, EmbeddingIndex)}
        seal(folder, FORMAT, facts)
        return facts


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
    tokens = index_tokens(encoder, texts, document_ids)
    tokens.save(folder / TOKENS)
    passages: Passages | None = None
    if settings.search in EMBEDDED:
        embeddings = encode_resumably(encoder, texts, shards, progress)
        passages = EmbeddingIndex.build(embeddings, document_ids, encoder.vocabulary_size)
        passages.save(folder / EMBEDDINGS)
    elif settings.search == "beta_rerank":
        PassagesOnTheFly.save(folder / PASSAGES, texts, document_ids)
    index = LexicalIndex(encoder, tokens, passages, settings.rerank_depth)
    return index.seal(folder, document_ids, settings.search, encoder.fingerprint())


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
    return read_folder(folder, encoder, manifest["rerank_depth"]), manifest


def read_folder(folder: Path, encoder: LexicalEncoder, rerank_depth: int) -> LexicalIndex:
    """The indexes of a folder that was verified."""
    passages: Passages | None = None
    if (folder / EMBEDDINGS).is_dir():
        passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
    elif (folder / PASSAGES).is_dir():
        passages = PassagesOnTheFly.load(folder / PASSAGES, encoder)
    return LexicalIndex(encoder, TokenIndex.load(folder / TOKENS, check=False), passages, rerank_depth)


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


@lru_cache(maxsize=1)
def _token_bags(encoder: LexicalEncoder) -> TokenBags:
    """Kept, as copying a tokenizer costs more than a segment's few texts."""
    return TokenBags(encoder.tokenizer)


def index_tokens(encoder: LexicalEncoder, texts: Sequence[str], document_ids: Sequence[str]) -> TokenIndex:
    """Index the tokens of whole passages, longer ones than the encoder sees included. Nothing is encoded.

    Tokens that may carry no weight are indexed, too: they match nothing, as no query gives them any.
    """
    return TokenIndex.build(_token_bags(encoder)(texts), document_ids)
