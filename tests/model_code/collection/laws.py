"""Live collections of every kind of retriever over one small corpus, and what the laws compare:
whole rankings.
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
# Those of the fused retriever; its third component searches headlines with the dense encoder.
PARTS = ("dense", "lexical")
RULES = TextRules(include_title=True, words=5, stride=3)
WORDS = [f"word{i}" for i in range(30)]
QUERIES = ["word1 word2", "word7", "word3 word11 word20 word29", "word12 word4"]
LEXICAL = {
    "lexical": LexicalSettings(search="full"),
    "beta_own": LexicalSettings(),
    "beta_rerank": LexicalSettings(search="beta_rerank", rerank_depth=3),
}
# of the base; what is added to it is searched exactly
INDEXES = {"inverted_file": IndexSettings(flat_below=1)}
ENCODING_SCALE = 1.5
Texts = Mapping[str, tuple[str, str]]


def up_to(event: int) -> LedgerCursor:
    """Where a generation stands that holds all events up to this one."""
    return LedgerCursor(Position("log", event, "mark"))


def go_back(live: Path, number: int, retriever: str = "r") -> Generation:
    """Search a generation again, under a new number."""
    collection = GenerationStore(live, retriever)
    generation = collection.read(number)
    return collection.publish_again(generation, generation.cursor, {})


def corpus(names: Iterable[str], seed: int) -> dict[str, tuple[str, str]]:
    """Title and text of each document: one to three passages of random words."""
    rng = np.random.default_rng(seed)
    return {
        name: (str(rng.choice(WORDS)), " ".join(rng.choice(WORDS, size=int(rng.integers(3, 11)))))
        for name in names
    }


OLD = corpus([f"d{i:02d}" for i in range(12)], seed=1)
NEW = corpus([f"d{i:02d}x" for i in range(8)], seed=2)  # their ids lie between the others'


def put(document_id: str, texts: Texts, queries: tuple[str, ...] = ()) -> Document:
    """The document as a change; its fields are its title, and whether its number is even."""
    title, text = texts[document_id]
    return Document(document_id, title, text, fields_of(document_id, texts), queries)


def fields_of(document_id: str, texts: Texts) -> dict[str, object]:
    """Fields that both old and new documents have, and one that only the new have."""
    fields: dict[str, object] = {
        "title": texts[document_id][0],
        "even": int(document_id[1:3]) % 2 == 0,
    }
    return fields | ({"arrived": "later"} if document_id.endswith("x") else {})


def make_encoder(kind: str, folder: Path) -> None:
    """The encoder of a kind; equal calls give equal bytes."""
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
) -> Path:
    """Build everything for `texts` under a temporary folder of `root`, open it there, and return
    the live folder.

    `queries` are the known queries of documents. The kind `bm25_fusion` fuses a dense encoder with
    BM25.
    """
    build = root / "build"
    shutil.rmtree(build, ignore_errors=True)
    passages = [(name, passage) for name, own in texts.items() for passage in RULES.passages(*own)]
    ids, bodies = [name for name, _ in passages], [passage for _, passage in passages]
    if kind == "fused":
        encoder = _fuse(encoder, bodies, ids, texts, build)
    elif kind == "bm25_fusion":
        encoder = _fuse_with_bm25(encoder, bodies, ids, build)
    elif kind in LEXICAL:
        loaded = load_encoder(encoder, device="cpu", for_search=True)  # as the index stage does
        build_folder(build / "index", loaded, bodies, ids, LEXICAL[kind], build / "shards")
    else:
        _index(
            kind, Encoder.load(encoder, device="cpu", for_search=True), bodies, ids, build / "index"
        )
    write_tree(build / "hierarchy", ids)
    rows = [(name, *own, canonical_fields(fields_of(name, texts))) for name, own in texts.items()]
    frame = pd.DataFrame(rows, columns=["document_id", "title", "text", "fields"])
    known = [json.dumps(list((queries or {}).get(name, ()))) for name in texts]
    frame = frame.assign(date=None, queries=known)
    frame.to_parquet(build / "documents.parquet", index=False)
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


def _fuse(encoder: Path, bodies: list[str], ids: list[str], texts: Texts, build: Path) -> Path:
    """As the stage `fuse` does, with the scale of the corpus that all builds share."""
    dense, lexical = (encoder / part for part in PARTS)
    loaded = load_encoder(lexical, device="cpu", for_search=True)
    build_folder(build / "lexical", loaded, bodies, ids, LEXICAL["lexical"], build / "shards")
    _index("late", Encoder.load(dense, device="cpu", for_search=True), bodies, ids, build / "dense")
    vectors = Encoder.load(dense, device="cpu", for_search=True).encode(
        [" ".join(own) for own in OLD.values()]
    )
    _index_headlines(dense, texts, build / "headline")
    weights = {"dense": 1.0, "lexical": 2.0, "headline": 0.7, "dense.late": 0.5}
    normalizer = ScoreNormalizer.fit(vectors)
    normalizers = {"dense": normalizer, "headline": normalizer}
    fusion = Fusion(weights, normalizers, depth=3, feedback=0.3)
    parts = {
        "dense": (dense, build / "dense"),
        "lexical": (lexical, build / "lexical"),
        "headline": (dense, build / "headline"),
    }
    build_folders(parts, fusion, build / "encoder", build / "index")
    return build / "encoder"


def _fuse_with_bm25(encoder: Path, bodies: list[str], ids: list[str], build: Path) -> Path:
    """Fuse a dense encoder with BM25, with the scale of the build's own vectors."""
    _index("dense", Encoder.load(encoder, device="cpu", for_search=True), bodies, ids, build / "v")
    passages = NewPassages(bodies, ids)
    build_bm25_folders(passages, Bm25Settings(), build / "bm25" / "encoder", build / "bm25" / "i")
    vectors = DenseIndex.load(build / "v").vectors
    fusion = Fusion({"dense": 1.0, "bm25": 2.0}, {"dense": ScoreNormalizer.fit(vectors)})
    parts = {
        "dense": (encoder, build / "v"),
        "bm25": (build / "bm25" / "encoder", build / "bm25" / "i"),
    }
    build_folders(parts, fusion, build / "encoder", build / "index")
    return build / "encoder"


