"""Turn feedback on hits into judgements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from model_code.collection.ledger.events import Feedback, Opinion

# Smallest sum of click weights for which a document counts as relevant to a query. The weight of a
# click depends on the rank; see `feedback_relevance`.
MIN_CLICK_WEIGHT = 2.0


def feedback_relevance(feedback: Iterable[Feedback]) -> dict[str, dict[str, int]]:
    """Turn thumbs and clicks on hits into judgements of query and document.

    If a pair has more thumbs up than down, the document is relevant; if it has more down, it is
    not. With as many up as down, clicks decide: the document is relevant if their weights sum to at
    least `MIN_CLICK_WEIGHT`. A click at rank r weighs log2(1 + r), the inverse of the discount of
    DCG. The discount estimates how likely a person looks at rank r (inverse propensity weighting,
    Joachims et al., 2017). One click on the first hit is therefore not enough, but one click on the
    third hit is enough.

    Args:
        feedback: Thumbs and clicks, in any order.

    Returns:
        Relevance by query text and document id: 1 for relevant, 0 for not relevant. A pair that is
        left undecided is missing.

    >>> up = Feedback("how?", "a", "up")
    >>> first_click = Feedback("how?", "b", "click")
    >>> third_click = Feedback("how?", "c", "click", rank=3)
    >>> down = Feedback("why?", "a", "down")
    >>> feedback_relevance([up, first_click, third_click, down])
    {'how?': {'a': 1, 'c': 1}, 'why?': {'a': 0}}
    """
    thumbs: Counter[tuple[str, str]] = Counter()
    click_weights: Counter[tuple[str, str]] = Counter()
    for entry in feedback:
        pair = (entry.query, entry.document_id)
        if entry.verdict == Opinion.CLICK:
            click_weights[pair] += math.log2(1 + entry.rank)
        elif entry.verdict == Opinion.UP:
            thumbs[pair] += 1
        else:
            thumbs[pair] -= 1

    relevance: dict[str, dict[str, int]] = {}
    for query, document_id in sorted(thumbs.keys() | click_weights.keys()):
        balance = thumbs[query, document_id]
        if balance != 0:
            relevance.setdefault(query, {})[document_id] = int(balance > 0)
        elif click_weights[query, document_id] >= MIN_CLICK_WEIGHT:
            relevance.setdefault(query, {})[document_id] = 1
    return relevance
