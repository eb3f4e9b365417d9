"""What the user may choose about learned document vectors: the group `document_vectors` of a
retriever.
"""

from __future__ import annotations

from model_code.settings import Field, Settings, constant_field


class DocumentVectorSettings(Settings):
    """How the document vectors V of an atomic DSI learn, from the mean of each document's passages
    on.

    The pairs that `supervision` asks for are one pool, shuffled anew in each epoch: a query of the
    corpus's own counts as much as a pseudo-query. Of training, these keys are read besides:
    dev_metric, dev_queries, warmup_share, steps (overrides epochs), accumulation, log_every,
    seed_offset; with train_encoder also query_max_tokens, learning_rate, frozen_layers and
    weight_decay (of the encoder), checkpoint_every, and those of the hierarchy loss. The dev metric
    is that of the whole corpus, whatever dev_passages says: nothing has to be encoded for it.
    """

    logit_scale: float = constant_field(
        20.0,
        gt=0,
        description="multiplies q.v in the softmax; published: 1, on vectors of any norm; search ranks by q.v",
    )
    train_encoder: bool = Field(
        False,
        description="Train the query encoder together with the document vectors. false: queries are encoded "
        "once, and an epoch takes seconds.",
    )
    learning_rate: float = constant_field(5e-4, gt=0, description="of V, by Adam")
    epochs: float = constant_field(5.0, gt=0, description="passes over all pairs")
    batch_size: int = constant_field(
        128,
        ge=1,
        description="pairs per step; memory is batch_size x documents floats, as each meets every document",
    )
    patience: int | None = constant_field(
        2,
        ge=1,
        description="stop after so many evaluations in a row without a new best; null: never",
    )
