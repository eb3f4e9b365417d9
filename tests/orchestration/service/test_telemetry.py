"""Guards the spans and metrics of OpenTelemetry, and the Grafana dashboard.

Run: python -m pytest tests/orchestration/service/test_telemetry.py
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import generate_latest

from model_code.errors import FreshetError
from orchestration.service import telemetry as telemetry_module
from orchestration.service.app import create_app
from orchestration.service.following import FollowThread, PublishThread
from orchestration.service.service import Service
from orchestration.service.shadow import ShadowThread
from orchestration.service.telemetry import make_telemetry, telemetry_from_environment
from tests.orchestration.service.conftest import until
from tests.postgresql import free_ports

DASHBOARD = Path(__file__).parents[3] / "docker/grafana_dashboard.json"
ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
EXPORTER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
# A trace that a caller began.
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def client(serve, spans, reader, project):
    """A service with telemetry; `serve` puts its stand-ins in place of encoder and disk."""
    serve()
    telemetry = make_telemetry(SimpleSpanProcessor(spans), reader)
    with TestClient(create_app(project, telemetry=telemetry)) as client:
        spans.clear()
        yield client


def metric_points(reader: InMemoryMetricReader) -> dict[str, list]:
    data = reader.get_metrics_data()
    points = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                points[metric.name] = list(metric.data.data_points)
    return points


def test_request_is_a_span_with_route_and_status(client, spans):
    client.get("/documents/missing")

    (span,) = spans.get_finished_spans()

    assert span.name == "GET /documents/{document_id:path}"
    assert span.attributes["http.response.status_code"] == 404


def test_search_is_a_span_below_that_of_the_caller(client, spans):
    client.post("/search", json={"text": "apple", "k": 2}, headers={"traceparent": TRACEPARENT})

    search, request = spans.get_finished_spans()

    assert search.name == "search"
    assert request.name == "POST /search"
    assert search.parent.span_id == request.context.span_id
    assert f"{request.context.trace_id:032x}" == TRACE_ID


def test_batch_is_a_span(client, spans):
    client.post("/documents", json={"documents": [{"_id": "c", "text": "cake"}]})

    names = [span.name for span in spans.get_finished_spans()]

    assert "apply" in names


def test_spans_hold_no_text(client, spans):
    client.get("/search", params={"text": "a secret question"})

    for span in spans.get_finished_spans():
        assert "secret" not in str(span.to_json())


def test_metrics_are_exported(client, reader):
    client.post("/search", json={"text": "apple"})

    points = metric_points(reader)

    assert points["freshet.search"][0].count == 1
    assert points["freshet_documents"][0].value == 2
    assert points["freshet_documents"][0].attributes == {"retriever": "hce"}
    statuses = {point.attributes["route"]: point.value for point in points["freshet.requests"]}
    assert statuses["/search"] == 1


def test_unexpected_error_is_exported_with_its_route(client, reader):
    with pytest.raises(ZeroDivisionError):
        client.post("/search", json={"text": "bug"})

    points = metric_points(reader)

    (failed,) = points["freshet.requests"]
    assert failed.attributes == {"method": "POST", "route": "/search", "status": 500}


def test_telemetry_is_off_without_endpoint(monkeypatch):
    monkeypatch.delenv(ENDPOINT, raising=False)

    assert telemetry_from_environment() is None


def test_telemetry_can_be_switched_off(monkeypatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    assert telemetry_from_environment() is None


def test_missing_exporter_names_the_extra(monkeypatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:4318")
    monkeypatch.setitem(sys.modules, EXPORTER, None)

    with pytest.raises(FreshetError, match=r"pip install -e '\.\[telemetry\]'") as raised:
        telemetry_from_environment()

    assert "\n" not in str(raised.value)


def test_endpoint_switches_telemetry_on(monkeypatch):
    pytest.importorskip(EXPORTER, reason="the extra telemetry is not installed")
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")

    telemetry = telemetry_from_environment()

    assert telemetry is not None


@pytest.mark.parametrize(
    ("variable", "sends_spans", "sends_metrics"),
    [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", True, True),
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", True, False),
        ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", False, True),
    ],
)
def test_only_configured_signals_are_sent(monkeypatch, variable, sends_spans, sends_metrics):
    pytest.importorskip(EXPORTER, reason="the extra telemetry is not installed")
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv(variable, "http://127.0.0.1:9")
    made = []
    monkeypatch.setattr(telemetry_module, "make_telemetry", lambda *parts: made.append(parts))

    telemetry_from_environment()

    ((span_processor, metric_reader),) = made
    assert (span_processor is not None) == sends_spans
    assert (metric_reader is not None) == sends_metrics


def test_span_of_a_search_tells_where_the_answer_came_from(client, spans):
    client.post("/search", json={"text": "apple", "k": 2})

    (span,) = [span for span in spans.get_finished_spans() if span.name == "search"]

    assert span.attributes["retriever"] == "hce"
    assert span.attributes["generation"] == 0
    assert span.attributes["hits"] == 1
    assert "apple" not in str(dict(span.attributes))


def answers(address: str) -> bool:
    """Return whether a server answers at an address."""
    try:
        return httpx.get(f"{address}/health").status_code == 200
    except httpx.TransportError:
        return False


@pytest.fixture
def mlflow_address(tmp_path):
    """The address of a running server of MLflow with an empty store."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "mlflow", "server", "--app-name", "freshet"]
    store = f"sqlite:///{tmp_path}/mlflow.db"
    options = ["--port", str(port), "--workers", "1", "--backend-store-uri", store]
    server = subprocess.Popen([*command, *options], cwd=tmp_path, start_new_session=True)
    try:
        assert until(lambda: answers(address), 120)
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(30)


