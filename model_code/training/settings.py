"""The group `training` of `params.yaml`. Each retriever may override its keys."""

from __future__ import annotations

from typing import ClassVar, Literal

from model_code.evaluation.metrics import parse_metric
from model_code.settings import Field, Settings, constant_field, require


class TrainingSettings(Settings):
    """How one retriever is trained.

    The defaults suit MiniLM, a few thousand documents and a CPU.
    """

    # Weight of the loss on pseudo-queries: alpha in HCE, equation 7.
    unsupervised_weight: ClassVar[float] = 0.5
    weight_decay: ClassVar[float] = 0.01
    # Largest number of dev queries with which the best checkpoint is chosen.
    dev_queries: ClassVar[int] = 500

    start: str | None = Field(
        None,
        description="Folder of a trained dense encoder to continue from, relative to the "
        "project. null: encoder.base. DVC follows the name of the folder, not its content, so "
        "give a changed folder another name.",
    )
    supervision: Literal["supervised", "unsupervised", "joint"] = Field(
        "joint",
        description="Training pairs: from the corpus's qrels, from pseudo-queries, or both "
        "(HCE-S, -U, -J). joint without training qrels is unsupervised.",
    )
    min_judged_queries: int = Field(
        30,
        ge=0,
        description="With fewer training queries that people judged, no retriever is trained and "
        "the untrained fusion is searched. 0: always train.",
    )
    small_set_pairs: int = Field(
        0,
        ge=0,
        description="With fewer judged training pairs, a dense retriever is trained in small "
        "batches with more negatives, for at least 60 steps, and dev stops it early. Not if steps "
        "is set. 0: never, because no gain was measured.",
    )
    epochs: float = Field(
        1.0,
        gt=0,
        description="Passes over the supervised pairs, or over the "
        "pseudo-queries if there are no others.",
    )
    steps: int | None = Field(None, ge=1, description="Number of training steps. Overrides epochs.")
    batch_size: int = Field(64, ge=1, description="Pairs per forward pass.")
    accumulation: int = Field(1, ge=1, description="Batches per training step.")
    cached_gradients: bool = Field(
        False,
        description="Encode each batch twice, so that its memory hardly grows with batch_size. The "
        "gradients are the same, and a step takes about a third more time (GradCache).",
    )
    workers: int = Field(
        0,
        ge=0,
        description="Number of processes that prepare batches ahead of the training. Useful "
        "with a GPU, which otherwise waits for them. Results do not change.",
    )
    batches: Literal["random", "siblings"] = Field(
        "random",
        description="How batches are made. siblings: two pairs of one leaf of the hierarchy are "
        "in the same batch, as negatives of each other.",
    )
    unsupervised_share: float = Field(
        0.5, ge=0, lt=1, description="Share of pseudo-query pairs in a joint batch."
    )
    query_max_tokens: int = Field(
        64, ge=3, description="Maximum query length in training, in tokens."
    )
    document_max_tokens: int = Field(
        128,
        ge=3,
        description="Maximum document length in training, in tokens. Indexing uses "
        "encoder.max_tokens.",
    )

    temperature: float = Field(
        0.05,
        gt=0,
        description="Divisor of the cosines in the loss. GTR and HCE use 0.01; MiniLM does "
        "better at 0.05. A lexical retriever measures its own scale instead.",
    )
    hierarchy_weight: float = Field(
        0.2, ge=0, description="Weight of the hierarchy loss. 0: plain contrastive training."
    )
    hierarchy_levels: int | None = Field(
        None, ge=1, description="Levels that the hierarchy loss covers, from the root. null: all."
    )
    centroid_learning_rate: float = Field(
        1e-3,
        ge=0,
        description="Highest learning rate of the hierarchy's centroids. 0: they stay as they were "
        "clustered.",
    )
    negatives: Literal["siblings", "bm25"] = Field(
        "siblings",
        description="Where extra negatives come from. siblings: passages below the ancestors of "
        "the relevant one. bm25: passages that BM25 ranks high. None of "
        "them holds an answer of the query.",
    )
    negatives_per_query: int = Field(
        1,
        ge=0,
        description="Extra negatives per query. Each one costs the encoding of one more passage.",
    )
    shared_negatives: bool = Field(
        False,
        description="Make each extra negative a negative of every query of the batch that it does "
        "not answer (MLR, SVDR). false: of its own query only (HCE).",
    )
    negatives_depth: int = Field(
        50, ge=1, description="Negatives are drawn from this many first ranks."
    )

    learning_rate: float = Field(
        5e-5,
        ge=0,
        description="Highest learning rate. It rises during the "
        "warm-up and then falls linearly to 0.",
    )
    warmup_share: float = constant_field(
        0.1, ge=0, lt=1, description="Share of the steps in which the learning rate rises."
    )
    clip_norm: float | None = Field(
        None,
        gt=0,
        description="Largest norm of a step's gradient. A longer one is shortened to it. null: no "
        "limit.",
    )
    dropout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Dropout of the transformer in training. 0 takes half to two thirds of the "
        "time on a CPU.",
    )
    frozen_layers: int | None = Field(
        3,
        ge=0,
        description="Number of lowest layers that are not trained, together with the embeddings. "
        "0: only the embeddings are frozen. null: everything is trained.",
    )
    cotraining: bool = Field(
        False,
        description="Cluster the passages again with the current encoder at each evaluation that "
        "is the best so far (HCE, Algorithm 3).",
    )

    dev_metric: str = Field(
        "nDCG@10", description="Metric on dev that chooses the best checkpoint."
    )
    dev_passages: int | None = Field(
        None,
        ge=1,
        description="Number of passages that dev queries are searched among during training. "
        "null: all, which is exact and slower.",
    )
    evaluate_every: int | None = Field(
        None,
        ge=1,
        description="Steps between evaluations on dev. null: only before "
        "the first and after the last step.",
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="Stop after this many evaluations without a new best one. null: never.",
    )
    log_every: int = constant_field(
        5, ge=1, description="steps averaged into one row of the history"
    )
    checkpoint_every: int = Field(
        50,
        ge=1,
        description="Steps between checkpoints, which is the most work that a kill can lose.",
    )
    seed_offset: int = Field(
        0,
        ge=0,
        description="Added to the project's seed, to repeat one retriever with another seed.",
    )

    def check(self) -> None:
        """Refuse unknown metrics, and settings that would have no effect together."""
        parse_metric(self.dev_metric)
        # Co-training and patience act on evaluations during training, so there must be some.
        for name, use in (("cotraining", "re-clusters at"), ("patience", "counts")):
            is_set = bool(getattr(self, name))
            require(
                not is_set or self.evaluate_every is not None,
                f"{name} {use} evaluations during training, and evaluate_every is null, so that "
                f"there are none; set evaluate_every (steps, such as 50), or leave {name} out",
            )
        require(
            self.supervision != "joint" or self.unsupervised_in_batch > 0,
            f"a joint batch of {self.batch_size} pairs with unsupervised_share "
            f"{self.unsupervised_share} has only one kind of pair; set another share, a larger "
            "batch_size, or supervision: supervised",
        )

    @property
    def unsupervised_in_batch(self) -> int:
        """Number of pairs with generated queries in a batch of joint training.

        It is 0 if they would fill the whole batch, which `check` refuses.
        """
        count = round(self.batch_size * self.unsupervised_share)
        if count == self.batch_size:
            return 0
        return count

    @property
    def needs_hierarchy(self) -> bool:
        """Whether training reads the hierarchy: for its loss, for negatives, or to form batches."""
        draws_siblings = self.negatives == "siblings" and self.negatives_per_query > 0
        return self.hierarchy_weight > 0 or self.batches == "siblings" or draws_siblings
