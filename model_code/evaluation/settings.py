"""The groups `evaluation` and `promotion` of `params.yaml`."""

from __future__ import annotations

from typing import ClassVar, Literal

from model_code.evaluation.metrics import metric_cutoff
from model_code.settings import Field, Settings, constant_field, require

METRICS = (
    "nDCG@10",
    "MRR@10",
    "MAP",
    "R@1",
    "R@5",
    "R@10",
    "R@20",
    "R@100",
    "hit@1",
    "hit@5",
    "hit@10",
)
# Systems that are not trained. Their scores do not depend on a seed.
UNTRAINED_SYSTEMS = ("bm25", "bm25_known", "bm25_generated", "zero_shot", "untrained")


class EvaluationSettings(Settings):
    """How systems are evaluated: metrics, number of queries, and confidence of intervals."""

    # Every system is compared with these systems by a statistical test.
    references: ClassVar[tuple[str, ...]] = (
        "bm25",
        "bm25_known",
        "zero_shot",
        "untrained",
        "contrastive",
    )

    metrics: tuple[str, ...] = Field(
        METRICS,
        description="Metrics to compute, by their usual names. judged@k, bpref and RBP need the "
        "extra `research`.",
    )
    main_metric: str = Field("nDCG@10", description="Metric that reports and plots begin with.")
    depth: int = Field(
        100, ge=1, description="Documents ranked per query. MAP is computed over these."
    )
    max_queries: int | None = Field(
        None,
        ge=1,
        description="Maximum number of queries per split, a fixed sample "
        "by hash of the query id. null: all.",
    )
    bootstrap_samples: int = constant_field(2000, ge=100, description="behind every interval")
    permutations: int = constant_field(10_000, ge=100, description="behind every p-value")
    confidence: float = constant_field(0.95, ge=0.5, lt=1, description="of every interval")
    variants: bool = Field(
        True,
        description="Also evaluate the other searches of each build and its fusion with BM25 by "
        "reciprocal ranks.",
    )
    # Constant of reciprocal rank fusion. The larger it is, the less a first rank counts.
    fusion_constant: int = constant_field(60, ge=0)

    def check(self) -> None:
        """Refuse unknown or repeated metrics, and cutoffs greater than the depth of a run."""
        for name in self.metrics:
            cutoff = metric_cutoff(name)
            require(
                cutoff is None or cutoff <= self.depth,
                f"metric {name} needs depth >= {cutoff}, not {self.depth}",
            )
        require(
            self.main_metric in self.metrics,
            f"main_metric {self.main_metric!r} must be one of metrics",
        )
        require(len(set(self.metrics)) == len(self.metrics), "metrics names a metric twice")


class PromotionSettings(Settings):
    """The conditions under which a challenger becomes champion, see `promotion.judge_promotion`."""

    metric: str = Field("nDCG@10", description="Metric that must rise, by the paired test.")
    protected: tuple[str, ...] = Field(
        ("nDCG@10", "R@100", "hit@1"), description="Metrics that must not fall."
    )
    alpha: float = Field(
        0.05, gt=0, lt=0.5, description="Level of every test and one-sided level of every interval."
    )
    margin: float = Field(
        0.02,
        ge=0,
        lt=1,
        description="Loss on a protected metric that the gate's queries must rule out, as a "
        "difference of the metric.",
    )
    largest_plausible_gain: float | None = Field(
        0.1,
        gt=0,
        lt=1,
        description="Largest gain of `promotion.metric` that a retrain or retune may bring. If the "
        "judged queries would miss it nine times out of ten, none starts by itself. null: the "
        "number of queries holds nothing back.",
    )
    bootstrap_samples: int = constant_field(2000, ge=100, description="behind every interval")
    permutations: int = constant_field(10_000, ge=100, description="behind every p-value")
    by_hand: Literal["follow", "refuse"] = Field(
        "follow",
        description="What happens if someone moves the alias champion in MLflow against the "
        "gate. follow: the live index follows. refuse: the alias is moved back.",
    )

    def check(self) -> None:
        """Refuse unknown metrics, and a level alpha that no p-value of the test can reach."""
        for name in (self.metric, *self.protected):
            metric_cutoff(name)
        smallest = 1 / (self.permutations + 1)
        require(
            smallest < self.alpha,
            f"{self.permutations} permutations cannot give p < alpha = {self.alpha}",
        )
