"""Settings of the pseudo-queries: the group `pseudo_queries` of `params.yaml`, one sub-group per generator."""

from __future__ import annotations

from typing import ClassVar, Literal

from model_code.settings import Constant, Field, Settings, require

Generator = Literal["inverse_cloze", "short_cloze", "held_out_cloze", "sequence_to_sequence"]  # see `generators.py`
WARM_START = "warm_start"
TRAINED = "trained"  # the name of the model that the stage `query_generator` trains
TRAINING_GROUP = "pseudo_queries.training"  # what that stage reads, so that no other key of the group trains anew
WRITING_GROUP = "pseudo_queries.sequence_to_sequence"


class GeneratorTrainingSettings(Settings):
    """How a sequence-to-sequence model learns from the corpus's training qrels to write a document's queries.

    Texts are cut as the generator cuts them: `sequence_to_sequence.section_tokens` and `.max_query_tokens`. At most
    `held_out_pairs` pairs of `held_out_share` of the documents choose the best step, by mean log-likelihood per token.
    """

    weight_decay: ClassVar[float] = 0.01
    warmup_share: ClassVar[float] = 0.1
    gradient_clip: ClassVar[float] = 1.0
    held_out_pairs: ClassVar[int] = 500  # that choose the best step

    base: str | None = Field(
        None,
        min_length=1,
        description="a folder or hub name of any sequence-to-sequence model to start from; warm_start: one made from "
        "the base encoder; null: no generator is trained",
    )
    revision: str | None = Field(None, description="the hub's commit or branch")
    epochs: float = Field(3.0, gt=0, description="passes over the training pairs")
    steps: int | None = Constant(None, ge=1, description="overrides epochs")
    batch_size: int = Constant(16, ge=1, description="pairs per step")
    learning_rate: float = Field(
        1e-4, ge=0, description="falls linearly to 0 after the warm-up; T5 learns well at 3e-4, others at 5e-5"
    )
    frozen_layers: int | None = Constant(
        None, ge=0, description="lowest layers of its encoder that stay as they are, with the embeddings; null: none"
    )
    held_out_share: float = Constant(0.1, ge=0, lt=1, description="of the documents with queries")
    evaluate_every: int | None = Constant(
        100, ge=1, description="steps; null: only before the first and after the last"
    )
    patience: int | None = Constant(
        None, ge=1, description="stop after so many evaluations in a row without a new best; null: never"
    )
    log_every: int = Constant(10, ge=1, description="steps averaged into one row of the history")
    checkpoint_every: int = Constant(100, ge=1, description="steps lost at most by a kill")
    round_trip_documents: int = Constant(
        200, ge=0, description="held-out documents for which a query is written afterwards, and searched for"
    )
    round_trip_depth: int = Constant(10, ge=1, description="rank up to which a document counts as found")


class ClozeSettings(Settings):
    """How an inverse cloze generator cuts spans out of a document; lengths are in words."""

    per_document: int = Field(3, ge=1, description="spans per document, at random places")
    min_words: int = Field(64, ge=1, description="a span's length is drawn from here")
    max_words: int = Field(64, ge=1, description="to here")
    max_share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="no span is longer than this share of its document, or a short one would be a query",
    )

    def check(self) -> None:
        """Refuse an empty range."""
        require(
            self.min_words <= self.max_words,
            f"min_words {self.min_words} and max_words {self.max_words} are no range of lengths from 1 upwards",
        )


class SequenceToSequenceSettings(Settings):
    """How a docT5query-style model writes queries (Nogueira and Lin, 2019)."""

    model: str = Field(
        "doc2query/msmarco-t5-base-v1",
        description="a folder or hub name that AutoModelForSeq2SeqLM loads; trained: the one that `training` makes",
    )
    revision: str | None = Field(None, description="the hub's commit or branch")
    per_document: int = Field(15, ge=1, description="queries per document, spread evenly over its sections")
    section_tokens: int = Field(512, ge=8, description="length of a section of a document, special tokens included")
    max_query_tokens: int = Constant(64, ge=1, description="a query ends here at the latest")
    top_k: int = Constant(10, ge=1, description="each token is sampled from so many most probable ones")
    temperature: float = Constant(1.0, gt=0, description="flattens them")
    batch_size: int = Constant(60, ge=1, description="queries written at once")


class ConsistencySettings(Settings):
    """Which training queries are kept by round trip: those whose document a search finds."""

    by: Literal["none", "bm25", "base"] = Field(
        "none", description="what searches the whole corpus: BM25, or the untrained base encoder; none keeps all"
    )
    depth: int = Field(10, ge=1, description="the document must be among so many")


class PseudoQuerySettings(Settings):
    """Which generators write queries for training and for evaluation, and which queries are kept."""

    held_out_cloze: ClassVar[ClozeSettings] = ClozeSettings()

    generators: tuple[Generator, ...] = Field(("inverse_cloze",), description="that training queries are made by")
    held_out_generator: Generator = Field(
        "short_cloze",
        description="that dev and test queries are made by where the corpus brings no judged ones; long spans copied "
        "from the text are found by every system, and so tell none apart",
    )
    dev_share: float = Field(
        0.1, ge=0, lt=1, description="of the documents, whose queries are held out for dev; unused with judged ones"
    )
    test_share: float = Field(0.2, ge=0, lt=1, description="the same for test")
    inverse_cloze: ClozeSettings = Field(default_factory=ClozeSettings)
    short_cloze: ClozeSettings = Constant(
        default_factory=lambda: ClozeSettings(per_document=1, min_words=8, max_words=16)
    )
    sequence_to_sequence: SequenceToSequenceSettings = Field(default_factory=SequenceToSequenceSettings)
    consistency_filter: ConsistencySettings = Field(default_factory=ConsistencySettings)
    training: GeneratorTrainingSettings = Field(default_factory=GeneratorTrainingSettings)

    def check(self) -> None:
        """Refuse a generator twice, nothing to train on, and a trained model that nobody trains."""
        require(len(set(self.generators)) == len(self.generators), f"generators {self.generators} names one twice")
        require(
            self.dev_share + self.test_share < 1,
            f"dev_share {self.dev_share} and test_share {self.test_share} must leave a share above 0 to train on",
        )
        uses_trained = "sequence_to_sequence" in (*self.generators, self.held_out_generator)
        require(
            not uses_trained or self.sequence_to_sequence.model != TRAINED or self.training.base is not None,
            'sequence_to_sequence.model is "trained", but training.base is null, so that no model is trained; '
            'set training.base to a model to start from, or to "warm_start"',
        )