def _index_headlines(encoder: Path, texts: Texts, folder: Path) -> None:
    """As the stage `baselines` does."""
    loaded = Encoder.load(encoder, device="cpu", for_search=True)
    vectors = loaded.encode_documents([make_headline(*own) for own in texts.values()])
    build_headline_index(vectors, list(texts), loaded, IndexSettings(), folder)


def _index(kind: str, encoder: Encoder, bodies: list[str], ids: list[str], folder: Path) -> None:
    """As the index stage does; the document vectors of a dsi are those that training starts from,
    and a late one keeps tokens, as all do by default.
    """
    vectors, per, settings = (
        encoder.encode_documents(bodies),
        encoder.vectors_per_passage,
        INDEXES.get(kind),
    )
    tokens = encoder.encode_passages_with_tokens(bodies)[1] if kind == "late" else None
    if kind == "dsi":
        names = list(dict.fromkeys(ids))
        vectors = document_means(vectors, np.array([names.index(name) for name in ids]), len(names))
        vectors, ids = vectors * np.float32(ENCODING_SCALE), names
    rows = [name for name in ids for _ in range(per)]
    DenseIndex.build(
        vectors, rows, encoder.fingerprint(), settings or IndexSettings(), per, tokens
    ).save(folder)
    if kind == "dsi":
        add_representatives(folder, vectors, ENCODING_SCALE)


def write_tree(folder: Path, ids: list[str]) -> None:
    """Two levels of 2 and 4 nodes; its centroids are of another encoder, as a base encoder's are."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    centroids = tuple(rng.standard_normal((nodes, 6)).astype(np.float32) for nodes in (2, 4))
    parents = (np.zeros(2, np.int32), np.array([0, 0, 1, 1], np.int32))
    Hierarchy(centroids, parents, np.arange(len(ids), dtype=np.int32) % 4).save(folder)
    write_json(folder / DOCUMENT_IDS, ids)


def reranked(
    retriever: Retriever, texts: Sequence[str], candidates: Sequence[Ids[str]]
) -> list[Ranking]:
    """For each text its candidates, all of them, as the retriever scores and sorts them."""
    names = [sorted(set(ids)) for ids in candidates]
    scores = retriever.score_encoded(retriever.encode_queries(texts), names)
    return [top_k_ranking(ids, row, len(ids)) for ids, row in zip(names, scores, strict=True)]


def rankings(
    live: Path | GenerationBuilder | Searcher, k: int = 50
) -> list[list[tuple[str, float]]]:
    """What is found for every query, with scores."""
    searcher = (
        live
        if isinstance(live, Searcher)
        else live.searcher
        if isinstance(live, GenerationBuilder)
        else None
    )
    return (searcher or Searcher.open(live, "r")).retriever.search(QUERIES, k)
