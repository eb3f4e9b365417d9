"""The groups `evaluation` and `promotion` of `params.yaml`."""

from __future__ import annotations

from dataclasses import dataclass

from model_code.evaluation.metrics import Metric
from model_code.settings import require

METRICS = ("nDCG@10", "MRR@10", "MAP", "R@1", "R@5", "R@10", "R@20", "R@100", "hit@1", "hit@5", "hit@10")


@dataclass(frozen=True)
class EvaluationSettings:
    """What is measured, on how many queries, and how sure its intervals are."""

    metrics: tuple[str, ...] = METRICS  # names as in the literature; R@k also make the recall curve
    main_metric: str = "nDCG@10"  # the one that the report and its plots begin with
    depth: int = 100  # documents per query in a run; MAP is over these
    max_queries: int | None = None  # per split; a fixed sample by hash of the query id, None = all
    references: tuple[str, ...] = ("bm25", "zero_shot", "contrastive")  # systems the others are tested against
    bootstrap_samples: int = 2000
    permutations: int = 10_000
    confidence: float = 0.95  # of every interval
    variants: bool = True  # also evaluate other searches of the same build and hybrids with BM25
    rerank_depth: int = 100  # BM25's documents that `bm25_rerank` sorts anew
    fusion_constant: int = 60  # of reciprocal-rank fusion; the larger, the less a first rank counts

    def __post_init__(self) -> None:
        """Refuse metrics that a run of this depth cannot give, and statistics without meaning."""
        for name in self.metrics:
            cutoff = Metric.parse(name).cutoff
            require(cutoff is None or cutoff <= self.depth, f"metric {name} needs depth >= {cutoff}, not {self.depth}")
        require(self.main_metric in self.metrics, f"main_metric {self.main_metric!r} must be one of metrics")
        require(len(set(self.metrics)) == len(self.metrics), "metrics names a metric twice")
        require(self.depth >= 1, f"depth must be at least 1, not {self.depth}")
        require(self.max_queries is None or self.max_queries >= 1, "max_queries must be at least 1, or null for all")
        require(self.bootstrap_samples >= 100, "bootstrap_samples must be at least 100 for a 95 % interval")
        require(self.permutations >= 100, "permutations must be at least 100, or no p can fall below .01")
        require(0.5 <= self.confidence < 1, f"confidence must be in [0.5, 1), not {self.confidence}")
        self._check_hybrids()

    def _check_hybrids(self) -> None:
        """Refuse hybrids of more documents than BM25's runs hold."""
        require(self.rerank_depth >= 1, f"rerank_depth must be at least 1, not {self.rerank_depth}")
        require(self.fusion_constant >= 0, f"fusion_constant must be at least 0, not {self.fusion_constant}")
        require(
            not self.variants or self.rerank_depth <= self.depth,
            f"rerank_depth {self.rerank_depth} needs depth >= {self.rerank_depth}, not {self.depth}: the documents "
            "that are sorted anew are those of BM25's run; lower rerank_depth, or set variants: false",
        )


@dataclass(frozen=True)
class PromotionSettings:
    """What a challenger must show before it becomes the champion; see `promotion.judge_promotion`."""

    metric: str = "nDCG@10"  # must rise, significantly
    protected: tuple[str, ...] = ("nDCG@10", "R@100", "hit@1")  # must not fall
    alpha: float = 0.05  # level of every test, one-sided bound of every interval
    margin: float = 0.02  # loss on a protected metric that the queries must rule out, in points of that metric
    bootstrap_samples: int = 2000
    permutations: int = 10_000

    def __post_init__(self) -> None:
        """Refuse unknown metrics and levels at which the gate would pass or refuse everything."""
        for name in (self.metric, *self.protected):
            Metric.parse(name)
        require(0 < self.alpha < 0.5, f"alpha must be in (0, 0.5), not {self.alpha}")
        require(0 <= self.margin < 1, f"margin must be in [0, 1), not {self.margin}")
        require(self.bootstrap_samples >= 100, "bootstrap_samples must be at least 100")
        require(self.permutations >= 100, "permutations must be at least 100")
        smallest = 1 / (self.permutations + 1)
        require(smallest < self.alpha, f"{self.permutations} permutations cannot give p < alpha = {self.alpha}")
