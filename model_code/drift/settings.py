"""The group `drift` of `params.yaml`."""

from __future__ import annotations

from model_code.settings import Field, Settings, constant_field, require

DRAWS, LARGEST_BATCH, REFERENCE_DOCUMENTS = 999, 500, 2000
MOST_MEASURES = 9  # of a report: four of the batch, four of the window, and the protected queries


class DriftSettings(Settings):
    """When drift is measured, what counts as drift, and how often the index may be rebuilt for it."""

    alpha: float = Field(
        0.05,
        gt=0,
        le=0.5,
        description="chance that a report alarms although nothing changed; its measures share it",
    )
    minimum_batch: int = Field(
        100,
        ge=10,
        description="documents below which only counts are measured; they wait for the window",
    )
    # measured of a batch, drawn at random
    largest_batch: int = constant_field(default_factory=lambda: LARGEST_BATCH)
    window: int = Field(
        5,
        ge=1,
        description="last batches that are measured together, beside the newest alone; 1: only that",
    )
    cooldown: int = Field(
        3, ge=0, description="batches after a retrain or a call for a pilot without another"
    )
    growth_limit: float = Field(
        0.5,
        gt=0,
        description="documents added since the last training, as a share of those trained on",
    )
    conflict_limit: float = Field(
        0.3,
        gt=0,
        lt=1,
        description="share of refined additions that may break one of IncDSI's constraints",
    )
    quality_margin: float = Field(
        0.01,
        ge=0,
        description="loss of the mean score, of new documents and of protected queries (beside what growth costs), "
        "that is no harm",
    )
    pilot_documents: int | None = Field(
        1200,
        ge=100,
        description="of a training on a sample that tells if a retrain is due where documents moved and their queries "
        "show no harm, half of them new; null: no pilots",
    )
    draws: int = constant_field(
        default_factory=lambda: DRAWS, description="how often a null distribution is drawn"
    )
    # kept as the reference
    reference_documents: int = constant_field(default_factory=lambda: REFERENCE_DOCUMENTS)
    # documents of the reference that the batch is told from
    classifier_contrast: int = constant_field(500, ge=1)
    seed: int = constant_field(0, ge=0, description="of what is drawn")

    def check(self) -> None:
        """Refuse sizes that measure nothing."""
        most = min(self.largest_batch, self.reference_documents // 3)
        require(
            self.minimum_batch <= most,
            f"minimum_batch is {self.minimum_batch}, but must be at most {most}: so many documents of a batch are "
            "measured, beside a reference of three times as many",
        )
        least = MOST_MEASURES / (1 + self.draws)
        require(
            self.alpha >= least - 1e-9,
            f"alpha is {self.alpha}, but must be at least {least:g}: {MOST_MEASURES} measures share it, and a chance "
            f"that small cannot be told from {self.draws} draws",
        )
