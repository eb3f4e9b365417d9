"""Fusion: several retrievers over the same documents, ranked by a weighted sum of their scores.

A fused retriever combines several retrievers, its components. The candidates of a query are the
union of the components' best documents. Every component then scores every candidate exactly. So the
score of a document depends neither on k, the number of documents to find, nor on a filter. The
fused score of document d for query q is

    s(q, d) = sum_c w_c * f_c(s_c(q, d))

    s_c  score of component c
    f_c  normalisation of its scores, so that all components have similar ranges
    w_c  weight of component c

A term of this sum is the component's share of the score. The normalisation of a score s depends on
the component:

- dense: (s - m) / sd, where m and sd are the mean and the standard deviation of the query's inner
  products with all vectors of the build. Both are computed from the vectors' mean and covariance.
- components that match words (BM25, lexical): s divided by the score of the query's best document.
- headline: as dense, over one vector per document.
- late interaction: 10 * s. It re-scores the documents of a dense component whose index stores token
  signs, one bit per dimension of each word's vector. It has its own weight, named NAME.late after
  the component, and proposes no candidates.

When documents are added, the mean and the covariance of the build stay in use, because the weights
were learned with them. Added documents of another domain may then have far larger normalised scores
than any document of the build. So two rules limit the shares of a query:

- The largest dense score of any dev query in the build is a limit. If the best dense score of a
  query exceeds it, all its dense scores are scaled down to the limit. Their order stays.
- If the word scores of one to three documents lead all others by a large gap, these documents are
  isolated. An example are the only documents with a rare identifier. The shares of the other
  components are then scaled down until they cannot close the gap.

If the setting `feedback` is above 0, candidates are scored twice (pseudo-relevance feedback,
Rocchio, 1971). With b for this setting, the second scoring uses q + b * (v_1 + v_2 + v_3) / 3 as
the query vector of a dense component. The v_i are the vectors of the three best documents of the
first scoring. These three are chosen without a filter, so that a score depends on the query and the
collection only. The moved query is not searched for further candidates: they changed nDCG@10 of
1,000 dev queries of tldr by less than .0001.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
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
from model_code.retrieval.dense_index import CandidateVectors
from model_code.retrieval.headline import HeadlineRetriever
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.protocol import (
    LATE_SUFFIX,
    Ranking,
    Retriever,
    TokenMatch,
    TypedQuery,
    top_k_ranking,
)
from model_code.text.terms import AUTO

# Version of the format of a fusion's folders, the kind of folder in its manifest, and its files.
FORMAT = 2
KIND = "fused"
FUSION = "fusion.json"
NORMALIZERS = "scales.safetensors"

# Lower limit of the variance of a query's inner products. If all documents are equal, the computed
# variance is a rounding error around 0.
MIN_VARIANCE = 1e-6

# Number of vectors that are converted to float64 at a time, which bounds the memory.
MAX_WIDE_VECTORS = 2**17

# Factor of late-interaction scores. They are mean cosines. The factor gives them about the spread
# of the other normalised scores.
LATE_SCORE_FACTOR = 10.0

# Number of best documents of the first scoring whose mean vector moves the query.
FEEDBACK_DOCUMENTS = 3

# Largest number of documents whose word scores may isolate them from all others.
MAX_ISOLATED_DOCUMENTS = 3

# Smallest gap between the word scores of isolated documents and of all other documents. It is a
# share of the total weight of the components that match words, which is the largest possible word
# score.
MIN_ISOLATION_GAP = 0.2

# Largest part of the gap behind isolated documents that the other components may close.
CLOSABLE_GAP_SHARE = 0.9


@dataclass(frozen=True, eq=False)
class ScoreNormalizer:
    """Standardises the scores of a dense component to mean 0 and standard deviation 1 per query.

    The mean and the variance of a query's inner products follow from the mean and the covariance of
    the document vectors. So a query needs no product with every document.

    Attributes:
        mean: Mean vector of the build, shape (H,), float64.
        covariance: Covariance matrix of the build's vectors, shape (H, H), float64.
        score_limit: Largest standardised score that a query's best document may have. If it has a
            larger one, all scores of the query are scaled down.
    """

    mean: np.ndarray
    covariance: np.ndarray
    score_limit: float = math.inf

    @classmethod
    def fit(cls, vectors: np.ndarray) -> ScoreNormalizer:
        """Return the normalizer of an index, from the mean and covariance of its vectors (n, H)."""
        dimension = vectors.shape[1]
        sums = np.zeros(dimension)
        products = np.zeros((dimension, dimension))
        for start in range(0, len(vectors), MAX_WIDE_VECTORS):
            wide = np.asarray(vectors[start : start + MAX_WIDE_VECTORS], np.float64)
            sums += wide.sum(axis=0)
            products += wide.T @ wide
        mean = sums / len(vectors)
        covariance = products / len(vectors) - np.outer(mean, mean)
        return cls(mean, covariance)

    def standardize(self, query: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Standardise the scores of one query.

        The mean and the standard deviation are those of the query's inner products with all vectors
        of the build. The function takes one query at a time, because the rounding of a product of
        two matrices depends on the number of queries.

        Args:
            query: Query vector, shape (H,).
            scores: Inner products of the query with n documents, shape (n,).

        Returns:
            Standardised scores, shape (n,), float64.
        """
        mean, deviation = self.moments(query)
        return (scores - mean) / deviation

    def moments(self, query: np.ndarray) -> tuple[float, np.float64]:
        """Return the mean and the standard deviation of a query's products with the build.

        Args:
            query: Query vector, shape (H,).

        Returns:
            The mean, and the deviation as NumPy's float64, which makes a quotient with it float64.
        """
        wide_query = query.astype(np.float64)
        mean = float(self.mean @ wide_query)
        variance = float(wide_query @ (self.covariance @ wide_query))
        return mean, np.sqrt(max(variance, MIN_VARIANCE))


