"""Choose how the words of known queries count in a word search (BM25), on judged dev queries.

A known query is one that a document is known to answer. Its words are indexed with the document.
Two things are chosen: the weight of such a word, compared with a word of the text, and whether it
counts towards the length of the document.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from model_code.corpus.tables import Judgements
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.scores import WITH_KNOWN, WITHOUT_KNOWN
from model_code.evaluation.system_evaluation import sample_queries
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_known import KnownWords
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.fusion import (
    MAX_LEARNING_QUERIES,
    MAX_LOSS,
    MEAN_DECIMALS,
    MIN_LEARNING_QUERIES,
    is_clear_gain,
    is_clear_loss,
)
from model_code.text.known_queries import KnownQueryLimits

WEIGHTS = (0.0, 0.25, 0.5, 1.0)

# The choice if it cannot be measured, often because only few documents have known queries. It is
# the one that harms the documents without known queries least (`experiments/asked`).
DEFAULT_WEIGHT = 0.25
DEFAULT_IN_LENGTH = True


@dataclass(frozen=True)
class KnownWordsChoice:
    """How the words of known queries count in a word search, chosen from several variants.

    A variant sets the weight of such a word, and whether it counts towards the document's length.

    Attributes:
        words: The chosen variant.
        dev: Mean metric of each variant on the dev queries, in the order of `variants`. Empty if
            nothing was measured.
        variants: The variants that were compared.
        chosen_on_dev: Whether the dev queries decided. Otherwise `words` is the default.
        groups: Mean metric of each variant on a part of the dev queries, in the order of
            `variants`. The keys are the groups `WITH_KNOWN` and `WITHOUT_KNOWN`. A group without
            queries is left out.
        group_sizes: Number of dev queries of each group.
    """

    words: KnownWords
    dev: Sequence[float]
    variants: Sequence[KnownWords]
    chosen_on_dev: bool = False
    groups: Mapping[str, Sequence[float]] = field(default_factory=dict)
    group_sizes: Mapping[str, int] = field(default_factory=dict)

    @property
    def report(self) -> dict[str, Any]:
        """The chosen way in which the words of known queries count, as values for a report.

        The compared variants are listed, each with its mean metric on the dev queries.
        """
        measured = []
        for number, value in enumerate(self.dev):
            variant = self.variants[number]
            row = {"weight": variant.weight, "in_length": variant.in_length, "dev": value}
            for group, means in self.groups.items():
                row[group] = means[number]
            measured.append(row)
        return {
            "weight": self.words.weight,
            "in_length": self.words.in_length,
            "chosen_on_dev": self.chosen_on_dev,
            "queries": dict(self.group_sizes),
            "variants": measured,
        }


def known_word_variants(
    weight: float | None, in_length: bool | None, limits: KnownQueryLimits
) -> list[KnownWords]:
    """Return the variants to choose from, the default one first.

    A variant tells how the words of known queries count in BM25: their weight, and whether they
    count towards the length of a document.

    Args:
        weight: Weight in the settings. None: several weights are tried.
        in_length: Whether the words count towards the length of a document, in the settings. None:
            both are tried.
        limits: Limits of the number of words that known queries add to one document.

    >>> known_word_variants(1.0, False, KnownQueryLimits(2, 9))[0].weight
    1.0
    """
    if weight is None:
        default_weight = DEFAULT_WEIGHT
        tried_weights: tuple[float, ...] = WEIGHTS
    else:
        default_weight = weight
        tried_weights = (weight,)

    if in_length is None:
        default_in_length = DEFAULT_IN_LENGTH
        tried_lengths: tuple[bool, ...] = (True, False)
    else:
        default_in_length = in_length
        tried_lengths = (in_length,)

    default = KnownWords(default_weight, default_in_length, limits)
    variants = [default]
    for tried_weight in tried_weights:
        for counts_in_length in tried_lengths:
            variant = KnownWords(tried_weight, counts_in_length, limits)
            # With weight 0 the words never count towards the length. So the two variants with this
            # weight are equal, and one is enough.
            is_repeated = tried_weight == 0 and counts_in_length != tried_lengths[0]
            if variant != default and not is_repeated:
                variants.append(variant)
    return variants


def choose_known_words(
    evaluation_set: EvaluationSet, variants: Sequence[KnownWords], retriever: Bm25Retriever
) -> KnownWordsChoice:
    """Choose the variant with the best mean metric on the judged dev queries.

    No dev query is itself a known query. The choice follows these rules:

    1. With only one variant, or too few judged dev queries, the default variant is chosen.
    2. Words of known queries may harm documents that have none. Variants that do so are excluded;
       see `_allowed_variants`. If the dev queries cannot show harm, variants in which the words
       count more than by default are also excluded; see `can_show_harm`.
    3. If too few dev queries ask for documents with known queries, a gain cannot be measured. The
       default is then chosen, unless it is excluded.
    4. Otherwise the best variant that is not excluded is chosen; of equally good ones, one with the
       smallest weight. On a small set, some variant looks best by chance. So if the default is not
       excluded, the best variant replaces it only if its gain is clear; see `is_clear_gain`. The
       weights of a fusion are learned by the same rule.

    Args:
        evaluation_set: The judged queries.
        variants: The variants, the default one first.
        retriever: BM25 over the corpus with known queries.

    Returns:
        The chosen variant, and the measured metric of all variants.
    """
    dev = evaluation_set.judgements["dev"]
    has_enough_judgements = dev.source == "qrels" and len(dev.queries) >= MIN_LEARNING_QUERIES
    if len(variants) == 1 or not has_enough_judgements:
        return KnownWordsChoice(variants[0], (), variants)

    # Evaluate each variant on the same dev queries, and keep the metric of each query.
    sample = sample_queries(dev, MAX_LEARNING_QUERIES)
    metric = evaluation_set.settings.main_metric
    values: list[np.ndarray] = []
    for variant in variants:
        search = evaluation_set.strip_query_lines(retriever.with_words(variant))
        rankings = search.search(list(sample.queries.values()), evaluation_set.settings.depth)
        run = dict(zip(sample.queries, rankings, strict=True))
        metric_by_query = evaluate_run(run, sample.qrels, [metric])[metric]
        values.append(np.array([metric_by_query[query_id] for query_id in sample.queries]))

    means = _means(values)

    # Mark the dev queries whose relevant documents have no known query, called plain. Words of
    # known queries help only other documents, so plain queries can only lose.
    plain_ids = set(queries_without_known(sample, retriever))
    is_plain = np.array([query_id in plain_ids for query_id in sample.queries])
    groups: dict[str, Sequence[float]] = {}
    group_sizes: dict[str, int] = {}
    for name, in_group in ((WITH_KNOWN, ~is_plain), (WITHOUT_KNOWN, is_plain)):
        if in_group.any():
            groups[name] = _means([query_values[in_group] for query_values in values])
            group_sizes[name] = int(in_group.sum())

    allowed = _allowed_variants(variants, values, is_plain)
    if not can_show_harm(retriever, int(is_plain.sum())):
        # Only the default is left, and variants in which the words count less.
        default_weight = variants[0].weight
        allowed = [
            number for number in allowed if number == 0 or variants[number].weight < default_weight
        ]
    default_is_allowed = 0 in allowed

    queries_that_can_gain = int((~is_plain).sum())
    if queries_that_can_gain < MIN_LEARNING_QUERIES and default_is_allowed:
        return KnownWordsChoice(
            variants[0], means, variants, groups=groups, group_sizes=group_sizes
        )

    best = max(allowed, key=lambda number: (means[number], -variants[number].weight))
    if default_is_allowed and not is_clear_gain(values[best] - values[0]):
        best = 0
    return KnownWordsChoice(variants[best], means, variants, True, groups, group_sizes)


def _means(values: Sequence[np.ndarray]) -> list[float]:
    """Return the rounded mean of each variant's metric."""
    return [round(float(query_values.mean()), MEAN_DECIMALS) for query_values in values]


