"""Fused retrieval: several retrievers over the same documents, and one score that is the weighed
sum of theirs.

Candidates are the union of the parts' best documents, and every part then scores all of them
exactly. So a document has one score for a query, however many documents are asked for and whatever
filters leave out. With weights w_p of parts p

    s(q, d) = sum_p w_p f_p(s_p(q, d)),

where f_p standardises a dense part's inner product by the mean and the standard deviation of the
query's products with all vectors that the retriever was built of, and divides the score of a part
that matches words by the query's highest. A dense part whose index keeps the signs of its tokens'
vectors scores by these, too (late interaction, `TokenSigns`): NAME.late has a weight of its own,
finds nothing by itself, and f_p multiplies it by ten.

With `feedback` c above 0 candidates are scored twice: dense parts then get q + c (v_1 + v_2 + v_3)
/ 3, where v_i are the vectors of the three best documents of the first pass (pseudo-relevance
feedback, Rocchio, 1971). Those are the best of all documents, so that a score still hangs on
nothing but the query and what can be found. Candidates are those of the query as it was asked:
others, by the moved vector, moved nDCG@10 of 1,000 dev queries of tldr by less than .0001.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from safetensors.numpy import load_file, save_file

from model_code.errors import FreshetError
from model_code.files import (
    MANIFEST,
    canonical_json,
    hash_text,
    read_json,
    read_manifest,
    write_json,
    write_manifest,
)
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import LATE_SUFFIX, Ranking, Retriever, TokenMatch, top_k_ranking
from model_code.text.terms import AUTO

FORMAT, KIND = 1, "fused"
FUSION, SCALES = "fusion.json", "scales.safetensors"
# of a query's products: those of one document, or of equal ones, differ by rounding alone
LEAST_VARIANCE = 1e-6
TIMES = 10.0  # a score by tokens, a mean cosine, which so is about as wide as the others
BEST = 3  # documents of the first pass that a query is moved towards


@dataclass(frozen=True, eq=False)
class ScoreNormalizer:
    """Mean (H,) and covariance (H, H) of a dense part's vectors, float64: those of a query's
    products follow.
    """

    mean: np.ndarray
    covariance: np.ndarray

    @classmethod
    def fit(cls, vectors: np.ndarray) -> ScoreNormalizer:
        """The scale of vectors (n, H)."""
        wide = np.asarray(vectors, np.float64)
        mean = wide.mean(axis=0)
        return cls(mean, wide.T @ wide / len(wide) - np.outer(mean, mean))

    def standardize(self, query: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Products (n,) of a query (H,) with documents, less their mean and divided by their
        deviation.

        One query at a time: a product of two matrices would round by the number of queries.
        """
        wide = query.astype(np.float64)
        variance = float(wide @ (self.covariance @ wide))
        return (scores - float(self.mean @ wide)) / np.sqrt(max(variance, LEAST_VARIANCE))


@dataclass(frozen=True, eq=False)
class Fusion:
    """What a fused retriever has learned: the weight of each part, and the scales of the dense
    ones.

    depth: so many of each part's best documents are scored by all parts, or k, if that is more.
    feedback: how far a query is moved towards its best documents before they are scored again; 0:
    they are scored once.
    """

    weights: Mapping[str, float]
    normalizers: Mapping[str, ScoreNormalizer] = field(default_factory=dict)
    depth: int = 100
    feedback: float = 0.0

    def save(self, folder: Path) -> None:
        """Write it into the folder; equal fusions give equal bytes."""
        stated = {
            "weights": list(self.weights.items()),
            "depth": self.depth,
            "feedback": self.feedback,
        }
        write_json(folder / FUSION, stated)
        arrays = {f"{name}.mean": normalizer.mean for name, normalizer in self.normalizers.items()}
        arrays |= {
            f"{name}.covariance": normalizer.covariance
            for name, normalizer in self.normalizers.items()
        }
        save_file(arrays, folder / SCALES)

    @classmethod
    def load(cls, folder: Path) -> Fusion:
        """Read what `save` wrote."""
        stated, arrays = read_json(folder / FUSION), load_file(folder / SCALES)
        weights = dict(stated["weights"])  # in their order, which JSON's objects do not keep
        names = [name for name in weights if f"{name}.mean" in arrays]
        normalizers = {
            name: ScoreNormalizer(arrays[f"{name}.mean"], arrays[f"{name}.covariance"])
            for name in names
        }
        # older ones have none
        return cls(weights, normalizers, stated["depth"], stated.get("feedback", 0.0))

    def fingerprint(self, components: Mapping[str, Retriever]) -> str:
        """SHA-256 of what decides scores: the parts' own fingerprints, weights, scales and
        feedback.
        """
        fingerprints = {name: component.fingerprint for name, component in components.items()}
        facts = {
            "parts": fingerprints,
            "weights": dict(self.weights),
            "scales": self._normalizers_hash,
        }
        return hash_text(
            canonical_json(facts | ({"feedback": self.feedback} if self.feedback else {}))
        )

    @property
    def components(self) -> list[str]:
        """The names of what is searched; beside these, `weights` has what scores their tokens."""
        return [name for name in self.weights if not name.endswith(LATE_SUFFIX)]

    @cached_property
    def _normalizers_hash(self) -> str:
        digest = hashlib.sha256()
        for name in sorted(self.normalizers):
            digest.update(
                name.encode()
                + self.normalizers[name].mean.tobytes()
                + self.normalizers[name].covariance.tobytes()
            )
        return digest.hexdigest()


