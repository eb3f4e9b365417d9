"""Turn feedback on hits into judgements."""

from __future__ import annotations

import math
from collections.abc import Iterable

from model_code.collection.ledger.events import Feedback, Opinion
from model_code.collection.segments.known_overrides import evidence_of_feedback
from model_code.text.known_queries import normalize_query

# Smallest sum of click weights for which a document counts as relevant to a query. The weight of a
# click depends on the rank; see `feedback_relevance`.
MIN_CLICK_WEIGHT = 2.0


def feedback_relevance(feedback: Iterable[Feedback]) -> dict[str, dict[str, int]]:
    """Turn thumbs and clicks on hits into judgements of query and document.

    If a pair has more thumbs up than down, the document is relevant; if it has more down, it is
    not. Thumbs count as they do for known queries; see `evidence_of_feedback`. With as many up as
    down, clicks decide: the document is relevant if their weights sum to at least
    `MIN_CLICK_WEIGHT`. A click at rank r weighs log2(1 + r), the inverse of the discount of DCG.
    The discount estimates how likely a person looks at rank r (inverse propensity weighting,
    Joachims et al., 2017). One click on the first hit is therefore not enough, but one click on the
    third hit is enough.

    One person counts once for a document and queries that are equal after normalisation. A click
    or thumb up on a hit that was shown only because of known queries adds nothing.

    Args:
        feedback: Thumbs and clicks, in any order.

    Returns:
        Relevance by query text and document id: 1 for relevant, 0 for not relevant. A pair that is
        left undecided is missing. Of equal queries, one text is returned.

    >>> up = Feedback("how?", "a", "up")
    >>> first_click = Feedback("how?", "b", "click")
    >>> third_click = Feedback("how?", "c", "click", rank=3)
    >>> down = Feedback("why?", "a", "down")
    >>> feedback_relevance([up, first_click, third_click, down])
    {'how?': {'a': 1, 'c': 1}, 'why?': {'a': 0}}
    """
    opinions = sorted(feedback, key=lambda opinion: (opinion.received, opinion.key))
    grades: dict[tuple[str, str], int] = {}
    for pair, weight in _click_weights(opinions).items():
        if weight >= MIN_CLICK_WEIGHT:
            grades[pair] = 1
    for evidence in evidence_of_feedback(opinions):
        document_id, query = evidence.key
        grades[query, document_id] = int(evidence.weight > 0)

    # Each query is returned as it was written first.
    texts: dict[str, str] = {}
    for opinion in opinions:
        texts.setdefault(normalize_query(opinion.query), opinion.query)
    relevance: dict[str, dict[str, int]] = {}
    for (query, document_id), grade in sorted(grades.items()):
        relevance.setdefault(texts[query], {})[document_id] = grade
    return relevance


def _click_weights(opinions: Iterable[Feedback]) -> dict[tuple[str, str], float]:
    """Return the sum of click weights by normalised query and document id.

    The largest weight of a person counts. Clicks on hits that known queries raised are left out.
    """
    weights: dict[tuple[str, str, str], float] = {}
    for opinion in opinions:
        if opinion.verdict != Opinion.CLICK or opinion.raised:
            continue
        key = (opinion.who, normalize_query(opinion.query), opinion.document_id)
        weights[key] = max(weights.get(key, 0.0), math.log2(1 + opinion.rank))

    sums: dict[tuple[str, str], float] = {}
    for (_, query, document_id), weight in weights.items():
        pair = (query, document_id)
        sums[pair] = sums.get(pair, 0.0) + weight
    return sums
