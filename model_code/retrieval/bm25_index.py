"""BM25 over passages, in segments that come and go: N additions and deletions are one rebuild, to
the bit.

Robertson and Zaragoza (2009), The Probabilistic Relevance Framework, with Lucene's idf. A passage d
scores the sum over query terms t of log(1 + (N - n_t + .5) / (n_t + .5)) * f(t, d) / (f(t, d) + k1
(1 - b + b |d| / mean |d|)), where t is in n_t of N passages, and f(t, d) times in d. Segments hold
whole numbers only; n_t, N and the mean length are summed over what can be found, at the query. So a
score depends on no order in which documents came.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.files import (
    atomic_write,
    canonical_json,
    hash_text,
    read_json,
    read_manifest,
    verify_checksums,
    write_json,
    write_manifest,
)
from model_code.retrieval.id_map import IdMap, IdMaps, number_on_lookup
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.protocol import Ranking, Retriever, TokenMatch
from model_code.text.terms import get_analyzer

FORMAT, KIND = 1, "bm25"
VOCABULARY, DOCUMENT_IDS, POSTINGS = "vocabulary.json", "document_ids.json", "postings.safetensors"
DEFAULTS = Bm25Settings()
COMMON = 8  # a term that one passage in so many holds is added to all scores at once


@dataclass(frozen=True, eq=False)
class Bm25Segment:
    """Passages of some documents by their terms: equal passages in equal order make equal segments.

    vocabulary: the T terms, ascending. Those of term t are postings `starts[t]` to `starts[t + 1]`
    (T + 1, int64): `rows` (P, int32) of passages, ascending, and `frequencies` (P, int32) there.
    `lengths` (n, int32): terms of each passage; `ids`: its document.
    """

    vocabulary: list[str]
    starts: np.ndarray
    rows: np.ndarray
    frequencies: np.ndarray
    lengths: np.ndarray
    ids: IdMap

    @classmethod
    def build(
        cls, texts: Sequence[str], document_ids: Sequence[str], language: str | None
    ) -> Bm25Segment:
        """Index passages `texts` (n), passage i of document `document_ids[i]`."""
        analyse, numbers = get_analyzer(language), number_on_lookup()
        term_lists = [list(map(numbers.__getitem__, analyse.analyze(text))) for text in texts]
        lengths = np.fromiter(map(len, term_lists), np.int32, len(term_lists))
        terms = np.fromiter(chain.from_iterable(term_lists), np.int64, int(lengths.sum()))
        vocabulary = sorted(numbers)
        places = np.empty(len(vocabulary), np.int64)
        places[[numbers[term] for term in vocabulary]] = np.arange(len(vocabulary))
        keys = places[terms] * len(term_lists) + np.repeat(np.arange(len(term_lists)), lengths)
        return cls._of(
            vocabulary, *np.unique(keys, return_counts=True), lengths, IdMap(document_ids)
        )

    @classmethod
    def merge(cls, parts: Sequence[tuple[Bm25Segment, Sequence[str]]]) -> Bm25Segment:
        """The passages of the named documents of each segment: the one that `build` makes of their
        texts.
        """
        chosen = [(segment, segment.ids.rows_of(documents)) for segment, documents in parts]
        ids = [segment.ids.document_ids[row] for segment, rows in chosen for row in rows.tolist()]
        vocabulary = sorted({term for segment, _ in chosen for term in segment.vocabulary})
        number = {term: i for i, term in enumerate(vocabulary)}
        keys, counts, first = [], [], 0
        for segment, rows in chosen:
            place = np.full(len(segment.ids), -1, np.int64)
            place[rows] = np.arange(first, first + len(rows))
            terms = np.array([number[term] for term in segment.vocabulary], np.int64)
            mask = place[segment.rows] >= 0
            keys.append(
                (np.repeat(terms, np.diff(segment.starts)) * len(ids) + place[segment.rows])[mask]
            )
            counts.append(segment.frequencies[mask])
            first += len(rows)
        flat, order = np.concatenate(keys), np.argsort(np.concatenate(keys))
        lengths = np.concatenate([segment.lengths[rows] for segment, rows in chosen])
        return cls._of(vocabulary, flat[order], np.concatenate(counts)[order], lengths, IdMap(ids))

    @classmethod
    def _of(
        cls,
        vocabulary: list[str],
        keys: np.ndarray,
        counts: np.ndarray,
        lengths: np.ndarray,
        ids: IdMap,
    ) -> Bm25Segment:
        """keys: term * n + row of each posting, ascending; terms without any posting are left out."""
        terms, rows = np.divmod(keys, max(1, len(ids)))
        used, sizes = np.unique(terms, return_counts=True)
        starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        vocabulary = [vocabulary[term] for term in used.tolist()]
        return cls(
            vocabulary,
            starts,
            rows.astype(np.int32),
            counts.astype(np.int32),
            lengths.astype(np.int32),
            ids,
        )

    @cached_property
    def _number(self) -> dict[str, int]:
        return {term: number for number, term in enumerate(self.vocabulary)}

    def postings(self, term: str) -> slice:
        """Where the postings of a term lie; an empty slice if no passage has it."""
        number = self._number.get(term)
        return (
            slice(0, 0)
            if number is None
            else slice(int(self.starts[number]), int(self.starts[number + 1]))
        )

    def save(self, folder: Path, facts: dict[str, object]) -> None:
        """Write it to `folder`, with more facts for the manifest; equal segments give equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        names = ("starts", "rows", "frequencies", "lengths")
        with atomic_write(folder / POSTINGS) as aside:
            save_file({name: getattr(self, name) for name in names}, aside)
        for name, values in ((VOCABULARY, self.vocabulary), (DOCUMENT_IDS, self.ids.document_ids)):
            write_json(folder / name, values, lines=False)
        counts = {"passages": len(self.ids), "documents": self.ids.documents}
        write_manifest(folder, FORMAT, {"kind": KIND, **counts, **facts})

    @classmethod
    def load(cls, folder: Path) -> Bm25Segment:
        """Read what `save` wrote; FreshetError if a file is not what the manifest says."""
        verify_checksums(folder, read_manifest(folder, FORMAT))
        return cls(
            read_json(folder / VOCABULARY),
            **load_file(folder / POSTINGS),
            ids=IdMap(read_json(folder / DOCUMENT_IDS)),
        )


