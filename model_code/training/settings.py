"""What the user may choose about training: the group `training` of `params.yaml`, overridden per retriever."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from model_code.evaluation.metrics import Metric
from model_code.settings import require, require_at_least


@dataclass(frozen=True)
class TrainingSettings:
    """How one retriever is trained; the defaults are good for MiniLM on a few thousand documents and a CPU.

    Start
      start: folder of a trained dense encoder to go on from, from the project's root; None: the base (`encoder.base`).
        DVC sees its name and not its content, so a folder that changes must change its name.

    Data and batches
      supervision: pairs from the corpus's own qrels, from pseudo-queries, or both (HCE-S, -U, -J). "joint" on a corpus
        without training qrels is "unsupervised".
      epochs: passes over the supervised pairs (the pseudo-queries, if they are all there is); `steps` overrides it.
      batch_size: pairs per forward pass; `accumulation` such batches make one step.
      batches: "siblings" lays pairs of one leaf of the hierarchy in couples, so that they meet as in-batch negatives.
      unsupervised_share: of each joint batch; unsupervised_weight: alpha of HCE's equation 7.
      query_max_tokens, document_max_tokens: texts are cut here in training, by the encoder's `max_tokens` elsewhere.

    Loss
      temperature: divides cosines (GTR and HCE: .01; MiniLM was trained at .05, and does better there). Scores of a
        lexical retriever are divided by its `score_scale` instead, those of the hierarchy loss too.
      hierarchy_weight: of the hierarchy loss; 0 is plain contrastive training.
      hierarchy_levels: M, the number of levels it covers from the root; None: all.

    Extra negatives (none is known to answer the query, or holds one of its answers where the corpus names such)
      negatives: "siblings" from below its document's ancestors; "random" from the whole corpus; "bm25" and "mined" from
        what BM25 and the encoder before training rank high for the query.
      negatives_per_query: how many (each costs one more document to encode).
      negatives_depth: draw from so many ranks.

    Optimisation
      learning_rate decays linearly to 0 after `warmup_share` of the steps; so does centroid_learning_rate (a lexical
        retriever's centroids are not trained).
      frozen_layers: so many lowest layers and the embeddings stay as they are; 0: the embeddings only; None: all train.
      gradient_clip: largest norm of the gradient; None: as it comes.
      cotraining: re-cluster the corpus with the current encoder whenever an evaluation beats all before (Algorithm 3).

    Evaluation and safety
      dev_metric on at most `dev_queries` queries and `dev_passages` passages (None: all) chooses the best checkpoint;
        it is evaluated before the first step, after every `evaluate_every` (None: never in between) and at the end.
      patience: stop after this many evaluations in a row without a new best; None: never.
      log_every: steps averaged into one row of the history. checkpoint_every: steps lost at most by a kill.
      seed_offset: added to the pipeline's seed, to repeat one retriever with other seeds.
    """

    start: str | None = None
    supervision: Literal["supervised", "unsupervised", "joint"] = "joint"
    epochs: float = 1.0
    steps: int | None = None
    batch_size: int = 64
    accumulation: int = 1
    batches: Literal["random", "siblings"] = "random"
    unsupervised_share: float = 0.5
    unsupervised_weight: float = 0.5
    query_max_tokens: int = 64
    document_max_tokens: int = 128

    temperature: float = 0.05
    hierarchy_weight: float = 0.2
    hierarchy_levels: int | None = None
    negatives: Literal["siblings", "random", "bm25", "mined"] = "siblings"
    negatives_per_query: int = 1
    negatives_depth: int = 50

    learning_rate: float = 5e-5
    centroid_learning_rate: float = 1e-3
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    gradient_clip: float | None = None
    frozen_layers: int | None = 3
    cotraining: bool = False

    dev_metric: str = "nDCG@10"
    dev_queries: int = 500
    dev_passages: int | None = None
    evaluate_every: int | None = None
    patience: int | None = None
    log_every: int = 5
    checkpoint_every: int = 50
    seed_offset: int = 0

    def __post_init__(self) -> None:
        """Check ranges."""
        Metric.parse(self.dev_metric)
        require_at_least(1, self, "batch_size", "accumulation", "dev_queries", "log_every", "checkpoint_every")
        require_at_least(1, self, "steps", "hierarchy_levels", "dev_passages", "evaluate_every", "patience")
        require_at_least(1, self, "negatives_depth")
        require_at_least(0, self, "negatives_per_query", "frozen_layers", "hierarchy_weight", "unsupervised_weight")
        require_at_least(0, self, "learning_rate", "centroid_learning_rate", "weight_decay", "seed_offset")
        require_at_least(3, self, "query_max_tokens", "document_max_tokens")
        for name in ("epochs", "temperature", "gradient_clip"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}, but must be above 0")
        for name in ("warmup_share", "unsupervised_share"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} is {value}, but is a share: at least 0, below 1")
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
        return self.hierarchy_weight > 0 or self.batches == "siblings" or self.draws_siblings

    @property
    def draws_siblings(self) -> bool:
        """Whether extra negatives come from below the ancestors of the query's document."""
        return self.negatives == "siblings" and self.negatives_per_query > 0
