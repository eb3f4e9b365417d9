"""A live collection of BM25 in which known queries count as words."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from benchmarks.opened_build import open_generation_zero
from model_code.collection.generations.searcher import Searcher
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.retrieval.bm25 import build_folders
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import NewPassages
from model_code.text.documents import Document
from model_code.text.known_queries import KnownQuery, QuerySource
from model_code.text.passages import TextRules
from tests.model_code.collection.laws import write_tree

RETRIEVER = "bm25_known"
RULES = TextRules(include_title=True, words=0, stride=1)
WORDS = KnownWords(1.0, in_length=True)

PAGES = {
    "ls": "List the names of files in a folder.",
    "rm": "Delete files from the disk.",
    "tar": "Pack many files into one archive.",
    "wc": "Count the lines of a text.",
}


def page(document_id: str, text: str, *queries: str) -> Document:
    return Document(document_id, document_id, text, queries=queries)


def judged(document_id: str, text: str, grade: float = 1.0) -> KnownQuery:
    return KnownQuery(document_id, text, QuerySource.QRELS, grade)


def open_known_collection(
    root: Path,
    pages: Mapping[str, str] = PAGES,
    known: Mapping[str, Sequence[KnownQuery]] | None = None,
    words: KnownWords | None = WORDS,
    held_out: Sequence[str] = (),
) -> Path:
    """Build BM25 for documents of one passage, make it live below `root`, and return the folder."""
    build = root / "build"
    shutil.rmtree(build, ignore_errors=True)
    ids = list(pages)
    texts = [RULES.passages(name, text)[0] for name, text in pages.items()]
    settings = Bm25Settings(language="english")
    passages = NewPassages(texts, ids, known=known or {})
    build_folders(passages, settings, build / "encoder", build / "index", words)
    write_tree(build / "hierarchy", ids)
    rows = [(name, name, text, "{}", None) for name, text in pages.items()]
    frame = pd.DataFrame(rows, columns=["document_id", "title", "text", "fields", "date"])
    frame.to_parquet(build / "documents.parquet", index=False)
    evidence = []
    for queries in passages.known.values():
        evidence += queries
    hashes = frozenset(query_hash(text) for text in held_out)
    CorpusQueries(tuple(evidence), hashes).save(build / KNOWN_QUERIES)
    (root / "params.yaml").write_text("retrievers: {r: {}}\n")
    (root / "dvc.yaml").touch()
    open_generation_zero(
        root,
        RETRIEVER,
        encoder=build / "encoder",
        index=build / "index",
        documents=build / "documents.parquet",
        hierarchy=build / "hierarchy",
        provenance={"build": 1},
        text=RULES,
        known_queries=build / KNOWN_QUERIES,
    )
    return root / "live"


def found(searcher: Searcher, text: str) -> list[str]:
    """Return the documents that a search finds, best first."""
    return [hit.document_id for hit in searcher.search(text, 10)]
