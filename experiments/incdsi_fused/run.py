"""Measure the gain of IncDSI below a fusion, for documents that come with queries.

`python -m experiments.incdsi_fused.run FOLDER --cache VECTORS` writes `result.json` and the page's
tables. FOLDER is tldr in BEIR layout. Pages from 2025 on are new and come with their train queries.
Ways are chosen on a tenth of them and measured once on the others.
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

from experiments.incdsi_frontier.encoded import Encoded, encode
from experiments.incdsi_frontier.pages import NEW, TUNING, Pages
from experiments.tables import write_tables
from model_code.dsi.vectors import mean_by_owner
from model_code.encoding.encoder import Encoder
from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test
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
DAY = "2025-01-01"
SPANS = 4
FEEDBACK = 0.3
BM25_WEIGHT = 3.0
GRID = {"z": ("own", "texts"), "gamma1": (0.5, 1.0, 2.0), "lambda2": (1e-5, 0.1, 1.0)}
SHARES = (0.25, 0.5, 0.75)
K = 10


@dataclass(frozen=True)
class Way:
    """A way to add new documents that come with queries.

    z: Representative queries of old documents: their own vectors or those of their texts.
    """

    name: str
    z: str = ""
    gamma1: float = 1.0
    lambda2: float = 1e-5
    # Share of the mean query in a mix.
    share: float = 0.0
    # Whether BM25 reads the queries behind the text.
    words: bool = False


class KnownQueries:
    """Replacement of an encoder that returns the vectors of texts encoded before."""

    def __init__(self, texts: Sequence[str], vectors: np.ndarray) -> None:
        self.rows, self.vectors = {text: row for row, text in enumerate(texts)}, vectors

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return vectors (n, H)."""
        return self.vectors[[self.rows[text] for text in texts]]


