"""A corpus of 48 documents on 4 topics with hierarchy and pseudo-queries, as stages write them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from model_code.corpus.corpus_queries import KNOWN_QUERIES, collect_known_queries
from model_code.corpus.tables import load_corpus
from model_code.hierarchy.tree import Hierarchy

TOPICS = ("river", "bridge", "music", "engine")
DOCUMENTS = [f"{topic}-{i:02}" for topic in TOPICS for i in range(12)]
TEXTS = {}
for number, name in enumerate(DOCUMENTS):
    topic = name[:-3]
    TEXTS[name] = f"{topic} {topic} word{number}a word{number}b word{number}c"


def write_corpus(folder: Path, with_qrels: bool = True) -> Path:
    """Write a corpus with a test query per document.

    The first 18 documents have a train query each, the next six have a dev query each, and 24
    documents are unseen. Without `with_qrels`, there are three train queries and no others.
    """
    folder.mkdir(parents=True)
    titles = [f"title{i}" for i in range(48)]
    frame = pd.DataFrame({"document_id": DOCUMENTS, "title": titles, "text": TEXTS.values()})
    frame.assign(fields="{}", date=None).to_parquet(folder / "documents.parquet")
    frame.assign(ordinal=0).to_parquet(folder / "passages.parquet")

    if with_qrels:
        rows = [("test", name) for name in DOCUMENTS]
        rows += [("train", name) for name in DOCUMENTS[:18]]
        rows += [("dev", name) for name in DOCUMENTS[18:24]]
    else:
        rows = [("train", name) for name in DOCUMENTS[:3]]
    queries = _queries(rows)
    queries.drop(columns="document_id").to_parquet(folder / "queries.parquet")
    queries.drop(columns="text").assign(relevance=1).to_parquet(folder / "qrels.parquet")
    write_known_queries(folder)
    return folder


def write_known_queries(folder: Path) -> None:
    """Write the known queries of the corpus in a folder, as the corpus stage does."""
    corpus = load_corpus(folder)
    texts = dict(zip(corpus.queries["query_id"], corpus.queries["text"], strict=True))
    grades: dict[tuple[str, str], int] = {}
    splits: dict[str, str] = {}
    for row in corpus.qrels.itertuples():
        grades[row.query_id, row.document_id] = row.relevance
        splits[row.query_id] = row.split
    collect_known_queries([], texts, splits, grades).save(folder / KNOWN_QUERIES)


def write_pseudo_queries(folder: Path) -> Path:
    """Write a pseudo-query for each document."""
    folder.mkdir(parents=True)
    queries = _queries([("made", name) for name in DOCUMENTS]).drop(columns="split")
    queries.assign(kind="inverse_cloze").to_parquet(folder / "pseudo_queries.parquet")
    return folder


def write_hierarchy(folder: Path) -> Path:
    """Write a hierarchy with a node per topic, and two halves below each of them."""
    folder.mkdir(parents=True)
    unit_vectors = np.eye(8, dtype=np.float32)
    topic_of_half = np.repeat(np.arange(4), 2).astype(np.int32)
    half_of_document = np.repeat(np.arange(8), 6).astype(np.int32)
    parents = (np.zeros(4, np.int32), topic_of_half)
    Hierarchy((unit_vectors[:4], unit_vectors), parents, half_of_document).save(folder)
    return folder


def _queries(rows: list[tuple[str, str]]) -> pd.DataFrame:
    """Return queries; each consists of two words of its document."""
    texts = [" ".join(TEXTS[name].split()[3:]) for _, name in rows]
    ids = [f"{split}:{name}" for split, name in rows]
    frame = pd.DataFrame(rows, columns=["split", "document_id"]).assign(query_id=ids, text=texts)
    return frame.sort_values("query_id", ignore_index=True)
