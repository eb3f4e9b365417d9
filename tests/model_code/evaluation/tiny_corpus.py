"""A corpus of 48 documents on 4 topics, its hierarchy and pseudo-queries, written as the stages
write them.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from model_code.corpus.known_queries import KNOWN_QUERIES, collect_known_queries
from model_code.corpus.tables import load_corpus
from model_code.hierarchy.tree import Hierarchy

TOPICS = ("river", "bridge", "music", "engine")
DOCUMENTS = [f"{topic}-{i:02}" for topic in TOPICS for i in range(12)]
TEXTS = {
    name: f"{name[:-3]} {name[:-3]} word{i}a word{i}b word{i}c" for i, name in enumerate(DOCUMENTS)
}


def write_corpus(folder: Path, with_qrels: bool = True) -> Path:
    """A test query per document, train and dev queries for the documents of the first two topics:
    24 stay unseen.
    """
    folder.mkdir(parents=True)
    frame = pd.DataFrame(
        {
            "document_id": DOCUMENTS,
            "title": [f"title{i}" for i in range(48)],
            "text": TEXTS.values(),
        }
    )
    frame.assign(fields="{}", date=None).to_parquet(folder / "documents.parquet")
    frame.assign(ordinal=0).to_parquet(folder / "passages.parquet")
    rows = [("test", name) for name in DOCUMENTS] + [("train", name) for name in DOCUMENTS[:18]]
    rows += [("dev", name) for name in DOCUMENTS[18:24]]
    queries = _queries(rows if with_qrels else [("train", name) for name in DOCUMENTS[:3]])
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
    """A query made of each document."""
    folder.mkdir(parents=True)
    made = _queries([("made", name) for name in DOCUMENTS]).drop(columns="split")
    made.assign(kind="inverse_cloze").to_parquet(folder / "pseudo_queries.parquet")
    return folder


def write_hierarchy(folder: Path) -> Path:
    """Two levels: a node per topic, two halves in each."""
    folder.mkdir(parents=True)
    unit = np.eye(8, dtype=np.float32)
    parents = (np.zeros(4, np.int32), np.repeat(np.arange(4), 2).astype(np.int32))
    Hierarchy((unit[:4], unit), parents, np.repeat(np.arange(8), 6).astype(np.int32)).save(folder)
    return folder


def _queries(rows: list[tuple[str, str]]) -> pd.DataFrame:
    """Two of the document's own words each."""
    texts = [" ".join(TEXTS[name].split()[3:]) for _, name in rows]
    ids = [f"{split}:{name}" for split, name in rows]
    frame = pd.DataFrame(rows, columns=["split", "document_id"]).assign(query_id=ids, text=texts)
    return frame.sort_values("query_id", ignore_index=True)
