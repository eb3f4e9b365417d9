"""What the user may choose about learned document vectors: the group `document_vectors` of a retriever."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Constant, Field, Settings

Start = Literal["documents", "random"]
LEARNING_RATES: dict[Start, float] = {"documents": 5e-4, "random": 5e-3}
EPOCHS: dict[Start, float] = {"documents": 5.0, "random": 12.0}


class DocumentVectorSettings(Settings):
    """How the document vectors V of an atomic DSI start and learn.

    The pairs that `supervision` asks for are one pool, shuffled anew in each epoch: a query of the corpus's own counts
    as much as a pseudo-query. Of training, these keys are read besides: dev_metric, dev_queries, warmup_share, steps
    (overrides epochs), accumulation, log_every, seed_offset; with train_encoder also query_max_tokens,
    learning_rate, frozen_layers and weight_decay (of the encoder), checkpoint_every, and those of the hierarchy loss.
    The dev metric is that of the whole corpus, whatever dev_passages says: nothing has to be encoded for it.
    """

    start: Start = Field(
        "documents",
        description="each document's own vector, the mean of its passages'; or uniform in +-1/sqrt(H) as published, "
        "which with a handful of queries per document falls short of zero-shot",
    )
    logit_scale: float = Constant(
        20.0,
        gt=0,
        description="multiplies q.v in the softmax; published: 1, on vectors of any norm; search ranks by q.v",
    )
    train_encoder: bool = Field(
        False, description="train the query encoder with V; false: queries are encoded once, an epoch takes seconds"
    )
    learning_rate: float | None = Constant(
        None, gt=0, description="of V, by Adam; None: 5e-4 from documents, 5e-3 from random"
    )
    epochs: float | None = Constant(
        None, gt=0, description="passes over all pairs; None: 5 from documents, 12 from random"
    )
    batch_size: int = Constant(
        128, ge=1, description="pairs per step; memory is batch_size x documents floats, as each meets every document"
    )
    patience: int | None = Constant(
        2, ge=1, description="stop after so many evaluations in a row without a new best; null: never"
    )

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
        (12.0, 2.0)
        """
        return EPOCHS[self.start] if self.epochs is None else self.epochs
