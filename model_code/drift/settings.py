"""The group `drift` of `params.yaml`."""

from __future__ import annotations

from model_code.drift.descriptions import MAX_TESTS
from model_code.settings import Field, Settings, constant_field, require

# Default values of the settings `draws`, `largest_batch` and `reference_documents`.
DRAWS = 999
LARGEST_BATCH = 500
REFERENCE_DOCUMENTS = 2000


class DriftSettings(Settings):
    """When drift is measured, which drift is harmful, and how often a retrain may follow."""

    alpha: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="Probability that a report raises an alarm although nothing changed. Its "
        "measures share it.",
    )
    minimum_batch: int = Field(
        100,
        ge=10,
        description="Fewer new and changed documents are only counted. They wait "
        "until there are enough to measure.",
    )
    # Largest number of documents that are measured. Of a larger batch, a random sample is measured.
    largest_batch: int = constant_field(default_factory=lambda: LARGEST_BATCH)
    window: int = constant_field(
        5,
        ge=1,
        description="Number of last batches that are measured together, in addition to the "
        "newest one alone. 1: only the newest.",
    )
    cooldown: int = constant_field(
        3, ge=0, description="Batches after a retrain or pilot in which no other is requested."
    )
    growth_limit: float = constant_field(
        0.5,
        gt=0,
        description="Documents added or changed since the last training, retrain or retune, as a "
        "share of those trained on, from which a retune is due, or a retrain without weights.",
    )
    retry_share: float = constant_field(
        0.25,
        ge=0,
        description="Documents added or changed since a refused retrain, as a share of those "
        "trained on, from which another one is requested.",
    )
    retune_share: float = constant_field(
        0.5,
        gt=0,
        description="Further judged queries, as a share of those at the last choice of weights, "
        "from which a retune is due.",
    )
    conflict_limit: float = constant_field(
        0.3,
        gt=0,
        lt=1,
        description="Share of refined documents that may break one of IncDSI's constraints.",
    )
    quality_margin: float = constant_field(
        0.01,
        ge=0,
        description="Loss of the mean score, of new documents or of protected queries, that "
        "counts as no harm. The expected cost of growth is not part of it.",
    )
    pilot_documents: int | None = Field(
        1200,
        ge=100,
        description="Size of the sample that a pilot trains on, half of it new documents. A "
        "pilot runs if documents moved and their queries show no harm. null: no pilots.",
    )
    draws: int = constant_field(
        default_factory=lambda: DRAWS, description="how often a null distribution is drawn"
    )
    # Number of documents in the drift reference, the sample of old documents.
    reference_documents: int = constant_field(default_factory=lambda: REFERENCE_DOCUMENTS)
    # Number of old documents that a classifier has to tell from the new ones.
    classifier_contrast: int = constant_field(500, ge=1)
    seed: int = constant_field(0, ge=0, description="of what is drawn")

    def check(self) -> None:
        """Refuse settings with which no batch could be compared, or no drift be detected."""
        most = min(self.largest_batch, self.reference_documents // 3)
        require(
            self.minimum_batch <= most,
            f"minimum_batch is {self.minimum_batch}, but must be at most {most}: so many "
            "documents of a batch are measured, beside a reference of three times as many",
        )
        least = MAX_TESTS / (1 + self.draws)
        require(
            self.alpha >= least - 1e-9,
            f"alpha is {self.alpha}, but must be at least {least:g}: {MAX_TESTS} measures "
            f"share it, and a chance that small cannot be told from {self.draws} draws",
        )