@pytest.mark.full
def test_search_is_a_trace_in_mlflow(serve, project, mlflow_address, monkeypatch):
    pytest.importorskip(EXPORTER, reason="the extra telemetry is not installed")
    from mlflow import MlflowClient

    mlflow_client = MlflowClient(mlflow_address)
    experiment = mlflow_client.create_experiment("searches")
    monkeypatch.delenv(ENDPOINT, raising=False)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{mlflow_address}/v1/traces")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", f"x-mlflow-experiment-id={experiment}")

    serve()
    application = create_app(project, telemetry=telemetry_from_environment())
    with TestClient(application) as service:
        service.post("/search", json={"text": "apple"})

    def received_spans():
        traces = mlflow_client.search_traces([experiment])
        return {span.name: span for trace in traces for span in trace.data.spans}

    assert until(lambda: "search" in received_spans(), 60)
    spans = received_spans()
    assert "POST /search" in spans
    assert spans["search"].attributes["retriever"] == "hce"
    assert "apple" not in str([span.attributes for span in spans.values()])


def metric_names(project) -> set[str]:
    """Return the names of all metrics that a service can have, as Prometheus reads them."""

    class StandIn:
        """A follower of which only the lag is asked."""

        def lag(self):
            from model_code.collection.follow.follower import FollowerLag

            return FollowerLag(1, 0, 0.0, 0.0, None)

    service = Service(project)
    service.follow_thread = FollowThread(StandIn())
    service.publish_thread = PublishThread(project, "somewhere", b"")
    service.shadow_thread = ShadowThread(project, 1.0, service.searchers.current, lambda: False)
    text = generate_latest(service.metrics.registry).decode()
    return set(re.findall(r"^# TYPE (\w+) ", text, flags=re.MULTILINE))


def test_dashboard_asks_for_metrics_that_exist(serve, project):
    serve()
    dashboard = json.loads(DASHBOARD.read_text())
    expressions = []
    for panel in dashboard["panels"]:
        expressions += [target["expr"] for target in panel["targets"]]
    expressions.append(dashboard["templating"]["list"][1]["query"])

    asked = set(re.findall(r"\bfreshet_\w+", " ".join(expressions)))

    known = metric_names(project)
    unknown = set()
    for name in asked:
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        if name not in known and base not in known:
            unknown.add(name)
    assert unknown == set()


def test_dashboard_shows_every_metric(serve, project):
    serve()
    text = DASHBOARD.read_text()

    hidden = {name for name in metric_names(project) if name not in text}

    assert {name for name in hidden if not name.endswith("_created")} == set()


def test_panels_of_dashboard_do_not_overlap():
    panels = json.loads(DASHBOARD.read_text())["panels"]

    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}

    assert len(places) == len(panels)
    assert len({panel["id"] for panel in panels}) == len(panels)
