"""How a query generator is trained: the group `pseudo_queries.training` of `params.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from model_code.settings import require, require_at_least

WARM_START = "warm_start"


@dataclass(frozen=True)
class GeneratorTrainingSettings:
    """How a sequence-to-sequence model learns from the corpus's training qrels to write a document's queries.

    Texts are cut as the generator cuts them: `sequence_to_sequence.section_tokens` and `.max_query_tokens`.

    base, revision: a folder or hub name of any sequence-to-sequence model to start from, and the hub's commit or
      branch; "warm_start" makes one from the base encoder (see `warm_start.py`); None: no generator is trained.
    epochs: passes over the training pairs; `steps` overrides it. batch_size: pairs per step.
    learning_rate decays linearly to 0 after `warmup_share` of the steps. (T5 learns well at 3e-4, others at 5e-5.)
    gradient_clip: largest norm of the gradient; None: as it comes.
    frozen_layers: so many lowest layers of its encoder, and that one's embeddings, stay as they are; None: all train.
    held_out_share: of the documents with queries; at most `held_out_pairs` of their pairs choose the best step, by mean
      log-likelihood per token, before the first step, after every `evaluate_every` (None: never) and at the end.
    patience: stop after this many evaluations in a row without a new best; None: never.
    log_every: steps averaged into one row of the history. checkpoint_every: steps lost at most by a kill.
    round_trip_documents: held-out documents for which a query is written afterwards, and searched for;
      round_trip_depth: where a document counts as found.
    """

    base: str | None = None
    revision: str | None = None
    epochs: float = 3.0
    steps: int | None = None
    batch_size: int = 16
    learning_rate: float = 1e-4
    weight_decay: float = 0.01
    warmup_share: float = 0.1
    gradient_clip: float | None = 1.0
    frozen_layers: int | None = None
    held_out_share: float = 0.1
    held_out_pairs: int = 500
    evaluate_every: int | None = 100
    patience: int | None = None
    log_every: int = 10
    checkpoint_every: int = 100
    round_trip_documents: int = 200
    round_trip_depth: int = 10

    def __post_init__(self) -> None:
        """Check ranges."""
        require(self.base != "", "base is empty; name a model, or set it to null")
        require_at_least(1, self, "steps", "batch_size", "held_out_pairs", "evaluate_every", "patience", "log_every")
        require_at_least(1, self, "checkpoint_every", "round_trip_depth")
        require_at_least(0, self, "learning_rate", "weight_decay", "frozen_layers", "round_trip_documents")
        for name in ("epochs", "gradient_clip"):
            value = getattr(self, name)
            require(value is None or value > 0, f"{name} is {value}, but must be above 0")
        for name in ("warmup_share", "held_out_share"):
            value = getattr(self, name)
            require(0 <= value < 1, f"{name} is {value}, but is a share: at least 0, below 1")
