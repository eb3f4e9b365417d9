"""Export traces and metrics of the service by OpenTelemetry.

The export is off unless an environment variable of OpenTelemetry names an endpoint, such as
`OTEL_EXPORTER_OTLP_ENDPOINT`. Texts of queries and documents are never recorded. The exporter is an
optional dependency. Prometheus's metrics do not need this module.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from model_code.errors import FreshetError
from orchestration.service.search_tasks import AnswerPage

# The first variable names an endpoint for spans and metrics. The second is for spans alone, and the
# third for metrics alone. MLflow's server accepts spans only, at its path /v1/traces.
ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT_VARIABLE = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
ENDPOINT_VARIABLES = (ENDPOINT_VARIABLE, TRACES_ENDPOINT_VARIABLE, METRICS_ENDPOINT_VARIABLE)
DISABLED_VARIABLE = "OTEL_SDK_DISABLED"
SERVICE_NAME_VARIABLE = "OTEL_SERVICE_NAME"
# Name by which receivers of the spans and metrics know the service and its instruments.
NAME = "freshet"
# Seconds for which the values of all gauges are kept. An export reads the gauges one by one, and
# these values come from one computation.
GAUGE_CACHE_SECONDS = 1.0
NANOSECONDS = 1_000_000_000
# Smallest HTTP status that marks a span as failed.
MIN_ERROR_STATUS = 500

CollectGauges = Callable[[], Iterable[GaugeMetricFamily]]


class Telemetry:
    """Spans (timed parts of a request) and metrics of one service, for OpenTelemetry."""

    def __init__(self, tracer_provider: Any, meter_provider: Any) -> None:
        """Create the instruments.

        Args:
            tracer_provider: An SDK `TracerProvider`.
            meter_provider: An SDK `MeterProvider`.
        """
        self._providers = (tracer_provider, meter_provider)
        self.tracer = tracer_provider.get_tracer(NAME)
        self._meter = meter_provider.get_meter(NAME)
        self._requests = self._meter.create_counter(
            "freshet.requests", description="Requests by route and HTTP status."
        )
        self._durations: dict[str, Any] = {}
        for name in ("search", "apply", "freshness"):
            self._durations[name] = self._meter.create_histogram(f"freshet.{name}", unit="s")
        self._gauges: dict[str, GaugeMetricFamily] = {}
        self._gauges_read = -GAUGE_CACHE_SECONDS

    def span(self, name: str, attributes: dict[str, Any]) -> AbstractContextManager[Any]:
        """Return a context manager that is a span below the current one."""
        return self.tracer.start_as_current_span(name, attributes=attributes)

    def record_request(self, method: str, route: str, status: int) -> None:
        """Add a request to the counter of requests by method, route and status."""
        attributes = {"method": method, "route": route, "status": status}
        self._requests.add(1, attributes)

    def record_duration(self, name: str, seconds: float) -> None:
        """Add a time to the histogram that `name` tells: "search", "apply" or "freshness"."""
        self._durations[name].record(seconds)

    def record_past_span(self, name: str, seconds: float, attributes: dict[str, Any]) -> None:
        """Record a span that ends now.

        Args:
            name: Name of the span.
            seconds: Length of the span.
            attributes: Attributes of the span.
        """
        end = time.time_ns()
        start = end - int(seconds * NANOSECONDS)
        span = self.tracer.start_span(name, start_time=start, attributes=attributes)
        span.end(end)

    def observe_gauges(self, names: Iterable[str], collect: CollectGauges) -> None:
        """Create an OpenTelemetry gauge for each gauge of the service.

        Prometheus reads the gauges of the service from `/metrics`. The gauges that are created here
        have the same names and values. OpenTelemetry reads their values at each export, and sends
        them to its endpoint.

        Args:
            names: Names of the gauges.
            collect: Function that returns all gauges of the service with their present values.
        """
        for name in names:
            self._meter.create_observable_gauge(name, [self._gauge_callback(name, collect)])

    def _gauge_callback(self, name: str, collect: CollectGauges) -> Callable[[Any], list[Any]]:
        """Return the function that OpenTelemetry calls to read one gauge.

        `collect` computes all gauges at once, and each callback reads only one. So the callbacks
        share a result for `GAUGE_CACHE_SECONDS`.
        """
        from opentelemetry.metrics import Observation

        def read(options: Any) -> list[Any]:
            """Return the present values of the gauge: one, or one per retriever."""
            now = time.monotonic()
            if now - self._gauges_read >= GAUGE_CACHE_SECONDS:
                self._gauges = {gauge.name: gauge for gauge in collect()}
                self._gauges_read = now
            observations = []
            if name in self._gauges:
                for sample in self._gauges[name].samples:
                    observations.append(Observation(sample.value, dict(sample.labels)))
            return observations

        return read

    def shutdown(self) -> None:
        """Send the spans and metrics that wait to be exported, and stop."""
        for provider in self._providers:
            provider.shutdown()


def describe_answers(span: Any, pages: Sequence[AnswerPage]) -> None:
    """Add retriever, generation and number of hits to the span of a search.

    Args:
        span: The span; None if OpenTelemetry is off.
        pages: Answers of one search, all from one generation.
    """
    if span is None or not pages:
        return
    span.set_attribute("retriever", pages[0].retriever)
    span.set_attribute("generation", pages[0].generation)
    span.set_attribute("hits", sum(page.hit_count for page in pages))


def telemetry_from_environment() -> Telemetry | None:
    """Return the telemetry that the environment configures; None if it configures none.

    Raises:
        FreshetError: If an endpoint is set, but the exporter is not installed.
    """
    endpoints = [name for name in ENDPOINT_VARIABLES if os.environ.get(name)]
    is_disabled = os.environ.get(DISABLED_VARIABLE, "").lower() == "true"
    if not endpoints or is_disabled:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise FreshetError(
            f"{endpoints[0]} is set, but the exporter of OpenTelemetry is not installed; in the "
            f"clone of Freshet: pip install -e '.[telemetry]', or set {DISABLED_VARIABLE}=true"
        ) from None

    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    has_both = ENDPOINT_VARIABLE in endpoints
    span_processor = None
    if has_both or TRACES_ENDPOINT_VARIABLE in endpoints:
        span_processor = BatchSpanProcessor(OTLPSpanExporter())
    metric_reader = None
    if has_both or METRICS_ENDPOINT_VARIABLE in endpoints:
        metric_reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    return make_telemetry(span_processor, metric_reader)


def make_telemetry(span_processor: Any, metric_reader: Any) -> Telemetry:
    """Return telemetry that sends spans and metrics to a processor and a reader.

    OpenTelemetry's global providers are not used, because MLflow and other libraries in the same
    process may set them.

    Args:
        span_processor: An SDK `SpanProcessor`; None to send no spans.
        metric_reader: An SDK `MetricReader`; None to send no metrics.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider

    attributes = {}
    if SERVICE_NAME_VARIABLE not in os.environ:
        attributes[SERVICE_NAME] = NAME
    resource = Resource.create(attributes)
    tracer_provider = TracerProvider(resource=resource)
    if span_processor is not None:
        tracer_provider.add_span_processor(span_processor)
    metric_readers = [] if metric_reader is None else [metric_reader]
    meter_provider = MeterProvider(metric_readers, resource=resource)
    return Telemetry(tracer_provider, meter_provider)


