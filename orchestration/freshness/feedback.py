"""Turn feedback on hits into judgements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from model_code.collection.ledger.events import Feedback, Opinion

# The sum of click weights from which a document counts as relevant, see `feedback_relevance`.
MIN_CLICK_WEIGHT = 2.0


def feedback_relevance(feedback: Iterable[Feedback]) -> dict[str, dict[str, int]]:
    """Turn feedback into judgements.

    Thumbs decide if more of them point one way. Otherwise clicks decide, once their weights sum to
    `MIN_CLICK_WEIGHT`. A click at rank r weighs log2(1 + r), the inverse of how likely a hit at
    that rank is looked at. This is the discount of DCG, used as inverse propensity weighting
    (Joachims et al., 2017). One click on the first hit is therefore not enough, and one on the
    third is.

    Returns:
        Relevance, 1 or 0, by query text and document.

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
