"""A comparison with costs, as numbers: what a machine might give for a dozen systems."""

from __future__ import annotations

from orchestration.pipeline.costs import CostComparison, Costs


def costs(system: str, value: float, p50: float = 10.0, size: float = 1536.0, **changes: float | None) -> Costs:
    """One system; everything that is not given is middling."""
    numbers = {
        "dev": value + 0.01, "p95_ms": 1.3 * p50, "train_seconds": 200.0, "index_seconds": 40.0, "index_ms": 8.0,
        "searchable_seconds": 240.0, "memory_mb": 1500.0,
    } | changes  # fmt: skip
    return Costs(system, value, value - 0.02, value + 0.02, p50_ms=p50, bytes_per_document=size, **numbers)


UNTRAINED = {"train_seconds": 0.0, "memory_mb": 900.0}
BM25 = costs("bm25", 0.58, 0.4, 310.0, train_seconds=0.0, index_seconds=0.9, index_ms=0.2, searchable_seconds=0.9,
             memory_mb=None)  # fmt: skip
SYSTEMS = (
    BM25,
    costs("zero_shot", 0.65, 7.0, index_seconds=38.0, searchable_seconds=38.0, **UNTRAINED),
    costs("contrastive", 0.709, 7.1),
    costs("dsi", 0.690, 7.2, index_seconds=1.0, index_ms=0.2, searchable_seconds=301.0),
    costs("hce", 0.715, 7.0),
    costs("svdr", 0.700, 11.0, 4200.0, train_seconds=None, index_seconds=None, index_ms=None, searchable_seconds=None,
          memory_mb=None),
    costs("hce.bm25_rerank", 0.710, 8.4, 1846.0),
    costs("hce.rrf", 0.725, 7.9, 1846.0),
    costs("svdr.alpha", 0.66, 2.0, 4200.0),
    costs("svdr.beta", 0.68, 3.0, 4200.0),
    costs("svdr.rrf", 0.705, 12.0, 4510.0),
)  # fmt: skip


def comparison(systems: tuple[Costs, ...] = SYSTEMS, absent: tuple[str, ...] = ()) -> CostComparison:
    """These systems on 1,356 test queries."""
    return CostComparison("nDCG@10", "test", "qrels", 1356, 100, 4980, systems, absent)
