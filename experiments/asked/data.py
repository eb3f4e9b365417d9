"""Data sets of the experiment: documents, queries and judgements, and their encodings."""

from __future__ import annotations

import csv
import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import TokenSigns

WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class Dataset:
    """A collection in BEIR layout with the splits of one folder of judgements.

    Attributes:
        ids: Document ids, in the order of the file.
        texts: Title and text of each document, as encoder and BM25 read them.
        dates: ISO date of each document, empty where the collection has none.
        queries: Query texts by id.
        qrels: The numbers of the relevant documents of each query id, by split.
    """

    ids: list[str]
    texts: list[str]
    dates: list[str]
    queries: dict[str, str]
    qrels: dict[str, dict[str, set[int]]]

    @classmethod
    def read(cls, folder: Path, qrels_folder: str = "qrels") -> Dataset:
        """Read a collection.

        Args:
            folder: Folder with `corpus.jsonl.gz`, `queries.jsonl.gz` and judgements.
            qrels_folder: Name of the folder of judgements below it.
        """
        documents = list(read_rows(folder / "corpus.jsonl.gz"))
        ids = [row["_id"] for row in documents]
        texts = [f"{row.get('title', '')}\n{row['text']}" for row in documents]
        dates = [row.get("date") or "" for row in documents]
        queries = {row["_id"]: row["text"] for row in read_rows(folder / "queries.jsonl.gz")}

        number = {document_id: i for i, document_id in enumerate(ids)}
        qrels: dict[str, dict[str, set[int]]] = {}
        for path in sorted((folder / qrels_folder).glob("*.tsv")):
            relevant: dict[str, set[int]] = defaultdict(set)
            with path.open(encoding="utf-8") as stream:
                for row in csv.DictReader(stream, delimiter="\t"):
                    if int(row["score"]) > 0:
                        relevant[row["query-id"]].add(number[row["corpus-id"]])
            qrels[path.stem] = dict(relevant)
        return cls(ids, texts, dates, queries, qrels)


def read_rows(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a compressed JSONL file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)


@dataclass(frozen=True)
class Encoded:
    """Vectors (n, H) of texts, and the signs of their token vectors for late interaction."""

    vectors: np.ndarray
    tokens: TokenSigns

    def select(self, rows: Sequence[int]) -> Encoded:
        """Return the encodings in the given rows, in this order."""
        chosen = np.array(rows, np.int64)
        return Encoded(self.vectors[chosen], self.tokens[chosen])

    @classmethod
    def load_or_encode(
        cls, texts: Sequence[str], encoder: EncoderSource, cache: Path, passages: bool
    ) -> Encoded:
        """Encode texts, or read the vectors that an earlier run stored in the folder `cache`.

        Args:
            texts: The texts.
            encoder: The encoder, which is loaded only if it is needed.
            cache: Folder of the stored vectors.
            passages: Whether the texts are passages. Otherwise they are queries.
        """
        vectors_file = cache / "vectors.npy"
        if vectors_file.is_file():
            return cls(np.load(vectors_file), TokenSigns.load(cache))

        cache.mkdir(parents=True, exist_ok=True)
        if passages:
            vectors, tokens = encoder.model.encode_documents_with_signs(texts)
        else:
            vectors, tokens = encoder.model.encode_queries_with_signs(texts)
        tokens.save(cache)
        np.save(vectors_file, vectors)
        return cls(vectors, tokens)


def reduce_to_articles(
    dataset: Dataset, documents: Encoded, queries: Encoded, size: int
) -> tuple[Dataset, Encoded, Encoded]:
    """Reduce a collection to whole articles, the documents of which have the same first line.

    Documents of one article are similar, so queries of the reduced collection stay difficult.

    Args:
        dataset: The collection.
        documents: Encodings of the documents.
        queries: Encodings of the queries.
        size: Number of documents, which may be exceeded by a part of one article.

    Returns:
        The reduced collection, and the encodings of its documents and queries. Queries with
        relevant documents outside are left out.
    """
    articles: dict[str, list[int]] = defaultdict(list)
    for number, text in enumerate(dataset.texts):
        articles[text.partition("\n")[0]].append(number)

    chosen: list[int] = []
    for title in np.random.default_rng(0).permutation(sorted(articles)):
        if len(chosen) >= size:
            break
        chosen.extend(articles[str(title)])
    chosen.sort()

    new_number = {number: i for i, number in enumerate(chosen)}
    qrels: dict[str, dict[str, set[int]]] = {}
    for split, split_qrels in dataset.qrels.items():
        qrels[split] = {}
        for query, relevant in split_qrels.items():
            if relevant <= new_number.keys():
                qrels[split][query] = {new_number[number] for number in relevant}

    judged = set().union(*qrels.values())
    query_rows = [row for row, query in enumerate(dataset.queries) if query in judged]
    texts = {query: text for query, text in dataset.queries.items() if query in judged}
    reduced = Dataset(
        [dataset.ids[number] for number in chosen],
        [dataset.texts[number] for number in chosen],
        [dataset.dates[number] for number in chosen],
        texts,
        qrels,
    )
    return reduced, documents.select(chosen), queries.select(query_rows)


@dataclass(frozen=True)
class EncoderSource:
    """An encoder that is loaded when the first text has to be encoded."""

    name: str
    path: str
    max_tokens: int

    @cached_property
    def model(self) -> Encoder:
        """The loaded encoder."""
        return Encoder.load(self.path, self.max_tokens, for_search=True)


def split_words(text: str) -> frozenset[str]:
    """Return the lower-case words of a text."""
    return frozenset(WORD.findall(text.lower()))


def jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    """Return the share of common words among all words of two texts."""
    union = len(first | second)
    return len(first & second) / union if union else 0.0
