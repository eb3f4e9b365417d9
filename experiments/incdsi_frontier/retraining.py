"""Ways of adding that train: again on all documents, or further from the old documents' training.

IncDSI's baseline is DSI-DPR (section 5). The encoder is frozen, and rows for the new documents join
V at random. V is trained for 10 more epochs by the cross-entropy over all documents, with the
queries of old and new documents. The paper keeps the epoch that is best for its dev queries. Here
it is the last one, because dev queries that are mostly of old documents choose the first. Two more
ways start from the new documents' encodings, or use new queries alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from experiments.incdsi_frontier.encoded import Encoded
from experiments.incdsi_frontier.frontier import AdditionOrders, Found, Point
from experiments.incdsi_frontier.learning import learn
from experiments.incdsi_frontier.ranks import CachedRanks
from experiments.incdsi_frontier.spaces import Space, random_vectors
from model_code.dsi.settings import DocumentVectorSettings

EPOCHS = 10
Way = Callable[[Space, np.ndarray, Sequence[int]], Found]
"""(the space, V of its old documents (n, H), rows of the documents that come) -> what is found of
both.
"""


def retrain(space: Space, vectors: np.ndarray, added: Sequence[int]) -> Found:
    """Return the vectors of all documents after training on all of them.

    A dense encoder encodes them again. A learned V is learned from all queries.
    """
    if space.retrained is not None:
        return _found(space.retrained, space.retrained.documents[[*space.old, *added]], added)
    return _found(space.encoded, space.vectors([*space.old, *added]), added)


def fine_tune(
    space: Space,
    vectors: np.ndarray,
    added: Sequence[int],
    at_random: bool = True,
    old_queries: bool = True,
) -> Found:
    """Train V further, with rows for the new documents.

    The rows start at random or at the documents' encodings.
    """
    coming = space.encoded.documents[list(added)]
    first = random_vectors(*coming.shape, space.seed) if at_random else coming
    everything = [*space.old, *added]
    train = space.asking(everything if old_queries else added, "train")
    if not old_queries:
        train = replace(train, targets=train.targets + len(vectors))
    settings = (space.learned or DocumentVectorSettings()).replace(epochs=EPOCHS)
    learned = learn(np.concatenate([vectors, first]), train, None, settings, space.seed)
    return _found(space.encoded, learned, added)


RETRAINING = "retraining on all"
WAYS: Mapping[str, Way] = {
    RETRAINING: retrain,
    "continual fine-tuning (as published)": fine_tune,
    "continual fine-tuning from the encodings": partial(fine_tune, at_random=False),
    "continual fine-tuning on new queries only": partial(
        fine_tune, at_random=False, old_queries=False
    ),
}


def measure_ways(
    space: Space, arrivals: AdditionOrders, ways: Mapping[str, Way] = WAYS, orders: int = 1
) -> tuple[list[Point], dict[str, Found]]:
    """Return the points of `ways` in the first `orders` of `arrivals`.

    Also return the result of each way with all documents added. All documents together have no
    order, so this step is measured once.
    """
    vectors = arrivals.judge.state.vectors.view
    new, points, last = np.array(space.encoded.new), [], {}
    for name, way in ways.items():
        for added in arrivals.after:
            distinct = arrivals.orders[: 1 if added == len(new) else orders]
            found = [way(space, vectors, new[order[:added]].tolist()) for order in distinct]
            points.append(Point.over_orders(name, "", None, added, arrivals.judge.before, found))
        last[name] = found[0]
    return points, last


def _found(encoded: Encoded, vectors: np.ndarray, added: Sequence[int]) -> Found:
    """Search with V (n + b, H) of the old documents and of `added` for the test queries."""
    old = encoded.pages.old
    asking = [*encoded.asking(range(old), "test"), *encoded.asking(added, "test")]
    return CachedRanks(vectors[:old], *asking).reciprocal_ranks(vectors[old:])