@dataclass(frozen=True)
class FusedQueries:
    """n queries, encoded for each part: as they find candidates, and as these are scored.

    candidates: each query's, of all documents, ascending; `scores`: by each part its scores (n,) of
    these. highest: of each part that matches words the score of its best document, 1 where none
    matches.
    """

    components: Mapping[str, Any]
    scoring: Mapping[str, Any]
    highest: Mapping[str, Sequence[float]]
    scores: Mapping[str, Sequence[np.ndarray]]
    candidates: Sequence[list[str]]

    def __len__(self) -> int:
        """N."""
        return len(self.candidates)

    def __getitem__(self, rows: slice) -> FusedQueries:
        """Some of the queries."""
        groups = (self.components, self.scoring, self.highest, self.scores)
        selected = ({name: queries[rows] for name, queries in group.items()} for group in groups)
        return FusedQueries(*selected, self.candidates[rows])


class FusedSearch(Retriever[FusedQueries]):
    """The search over opened parts, in the order of their weights."""

    can_explain = True

    def __init__(self, components: Mapping[str, Retriever], fusion: Fusion) -> None:
        self.components = {name: components[name] for name in fusion.components}
        self.late = [name for name in self.components if name + LATE_SUFFIX in fusion.weights]
        self.fusion, self.fingerprint = fusion, fusion.fingerprint(self.components)
        self.language = next(
            (
                component.language
                for component in self.components.values()
                if component.language != AUTO
            ),
            AUTO,
        )

    @property
    def dense(self) -> DenseRetriever | None:
        """That of the first part that has one."""
        return next(
            (
                component.dense
                for component in self.components.values()
                if component.dense is not None
            ),
            None,
        )

    def encode_queries(self, texts: Sequence[str]) -> FusedQueries:
        """Each text, encoded by every part; dense parts score by it as its best documents change
        it.
        """
        components = self._encoded(texts)
        rankings = {
            name: component.search_and_rerank(components[name], self.fusion.depth)
            for name, component in self.components.items()
        }
        candidates, by_words = (
            _union(rankings.values()),
            [name for name in rankings if name not in self.fusion.normalizers],
        )
        highest = {name: [_highest(ranking) for ranking in rankings[name]] for name in by_words}
        scores = {
            name: self.components[name].score_encoded(components[name], candidates)
            for name in by_words
        }
        dense = {name: components[name].copy() for name in self.fusion.normalizers}
        later = {name: [] for name in components if name not in scores}
        queries = FusedQueries(components, components | dense, highest, scores | later, candidates)
        for i in range(len(texts)):
            self._score(queries, i)
        return queries

    def _encoded(self, texts: Sequence[str]) -> dict[str, Any]:
        """The texts as each part reads them, and below NAME.late their tokens, which come in the
        same pass.
        """
        encoded = {
            name: component.encode_queries(texts)
            for name, component in self.components.items()
            if name not in self.late
        }
        for name in self.late:
            encoded[name], encoded[name + LATE_SUFFIX] = self.components[name].encode_with_tokens(
                texts
            )
        return encoded

    def _score(self, queries: FusedQueries, i: int) -> None:
        """Append each dense part's scores of the candidates of query i, moved towards the best ones
        before.
        """
        vectors = {
            name: self.components[name].vectors_of(queries.candidates[i])
            for name in self.fusion.normalizers
        }
        for name in self.late:
            queries.scores[name + LATE_SUFFIX].append(
                vectors[name].late_scores(queries.components[name + LATE_SUFFIX][i : i + 1])
            )
        if self.fusion.feedback and queries.candidates[i]:
            words = {
                name: scores[i] for name, scores in queries.scores.items() if name not in vectors
            }
            dense = {
                name: candidates.scores(queries.components[name][i])
                for name, candidates in vectors.items()
            }
            best = (
                (-self._sum(self._fused(queries, i, words | dense)))
                .argsort(kind="stable")[:BEST]
                .tolist()
            )
            for name, candidates in vectors.items():
                near = [
                    candidates.nearest(queries.components[name][i], document) for document in best
                ]
                queries.scoring[name][i] += np.float32(self.fusion.feedback) * np.mean(
                    near, axis=0, dtype=np.float32
                )
        for name, candidates in vectors.items():
            queries.scores[name].append(candidates.scores(queries.scoring[name][i]))

    def search_encoded(
        self, queries: FusedQueries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best of the documents that any part has among its best."""
        candidates = self.candidates(queries, k, allowed)
        scores = self.score_encoded(queries, candidates)
        return [
            top_k_ranking(documents, values, k)
            for documents, values in zip(candidates, scores, strict=True)
        ]

    def candidates(
        self, queries: FusedQueries, k: int, allowed: Collection[str] | None = None
    ) -> Sequence[list[str]]:
        """For each query the documents that any part has among its best, ascending."""
        if allowed is None and k <= self.fusion.depth:
            return queries.candidates
        depth = max(k, self.fusion.depth)
        return _union(
            [
                component.search_and_rerank(queries.components[name], depth, allowed)
                for name, component in self.components.items()
            ]
        )

    def score_encoded(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """The weighed sum of the parts' scores of each query's candidates."""
        return list(map(self._sum, self.component_scores(queries, candidates)))

    def component_scores(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """For each query f_p(s_p) of its candidates (n), (n,) float64 for every part p."""
        scores = queries.scores
        if candidates is not queries.candidates:
            scores = {
                name: component.score_encoded(queries.scoring[name], candidates)
                for name, component in self.components.items()
            }
            vectors = {
                name: map(self.components[name].vectors_of, candidates) for name in self.late
            }
            for name, rows in vectors.items():
                tokens = queries.components[name + LATE_SUFFIX]
                scores[name + LATE_SUFFIX] = [
                    candidate.late_scores(tokens[i : i + 1]) for i, candidate in enumerate(rows)
                ]
        for i in range(len(candidates)):
            yield self._fused(queries, i, {name: values[i] for name, values in scores.items()})

    def _fused(
        self, queries: FusedQueries, i: int, scores: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """f_p of each part's scores (n,) for query i, float64."""
        fused = {}
        for name in self.fusion.weights:
            raw = scores[name].astype(np.float64)
            if normalizer := self.fusion.normalizers.get(name):
                fused[name] = normalizer.standardize(queries.scoring[name][i], raw)
            else:
                fused[name] = (
                    TIMES * raw if name.endswith(LATE_SUFFIX) else raw / queries.highest[name][i]
                )
        return fused

    def _sum(self, fused: Mapping[str, np.ndarray]) -> np.ndarray:
        return sum(self.fusion.weights[name] * scores for name, scores in fused.items())

    def best_passage_encoded(self, query: FusedQueries, document_id: str) -> int:
        """The best passage as the part with the largest weight says."""
        name = max(self.components, key=self.fusion.weights.__getitem__)
        return self.components[name].best_passage_encoded(query.scoring[name], document_id)

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Each part's share of a document's score, the largest first; they sum to it."""
        return self.explain_all(text, self.encode_queries([text]), [document_id])[0]

    def explain_all(
        self, text: str, query: FusedQueries, document_ids: Sequence[str]
    ) -> list[list[TokenMatch]]:
        """The same of several documents."""
        (scores,) = self.component_scores(query, [document_ids])
        shares = [
            [
                TokenMatch(component, self.fusion.weights[component] * float(values[i]))
                for component, values in scores.items()
            ]
            for i in range(len(document_ids))
        ]
        return [sorted(group, key=lambda share: -share.weight) for group in shares]


def _union(rankings: Iterable[Sequence[Ranking]]) -> list[list[str]]:
    """For each query the different documents of all parts' rankings, ascending: equal scores then
    go by id.
    """
    each = zip(*rankings, strict=True)
    return [sorted({document for ranking in group for document, _ in ranking}) for group in each]


def _highest(ranking: Ranking) -> float:
    return ranking[0][1] if ranking and ranking[0][1] > 0 else 1.0


class FusedRetriever(FusedSearch, IndexedRetriever[FusedQueries]):
    """A `FusedSearch` over a folder of indexes, one for each part."""

    components: dict[str, Any]  # `IndexedRetriever`s

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages for each part, as its kind does."""
        for name, component in self.components.items():
            component.write_segment(folder / name, new)
        self._seal(folder, len(set(new.document_ids)))

    def reopen(self, folder: Path) -> Self:
        """The same encoders and weights over the indexes of another folder."""
        read_manifest(folder, FORMAT)
        return type(self)(
            {name: component.reopen(folder / name) for name, component in self.components.items()},
            self.fusion,
        )

    @classmethod
    def merge(cls, components: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Merge each part's indexes: nothing is encoded."""
        first = components[0][0]
        for name, component in first.components.items():
            sources = [
                (retriever.components[name], documents) for retriever, documents in components
            ]
            type(component).merge(sources, folder / name)
        first._seal(folder, sum(len(documents) for _, documents in components))

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Each part's own search of all segments, fused."""
        first: Any = segments[0].retriever
        components = {
            name: type(component).join_segments(
                [segment.fit(segment.retriever.components[name]) for segment in segments]
            )
            for name, component in first.components.items()
        }
        return FusedSearch(components, first.fusion)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Those of the dense part, or else of the first one."""
        chosen = self.dense or next(iter(self.components.values()))
        return chosen.passage_vectors(document_ids)

    def _seal(self, folder: Path, documents: int) -> None:
        facts = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "parts": list(self.components),
            "documents": documents,
        }
        write_manifest(folder, FORMAT, facts)


def leave_one_out(names: Sequence[str]) -> dict[str, list[str]]:
    """What is left of a fusion without each of its parts, tokens included, where that is a fusion,
    too.

    >>> leave_one_out(["hce", "bm25", "hce.late"])
    {'bm25': ['hce', 'hce.late'], 'hce.late': ['hce', 'bm25']}
    """
    subsets = {
        component: [name for name in names if name not in (component, component + LATE_SUFFIX)]
        for component in names
    }
    return {component: subset for component, subset in subsets.items() if len(subset) > 1}


def build_folders(
    components: Mapping[str, tuple[Path, Path]], fusion: Fusion, encoder: Path, index: Path
) -> None:
    """Make one retriever of several: `encoder` and `index`, new folders, get a copy of each part's
    below its name.

    parts: the folders of each part's encoder and index.
    """
    encoder.mkdir(parents=True)
    for name, (own_encoder, own_index) in components.items():
        shutil.copytree(own_encoder, encoder / name)
        shutil.copytree(own_index, index / name)
    fusion.save(encoder)
    opened = FusedRetriever(
        {name: _opened(*folders) for name, folders in components.items()}, fusion
    )
    opened._seal(index, read_json(index / next(iter(components)) / MANIFEST)["documents"])


def _opened(encoder: Path, index: Path, **loading: Any) -> IndexedRetriever:
    from model_code.retrieval.kinds import open_folders  # which imports this module by its name

    return open_folders(encoder, index, **loading)


def open_folders(encoder: Path, index: Path, **loading: Any) -> FusedRetriever:
    """The retriever in two folders; loading: what else the parts' encoders are loaded with."""
    manifest = read_manifest(index, FORMAT)
    fusion = Fusion.load(encoder)
    if fusion.components != manifest["parts"]:
        raise FreshetError(
            f"{encoder} weighs {fusion.components}, but {index} holds {manifest['parts']}"
        )
    components = {
        name: _opened(encoder / name, index / name, **loading) for name in fusion.components
    }
    return FusedRetriever(components, fusion)
