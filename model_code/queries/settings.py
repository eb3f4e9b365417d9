"""The group `pseudo_queries` of `params.yaml`, with one sub-group per generator."""

from __future__ import annotations

from typing import ClassVar, Literal

from model_code.settings import Field, Settings, constant_field, require

Generator = Literal["inverse_cloze", "sequence_to_sequence"]
# The name of the model that the stage `query_generator` trains, and its folder in that stage's
# output.
TRAINED = "trained"
TRAINED_FOLDER = "model"
# Groups of settings that the stage `query_generator` reads. If other keys of `pseudo_queries`
# change, the stage does not run again.
TRAINING_GROUP = "pseudo_queries.training"
WRITING_GROUP = "pseudo_queries.sequence_to_sequence"


class GeneratorTrainingSettings(Settings):
    """How a sequence-to-sequence model learns from training qrels to write a document's queries.

    Texts are cut as in generation, at `sequence_to_sequence.section_tokens` and
    `.max_query_tokens`. The pairs of `held_out_share` of the documents are held out. At most
    `held_out_pairs` of them choose the best step, by their mean log-likelihood per token.
    """

    weight_decay: ClassVar[float] = 0.01
    warmup_share: ClassVar[float] = 0.1
    gradient_clip: ClassVar[float] = 1.0
    held_out_pairs: ClassVar[int] = 500

    base: str | None = Field(
        None,
        min_length=1,
        description="Folder or hub name of a sequence-to-sequence model to start from. null: no "
        "model is trained.",
    )
    revision: str | None = Field(None, description="Commit or branch of the model on the hub.")
    epochs: float = Field(3.0, gt=0, description="Passes over the training pairs.")
    steps: int | None = constant_field(None, ge=1, description="overrides epochs")
    batch_size: int = constant_field(16, ge=1, description="pairs per step")
    learning_rate: float = Field(
        1e-4,
        ge=0,
        description="Highest learning rate, which falls linearly to 0 after the warm-up. T5 "
        "learns well at 3e-4, other models at 5e-5.",
    )
    held_out_share: float = constant_field(
        0.1, ge=0, lt=1, description="of the documents with queries"
    )
    # Steps between evaluations. None: only before the first step and after the last.
    evaluate_every: int | None = constant_field(100, ge=1)
    # Evaluations in a row without a new best after which training stops. None: it never stops
    # early.
    patience: int | None = constant_field(None, ge=1)
    log_every: int = constant_field(
        10, ge=1, description="steps averaged into one row of the history"
    )
    checkpoint_every: int = constant_field(100, ge=1, description="steps lost at most by a kill")


class ClozeSettings(Settings):
    """How an inverse cloze generator cuts spans out of a document; lengths are in words."""

    per_document: int = Field(3, ge=1, description="Spans per document, at random places.")
    min_words: int = Field(64, ge=1, description="Shortest span, in words.")
    max_words: int = Field(64, ge=1, description="Longest span, in words.")
    max_share: float = constant_field(
        0.5,
        gt=0,
        le=1,
        description="Longest span as a share of its document, so that "
        "a query is never a whole document.",
    )

    def check(self) -> None:
        """Raise an error if the shortest span is longer than the longest."""
        require(
            self.min_words <= self.max_words,
            f"min_words {self.min_words} and max_words {self.max_words} are "
            "no range of lengths from 1 upwards",
        )


# Spans as long as the queries that people type.
QUERY_LENGTH_SPANS = ClozeSettings(per_document=1, min_words=8, max_words=16)


class SequenceToSequenceSettings(Settings):
    """How a docT5query-style model writes queries (Nogueira and Lin, 2019)."""

    model: str = Field(
        "doc2query/msmarco-t5-base-v1",
        description="Folder or hub name of a model that AutoModelForSeq2SeqLM loads. trained: "
        "the model that `pseudo_queries.training` makes.",
    )
    revision: str | None = Field(None, description="Commit or branch of the model on the hub.")
    per_document: int = Field(
        15, ge=1, description="Queries per document, spread evenly over its sections."
    )
    section_tokens: int = Field(
        512,
        ge=8,
        description="Length of a section of a document in tokens, special tokens included.",
    )
    max_query_tokens: int = constant_field(64, ge=1, description="a query ends here at the latest")
    top_k: int = constant_field(
        10, ge=1, description="each token is sampled from so many most probable ones"
    )
    temperature: float = constant_field(1.0, gt=0, description="flattens them")
    batch_size: int = constant_field(60, ge=1, description="queries written at once")


class PseudoQuerySettings(Settings):
    """Which generators write queries to train on."""

    generators: tuple[Generator, ...] = Field(
        ("inverse_cloze",), description="Generators of the training queries."
    )
    inverse_cloze: ClozeSettings = Field(default_factory=ClozeSettings)
    sequence_to_sequence: SequenceToSequenceSettings = Field(
        default_factory=SequenceToSequenceSettings
    )
    training: GeneratorTrainingSettings = Field(default_factory=GeneratorTrainingSettings)

    def check(self) -> None:
        """Refuse a repeated generator, and a trained model that no stage trains."""
        require(
            len(set(self.generators)) == len(self.generators),
            f"generators {self.generators} names one twice",
        )
        is_used = "sequence_to_sequence" in self.generators
        if is_used and self.sequence_to_sequence.model == TRAINED:
            require(
                self.training.base is not None,
                'sequence_to_sequence.model is "trained", but training.base is null, so that no '
                "model is trained; set training.base to a model to start from",
            )
