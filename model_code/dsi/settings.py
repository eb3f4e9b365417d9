"""Settings of learned document vectors: the group `document_vectors` of a retriever."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings, constant_field


class DocumentVectorSettings(Settings):
    """How the document vectors V of a DSI are trained.

    V starts as the mean of each document's passages, or at random. All pairs that `supervision`
    asks for are one pool that is shuffled in each epoch, so a query of the corpus counts as much as
    a pseudo-query.

    These keys of `training` are read as well: dev_metric, dev_queries, warmup_share, steps
    (overrides epochs), accumulation, log_every and seed_offset. With train_encoder also
    query_max_tokens, learning_rate, frozen_layers and weight_decay (of the encoder),
    checkpoint_every, and the keys of the hierarchy loss. The dev metric is always measured on the
    whole corpus, because no passage has to be encoded for it; dev_passages is ignored.
    """

    logit_scale: float = constant_field(
        20.0,
        gt=0,
        description="multiplies q.v in the softmax; published: 1, on "
        "vectors of any norm; search ranks by q.v",
    )
    initial: Literal["encodings", "random"] = Field(
        "encodings",
        description="Where the document vectors start. encodings: at the means of their passages' "
        "vectors. random: at random unit vectors, as published.",
    )
    train_encoder: bool = Field(
        False,
        description="Train the query encoder together with the document vectors. false: queries "
        "are encoded once, and an epoch takes seconds.",
    )
    learning_rate: float = Field(
        5e-4,
        gt=0,
        description="Highest learning rate of the document vectors, by Adam.",
    )
    epochs: float = constant_field(5.0, gt=0, description="passes over all pairs")
    batch_size: int = constant_field(
        128,
        ge=1,
        description="pairs per step; memory is batch_size x documents "
        "floats, as each meets every document",
    )
    patience: int | None = Field(
        2,
        ge=1,
        description="Stop after so many epochs in a row without a new best dev metric. null: "
        "never.",
    )
