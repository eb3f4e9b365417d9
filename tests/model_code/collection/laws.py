"""Live collections of every kind of retriever over one small corpus, and their rankings.

The laws of live collections compare whole rankings.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection as Ids
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.opened_build import open_generation_zero
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import LedgerCursor, Position
from model_code.dsi.vectors import add_representatives, document_means
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.files import write_json
from model_code.hierarchy.tree import DOCUMENT_IDS, Hierarchy
from model_code.lexical.index import build_folder
from model_code.lexical.layout import load_encoder, save_encoder, start_encoder
from model_code.lexical.settings import LexicalSettings
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import set_indexed_layers
from model_code.retrieval.bm25 import build_folders as build_bm25_folders
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import Fusion, ScoreNormalizer, build_folders
from model_code.retrieval.headline import build_index as build_headline_index
from model_code.retrieval.index_settings import Bm25Settings, IndexSettings
from model_code.retrieval.indexed import NewPassages
from model_code.retrieval.protocol import Ranking, Retriever, top_k_ranking
from model_code.text.documents import Document, canonical_fields
from model_code.text.headlines import make_headline
from model_code.text.passages import TextRules
from tests.tiny_encoder import make_tiny_encoder

KINDS = (
    "dense",
    "inverted_file",
    "multi_vector",
    "dsi",
    "lexical",
    "beta_own",
    "beta_rerank",
    "fused",
)
# Components of the fused retriever. Its third component searches headlines with the dense encoder.
PARTS = ("dense", "lexical")
RULES = TextRules(include_title=True, words=5, stride=3)
WORDS = [f"word{i}" for i in range(30)]
QUERIES = ["word1 word2", "word7", "word3 word11 word20 word29", "word12 word4"]
LEXICAL = {
    "lexical": LexicalSettings(search="full"),
    "beta_own": LexicalSettings(),
    "beta_rerank": LexicalSettings(search="beta_rerank", rerank_depth=3),
}
# Settings of the base. Additions to it are searched exactly.
INDEXES = {"inverted_file": IndexSettings(flat_below=1)}
ENCODING_SCALE = 1.5
Texts = Mapping[str, tuple[str, str]]


def up_to(event: int) -> LedgerCursor:
    """Return the cursor of a generation that holds all events up to this one."""
    return LedgerCursor(Position("log", event, "mark"))


def go_back(live: Path, number: int, retriever: str = "r") -> Generation:
    """Search a generation again, under a new number."""
    collection = GenerationStore(live, retriever)
    generation = collection.read(number)
    return collection.publish_again(generation, generation.cursor, {})


def corpus(names: Iterable[str], seed: int) -> dict[str, tuple[str, str]]:
    """Make title and text of each document: one to three passages of random words."""
    rng = np.random.default_rng(seed)
    texts = {}
    for name in names:
        title = str(rng.choice(WORDS))
        words = rng.choice(WORDS, size=int(rng.integers(3, 11)))
        texts[name] = (title, " ".join(words))
    return texts


OLD = corpus([f"d{i:02d}" for i in range(12)], seed=1)
# The ids of the new documents lie between those of the old ones.
NEW = corpus([f"d{i:02d}x" for i in range(8)], seed=2)


def put(document_id: str, texts: Texts, queries: tuple[str, ...] = ()) -> Document:
    """Return the change that adds a document.

    Its fields are its title, and whether its number is even.
    """
    title, text = texts[document_id]
    return Document(document_id, title, text, fields_of(document_id, texts), queries)


def fields_of(document_id: str, texts: Texts) -> dict[str, object]:
    """Return fields that all documents have, and one that only the new documents have."""
    title, _ = texts[document_id]
    fields: dict[str, object] = {"title": title, "even": int(document_id[1:3]) % 2 == 0}
    if document_id.endswith("x"):
        fields["arrived"] = "later"
    return fields


def make_encoder(kind: str, folder: Path) -> None:
    """Save the encoder of a kind. Equal calls give equal bytes."""
    if kind == "fused":
        for part in PARTS:
            make_encoder(part, folder / part)
        return
    base = make_tiny_encoder(folder.with_name(f"{folder.name}.base"), WORDS)
    if kind in LEXICAL:
        settings = EncoderSettings(base=str(base), max_tokens=16, precision="float32", device="cpu")
        save_encoder(start_encoder(settings, LEXICAL[kind], WORDS, 0), folder)
        return
    encoder = Encoder.load(base, 16, precision="float32", device="cpu")
    if kind == "multi_vector":
        set_indexed_layers(encoder, LayerSettings(numbers=(1, 2), pooling="multi_vector"))
    encoder.save(folder)


def open_build(
    kind: str,
    root: Path,
    encoder: Path,
    texts: Texts,
    rules: TextRules | None = RULES,
    queries: Mapping[str, Sequence[str]] | None = None,
    known_words: KnownWords | None = None,
) -> Path:
    """Build a retriever and open its live collection.

    Args:
        kind: One of `KINDS`, or `bm25_fusion` for a dense encoder fused with BM25.
        root: Folder of the live collection. The build is in a folder below it.
        encoder: Folder of the encoder.
        texts: Title and text of each document.
        rules: Rules by which documents are cut. None: the collection does not know them.
        queries: Known queries of documents.
        known_words: How BM25 of `bm25_fusion` counts known queries. None: they do not count.

    Returns:
        The folder of the live collections.
    """
    build = root / "build"
    shutil.rmtree(build, ignore_errors=True)
    ids = []
    passages = []
    for name, (title, text) in texts.items():
        for passage in RULES.passages(title, text):
            ids.append(name)
            passages.append(passage)

    if kind == "fused":
        encoder = _fuse(encoder, passages, ids, texts, build)
    elif kind == "bm25_fusion":
        encoder = _fuse_with_bm25(encoder, passages, ids, build, known_words)
    elif kind in LEXICAL:
        # The index stage opens the encoder for search, too.
        loaded = load_encoder(encoder, device="cpu", for_search=True)
        build_folder(build / "index", loaded, passages, ids, LEXICAL[kind], build / "shards")
    else:
        _index(kind, _load_for_search(encoder), passages, ids, build / "index")
    write_tree(build / "hierarchy", ids)
    _write_documents(build / "documents.parquet", texts, queries or {})

    open_generation_zero(
        root,
        "r",
        encoder=encoder,
        index=build / "index",
        documents=build / "documents.parquet",
        hierarchy=build / "hierarchy",
        provenance={"build": 1},
        text=rules,
    )
    return root / "live"


def _load_for_search(encoder: Path) -> Encoder:
    return Encoder.load(encoder, device="cpu", for_search=True)


def _write_documents(path: Path, texts: Texts, queries: Mapping[str, Sequence[str]]) -> None:
    rows = []
    for name, (title, text) in texts.items():
        rows.append(
            {
                "document_id": name,
                "title": title,
                "text": text,
                "fields": canonical_fields(fields_of(name, texts)),
                "date": None,
                "queries": json.dumps(list(queries.get(name, ()))),
            }
        )
    columns = ["document_id", "title", "text", "fields", "date", "queries"]
    pd.DataFrame(rows, columns=columns).to_parquet(path, index=False)


def _fuse(encoder: Path, passages: list[str], ids: list[str], texts: Texts, build: Path) -> Path:
    """Fuse as the stage `fuse` does, with one normalizer for all builds."""
    dense = encoder / "dense"
    lexical = encoder / "lexical"
    lexical_encoder = load_encoder(lexical, device="cpu", for_search=True)
    build_folder(
        build / "lexical", lexical_encoder, passages, ids, LEXICAL["lexical"], build / "shards"
    )
    _index("late", _load_for_search(dense), passages, ids, build / "dense")
    _index_headlines(dense, texts, build / "headline")

    old_texts = [f"{title} {text}" for title, text in OLD.values()]
    normalizer = ScoreNormalizer.fit(_load_for_search(dense).encode_documents(old_texts))
    weights = {"dense": 1.0, "lexical": 2.0, "headline": 0.7, "dense.late": 0.5}
    normalizers = {"dense": normalizer, "headline": normalizer}
    fusion = Fusion(weights, normalizers, depth=3, feedback=0.3)
    components = {
        "dense": (dense, build / "dense"),
        "lexical": (lexical, build / "lexical"),
        "headline": (dense, build / "headline"),
    }
    build_folders(components, fusion, build / "encoder", build / "index")
    return build / "encoder"


def _fuse_with_bm25(
    encoder: Path,
    passages: list[str],
    ids: list[str],
    build: Path,
    known_words: KnownWords | None,
) -> Path:
    """Fuse a dense encoder with BM25, with a normalizer of the build's own vectors."""
    bm25 = build / "bm25"
    _index("dense", _load_for_search(encoder), passages, ids, build / "v")
    new_passages = NewPassages(passages, ids)
    build_bm25_folders(new_passages, Bm25Settings(), bm25 / "encoder", bm25 / "i", known_words)

    normalizer = ScoreNormalizer.fit(DenseIndex.load(build / "v").vectors)
    fusion = Fusion({"dense": 1.0, "bm25": 2.0}, {"dense": normalizer})
    components = {"dense": (encoder, build / "v"), "bm25": (bm25 / "encoder", bm25 / "i")}
    build_folders(components, fusion, build / "encoder", build / "index")
    return build / "encoder"


