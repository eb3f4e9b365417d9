"""What the user may choose about learned document vectors: the group `document_vectors` of a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.settings import require, require_at_least

Start = Literal["documents", "random"]
LEARNING_RATES: dict[Start, float] = {"documents": 5e-4, "random": 5e-3}
EPOCHS: dict[Start, float] = {"documents": 5.0, "random": 12.0}


@dataclass(frozen=True)
class DocumentVectorSettings:
    """How the document vectors V of an atomic DSI start and learn.

    The pairs that `supervision` asks for are one pool, shuffled anew in each epoch: a query of the corpus's own counts
    as much as a pseudo-query. Of training, these keys are read besides: dev_metric, dev_queries, warmup_share, steps
    (overrides epochs), accumulation, gradient_clip, log_every, seed_offset; with train_encoder also query_max_tokens,
    learning_rate, frozen_layers and weight_decay (of the encoder), checkpoint_every, and those of the hierarchy loss.
    The dev metric is that of the whole corpus, whatever dev_passages says: nothing has to be encoded for it.

    start: "documents", each document's own vector (the base index's passages, averaged), or "random", uniform in
      +-1/sqrt(H) as published. With a handful of queries per document, random falls short of zero-shot.
    logit_scale: multiplies q.v in the softmax. Published: 1, on vectors that are not normalised; queries here have unit
      norm, and 20 is the temperature .05 that MiniLM was trained at. Search ranks by q.v itself.
    train_encoder: train the query encoder together with V. False: queries are encoded once, an epoch takes seconds.
    learning_rate: of V, with Adam, no weight decay; None: 5e-4 from documents, 5e-3 from random. After the warm-up it
      falls linearly to 0 at the last epoch.
    epochs: passes over all pairs; None: 5 from documents, where V soon knows its queries by heart, 12 from random.
    batch_size: pairs per step; each costs one product with every document, so memory is batch_size x documents floats.
    evaluations_per_epoch: evenly spread; the best one of all, the untrained start included, is kept.
    patience: stop after this many evaluations in a row without a new best; None: never.
    """

    start: Start = "documents"
    logit_scale: float = 20.0
    train_encoder: bool = False
    learning_rate: float | None = None
    epochs: float | None = None
    batch_size: int = 128
    evaluations_per_epoch: int = 1
    patience: int | None = 2

    def __post_init__(self) -> None:
        """Check ranges."""
        require(
            self.logit_scale > 0,
            f"logit_scale is {self.logit_scale}, but multiplies the scores: above 0, such as 20 for unit vectors",
        )
        for name in ("learning_rate", "epochs"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}, but must be above 0: at 0 nothing is learned")
        require_at_least(1, self, "batch_size", "evaluations_per_epoch", "patience")

    @property
    def rate(self) -> float:
        """The peak learning rate of V.

        >>> DocumentVectorSettings(start="random").rate, DocumentVectorSettings(learning_rate=1e-3).rate
        (0.005, 0.001)
        """
        return LEARNING_RATES[self.start] if self.learning_rate is None else self.learning_rate

    @property
    def passes(self) -> float:
        """The number of epochs.

        >>> DocumentVectorSettings(start="random").passes, DocumentVectorSettings(epochs=2).passes
        (12.0, 2)
        """
        return EPOCHS[self.start] if self.epochs is None else self.epochs
