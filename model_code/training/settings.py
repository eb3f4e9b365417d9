"""What the user may choose about training: the group `training` of `params.yaml`, overridden per
retriever.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from model_code.evaluation.metrics import parse_metric
from model_code.settings import Field, Settings, constant_field, require


class TrainingSettings(Settings):
    """How one retriever is trained; the defaults are good for MiniLM on a few thousand documents
    and a CPU.
    """

    unsupervised_weight: ClassVar[float] = 0.5  # alpha of HCE's equation 7
    centroid_learning_rate: ClassVar[float] = 1e-3
    weight_decay: ClassVar[float] = 0.01
    dev_queries: ClassVar[int] = 500  # at most so many choose the best checkpoint

    start: str | None = Field(
        None,
        description="folder of a trained dense encoder to go on from, from the project's root; null: encoder.base; DVC "
        "sees its name and not its content, so a folder that changes must change its name",
    )
    supervision: Literal["supervised", "unsupervised", "joint"] = Field(
        "joint",
        description="pairs from the corpus's own qrels, from pseudo-queries, or both (HCE-S, -U, -J); joint without "
        "training qrels is unsupervised",
    )
    min_judged_queries: int = Field(
        30,
        ge=0,
        description="training queries that people judged, below which nothing is trained and the untrained fusion is "
        "searched; 0: train on made queries all the same",
    )
    epochs: float = Field(
        1.0,
        gt=0,
        description="passes over the supervised pairs (the pseudo-queries, if they are all there is)",
    )
    steps: int | None = Field(None, ge=1, description="overrides epochs")
    batch_size: int = Field(64, ge=1, description="pairs per forward pass")
    accumulation: int = Field(1, ge=1, description="batches that make one step")
    batches: Literal["random", "siblings"] = Field(
        "random",
        description="siblings: pairs of one leaf of the hierarchy in couples, that meet as in-batch negatives",
    )
    unsupervised_share: float = Field(0.5, ge=0, lt=1, description="of each joint batch")
    query_max_tokens: int = Field(64, ge=3, description="queries are cut here in training")
    document_max_tokens: int = Field(
        128,
        ge=3,
        description="documents are cut here in training; the index encodes encoder.max_tokens",
    )

    temperature: float = Field(
        0.05,
        gt=0,
        description="divides cosines (GTR and HCE: .01; MiniLM does better at .05); scores of a lexical retriever are "
        "divided by a scale that is measured instead",
    )
    hierarchy_weight: float = Field(
        0.2, ge=0, description="of the hierarchy loss; 0 is plain contrastive training"
    )
    hierarchy_levels: int | None = Field(
        None, ge=1, description="levels that it covers, from the root; null: all"
    )
    negatives: Literal["siblings", "bm25"] = Field(
        "siblings",
        description="extra ones, from below its document's ancestors, or what BM25 ranks high; none that holds one of "
        "the query's answers",
    )
    negatives_per_query: int = Field(1, ge=0, description="each costs one more document to encode")
    negatives_depth: int = Field(50, ge=1, description="ranks that they are drawn from")

    learning_rate: float = Field(
        5e-5, ge=0, description="falls linearly to 0 after warmup_share of the steps"
    )
    warmup_share: float = Field(
        0.1, ge=0, lt=1, description="of the steps, in which the learning rate rises"
    )
    frozen_layers: int | None = Field(
        3,
        ge=0,
        description="lowest layers that stay as they are, with the embeddings; 0: these only; null: all train",
    )
    cotraining: bool = Field(
        False,
        description="cluster anew with the current encoder at each best evaluation (HCE, Algorithm 3)",
    )

    dev_metric: str = Field("nDCG@10", description="chooses the best checkpoint")
    dev_passages: int | None = Field(
        None, ge=1, description="among so many; null: all (exact, and slower)"
    )
    evaluate_every: int | None = Field(
        None, ge=1, description="steps; null: only before the first and after the last"
    )
    patience: int | None = Field(
        None,
        ge=1,
        description="stop after so many evaluations in a row without a new best; null: never",
    )
    log_every: int = constant_field(
        5, ge=1, description="steps averaged into one row of the history"
    )
    checkpoint_every: int = Field(50, ge=1, description="steps lost at most by a kill")
    seed_offset: int = Field(
        0, ge=0, description="added to the pipeline's seed, to repeat one retriever with others"
    )

    def check(self) -> None:
        """Refuse what would be without effect."""
        parse_metric(self.dev_metric)
        for name, act in (("cotraining", "re-clusters at"), ("patience", "counts")):
            require(
                not getattr(self, name) or self.evaluate_every is not None,
                f"{name} {act} evaluations during training, and evaluate_every is null, so that there are none; "
                f"set evaluate_every (steps, such as 50), or leave {name} out",
            )
        require(
            self.supervision != "joint" or self.unsupervised_in_batch > 0,
            f"a joint batch of {self.batch_size} pairs with unsupervised_share {self.unsupervised_share} has only one "
            "kind of pair; set another share, a larger batch_size, or supervision: supervised",
        )

    @property
    def unsupervised_in_batch(self) -> int:
        """Pseudo-query pairs in each batch of joint training (0 if that leaves one kind only)."""
        count = round(self.batch_size * self.unsupervised_share)
        return count if count < self.batch_size else 0

    @property
    def needs_hierarchy(self) -> bool:
        """Whether training reads the document hierarchy at all."""
        draws = self.negatives == "siblings" and self.negatives_per_query > 0
        return self.hierarchy_weight > 0 or self.batches == "siblings" or draws