@dataclass(frozen=True, eq=False)
class Fusion:
    """The parameters of a fused retriever.

    Attributes:
        weights: Weight of each component. The weight of a component's late interaction has the key
            NAME.late.
        normalizers: Normalizer of each dense component.
        depth: Number of each component's best documents that become candidates. A search for k
            documents, with k larger than this, takes the best k of each component instead.
        feedback: Factor of the mean vector of the best documents. The product is added to a dense
            query before the second scoring; see the module. 0: candidates are scored once.
    """

    weights: Mapping[str, float]
    normalizers: Mapping[str, ScoreNormalizer] = field(default_factory=dict)
    depth: int = 100
    feedback: float = 0.0

    def save(self, folder: Path) -> None:
        """Write the weights, the normalizers and the depth to a folder.

        Equal fusions give equal bytes.
        """
        # JSON objects do not preserve the order of the weights, so they are written as pairs.
        parameters = {
            "weights": list(self.weights.items()),
            "depth": self.depth,
            "feedback": self.feedback,
        }
        write_json(folder / FUSION, parameters)

        arrays = {}
        for name, normalizer in self.normalizers.items():
            arrays[f"{name}.mean"] = normalizer.mean
            arrays[f"{name}.covariance"] = normalizer.covariance
            arrays[f"{name}.score_limit"] = np.array(normalizer.score_limit)
        save_file(arrays, folder / NORMALIZERS)

    @classmethod
    def load(cls, folder: Path) -> Fusion:
        """Read the parameters of a fusion from a folder that `save` wrote."""
        parameters = read_json(folder / FUSION)
        weights = dict(parameters["weights"])

        arrays = load_file(folder / NORMALIZERS)
        normalizers = {}
        for name in weights:
            if f"{name}.mean" in arrays:
                normalizers[name] = ScoreNormalizer(
                    arrays[f"{name}.mean"],
                    arrays[f"{name}.covariance"],
                    float(arrays[f"{name}.score_limit"]),
                )
        return cls(weights, normalizers, parameters["depth"], parameters["feedback"])

    def fingerprint(self, components: Mapping[str, Retriever]) -> str:
        """Return the SHA-256 of everything that influences scores.

        Args:
            components: The opened components, whose fingerprints enter the hash.
        """
        facts: dict[str, Any] = {
            "parts": {name: component.fingerprint for name, component in components.items()},
            "weights": dict(self.weights),
            "scales": self._normalizers_hash,
        }
        if self.feedback:
            facts["feedback"] = self.feedback
        return hash_text(canonical_json(facts))

    @property
    def components(self) -> list[str]:
        """Names of the components: the keys of `weights` without those of late interaction."""
        return [name for name in self.weights if not name.endswith(LATE_SUFFIX)]

    @cached_property
    def _normalizers_hash(self) -> str:
        """SHA-256 of all normalizers, for the fingerprint of the fusion."""
        digest = hashlib.sha256()
        for name in sorted(self.normalizers):
            normalizer = self.normalizers[name]
            digest.update(name.encode())
            digest.update(normalizer.mean.tobytes())
            digest.update(normalizer.covariance.tobytes())
            digest.update(np.float64(normalizer.score_limit).tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class FusedQueries:
    """Queries, encoded for each component, with the candidates of a search without a filter.

    The keys of the mappings are the names of components. The late interaction of a component has
    the key NAME.late.

    Attributes:
        encoded: The encoded queries with which a component finds candidates. For NAME.late, these
            are token signs.
        scoring: The encoded queries with which a component scores candidates. They differ from
            `encoded` only if feedback moved the queries of dense components.
        max_scores: For each component that matches words, the score of each query's best document,
            or 1 if no document matches.
        scores: For each component and NAME.late, each query's scores of its n candidates, shape
            (n,), before normalisation.
        dense_factors: For each dense component and each query, a factor of the normalised scores.
            It limits the best score to the component's `score_limit`.
        isolation_factors: For each query, a factor of the shares of all components that do not
            match words. It keeps isolated documents first; see `isolation_factor`.
        candidates: Document ids of each query's candidates, ascending.
    """

    encoded: Mapping[str, Any]
    scoring: Mapping[str, Any]
    max_scores: Mapping[str, Sequence[float]]
    scores: Mapping[str, Sequence[np.ndarray]]
    dense_factors: Mapping[str, Any]
    isolation_factors: Any
    candidates: Sequence[list[str]]

    def __len__(self) -> int:
        """Number of queries."""
        return len(self.candidates)

    def __getitem__(self, rows: slice) -> FusedQueries:
        """Return some of the queries, with their candidates and scores."""
        return FusedQueries(
            _slice_values(self.encoded, rows),
            _slice_values(self.scoring, rows),
            _slice_values(self.max_scores, rows),
            _slice_values(self.scores, rows),
            _slice_values(self.dense_factors, rows),
            self.isolation_factors[rows],
            self.candidates[rows],
        )


def _slice_values(values: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    return {name: value[rows] for name, value in values.items()}


class FusedSearch(Retriever[FusedQueries]):
    """A search that fuses the scores of opened components; see the module for the formula.

    Components are kept in the order of the fusion's weights.

    Attributes:
        components: The opened components by name.
        fusion: Weights and normalizers.
        late_components: Names of the components with late interaction.
    """

    can_explain = True

    def __init__(self, components: Mapping[str, Retriever], fusion: Fusion) -> None:
        self.components = {name: components[name] for name in fusion.components}
        self.fusion = fusion
        self.fingerprint = fusion.fingerprint(self.components)

        # Words in hits are marked by the language of the first component that has one.
        self.language = AUTO
        for component in self.components.values():
            if component.language != AUTO:
                self.language = component.language
                break

        # Names of the components with late interaction, and of those that match words.
        self.late_components = [
            name for name in self.components if name + LATE_SUFFIX in fusion.weights
        ]
        self._word_components = [name for name in self.components if name not in fusion.normalizers]

    @property
    def dense(self) -> DenseRetriever | None:
        """The dense retriever of the first component that has one; None without one."""
        for component in self.components.values():
            if component.dense is not None:
                return component.dense
        return None

    @property
    def keyword_index(self) -> Any | None:
        """The BM25 index of the first component that has one, in which words are looked up.

        None if no component has one.
        """
        for component in self.components.values():
            if component.keyword_index is not None:
                return component.keyword_index
        return None

    def without_known_words(self) -> FusedSearch:
        """Return the same fusion without the words of known queries.

        If no component counts these words, this fusion itself is returned.
        """
        plain_components = {}
        counts_known_queries = False
        for name, component in self.components.items():
            plain_components[name] = component.without_known_words()
            # A component returns itself if known queries do not count for it.
            if plain_components[name] is not component:
                counts_known_queries = True
        return FusedSearch(plain_components, self.fusion) if counts_known_queries else self

    def encode_queries(self, texts: Sequence[str]) -> FusedQueries:
        """Encode query texts for every component, then find and score their candidates."""

        def encode(component: Retriever) -> Any:
            return component.encode_queries(texts)

        return self._score_queries(self._encode_components(texts, encode))

    def weigh_again(self, queries: FusedQueries) -> FusedQueries:
        """Return queries for this fusion, from queries that another fusion encoded and scored.

        The two fusions have the same components and other weights. Only the factors that depend on
        the weights are computed again. So comparing two fusions takes little more time than one.

        Args:
            queries: Queries of a fusion with at least the components and late interactions of this
                one, and with the same depth.

        Raises:
            FreshetError: If one of the fusions uses feedback, which depends on the weights.
        """
        if self.fusion.feedback:
            raise FreshetError("feedback depends on the weights: encode the queries again")
        names = [*self.components, *(name + LATE_SUFFIX for name in self.late_components)]
        count = len(queries)
        weighed = replace(
            queries,
            scores={name: queries.scores[name] for name in names},
            dense_factors={name: np.ones(count) for name in self.fusion.normalizers},
            isolation_factors=np.ones(count),
        )
        for i in range(count):
            scores_of_query = {name: values[i] for name, values in weighed.scores.items()}
            self._limit_shares(weighed, i, scores_of_query)
        return weighed

    def encode_typed(self, queries: Sequence[TypedQuery]) -> FusedQueries:
        """Encode queries that people type; see `encode_queries`.

        Typed queries may contain phrases, excluded words and an unfinished last word. Components
        that match words apply this syntax. The other components encode the text alone.
        """
        texts = [query.text for query in queries]

        def encode(component: Retriever) -> Any:
            return component.encode_typed(queries)

        return self._score_queries(self._encode_components(texts, encode))

    def added_terms(self, queries: FusedQueries) -> frozenset[str]:
        """Return the terms that replaced mistyped or unfinished words in any component."""
        terms: frozenset[str] = frozenset()
        for name, component in self.components.items():
            terms |= component.added_terms(queries.encoded[name])
        return terms

    def _score_queries(self, encoded: Mapping[str, Any]) -> FusedQueries:
        """Find the candidates of encoded queries, and score them.

        The scores of the candidates are needed here, because feedback moves the dense queries
        towards the best candidates.

        Args:
            encoded: Encoded queries by component; see `FusedQueries`.
        """
        rankings = {
            name: component.search_and_rerank(encoded[name], self.fusion.depth)
            for name, component in self.components.items()
        }
        candidates = _union_of_documents(rankings.values())

        max_scores = {}
        scores: dict[str, list[np.ndarray]] = {}
        for name in self._word_components:
            max_scores[name] = [_top_score(ranking) for ranking in rankings[name]]
            scores[name] = self.components[name].score_encoded(encoded[name], candidates)

        # Feedback changes dense queries in place, so it gets copies of them.
        scoring = dict(encoded)
        for name in self.fusion.normalizers:
            scoring[name] = encoded[name].copy()

        # `_score_dense_components` appends the scores of each query to these lists.
        for name in encoded:
            if name not in scores:
                scores[name] = []

        # `_limit_shares` sets the factors of each query.
        dense_factors = {name: np.ones(len(candidates)) for name in self.fusion.normalizers}
        isolation_factors = np.ones(len(candidates))

        queries = FusedQueries(
            encoded, scoring, max_scores, scores, dense_factors, isolation_factors, candidates
        )
        for i in range(len(candidates)):
            self._score_dense_components(queries, i)
            scores_of_query = {name: values[i] for name, values in scores.items()}
            self._limit_shares(queries, i, scores_of_query)
        return queries

    def _encode_components(
        self, texts: Sequence[str], encode: Callable[[Retriever], Any]
    ) -> dict[str, Any]:
        """Encode queries for each component, and their token signs for late interaction.

        One run of an encoder makes both the query vectors and the token signs. A headline component
        uses the query vectors of another component with the same encoder, if there is one.

        Args:
            texts: Texts of the queries, for components with late interaction.
            encode: Encodes the queries for any other component.

        Returns:
            Encoded queries by component name. Token signs have the key NAME.late.
        """
        encoded = {}
        # A headline component may have the same encoder as another component. So the query vectors
        # are kept by encoder, and used again.
        vectors_of: dict[Any, Any] = {}
        for name, component in self._passage_components().items():
            if name in self.late_components:
                vectors, token_signs = component.encode_queries_with_signs(texts)
                encoded[name] = vectors
                encoded[name + LATE_SUFFIX] = token_signs
            else:
                encoded[name] = encode(component)
            if component.dense is not None:
                vectors_of[component.dense.encoder] = encoded[name]

        for name, component in self.components.items():
            if isinstance(component, HeadlineRetriever):
                vectors = vectors_of.get(component.encoder)
                if vectors is None:
                    vectors = encode(component)
                encoded[name] = vectors
        return encoded

    def _score_dense_components(self, queries: FusedQueries, i: int) -> None:
        """Score the candidates of query i by the dense components and by late interaction.

        The candidates are scored by late interaction first. If the fusion uses feedback, the dense
        vectors of the query are then moved, which needs these scores. Last, the candidates are
        scored by the dense vectors.

        Args:
            queries: The encoded queries. The scores are appended to `queries.scores`.
            i: Position of the query in `queries`.
        """
        candidates = queries.candidates[i]
        vectors = {
            name: self.components[name].vectors_of(candidates) for name in self.fusion.normalizers
        }
        for name in self.late_components:
            query_tokens = queries.encoded[name + LATE_SUFFIX][i : i + 1]
            late_scores = vectors[name].late_scores(query_tokens)
            queries.scores[name + LATE_SUFFIX].append(late_scores)

        if self.fusion.feedback and candidates:
            self._apply_feedback(queries, i, vectors)
        for name, candidate_vectors in vectors.items():
            scores = candidate_vectors.scores(queries.scoring[name][i])
            queries.scores[name].append(scores)

    def _limit_shares(
        self, queries: FusedQueries, i: int, scores: Mapping[str, np.ndarray]
    ) -> None:
        """Compute the dense factors and the isolation factor of query i; see `FusedQueries`.

        Documents of another domain than the build may have far larger shares than any document of
        the build. The factors limit these shares. They are computed from the candidates of a search
        without a filter, so that a filter changes no score.

        Args:
            queries: The encoded queries, whose factors are set.
            i: Position of the query in `queries`.
            scores: Scores of the query's candidates by component, before normalisation.
        """
        if not queries.candidates[i]:
            return
        # With feedback, this method runs before and after the query is moved. The factors of the
        # first run must not influence this normalisation, so they are reset to 1.
        for factors in queries.dense_factors.values():
            factors[i] = 1.0
        normalized = self._normalize(queries, i, scores)
        for name, normalizer in self.fusion.normalizers.items():
            best_score = float(normalized[name].max())
            if best_score > normalizer.score_limit:
                factor = normalizer.score_limit / best_score
                queries.dense_factors[name][i] = factor
                normalized[name] = factor * normalized[name]
        queries.isolation_factors[i] = self._isolation_factor(normalized)

    def _isolation_factor(self, normalized: Mapping[str, np.ndarray]) -> float:
        """Return the factor of all shares except those by words; see `isolation_factor`.

        Args:
            normalized: For each component, the normalised scores (n,) of a query's candidates.
        """
        candidate_count = len(next(iter(normalized.values())))
        # Sums of the shares of each candidate, and of the weights of components that match words.
        word_shares = np.zeros(candidate_count)
        other_shares = np.zeros(candidate_count)
        word_weight = 0.0
        for name, scores in normalized.items():
            weight = self.fusion.weights[name]
            if name in self._word_components:
                word_shares += weight * scores
                word_weight += weight
            else:
                other_shares += weight * scores
        return isolation_factor(word_shares, other_shares, MIN_ISOLATION_GAP * word_weight)

    def _apply_feedback(
        self, queries: FusedQueries, i: int, vectors: Mapping[str, CandidateVectors]
    ) -> None:
        """Move the dense vectors of query i towards its best candidates; see the module.

        The best `FEEDBACK_DOCUMENTS` candidates are chosen with the vectors as they were encoded.
        Their mean vector, times the fusion's `feedback`, is added to the vector of the query.

        Args:
            queries: The encoded queries, whose `scoring` vectors are moved.
            i: Position of the query in `queries`.
            vectors: Vectors of the candidates, by dense component.
        """
        scores = {name: values[i] for name, values in queries.scores.items() if name not in vectors}
        for name, candidate_vectors in vectors.items():
            scores[name] = candidate_vectors.scores(queries.encoded[name][i])

        self._limit_shares(queries, i, scores)
        fused_scores = sum(self._shares(queries, i, scores).values())
        order = (-fused_scores).argsort(kind="stable")
        best_candidates = order[:FEEDBACK_DOCUMENTS].tolist()

        for name, candidate_vectors in vectors.items():
            query = queries.encoded[name][i]
            best_vectors = [
                candidate_vectors.nearest_vector(query, number) for number in best_candidates
            ]
            direction = np.mean(best_vectors, axis=0, dtype=np.float32)
            queries.scoring[name][i] += np.float32(self.fusion.feedback) * direction

    def search_encoded(
        self, queries: FusedQueries, k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """Return the k best of each query's candidates, best first.

        Args:
            queries: Encoded queries.
            k: Number of documents per query.
            allowed: Ids of the documents to search. None searches all.
        """
        candidates = self.candidates(queries, k, allowed)
        scores = self.score_encoded(queries, candidates)
        return [
            top_k_ranking(documents, values, k)
            for documents, values in zip(candidates, scores, strict=True)
        ]

    def candidates(
        self, queries: FusedQueries, k: int, allowed: Collection[str] | None = None
    ) -> Sequence[list[str]]:
        """Return for each query the union of the components' best documents.

        Args:
            queries: Encoded queries.
            k: Number of documents that are wanted per query.
            allowed: Ids of the documents to search. None searches all.

        Returns:
            For each query, document ids, ascending.
        """
        # Without a filter, the candidates were found when the queries were encoded.
        if allowed is None and k <= self.fusion.depth:
            return queries.candidates
        depth = max(k, self.fusion.depth)
        return _union_of_documents(
            component.search_and_rerank(queries.encoded[name], depth, allowed)
            for name, component in self.components.items()
        )

    def score_encoded(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> list[np.ndarray]:
        """Return the fused scores (n,) of each query's n candidates.

        A score is the sum of the components' shares: their weighted and normalised scores.
        """
        return [sum(shares.values()) for shares in self._candidate_shares(queries, candidates)]

    def _candidate_shares(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield for each query the share of each component in the scores of its candidates.

        A share is a component's weighted and normalised score. The shares (n,) of all components
        sum to the scores of the n candidates.
        """
        for i, scores in enumerate(self._raw_scores(queries, candidates)):
            yield self._shares(queries, i, scores)

    def fits(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> list[dict[str, np.ndarray]]:
        """Return how well the candidates fit each query, by component; see `Retriever.fits`."""
        fits: list[dict[str, np.ndarray]] = [{} for _ in candidates]
        for name, component in self.components.items():
            component_fits = component.fits(queries.encoded[name], candidates)
            for query_fits, values_by_name in zip(fits, component_fits, strict=True):
                for suffix, values in values_by_name.items():
                    query_fits[name + suffix] = values
        return fits

    def component_scores(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield for each query the normalised scores of its candidates by every component.

        Args:
            queries: Encoded queries.
            candidates: Document ids per query. If this is the list `queries.candidates` itself, the
                stored scores are used.

        Yields:
            For each component and NAME.late, the scores (n,) of a query's n candidates, float64.
        """
        for i, scores in enumerate(self._raw_scores(queries, candidates)):
            yield self._normalize(queries, i, scores)

    def _raw_scores(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield for each query the components' scores of its candidates, before normalisation."""
        if candidates is queries.candidates:
            # The scores of these candidates were computed when the queries were encoded.
            scores = queries.scores
        else:
            scores = self._score_candidates(queries, candidates)
        for i in range(len(candidates)):
            yield {name: values[i] for name, values in scores.items()}

    def _score_candidates(
        self, queries: FusedQueries, candidates: Sequence[Sequence[str]]
    ) -> dict[str, list[np.ndarray]]:
        """Score the candidates of each query by every component, before normalisation.

        Returns:
            By component, and by NAME.late, the scores (n,) of each query's n candidates.
        """
        scores: dict[str, list[np.ndarray]] = {}
        for name, component in self.components.items():
            if name not in self.late_components:
                scores[name] = component.score_encoded(queries.scoring[name], candidates)

        # The vectors and the token signs of a document are read together.
        for name in self.late_components:
            query_signs = queries.encoded[name + LATE_SUFFIX]
            scores[name] = []
            scores[name + LATE_SUFFIX] = []
            for i, documents in enumerate(candidates):
                vectors = self.components[name].vectors_of(documents)
                scores[name].append(vectors.scores(queries.scoring[name][i]))
                scores[name + LATE_SUFFIX].append(vectors.late_scores(query_signs[i : i + 1]))
        return scores

    def _normalize(
        self, queries: FusedQueries, i: int, scores: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Normalise each component's scores of n candidates of query i, in float64.

        Scores of different components have different ranges, so they are normalised before they are
        added. The module states the formula of each kind of component.

        Args:
            queries: Encoded queries.
            i: Position of the query in `queries`.
            scores: For each component and NAME.late, the scores (n,) of the candidates.

        Returns:
            The normalised scores (n,), with the same keys.
        """
        normalized = {}
        for name in self.fusion.weights:
            raw = scores[name].astype(np.float64)
            normalizer = self.fusion.normalizers.get(name)
            if normalizer is not None:
                standardized = normalizer.standardize(queries.scoring[name][i], raw)
                normalized[name] = queries.dense_factors[name][i] * standardized
            elif name.endswith(LATE_SUFFIX):
                normalized[name] = LATE_SCORE_FACTOR * raw
            else:
                normalized[name] = raw / queries.max_scores[name][i]
        return normalized

    def _shares(
        self, queries: FusedQueries, i: int, scores: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Return the share of each component in the fused scores of n candidates of query i.

        Args:
            queries: Encoded queries.
            i: Position of the query in `queries`.
            scores: For each component and NAME.late, the scores (n,) of the candidates before
                normalisation.

        Returns:
            The shares (n,), with the same keys. Their sum is the fused score.
        """
        shares = {}
        for name, values in self._normalize(queries, i, scores).items():
            factor = self.fusion.weights[name]
            if name not in self._word_components:
                factor *= queries.isolation_factors[i]
            shares[name] = factor * values
        return shares

    def best_passage_encoded(self, query: FusedQueries, document_id: str) -> int:
        """Return the document's best passage, as the component with the largest weight ranks it.

        A component that matches words is passed over if the document has no word of the query,
        because it scores all passages 0. Headline components are left out, because they index whole
        documents.
        """
        components = self._passage_components()
        by_weight = sorted(components, key=self.fusion.weights.__getitem__, reverse=True)
        chosen = by_weight[0]
        for name in by_weight:
            if name not in self._word_components or self._has_score(name, query, document_id):
                chosen = name
                break
        return components[chosen].best_passage_encoded(query.scoring[chosen], document_id)

    def _has_score(self, component: str, query: FusedQueries, document_id: str) -> bool:
        """Return whether a component gives a document a score above 0."""
        encoded = query.scoring[component]
        (scores,) = self.components[component].score_encoded(encoded, [[document_id]])
        return bool(scores[0] > 0)

    def _passage_components(self) -> dict[str, Retriever]:
        """Return the components that index passages, by name: all except headline components."""
        return {
            name: component
            for name, component in self.components.items()
            if not isinstance(component, HeadlineRetriever)
        }

    def explain(self, text: str, document_id: str) -> list[TokenMatch]:
        """Return the share of each component in a document's fused score, the largest first.

        The sum of the shares is the score.
        """
        return self.explain_all(text, self.encode_queries([text]), [document_id])[0]

    def explain_all(
        self, text: str, query: FusedQueries, document_ids: Sequence[str]
    ) -> list[list[TokenMatch]]:
        """Return for each document the share of each component in its score; see `explain`.

        Args:
            text: Text of the query.
            query: The same query, encoded.
            document_ids: Ids of the documents.
        """
        # For each component, its share in the score of each document.
        (component_shares,) = self._candidate_shares(query, [document_ids])
        known_matches = self._known_matches(text, query, document_ids)
        explanations = []
        for i, matches_by_component in enumerate(known_matches):
            matches = []
            for name, shares in component_shares.items():
                known = matches_by_component.get(name, [])
                # An encoder adds expansions, so nobody searched for them.
                words = tuple(match.token for match in known if not match.expanded)
                share = float(shares[i])
                matches.append(TokenMatch(name, share, known=bool(known), known_words=words))
            matches.sort(key=lambda match: -match.weight)
            explanations.append(matches)
        return explanations

    def _known_matches(
        self, text: str, query: FusedQueries, document_ids: Sequence[str]
    ) -> list[dict[str, list[TokenMatch]]]:
        """Return the matched tokens that documents have from known queries only.

        Args:
            text: Text of the query.
            query: The same query, encoded.
            document_ids: Ids of the documents.

        Returns:
            For each document, the matches by component. Components without any are left out.
        """
        known_matches: list[dict[str, list[TokenMatch]]] = [{} for _ in document_ids]
        for name, component in self.components.items():
            counts_known_queries = component.without_known_words() is not component
            if not counts_known_queries:
                continue
            explanations = component.explain_all(text, query.encoded[name], document_ids)
            for matches_by_component, matches in zip(known_matches, explanations, strict=True):
                known = [match for match in matches if match.known]
                if known:
                    matches_by_component[name] = known
        return known_matches


def _union_of_documents(rankings: Iterable[Sequence[Ranking]]) -> list[list[str]]:
    """Return for each query the different documents of all components' rankings, by ascending id.

    `top_k_ranking` needs this order, so that documents with equal scores are ordered by id.
    """
    unions = []
    for query_rankings in zip(*rankings, strict=True):
        documents = {document for ranking in query_rankings for document, _ in ranking}
        unions.append(sorted(documents))
    return unions


def isolation_factor(word_shares: np.ndarray, other_shares: np.ndarray, min_gap: float) -> float:
    """Return a factor for the shares of components that do not match words.

    The score of a candidate is the sum of its word share, from the components that match words, and
    its other share. A few candidates may match the words of the query far better than all others,
    for example because only they have a rare identifier. They are called isolated, and should come
    first. So if the other shares would put another candidate before them, they are multiplied with
    a factor below 1.

    Isolated candidates are found by a gap. The candidates are sorted by descending word share. The
    gap behind a candidate is the difference between its word share and the next one. The first gap
    of at least `min_gap` ends the isolated candidates. It must lie behind one of the first
    `MAX_ISOLATED_DOCUMENTS` candidates, or no candidate is isolated.

    The factor is chosen so that the other shares close at most `CLOSABLE_GAP_SHARE` (0.9) of this
    gap, for any isolated candidate and any other candidate.

    Args:
        word_shares: Word share of each candidate, shape (n,).
        other_shares: Other share of each candidate, shape (n,).
        min_gap: Smallest gap that isolates candidates. 0: no candidate is isolated.

    Returns:
        A factor in (0, 1]. It is 1 if no candidate is isolated, or if the other shares close no
        more than the allowed part of the gap.

    The first candidate is isolated by a gap of 5 - 0. The other shares favour the second candidate
    by 9 - 0, and may do so by 0.9 * 5 = 4.5 at most. So they are halved:

    >>> isolation_factor(np.array([5.0, 0.0, 0.0]), np.array([0.0, 9.0, 1.0]), min_gap=1.5)
    0.5

    Here all gaps are below 1.5, so no candidate is isolated:

    >>> isolation_factor(np.array([5.0, 4.0, 3.0]), np.array([0.0, 9.0, 1.0]), min_gap=1.5)
    1.0
    """
    order = (-word_shares).argsort(kind="stable")
    best_word_shares = word_shares[order[: MAX_ISOLATED_DOCUMENTS + 1]]
    if min_gap <= 0 or len(best_word_shares) < 2:
        return 1.0

    # The gap between each candidate and the next one, in descending order of word shares.
    gaps = best_word_shares[:-1] - best_word_shares[1:]
    (large_gaps,) = np.nonzero(gaps >= min_gap)
    if not len(large_gaps):
        return 1.0
    first_large_gap = int(large_gaps[0])
    isolated_count = first_large_gap + 1

    # The deficit is the largest lead that the other shares give to a candidate that is not isolated
    # over an isolated candidate.
    ordered_shares = other_shares[order]
    worst_isolated = ordered_shares[:isolated_count].min()
    best_other = ordered_shares[isolated_count:].max()
    deficit = float(best_other - worst_isolated)
    allowed_deficit = CLOSABLE_GAP_SHARE * float(gaps[first_large_gap])
    return allowed_deficit / deficit if deficit > allowed_deficit else 1.0


def _top_score(ranking: Ranking) -> float:
    """Return the score of a ranking's best document, or 1 if no document scores above 0."""
    if ranking and ranking[0][1] > 0:
        return ranking[0][1]
    return 1.0


class FusedRetriever(FusedSearch, IndexedRetriever[FusedQueries]):
    """A `FusedSearch` over a folder with one index per component.

    The folder is a segment of a live collection. The methods write, reopen and merge such folders.
    """

    components: dict[str, Any]
    """Opened components, each an `IndexedRetriever`."""

    def with_weights(self, weights: Mapping[str, float]) -> Self:
        """Return a fusion of the same components and indexes with other weights."""
        return type(self)(self.components, replace(self.fusion, weights=dict(weights)))

    def encode_ahead(self, new: NewPassages) -> None:
        """Encode new passages for each component before `write_segment` indexes them."""
        for component in self.components.values():
            component.encode_ahead(new)

    def keep_encodings(
        self,
        stored: IndexedRetriever[Any],
        former: NewPassages,
        new: NewPassages,
        solved: Set[str],
    ) -> None:
        """Keep stored encodings of each component; see `IndexedRetriever.keep_encodings`."""
        stored_fusion: Any = stored
        for name, component in self.components.items():
            component.keep_encodings(stored_fusion.components[name], former, new, solved)

    def write_segment(self, folder: Path, new: NewPassages) -> None:
        """Index new passages in a folder, with a subfolder for each component."""
        for name, component in self.components.items():
            component.write_segment(folder / name, new)
        document_count = len(set(new.document_ids))
        self.write_index_manifest(folder, document_count)

    def reopen(self, folder: Path) -> Self:
        """Return a retriever with the same encoders and weights over another folder's indexes."""
        read_manifest(folder, FORMAT)
        components = {
            name: component.reopen(folder / name) for name, component in self.components.items()
        }
        return type(self)(components, self.fusion)

    @classmethod
    def merge(cls, sources: Sequence[tuple[Self, Sequence[str]]], folder: Path) -> None:
        """Merge the indexes of each component, without encoding anything.

        Args:
            sources: Fusions, each with the ids of the documents to take from it.
            folder: Folder of the merged indexes.
        """
        first_retriever, _ = sources[0]
        for name, component in first_retriever.components.items():
            component_sources = [
                (retriever.components[name], document_ids) for retriever, document_ids in sources
            ]
            type(component).merge(component_sources, folder / name)
        documents = sum(len(document_ids) for _, document_ids in sources)
        first_retriever.write_index_manifest(folder, documents)

    @classmethod
    def join_segments(cls, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return one fusion that searches several segments, each of which indexes some documents.

        Each component searches all segments together. The results are fused afterwards.
        """
        first_retriever: Any = segments[0].retriever
        components = {}
        for name, component in first_retriever.components.items():
            component_segments = []
            for segment in segments:
                retriever: Any = segment.retriever
                component_segments.append(segment.of(retriever.components[name]))
            components[name] = type(component).join_segments(component_segments)
        return FusedSearch(components, first_retriever.fusion)

    def passage_vectors(self, document_ids: Sequence[str]) -> np.ndarray:
        """Return one vector per passage, shape (n, D), in the order of the passages.

        The vectors are those of the first dense component. A fusion without a dense component uses
        its first component.
        """
        component: Any = self.dense
        if component is None:
            component = next(iter(self._passage_components().values()))
        return component.passage_vectors(document_ids)

    def write_index_manifest(self, folder: Path, documents: int) -> None:
        """Write the manifest of a folder with the components' indexes, after they are complete.

        It holds the checksums of all files of the components.
        """
        manifest = {
            "kind": KIND,
            "fingerprint": self.fingerprint,
            "parts": list(self.components),
            "documents": documents,
        }
        write_manifest(folder, FORMAT, manifest)


def leave_one_out(names: Sequence[str]) -> dict[str, list[str]]:
    """Return for each name the names that remain without it, to measure what it contributes.

    If a component is left out, its late interaction is left out as well. A single remaining name is
    no fusion, so it is not returned.

    Args:
        names: Keys of the fusion's weights.

    >>> leave_one_out(["hce", "bm25", "hce.late"])
    {'bm25': ['hce', 'hce.late'], 'hce.late': ['hce', 'bm25']}
    """
    subsets = {}
    for omitted in names:
        subset = [name for name in names if name not in (omitted, omitted + LATE_SUFFIX)]
        if len(subset) > 1:
            subsets[omitted] = subset
    return subsets


def build_folders(
    components: Mapping[str, tuple[Path, Path]], fusion: Fusion, encoder: Path, index: Path
) -> None:
    """Build a fused retriever in two new folders, from copies of the components' folders.

    Args:
        components: For each component, the folder of its encoder and the folder of its index.
        fusion: Parameters of the fusion.
        encoder: New folder for the encoders and the parameters.
        index: New folder for the indexes.
    """
    encoder.mkdir(parents=True)
    for name, (component_encoder, component_index) in components.items():
        shutil.copytree(component_encoder, encoder / name)
        shutil.copytree(component_index, index / name)
    fusion.save(encoder)

    opened = {}
    for name, (component_encoder, component_index) in components.items():
        opened[name] = _open_component(component_encoder, component_index)
    # All components have the same documents, so any manifest tells their number.
    first_component = next(iter(components))
    documents = read_json(index / first_component / MANIFEST)["documents"]
    FusedRetriever(opened, fusion).write_index_manifest(index, documents)


def _open_component(encoder: Path, index: Path, **loading: Any) -> IndexedRetriever:
    """Open one of the retrievers that a fusion combines, of any kind."""
    # Imported here because the registry of kinds imports this module by its name.
    from model_code.retrieval.kinds import open_folders

    return open_folders(encoder, index, **loading)


def open_folders(encoder: Path, index: Path, **loading: Any) -> FusedRetriever:
    """Open the fused retriever that `build_folders` wrote.

    Args:
        encoder: Folder of the components' encoders and of the parameters.
        index: Folder of the components' indexes.
        loading: Options for loading the components' encoders.

    Raises:
        FreshetError: If the two folders name different components.
    """
    manifest = read_manifest(index, FORMAT)
    fusion = Fusion.load(encoder)
    if fusion.components != manifest["parts"]:
        raise FreshetError(
            f"{encoder} weighs {fusion.components}, but {index} holds {manifest['parts']}; "
            "build the fusion again"
        )
    components = {
        name: _open_component(encoder / name, index / name, **loading) for name in fusion.components
    }
    return FusedRetriever(components, fusion)