def _allowed_variants(
    variants: Sequence[KnownWords], values: Sequence[np.ndarray], is_plain: np.ndarray
) -> list[int]:
    """Return the positions of the variants that do not harm documents without known queries.

    Only dev queries for such documents are compared. The reference is the variant of weight 0, in
    which words of known queries do not count. A variant is harmful if its mean metric is lower by
    more than `MAX_LOSS`. The default variant is harmful only if its loss is also too large to be
    due to chance.

    Args:
        variants: The variants, the default one first.
        values: For each variant, the metric of each of q dev queries, (q,).
        is_plain: Whether a dev query asks for documents without known queries only, (q,).

    Returns:
        Positions in `variants`, ascending. If no variant has weight 0, or if too few queries are
        plain, harm cannot be measured, and all positions are returned.
    """
    numbers = range(len(variants))
    without_words = [number for number in numbers if variants[number].weight == 0]
    if not without_words or is_plain.sum() < MIN_LEARNING_QUERIES:
        return list(numbers)

    reference_values = values[without_words[0]][is_plain]
    allowed = []
    for number in numbers:
        losses = reference_values - values[number][is_plain]
        is_default = number == 0
        if is_default:
            is_harmful = is_clear_loss(losses)
        else:
            is_harmful = losses.mean() > MAX_LOSS
        if not is_harmful:
            allowed.append(number)
    return allowed


def can_show_harm(retriever: Bm25Retriever, plain_queries: int) -> bool:
    """Return whether dev queries can show what documents without known queries lose.

    On command pages of which one in ten had no known query, no dev query asked for these. The best
    weight on dev was 1, by which they lost .055 nDCG@10 of the fusion; the default weight cost them
    .009 (`experiments/asked`).

    Args:
        retriever: BM25 over the corpus with known queries.
        plain_queries: Number of dev queries for documents without known queries.

    Returns:
        True if there are enough such queries, or no such documents.
    """
    has_plain_documents = not documents_with_known(retriever).issuperset(
        retriever.segment.ids.document_ids
    )
    return plain_queries >= MIN_LEARNING_QUERIES or not has_plain_documents


def documents_with_known(retriever: Bm25Retriever) -> frozenset[str]:
    """Return the ids of the documents that have a known query."""
    if retriever.known_segment is None:
        return frozenset()
    return frozenset(retriever.known_segment.queries.ids.document_ids)


def queries_without_known(judgements: Judgements, retriever: Bm25Retriever) -> list[str]:
    """Return the ids of the queries whose relevant documents all have no known query."""
    with_known_queries = documents_with_known(retriever)
    query_ids: list[str] = []
    for query_id in judgements.queries:
        relevant = [document for document, grade in judgements.qrels[query_id].items() if grade > 0]
        if with_known_queries.isdisjoint(relevant):
            query_ids.append(query_id)
    return query_ids
