"""Methods of adding that train: on all documents from the start, or only further from V.

V is the matrix of document vectors. The paper of IncDSI compares it with DSI-DPR (section 5). There
the encoder is frozen, and V gets random rows for the new documents. V is trained for 10 more epochs
by the cross-entropy over all documents, with the queries of old and new documents.

The paper takes the epoch that is best for its dev queries. Here the last epoch is taken, because
most dev queries are for old documents, and the first epoch is the best for these. Two more methods
start from the encodings of the new documents, or train on new queries alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.incdsi_frontier.encoded import Encoded
from experiments.incdsi_frontier.frontier import AdditionOrders, Point
from experiments.incdsi_frontier.learning import learn
from experiments.incdsi_frontier.ranks import CachedRanks, ReciprocalRanks
from experiments.incdsi_frontier.spaces import Space, random_vectors
from model_code.dsi.settings import DocumentVectorSettings

EPOCHS = 10
TrainingMethod = Callable[[Space, np.ndarray, Sequence[int]], ReciprocalRanks]
"""A function that adds documents by training.

Its arguments are the space, V (n, H) of its old documents, and the rows of the documents to add. It
returns the reciprocal ranks for old and for new documents.
"""


def retrain(space: Space, vectors: np.ndarray, added: Sequence[int]) -> ReciprocalRanks:
    """Retrain on old and new documents, and search with the result.

    If there is a retrained encoder, it encodes all documents again. Otherwise V is trained from the
    start, on the queries of all documents. `vectors` is only there for the type `TrainingMethod`.
    """
    all_rows = [*space.old, *added]
    if space.retrained is not None:
        return _search(space.retrained, space.retrained.documents[all_rows], added)
    return _search(space.encoded, space.vectors(all_rows), added)


def fine_tune(
    space: Space,
    vectors: np.ndarray,
    added: Sequence[int],
    at_random: bool = True,
    old_queries: bool = True,
) -> ReciprocalRanks:
    """Train V further, with rows for the new documents, and search with it.

    Args:
        space: The collection.
        vectors: V (n, H) of the old documents.
        added: Rows of the documents to add.
        at_random: Whether new rows start at random. Otherwise they start at the encodings.
        old_queries: Whether to train on the queries of old documents, too.
    """
    new_vectors = space.encoded.documents[list(added)]
    if at_random:
        new_vectors = random_vectors(*new_vectors.shape, space.seed)

    if old_queries:
        train = space.answered_queries([*space.old, *added], "train")
    else:
        train = space.answered_queries(added, "train")
        # The rows of the new documents follow those of the old ones.
        train = replace(train, targets=train.targets + len(vectors))

    settings = space.learned or DocumentVectorSettings()
    settings = settings.replace(epochs=EPOCHS)
    start = np.concatenate([vectors, new_vectors])
    learned = learn(start, train, None, settings, space.seed)
    return _search(space.encoded, learned, added)


RETRAINING = "retraining on all"
TRAINING_METHODS: Mapping[str, TrainingMethod] = {
    RETRAINING: retrain,
    "continual fine-tuning (as published)": fine_tune,
    "continual fine-tuning from the encodings": partial(fine_tune, at_random=False),
    "continual fine-tuning on new queries only": partial(
        fine_tune, at_random=False, old_queries=False
    ),
}


def measure_training_methods(
    space: Space,
    arrivals: AdditionOrders,
    training_methods: Mapping[str, TrainingMethod] = TRAINING_METHODS,
    orders: int = 1,
) -> tuple[list[Point], dict[str, ReciprocalRanks]]:
    """Measure methods that train, after several numbers of additions.

    Args:
        space: The collection.
        arrivals: Orders of arrival of the new documents.
        training_methods: The methods by name.
        orders: Number of orders of arrival. After all additions, the order does not matter, so
            that this is measured once.

    Returns:
        The points of all methods. The result of each method after all additions.
    """
    vectors = arrivals.evaluator.state.vectors.view
    before = arrivals.evaluator.before
    new_rows = np.array(space.encoded.new)
    points = []
    final_results = {}
    for name, method in training_methods.items():
        for added in arrivals.after:
            adds_everything = added == len(new_rows)
            order_count = 1 if adds_everything else orders
            results = []
            for order in arrivals.orders[:order_count]:
                results.append(method(space, vectors, new_rows[order[:added]].tolist()))
            points.append(Point.over_orders(name, "", None, added, before, results))
        # The last number of additions is all of them.
        final_results[name] = results[0]
    return points, final_results


def _search(encoded: Encoded, vectors: np.ndarray, added: Sequence[int]) -> ReciprocalRanks:
    """Search for the test queries.

    Args:
        encoded: The collection.
        vectors: Vectors (n + b, H) of the old documents, followed by those of the added ones.
        added: Rows of the added documents.
    """
    old = encoded.pages.old
    old_queries, old_targets = encoded.answered_queries(range(old), "test")
    new_queries, new_targets = encoded.answered_queries(added, "test")
    ranks = CachedRanks(vectors[:old], old_queries, old_targets, new_queries, new_targets)
    return ranks.reciprocal_ranks(vectors[old:])