class Arrival:
    """Old documents and the arriving ones of a part.

    They are searched by the encoder alone and by its untrained fusion.
    """

    def __init__(
        self,
        encoded: Encoded,
        texts: Mapping[str, np.ndarray],
        part: str,
        split: str,
        most: int | None = None,
    ) -> None:
        """Prepare the arrivals.

        Args:
            encoded: Vectors of the collection.
            texts: Representative queries (n, H) of old documents, by name.
            part: Part whose documents arrive.
            split: Split of the test queries of old documents.
            most: Number of documents of the part, the first by date.
        """
        self.encoded, self.pages, self.z = encoded, encoded.pages, texts
        self.new = self.pages.rows(part)[:most]
        self.rows = [*range(self.pages.old), *self.new]
        self.ids = [self.pages.ids[row] for row in self.rows]
        old, self.old_targets = self.pages.of(self.pages.ids[: self.pages.old], split)
        new, self.new_targets = self.pages.of(
            [self.pages.ids[row] for row in self.new], *dict.fromkeys((split, "test"))
        )
        self.asked = [self.pages.queries[row] for row in (*old, *new)]
        self.targets = [*self.old_targets, *self.new_targets]

    def train(self, row: int) -> Sequence[int]:
        """Return the rows of a document's train queries."""
        return self.pages.asked["train"].get(self.pages.ids[row], ())

    def vectors(self, way: Way) -> np.ndarray:
        """Return the vectors (n, H) of the documents, in their order."""
        old, added = self.pages.old, self.encoded.documents[self.new].copy()
        bring = [i for i, row in enumerate(self.new) if len(self.train(row))]
        if way.share:
            for i in bring:
                mean = self.encoded.queries[list(self.train(self.new[i]))].mean(axis=0)
                added[i] = (1 - way.share) * added[i] + way.share * mean
            added /= np.linalg.norm(added, axis=1, keepdims=True)
        if way.z:
            ids = self.pages.ids[:old]
            state = IncDsiState(self.encoded.documents[:old], self.z[way.z][:old], ids, None)
            adder = IncDsiAdder(state, IncDsiSettings(gamma1=way.gamma1, lambda2=way.lambda2))
            for i in bring:
                row = self.new[i]
                queries = self.encoded.queries[list(self.train(row))]
                added[i] = adder.add(
                    NewDocument(self.pages.ids[row], queries, self.encoded.documents[row])
                ).vector
        return np.concatenate([self.encoded.documents[:old], added])

    @cached_property
    def scale(self) -> ScoreNormalizer:
        """Return the scale of the old documents, as in a live collection."""
        return ScoreNormalizer.fit(self.encoded.documents[: self.pages.old])

    def scores(self, way: Way) -> dict[str, np.ndarray]:
        """Return nDCG@10 (q,) of each query by the encoder alone and by the fusion.

        One document is relevant to a query.
        """
        index = DenseIndex.build(
            self.vectors(way), self.ids, "known", IndexSettings(flat_below=ALWAYS_EXACT)
        )
        encoder: Any = KnownQueries(self.pages.queries, self.encoded.queries)
        dense = DenseRetriever(encoder, index, "known")
        bm25 = Bm25Index.build(
            [self._words(row, way) for row in self.rows], self.ids, Bm25Settings()
        )
        fusion = Fusion(
            {"dense": 1.0, "bm25": BM25_WEIGHT}, {"dense": self.scale}, feedback=FEEDBACK
        )
        systems = {"encoder": dense, "fusion": FusedSearch({"dense": dense, "bm25": bm25}, fusion)}
        return {name: self._ndcg(system) for name, system in systems.items()}

    def stated(self, scores: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the means over the queries for old and for new documents."""
        n = len(self.old_targets)
        parts = {"old": slice(0, n), "new": slice(n, None)}
        return {
            f"{system}, {part}": round(float(own[of].mean()), 4)
            for system, own in scores.items()
            for part, of in parts.items()
        }

    def _words(self, row: int, way: Way) -> str:
        told = (
            [self.pages.queries[query] for query in self.train(row)]
            if way.words and row >= self.pages.old
            else []
        )
        return "\n".join([self.pages.texts[row], *told])

    def _ndcg(self, system: Any) -> np.ndarray:
        values = []
        for text, target in zip(self.asked, self.targets, strict=True):
            found = [document for document, _ in system.search([text], K)[0]]
            values.append(1 / np.log2(2 + found.index(target)) if target in found else 0.0)
        return np.array(values)


def means_of_texts(encoded: Encoded, cache: Path | None) -> np.ndarray:
    """Return the mean (n, H) of each document's title, first sentence and spans.

    A live collection uses the same mean.
    """
    file = cache and cache / "texts.npy"
    if file and file.exists():
        return np.load(file)
    texts = [constraint_texts("", text, SPANS) for text in encoded.pages.texts]
    flat = Encoder.load(BASE, MAX_TOKENS, for_search=True).encode(
        [one for own in texts for one in own]
    )
    found, _ = mean_by_owner(
        flat, np.repeat(np.arange(len(texts)), [len(own) for own in texts]), len(texts)
    )
    if file:
        np.save(file, found)
    return found


def candidates() -> list[Way]:
    """Return every way that is tried on the tuning part."""
    refined = [Way("refined", *values) for values in product(*GRID.values())]
    mixed = [Way("mixed", share=share) for share in SHARES]
    return [Way("plain"), *mixed, Way("defaults", "texts"), *refined]


def chosen(arrival: Arrival) -> tuple[dict[str, Way], list[dict[str, Any]]]:
    """Return for each name the way with the best mean of the fusion over the tuning part's queries.

    Also return the means of all ways.
    """
    best: dict[str, tuple[float, Way]] = {}
    tried = []
    for way in candidates():
        scores = arrival.scores(way)
        value = float(np.mean(scores["fusion"]))
        tried.append(asdict(way) | arrival.stated(scores))
        print(tried[-1], flush=True)
        if way.name not in best or value > best[way.name][0]:
            best[way.name] = value, way
    return {name: way for name, (_, way) in best.items()}, tried


def compared(arrival: Arrival, ways: Mapping[str, Way]) -> dict[str, Any]:
    """Compare each way with the plain one by the fusion, with and without the queries as words.

    The test queries are used once.
    """
    every = {
        name + " and words" * words: replace(way, words=words)
        for words in (False, True)
        for name, way in ways.items()
    }
    scores = {name: arrival.scores(way) for name, way in every.items()}
    others = [name for name in scores if name != "plain"]
    n, less = len(arrival.old_targets), {}
    for part, of in (("old", slice(0, n)), ("new", slice(n, None))):
        columns = np.column_stack(
            [(scores[name]["fusion"] - scores["plain"]["fusion"])[of] for name in others]
        )
        low, high = bootstrap_interval(columns, 2000, 0.95, 0)
        rows = zip(
            others,
            columns.mean(axis=0),
            low,
            high,
            holm(paired_randomisation_test(columns, 10_000, 0)),
            strict=True,
        )
        less[part] = {name: [round(float(value), 4) for value in row] for name, *row in rows}
    return {
        "queries": {"old": n, "new": len(arrival.new_targets)},
        "documents": {"old": arrival.pages.old, "new": len(arrival.new)},
        "bring queries": sum(len(arrival.train(row)) > 0 for row in arrival.new),
        "nDCG@10": {name: arrival.stated(own) for name, own in scores.items()},
        "less plain": less,
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each number of arrivals."""
    return "\n".join(_table(own) for own in result["arrivals"])


def _table(own: Mapping[str, Any]) -> str:
    documents, queries = own["documents"], own["queries"]
    lines = [
        f"**{documents['new']:,} new pages**, {own['bring queries']:,} of which bring queries, "
        f"beside {documents['old']:,} old ones; "
        f"{queries['new']:,} and {queries['old']:,} test queries",
        "",
        "| new pages | old nDCG@10 | less plain | new nDCG@10 | less plain |",
        "|---|---|---|---|---|",
    ]
    for name, values in own["nDCG@10"].items():
        cells = [
            (f"{values[f'fusion, {part}']:.4f}", _difference(own["less plain"][part].get(name)))
            for part in ("old", "new")
        ]
        lines.append("| " + " | ".join([name, *cells[0], *cells[1]]) + " |")
    return "\n".join(lines) + "\n"


def _difference(row: Sequence[float] | None) -> str:
    return "" if row is None else f"{row[0]:+.4f} [{row[1]:+.4f}, {row[2]:+.4f}], p {row[3]:.4f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    pages = Pages.read(given.folder, DAY)
    encoded = encode(pages, BASE, MAX_TOKENS, given.cache)
    z = {"own": encoded.documents, "texts": means_of_texts(encoded, given.cache)}
    best, tried = chosen(Arrival(encoded, z, TUNING, "dev"))
    arrivals = [compared(Arrival(encoded, z, NEW, "test", most), best) for most in (100, None)]
    found = {
        "ways": {name: asdict(way) for name, way in best.items()},
        "tried": tried,
        "arrivals": arrivals,
    }
    write_json(HERE / "result.json", found)
    write_tables(HERE, tables(found))
    print(tables(found))