class TraceRequests:
    """ASGI middleware that records a span for each request.

    The span has the method, the route and the status. If the request names a span of the caller in
    its headers, the new span is a child of it. For a path that belongs to no route, the route is
    "none", so that the path itself is not recorded.
    """

    def __init__(self, app: ASGIApp, telemetry: Telemetry) -> None:
        self.app = app
        self.telemetry = telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on within its span."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind

        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        method = scope["method"]
        # This status is recorded if the request ends without a response.
        status = MIN_ERROR_STATUS

        async def send_recorded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        tracer = self.telemetry.tracer
        with tracer.start_as_current_span(method, extract(headers), SpanKind.SERVER) as span:
            try:
                await self.app(scope, receive, send_recorded)
            except Exception:
                # An unexpected error of a route passes here, and is answered further outside.
                self._record(span, scope, status)
                raise
            self._record(span, scope, status)

    def _record(self, span: Any, scope: Scope, status: int) -> None:
        """Add method, route and status of a request to its span, and count the request.

        The route is known only after the request, because the router runs inside the span.
        """
        from opentelemetry.trace import StatusCode

        method = scope["method"]
        route = getattr(scope.get("route"), "path", "none")
        span.update_name(f"{method} {route}")
        span.set_attribute("http.request.method", method)
        span.set_attribute("http.route", route)
        span.set_attribute("http.response.status_code", status)
        if status >= MIN_ERROR_STATUS:
            span.set_status(StatusCode.ERROR)
        self.telemetry.record_request(method, route, status)
