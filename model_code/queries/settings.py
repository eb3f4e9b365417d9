"""Settings of the pseudo-queries: the group `pseudo_queries` of `params.yaml`, one sub-group per generator."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

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


Generator = Literal["inverse_cloze", "short_cloze", "held_out_cloze", "sequence_to_sequence"]  # see `generators.py`
TRAINED = "trained"  # the name of the model that the stage `query_generator` trains
TRAINING_GROUP = "pseudo_queries.training"  # what that stage reads, so that no other key of the group trains anew
WRITING_GROUP = "pseudo_queries.sequence_to_sequence"


@dataclass(frozen=True)
class ClozeSettings:
    """How an inverse cloze generator cuts spans out of a document; lengths are in words.

    per_document: spans per document, at random places.
    min_words, max_words: a span's length is drawn from this range.
    max_share: no span is longer than this share of its document, else a short document would be its own query.
    """

    per_document: int = 3
    min_words: int = 64
    max_words: int = 64
    max_share: float = 0.5

    def __post_init__(self) -> None:
        require_at_least(1, self, "per_document")
        require(
            1 <= self.min_words <= self.max_words,
            f"min_words {self.min_words} and max_words {self.max_words} are no range of lengths from 1 upwards",
        )
        require(0 < self.max_share <= 1, f"max_share is {self.max_share}, but must be above 0 and at most 1")


@dataclass(frozen=True)
class SequenceToSequenceSettings:
    """How a docT5query-style model writes queries (Nogueira and Lin, 2019).

    model, revision: a folder or hub name that `AutoModelForSeq2SeqLM` loads, and the hub's commit or branch; or
      "trained", the model that `training` makes.
    per_document: queries per document, spread evenly over its sections.
    section_tokens: length of a section of a document, special tokens included.
    max_query_tokens: a query ends here at the latest.
    top_k, temperature: each token is sampled from this many most probable ones, flattened by the temperature.
    batch_size: queries written at once.
    """

    model: str = "doc2query/msmarco-t5-base-v1"
    revision: str | None = None
    per_document: int = 15
    section_tokens: int = 512
    max_query_tokens: int = 64
    top_k: int = 10
    temperature: float = 1.0
    batch_size: int = 60

    def __post_init__(self) -> None:
        require_at_least(1, self, "per_document", "max_query_tokens", "top_k", "batch_size")
        require(self.section_tokens >= 8, f"section_tokens is {self.section_tokens}; at least 8 make sense")
        require(self.temperature > 0, f"temperature is {self.temperature}, but must be above 0")


@dataclass(frozen=True)
class ConsistencySettings:
    """Which training queries are kept by round trip: those for which a search finds the document they were made from.

    by: "bm25" or "base" (the untrained base encoder) searches the whole corpus; "none" keeps all.
    depth: the document must be among so many.
    """

    by: Literal["none", "bm25", "base"] = "none"
    depth: int = 10

    def __post_init__(self) -> None:
        require_at_least(1, self, "depth")


@dataclass(frozen=True)
class PseudoQuerySettings:
    """Which generators write queries for training and for evaluation, and which queries are kept.

    generators: the kinds that training queries are made by (see `generators.py`).
    held_out_generator: the kind that dev and test queries are made by when the corpus brings no judged ones. Short
        spans by default: long ones copied from the text are found by every system, and so tell none apart.
    dev_share, test_share: shares of the documents whose queries are held out for dev and test; such a document is
        searched like any other, but no query of it is trained on. Unused if the corpus has judged dev or test queries.
    distinctive_within: drop a query unless one of its terms occurs in at most this many documents; None: keep it.
    consistency_filter: of training queries only, as it would favour the system that it searches with in evaluation.
    training: how a model of one's own is made for `sequence_to_sequence`, which then names it as "trained".
    """

    generators: tuple[Generator, ...] = ("inverse_cloze",)
    held_out_generator: Generator = "short_cloze"
    dev_share: float = 0.1
    test_share: float = 0.2
    distinctive_within: int | None = None
    inverse_cloze: ClozeSettings = field(default_factory=ClozeSettings)
    short_cloze: ClozeSettings = field(default_factory=lambda: ClozeSettings(1, 8, 16))
    held_out_cloze: ClozeSettings = field(default_factory=ClozeSettings)
    sequence_to_sequence: SequenceToSequenceSettings = field(default_factory=SequenceToSequenceSettings)
    consistency_filter: ConsistencySettings = field(default_factory=ConsistencySettings)
    training: GeneratorTrainingSettings = field(default_factory=GeneratorTrainingSettings)

    def __post_init__(self) -> None:
        require(len(set(self.generators)) == len(self.generators), f"generators {self.generators} names one twice")
        require(
            min(self.dev_share, self.test_share) >= 0 and self.dev_share + self.test_share < 1,
            f"dev_share {self.dev_share} and test_share {self.test_share} must leave a share above 0 to train on",
        )
        require_at_least(1, self, "distinctive_within")
        uses_trained = "sequence_to_sequence" in (*self.generators, self.held_out_generator)
        require(
            not uses_trained or self.sequence_to_sequence.model != TRAINED or self.training.base is not None,
            'sequence_to_sequence.model is "trained", but training.base is null, so that no model is trained; '
            'set training.base to a model to start from, or to "warm_start"',
        )
