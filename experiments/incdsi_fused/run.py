"""Measure the gain of IncDSI if its vectors are searched as a component of a fusion.

`python -m experiments.incdsi_fused.run FOLDER --cache VECTORS` writes `result.json` and the page's
tables. FOLDER is tldr in BEIR layout. Pages from 2025 on are new documents. They come with their
train queries. Methods are chosen on a tenth of the new pages, and measured once on the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from experiments.comparison import compare_systems
from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.pages import NEW, TUNING, Pages
from experiments.tables import write_tables
from model_code.dsi.vectors import mean_by_owner
from model_code.encoding.encoder import Encoder
from model_code.files import write_json
from model_code.incdsi.adder import IncDsiAdder, NewDocument
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import constraint_texts
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.index_settings import ALWAYS_EXACT, Bm25Settings, IndexSettings

HERE = Path(__file__).parent
BASE = "sentence-transformers/all-MiniLM-L6-v2"
MAX_TOKENS = 128
# Day from which pages are new.
FIRST_NEW_DAY = "2025-01-01"
# Number of spans of a text that are encoded in addition to its title and first sentence.
SPANS = 4
FEEDBACK = 0.3
BM25_WEIGHT = 3.0
# Values that are tried: representatives of old documents (`AdditionMethod.z`), settings of IncDSI,
# and shares of the mean query in a mix.
Z_KINDS = ("own", "texts")
GAMMA1_VALUES = (0.5, 1.0, 2.0)
LAMBDA2_VALUES = (1e-5, 0.1, 1.0)
MIX_SHARES = (0.25, 0.5, 0.75)
# Hits per query.
K = 10
# Number of new pages in the first table. The second table has all new pages.
FEW_ARRIVALS = 100


@dataclass(frozen=True)
class AdditionMethod:
    """A method to add new documents that come with queries.

    Attributes:
        name: Name of the family: plain, mixed, defaults or refined.
        z: Representatives of the old documents in IncDSI's constraints: "own", their own vectors,
            or "texts", mean vectors of parts of their texts. "": IncDSI is not used.
        gamma1: Margin of IncDSI for the new document.
        lambda2: Weight of IncDSI's regularisation.
        share: Share of the mean query in a mix with the document's vector.
        words: Whether BM25 indexes the train queries together with the text of a new document.
    """

    name: str
    z: str = ""
    gamma1: float = 1.0
    lambda2: float = 1e-5
    share: float = 0.0
    words: bool = False


class StoredVectors:
    """An encoder of texts whose vectors (n, H) were computed before."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self.rows = {text: row for row, text in enumerate(texts)}
        self.vectors = vectors

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors (n, H)."""
        return self.vectors[[self.rows[text] for text in texts]]


class Arrival:
    """Old documents, and the new documents of one part of the collection.

    They are searched by the encoder alone, and by its fusion with BM25.
    """

    def __init__(
        self,
        encoded: Encoded,
        representatives: Mapping[str, np.ndarray],
        part: str,
        split: str,
        most: int | None = None,
    ) -> None:
        """Select documents and queries.

        Args:
            encoded: Vectors of the collection.
            representatives: Vectors (n, H) that represent the documents in IncDSI's constraints,
                by the names that `AdditionMethod.z` uses.
            part: Part of the collection whose documents are new.
            split: Split of the queries for old documents.
            most: Number of new documents, the earliest first. None: all of the part.
        """
        self.encoded = encoded
        self.pages = encoded.pages
        self.representatives = representatives
        self.new = self.pages.rows(part)[:most]
        self.rows = [*range(self.pages.old), *self.new]
        self.ids = [self.pages.ids[row] for row in self.rows]

        old_ids = self.pages.ids[: self.pages.old]
        old_queries, self.old_targets = self.pages.queries_for(old_ids, split)
        # Documents of the tuning part are not evaluated later, so their test queries are free.
        new_ids = [self.pages.ids[row] for row in self.new]
        new_splits = ("test",) if split == "test" else (split, "test")
        new_queries, self.new_targets = self.pages.queries_for(new_ids, *new_splits)
        self.query_texts = [self.pages.queries[row] for row in (*old_queries, *new_queries)]
        self.targets = [*self.old_targets, *self.new_targets]

    def train_queries(self, row: int) -> Sequence[int]:
        """Return the rows of a document's train queries."""
        return self.pages.query_rows["train"].get(self.pages.ids[row], ())

    def vectors(self, method: AdditionMethod) -> np.ndarray:
        """Return the vectors (n, H) of the documents, in their order."""
        old_vectors = self.encoded.documents[: self.pages.old]
        new_vectors = self.encoded.documents[self.new].copy()
        if method.share:
            self._mix_with_queries(new_vectors, method.share)
        if method.z:
            self._solve_with_incdsi(new_vectors, method)
        return np.concatenate([old_vectors, new_vectors])

    def _mix_with_queries(self, new_vectors: np.ndarray, share: float) -> None:
        """Mix the new vectors (a, H) with the mean of their train queries, in place."""
        for position, row in enumerate(self.new):
            query_rows = list(self.train_queries(row))
            if query_rows:
                mean_query = self.encoded.queries[query_rows].mean(axis=0)
                new_vectors[position] = (1 - share) * new_vectors[position] + share * mean_query
        new_vectors /= np.linalg.norm(new_vectors, axis=1, keepdims=True)

    def _solve_with_incdsi(self, new_vectors: np.ndarray, method: AdditionMethod) -> None:
        """Replace, in place, the new vectors (a, H) of documents that have train queries."""
        old = self.pages.old
        representatives = self.representatives[method.z]
        state = IncDsiState(
            self.encoded.documents[:old], representatives[:old], self.pages.ids[:old], None
        )
        settings = IncDsiSettings(gamma1=method.gamma1, lambda2=method.lambda2)
        adder = IncDsiAdder(state, settings)
        for position, row in enumerate(self.new):
            query_rows = list(self.train_queries(row))
            if query_rows:
                queries = self.encoded.queries[query_rows]
                document = NewDocument(self.pages.ids[row], queries, self.encoded.documents[row])
                new_vectors[position] = adder.add(document).vector

    @cached_property
    def normalizer(self) -> ScoreNormalizer:
        """Return the score normalizer of the old documents, as in a live collection."""
        return ScoreNormalizer.fit(self.encoded.documents[: self.pages.old])

    def scores(self, method: AdditionMethod) -> dict[str, np.ndarray]:
        """Return nDCG@10 (q,) of each query, by the encoder alone and by the fusion.

        Each query has one relevant document.
        """
        settings = IndexSettings(flat_below=ALWAYS_EXACT)
        index = DenseIndex.build(self.vectors(method), self.ids, "known", settings)
        encoder: Any = StoredVectors(self.pages.queries, self.encoded.queries)
        dense = DenseRetriever(encoder, index, "known")

        texts = [self._indexed_text(row, method) for row in self.rows]
        bm25 = Bm25Index.build(texts, self.ids, Bm25Settings())
        weights = {"dense": 1.0, "bm25": BM25_WEIGHT}
        fusion = Fusion(weights, {"dense": self.normalizer}, feedback=FEEDBACK)
        fused = FusedSearch({"dense": dense, "bm25": bm25}, fusion)
        return {"encoder": self._query_scores(dense), "fusion": self._query_scores(fused)}

    def split_old_and_new(self, scores: np.ndarray) -> dict[str, np.ndarray]:
        """Return the scores (q,) of queries for old and for new documents."""
        old_queries = len(self.old_targets)
        return {"old": scores[:old_queries], "new": scores[old_queries:]}

    def mean_scores(self, scores: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return each system's means over the queries for old and for new documents."""
        means = {}
        for system, system_scores in scores.items():
            for part, part_scores in self.split_old_and_new(system_scores).items():
                means[f"{system}, {part}"] = round(float(part_scores.mean()), 4)
        return means

    def _indexed_text(self, row: int, method: AdditionMethod) -> str:
        """Return the text that BM25 indexes. A method with `words` appends the train queries."""
        lines = [self.pages.texts[row]]
        is_new = row >= self.pages.old
        if method.words and is_new:
            lines.extend(self.pages.queries[query] for query in self.train_queries(row))
        return "\n".join(lines)

    def _query_scores(self, system: Any) -> np.ndarray:
        """Return nDCG@10 of each query (q,). Each query has one relevant document."""
        values = []
        for text, target in zip(self.query_texts, self.targets, strict=True):
            (ranking,) = system.search([text], K)
            ranked_ids = [document_id for document_id, _ in ranking]
            score = 0.0
            if target in ranked_ids:
                score = 1 / np.log2(2 + ranked_ids.index(target))
            values.append(score)
        return np.array(values)


def mean_text_vectors(encoded: Encoded, cache: Path | None) -> np.ndarray:
    """Return the mean vector (n, H) of each document's title, first sentence and spans of text.

    A live collection represents documents without known queries by the same mean.
    """
    cached_file = None if cache is None else cache / "texts.npy"
    if cached_file is not None and cached_file.exists():
        return np.load(cached_file)

    texts: list[str] = []
    owners: list[int] = []
    for owner, page_text in enumerate(encoded.pages.texts):
        page_texts = constraint_texts("", page_text, SPANS)
        texts.extend(page_texts)
        owners.extend([owner] * len(page_texts))
    vectors = Encoder.load(BASE, MAX_TOKENS, for_search=True).encode(texts)
    means, _ = mean_by_owner(vectors, np.array(owners), len(encoded.pages.texts))
    if cached_file is not None:
        np.save(cached_file, means)
    return means


def candidate_methods() -> list[AdditionMethod]:
    """Return every method that is tried on the tuning part."""
    methods = [AdditionMethod("plain")]
    for share in MIX_SHARES:
        methods.append(AdditionMethod("mixed", share=share))
    methods.append(AdditionMethod("defaults", "texts"))
    for z, gamma1, lambda2 in product(Z_KINDS, GAMMA1_VALUES, LAMBDA2_VALUES):
        methods.append(AdditionMethod("refined", z, gamma1, lambda2))
    return methods


def choose_methods(arrival: Arrival) -> tuple[dict[str, AdditionMethod], list[dict[str, Any]]]:
    """Choose the best method of each family, by the fusion's mean nDCG@10 on the tuning part.

    Returns:
        The best method by the name of its family. The settings and means of all methods.
    """
    best_means: dict[str, float] = {}
    best_methods: dict[str, AdditionMethod] = {}
    tried = []
    for method in candidate_methods():
        scores = arrival.scores(method)
        row = {**asdict(method), **arrival.mean_scores(scores)}
        tried.append(row)
        print(row, flush=True)

        mean = float(np.mean(scores["fusion"]))
        if method.name not in best_methods or mean > best_means[method.name]:
            best_means[method.name] = mean
            best_methods[method.name] = method
    return best_methods, tried


def compare_methods(arrival: Arrival, methods: Mapping[str, AdditionMethod]) -> dict[str, Any]:
    """Compare each method with plain encodings, by the fusion's nDCG@10 on test queries.

    Each method is measured with and without train queries as words in BM25. The test queries are
    used only here.
    """
    scores = {name: arrival.scores(method) for name, method in methods.items()}
    for name, method in methods.items():
        scores[f"{name} and words"] = arrival.scores(replace(method, words=True))

    # Differences (q,) from plain encodings, by part (old or new) and method.
    differences: dict[str, dict[str, np.ndarray]] = {"old": {}, "new": {}}
    for name in scores:
        if name != "plain":
            difference = scores[name]["fusion"] - scores["plain"]["fusion"]
            for part, part_difference in arrival.split_old_and_new(difference).items():
                differences[part][name] = part_difference

    with_queries = sum(len(arrival.train_queries(row)) > 0 for row in arrival.new)
    return {
        "queries": {"old": len(arrival.old_targets), "new": len(arrival.new_targets)},
        "documents": {"old": arrival.pages.old, "new": len(arrival.new)},
        "bring queries": with_queries,
        "nDCG@10": {
            name: arrival.mean_scores(method_scores) for name, method_scores in scores.items()
        },
        "less plain": {
            part: compare_systems(part_differences)
            for part, part_differences in differences.items()
        },
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each number of arrivals."""
    return "\n".join(_table(arrivals) for arrivals in result["arrivals"])


def _table(arrivals: Mapping[str, Any]) -> str:
    """Return the table of one number of arrivals."""
    documents = arrivals["documents"]
    queries = arrivals["queries"]
    lines = [
        f"**{documents['new']:,} new pages**, {arrivals['bring queries']:,} of which "
        f"bring queries, beside {documents['old']:,} old ones; "
        f"{queries['new']:,} and {queries['old']:,} test queries",
        "",
        "| new pages | old nDCG@10 | less plain | new nDCG@10 | less plain |",
        "|---|---|---|---|---|",
    ]
    for name, means in arrivals["nDCG@10"].items():
        cells = [name]
        for part in ("old", "new"):
            comparison = arrivals["less plain"][part].get(name)
            cells.append(f"{means[f'fusion, {part}']:.4f}")
            cells.append(_format_comparison(comparison))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _format_comparison(comparison: Sequence[float] | None) -> str:
    """Return a difference with its interval and p. It is empty for plain encodings."""
    if comparison is None:
        return ""
    difference, low, high, p = comparison
    return f"{difference:+.4f} [{low:+.4f}, {high:+.4f}], p {p:.4f}"


def main() -> None:
    """Choose the methods, compare them, and write the result and the page's tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    options = parser.parse_args()

    pages = Pages.read(options.folder, FIRST_NEW_DAY)
    encoded = encode(pages, BASE, MAX_TOKENS, options.cache)
    representatives = {
        "own": encoded.documents,
        "texts": mean_text_vectors(encoded, options.cache),
    }
    methods, tried = choose_methods(Arrival(encoded, representatives, TUNING, "dev"))
    arrivals = []
    for most in (FEW_ARRIVALS, None):
        arrival = Arrival(encoded, representatives, NEW, "test", most)
        arrivals.append(compare_methods(arrival, methods))

    result = {
        "ways": {name: asdict(method) for name, method in methods.items()},
        "tried": tried,
        "arrivals": arrivals,
    }
    write_json(HERE / "result.json", result)
    text = tables(result)
    write_tables(HERE, text)
    print(text)


if __name__ == "__main__":
    main()