def _index_headlines(encoder: Path, texts: Texts, folder: Path) -> None:
    """Index headlines as the stage `baselines` does."""
    loaded = _load_for_search(encoder)
    headlines = [make_headline(title, text) for title, text in texts.values()]
    vectors = loaded.encode_documents(headlines)
    build_headline_index(vectors, list(texts), loaded, IndexSettings(), folder)


def _index(kind: str, encoder: Encoder, passages: list[str], ids: list[str], folder: Path) -> None:
    """Index vectors as the index stage does.

    The document vectors of a dsi are those that training starts from. The kind `late` keeps tokens.
    """
    vectors = encoder.encode_documents(passages)
    tokens = None
    if kind == "late":
        tokens = encoder.encode_documents_with_signs(passages)[1]
    if kind == "dsi":
        documents = list(dict.fromkeys(ids))
        numbers = np.array([documents.index(name) for name in ids])
        vectors = document_means(vectors, numbers, len(documents)) * np.float32(ENCODING_SCALE)
        ids = documents

    rows = []
    for name in ids:
        rows += [name] * encoder.vectors_per_passage
    settings = INDEXES.get(kind, IndexSettings())
    index = DenseIndex.build(
        vectors, rows, encoder.fingerprint(), settings, encoder.vectors_per_passage, tokens
    )
    index.save(folder)
    if kind == "dsi":
        add_representatives(folder, vectors, ENCODING_SCALE)


