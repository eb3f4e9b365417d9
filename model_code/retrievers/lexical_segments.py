"""Segments of a lexical retriever: tokens of new passages, and their embeddings or texts, as the base has them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from model_code.files import read_json
from model_code.index.id_map import IdMap
from model_code.lexical.embedding_index import TEXTS, EmbeddingIndex, PassagesOnTheFly
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import EMBEDDINGS, FORMAT, KIND, PASSAGES, TOKENS
from model_code.manifest import read_manifest, seal, verify
from model_code.retrievers.lexical import LexicalRetriever
from model_code.retrievers.segments import NewPassages
from model_code.token_index.bags import TokenBags
from model_code.token_index.index import TokenIndex
from model_code.token_index.queries import Sparse

PROJECTED = 256  # components that a vocabulary is projected to for the hierarchy; a cosine errs by about 1 / 16


def write(retriever: LexicalRetriever, folder: Path, new: NewPassages) -> None:
    """Index the tokens of passages in `folder`, and what else the base has of its own."""
    encoder, base, ids = retriever.index.encoder, retriever.index.passages, list(new.document_ids)
    bags = _token_bags(encoder)
    TokenIndex.build(bags(new.texts), ids, bags.fingerprint).save(folder / TOKENS)
    if isinstance(base, EmbeddingIndex):
        _index(retriever, encoder.encode(new.texts), ids).save(folder / EMBEDDINGS)
    elif base is not None:
        PassagesOnTheFly.save(folder / PASSAGES, new.texts, ids, retriever.fingerprint)
    _seal(retriever, folder, ids)


def reopen(retriever: LexicalRetriever, folder: Path) -> LexicalRetriever:
    """The same encoder over the indexes in `folder`."""
    verify(folder, read_manifest(folder, FORMAT))
    index, base = copy.copy(retriever.index), retriever.index.passages
    index.tokens = TokenIndex.load(folder / TOKENS, check=False)
    if isinstance(base, EmbeddingIndex):
        index.passages = EmbeddingIndex.load(folder / EMBEDDINGS, check=False)
    elif base is not None:
        table = read_json(folder / PASSAGES / TEXTS)
        ids = IdMap(table["document_ids"])
        index.passages = PassagesOnTheFly(table["texts"], ids, base.encoder, base.precision)
    return LexicalRetriever(index, retriever.main)


def merge(parts: Sequence[tuple[LexicalRetriever, Sequence[str]]], folder: Path) -> None:
    """Index the named documents of each retriever in `folder`, with the tokens and embeddings that they have."""
    chosen = [(retriever.index, retriever.index.tokens.ids.rows_of(documents)) for retriever, documents in parts]
    ids = [part.tokens.document_ids[row] for part, rows in chosen for row in rows.tolist()]
    bags = [part.tokens.blocks.bag(row) for part, rows in chosen for row in rows.tolist()]
    first = parts[0][0]
    TokenIndex.build(bags, ids, first.index.tokens.fingerprint).save(folder / TOKENS)
    if isinstance(first.index.passages, EmbeddingIndex):
        embeddings = [embedding for part, rows in chosen for embedding in _embeddings(part.passages, rows)]
        _index(first, embeddings, ids).save(folder / EMBEDDINGS)
    elif first.index.passages is not None:
        texts = [part.passages.texts[row] for part, rows in chosen for row in rows.tolist()]
        PassagesOnTheFly.save(folder / PASSAGES, texts, ids, first.fingerprint)
    _seal(first, folder, ids)


def passage_vectors(retriever: LexicalRetriever, document_ids: Sequence[str]) -> np.ndarray:
    """(n, D): learned weights (without an index of them: tokens), projected to few components by random signs.

    Inner products survive on average, with a standard deviation of at most |a| |b| sqrt(2 / D) (Achlioptas 2003,
    Database-friendly random projections): good enough to place passages among topics, at a hundredth of the memory.
    """
    found = np.zeros((len(document_ids), PROJECTED), np.float32)
    signs = _signs(retriever.index.encoder.vocabulary_size)
    index = retriever.index.passages
    if isinstance(index, EmbeddingIndex):
        for entry in np.flatnonzero(np.diff(index.starts)).tolist():
            own = slice(index.starts[entry], index.starts[entry + 1])
            found[index.passages[own]] += index.weights[own, None].astype(np.float32) * signs[entry]
        return found
    for row in range(len(document_ids)):
        found[row] = signs[retriever.index.tokens.blocks.bag(row)].sum(axis=0, dtype=np.float32)
    return found


@lru_cache(maxsize=1)
def _token_bags(encoder: LexicalEncoder) -> TokenBags:
    """As `index_tokens` makes them; kept, as copying a tokenizer costs more than a segment's few texts."""
    return TokenBags(encoder.tokenizer)


@lru_cache(maxsize=1)
def _signs(size: int) -> np.ndarray:
    """(V, D) of +-1, the same for ever."""
    return np.random.default_rng(0).integers(0, 2, (size, PROJECTED), dtype=np.int8) * np.int8(2) - np.int8(1)


def _index(retriever: LexicalRetriever, embeddings: Sequence[Sparse], document_ids: Sequence[str]) -> EmbeddingIndex:
    """An index beside the base's, of its precision."""
    base = retriever.index.passages
    return EmbeddingIndex.build(embeddings, document_ids, base.size, retriever.fingerprint, str(base.weights.dtype))


def _embeddings(index: EmbeddingIndex, rows: np.ndarray) -> Iterator[Sparse]:
    """The embeddings of some passages, read back from the lists of entries; float16 weights survive exactly."""
    entries = np.repeat(np.arange(index.size), np.diff(index.starts))
    order = np.lexsort((entries, index.passages))
    ends = np.cumsum(np.bincount(index.passages, minlength=len(index.ids)))
    for row in rows.tolist():
        own = order[ends[row - 1] if row else 0 : ends[row]]
        yield entries[own], index.weights[own].astype(np.float32)


def _seal(retriever: LexicalRetriever, folder: Path, document_ids: Sequence[str]) -> None:
    facts = {"kind": KIND, "fingerprint": retriever.fingerprint, "search": retriever.main}
    facts |= {"passages": len(document_ids), "documents": len(set(document_ids))}
    seal(folder, FORMAT, facts)