@dataclass(frozen=True, eq=False)
class Bm25Query:
    """A query's terms, and its scores by each index that was asked, so that none computes them
    twice.
    """

    terms: Counter[str]
    scores: dict[int, np.ndarray] = field(default_factory=dict)


class _Counted(NamedTuple):
    """Of all segments in turn k1 (1 - b + b |d| / mean |d|) of each passage (n,); how many passages
    can be found, and which (n,), None where all can.
    """

    norms: np.ndarray
    passages: int
    alive: np.ndarray | None


class _Postings(NamedTuple):
    """What a term adds to the scores of passages that can be found: `rows` (p,), counted through
    all segments, and their `weights` (p,); of a term that many hold, all weights (n,) in turn and
    no rows, as that is added faster.
    """

    rows: np.ndarray | None
    weights: np.ndarray


class Bm25Index(Retriever[list[Bm25Query]]):
    """BM25 over segments without their removed documents; documents are ranked by their best
    passage.

    >>> index = Bm25Index.build(["the cat sat", "dogs ran away", "a cat and a cat"], ["a", "b", "c"])
    >>> [document for document, _ in index.search(["cats"], k=3)[0]]
    ['c', 'a']
    """

    can_explain = True

    def __init__(
        self,
        segments: Sequence[tuple[Bm25Segment, frozenset[str]]],
        settings: Bm25Settings = DEFAULTS,
    ) -> None:
        """segments: each with the ids of its documents that are removed; no other document is in
        two of them.
        """
        self.segments = [segment for segment, _ in segments]
        self.ids = IdMaps([(segment.ids, gone) for segment, gone in segments])
        self.settings, self.language = settings, settings.language
        self._postings: dict[str, _Postings] = {}
        self.fingerprint = hash_text(f"bm25 {canonical_json(settings.model_dump())}")

    @classmethod
    def build(
        cls, texts: Sequence[str], document_ids: Sequence[str], settings: Bm25Settings = DEFAULTS
    ) -> Bm25Index:
        """Index passages `texts` (n), passage i of document `document_ids[i]`."""
        return cls(
            [(Bm25Segment.build(texts, document_ids, settings.language), frozenset())], settings
        )

    @cached_property
    def _counted(self) -> _Counted:
        """Statistics of what can be found; made at the first search."""
        lengths, alive, gone = (
            np.concatenate([part.lengths for part in self.segments]),
            None,
            self.ids.removed_rows,
        )
        if len(gone):
            alive = np.ones(len(lengths), bool)
            alive[gone] = False
        remaining = lengths if alive is None else lengths[alive]
        mean = max(1, int(remaining.sum(dtype=np.int64))) / max(1, len(remaining))
        k1, b = self.settings.k1, self.settings.b
        return _Counted(k1 * (1 - b + b * lengths / mean), len(remaining), alive)

    def encode_queries(self, texts: Sequence[str]) -> list[Bm25Query]:
        """The terms of texts."""
        terms = get_analyzer(self.settings.language)
        return [Bm25Query(Counter(terms.analyze(text))) for text in texts]

    def search_encoded(
        self, queries: list[Bm25Query], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query, best first, of `allowed` ones only, unless None.

        Documents that share no term with a query are left out.
        """
        rows = None if allowed is None else self.ids.rows_of(allowed)
        every = map(self._scores, queries)
        return [
            self.ids.best(scores if rows is None else scores[rows], k, rows) for scores in every
        ]

    def score_encoded(
        self, queries: list[Bm25Query], candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Of every candidate, 0 for those that share no term with the query; FreshetError if one is
        unknown.
        """
        scores = []
        for query, documents in zip(queries, candidates, strict=True):
            groups = self.ids.grouped(documents)
            scores.append(groups.best(self._scores(query)[groups.rows]).astype(np.float64))
        return scores

    def best_passage_encoded(self, query: list[Bm25Query], document_id: str) -> int:
        """Which of the document's passages (0, 1, ...) scores highest; the first of equals."""
        return int(np.argmax(self._scores(query[0])[self.ids.rows_of([document_id])]))

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """What each term adds to the score of a document's best passage, the heaviest first."""
        query = self.encode_queries([text])
        row = int(self.ids.rows_of([document_id])[self.best_passage_encoded(query, document_id)])
        shares = {
            term: float(self._sums(Counter({term: times}))[row])
            for term, times in query[0].terms.items()
        }
        matches = [TokenMatch(term, share) for term, share in shares.items() if share]
        return sorted(matches, key=lambda match: (-match.weight, match.token))

    def scores(self, text: str) -> np.ndarray:
        """The score of every passage for one query: (n,) float32, 0 where no term is shared."""
        return self._scores(self.encode_queries([text])[0])

    def _scores(self, query: Bm25Query) -> np.ndarray:
        if id(self) not in query.scores:
            query.scores[id(self)] = self._sums(query.terms)
        return query.scores[id(self)]

    def _sums(self, terms: Counter[str]) -> np.ndarray:
        """Float64 sums, common terms before others, both in the query's order, so that they round
        alike in whatever segments.
        """
        scores, others = np.zeros(len(self.ids)), []
        for term, times in terms.items():
            rows, weights = self._postings_of(term)
            weights = weights if times == 1 else times * weights
            if rows is None:
                scores += weights
            else:
                others.append((rows, weights))
        if others:
            rows, shares = map(np.concatenate, zip(*others, strict=True))
            scores += np.bincount(rows, shares, len(self.ids))
        return scores.astype(np.float32)

    def _postings_of(self, term: str) -> _Postings:
        """The postings of a term, made when it is first asked for."""
        if term not in self._postings:
            every = zip(self.segments, self.ids.first, strict=False)
            hits = [
                (part, first, at)
                for part, first in every
                if (at := part.postings(term)).start < at.stop
            ]
            rows = np.concatenate(
                [np.empty(0, np.intp), *(part.rows[at] + first for part, first, at in hits)]
            )
            frequencies = np.concatenate(
                [np.empty(0, np.int32), *(part.frequencies[at] for part, _, at in hits)]
            )
            counted = self._counted
            if counted.alive is not None:
                mask = counted.alive[rows]
                rows, frequencies = rows[mask], frequencies[mask]
            idf = math.log(1 + (counted.passages - len(rows) + 0.5) / (len(rows) + 0.5))
            weights = idf * (frequencies / (frequencies + counted.norms[rows]))
            if COMMON * len(rows) < counted.passages:
                self._postings[term] = _Postings(rows, weights)
            else:
                self._postings[term] = _Postings(None, np.bincount(rows, weights, len(self.ids)))
        return self._postings[term]
