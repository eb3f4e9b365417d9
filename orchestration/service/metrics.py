"""What `GET /metrics` shows, in Prometheus's text format."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

SEARCH = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
CHANGE = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0, 600.0)


class Metrics:
    """One registry per service, so that several may live in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        of = {"registry": self.registry}
        self.requests = Counter("freshet_requests", "Requests by route and HTTP status.", ["route", "status"], **of)
        self.lost_queries = Counter("freshet_lost_queries", "Searches that the query log could not keep.", **of)
        self.search = Histogram("freshet_search_seconds", "Searching, without waiting.", buckets=SEARCH, **of)
        self.apply = Histogram("freshet_apply_seconds", "From ledger to switch, per batch.", buckets=CHANGE, **of)
        self.fresh = Histogram(
            "freshet_freshness_seconds", "From a request's arrival to searchable.", buckets=CHANGE, **of
        )

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """A value that is asked for whenever the page is read."""
        Gauge(name, text, registry=self.registry).set_function(value)

    def per_retriever(self, name: str, text: str, values: Callable[[], Iterable[tuple[str, float]]]) -> None:
        """One value per open retriever, asked for whenever the page is read."""
        self.registry.register(_PerRetriever(name, text, values))

    def changed(self, apply_seconds: float, fresh_seconds: Sequence[float]) -> None:
        """Record a batch: its own seconds, and those of each of its requests since they arrived."""
        self.apply.observe(apply_seconds)
        for seconds in fresh_seconds:
            self.fresh.observe(seconds)

    def text(self) -> bytes:
        """The page."""
        return generate_latest(self.registry)


class _PerRetriever(Collector):
    def __init__(self, name: str, text: str, values: Callable[[], Iterable[tuple[str, float]]]) -> None:
        self.name, self.documentation, self.values = name, text, values

    def collect(self) -> Iterable[GaugeMetricFamily]:
        family = GaugeMetricFamily(self.name, self.documentation, labels=["retriever"])
        for retriever, value in self.values():
            family.add_metric([retriever], value)
        yield family