def write_tree(folder: Path, ids: list[str]) -> None:
    """Write a tree of two levels with 2 and 4 nodes.

    Its centroids are of another encoder, like those of a hierarchy of the base encoder.
    """
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    centroids = tuple(rng.standard_normal((nodes, 6)).astype(np.float32) for nodes in (2, 4))
    parents = (np.zeros(2, np.int32), np.array([0, 0, 1, 1], np.int32))
    Hierarchy(centroids, parents, np.arange(len(ids), dtype=np.int32) % 4).save(folder)
    write_json(folder / DOCUMENT_IDS, ids)


def reranked(
    retriever: Retriever, texts: Sequence[str], candidates: Sequence[Ids[str]]
) -> list[Ranking]:
    """Rank all candidates of each text by the scores of a retriever."""
    names = [sorted(set(ids)) for ids in candidates]
    scores = retriever.score_encoded(retriever.encode_queries(texts), names)
    return [top_k_ranking(ids, row, len(ids)) for ids, row in zip(names, scores, strict=True)]


def rankings(
    live: Path | GenerationBuilder | Searcher, k: int = 50
) -> list[list[tuple[str, float]]]:
    """Return the ranking of each of `QUERIES`, with scores."""
    if isinstance(live, Searcher):
        searcher = live
    elif isinstance(live, GenerationBuilder):
        searcher = live.searcher
    else:
        searcher = Searcher.open(live, "r")
    return searcher.retriever.search(QUERIES, k)
