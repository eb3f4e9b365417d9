"""The indexes of a lexical retriever, in one sealed folder: tokens of the passages, and their embeddings or texts.

`tokens/` is a `TokenIndex`: with it alone "beta" searches, seconds after a corpus arrives. `embeddings/` is an
`EmbeddingIndex`; where the settings do without, `passages/` has the texts, for re-ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from model_code.encoding.sides import joined, require_sides
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.lexical.embedding_index import EmbeddingIndex
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.passages import PassagesOnTheFly
from model_code.lexical.searches import Searches
from model_code.lexical.settings import LexicalSettings
from model_code.lexical.token_side import index_tokens
from model_code.lexical.vocabulary import Sparse
from model_code.manifest import read_manifest, seal, verify
from model_code.progress import Progress, silent
from model_code.scale.encoding import keep_shards
from model_code.token_index.index import TokenIndex

FORMAT, KIND = 1, "lexical"
TOKENS, EMBEDDINGS, PASSAGES = "tokens", "embeddings", "passages"


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
        index = EmbeddingIndex.build(embeddings, document_ids, size, fingerprint, settings.weights)
        index.save(folder / EMBEDDINGS)
    else:
        PassagesOnTheFly.save(folder / PASSAGES, texts, document_ids, fingerprint)
    facts = {"kind": KIND, "fingerprint": fingerprint, "passages": len(texts), "documents": len(set(document_ids))}
    facts |= {"search": settings.search, "rerank_depth": settings.rerank_depth, "embeddings": settings.embeddings}
    facts |= encoder.side_facts()
    seal(folder, FORMAT, facts | {"weights": settings.weights, "cache": settings.cache})
    return facts


def open_folder(folder: Path, encoder: LexicalEncoder) -> tuple[Searches, dict[str, Any]]:
    """The searches over a folder, and its manifest; FreshetError if it is damaged or another encoder's."""
    manifest = read_manifest(folder, FORMAT)
    if manifest.get("kind") != KIND:
        raise FreshetError(
            f"{folder} holds no lexical index but one of kind {manifest.get('kind')}; name the right one"
        )
    verify(folder, manifest)
    sides = encoder.fingerprints()
    require_sides(sides, manifest, folder)
    if manifest["fingerprint"] != joined(sides):
        raise FingerprintMismatch(
            f"{folder} was built with encoder {manifest['fingerprint'][:12]}, this is {joined(sides)[:12]}; "
            "build the index again with this encoder"
        )
    passages: EmbeddingIndex | PassagesOnTheFly
    if manifest["embeddings"]:
        passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
    else:
        passages = PassagesOnTheFly.load(folder / PASSAGES, encoder, manifest["cache"], manifest["weights"])
    tokens = TokenIndex.load(folder / TOKENS, check=False)
    return Searches(encoder, tokens, passages, manifest["rerank_depth"]), manifest


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
