"""Guards that a person hears of each thing that goes wrong, once, and of nothing while all is well."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.error import URLError

import dagster as dg
import pytest

from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind
from orchestration import parameters
from orchestration.freshness import notices as notices_module
from orchestration.registry import history
from orchestration.sensors import notices
from tests.live_example import collection_of, make_project, receive


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


@pytest.fixture
def heard(project):
    """What a receiver on this machine got, which `live.webhook` names."""
    texts = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            texts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    parameters.write_overrides(
        project.params_file, [f"live.webhook=http://127.0.0.1:{server.server_port}/"]
    )
    yield texts
    server.shutdown()
    server.server_close()


class MailServer(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to leave a message."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            if line.upper().startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                self.server.mails.append(b"".join(iter(self.rfile.readline, b".\r\n")).decode())
            self.wfile.write(b"221 bye\r\n" if line.upper().startswith(b"QUIT") else b"250 ok\r\n")


def test_an_address_of_mail_is_mailed_to(project):
    with socketserver.TCPServer(("127.0.0.1", 0), MailServer) as server:
        server.mails = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        host = f"127.0.0.1:{server.server_address[1]}"
        parameters.write_overrides(
            project.params_file, [f"live.webhook='mailto:me@example.org?server={host}'"]
        )
        notices_module.send_notice(project, ["the disk is full", "hce: drift of topics"])
        server.shutdown()
    (mail,) = server.mails
    assert "To: me@example.org" in mail
    assert "Subject: Freshet: the disk is full" in mail
    assert mail.rstrip().endswith("the disk is full\r\nhce: drift of topics")


def go_wrong(project, monkeypatch):
    """Documents that nobody applies, a pilot that failed for good, drift, and a challenger that the
    gate refused.
    """
    receive(project, "a")
    monkeypatch.setattr(notices_module, "LONGEST_WAIT", 0.0)
    ledger = collection_of(project).ledger
    pilot = ledger.tasks.request(
        TaskKind.PILOT, "hce", EventRange(1, 1), "topics moved", requested_by="drift"
    )
    for attempt in range(MAX_ATTEMPTS):
        ledger.tasks.fail(pilot, "out of memory", f"run-{attempt}")
        pilot = next(iter(ledger.tasks.open("hce", TaskKind.PILOT)), pilot)
    measures = [{"name": "topics", "value": 0.3, "threshold": 0.1, "tripped": True}]
    ledger.record_drift_report({"report": {"measures": measures}}, (1, 1))
    history.append(project, "refuse", "1", "2", {"passed": False, "reasons": ["worse: hit@1"]})


@pytest.fixture
def context(project):
    """Of a look of the sensor, in an instance of Dagster."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield dg.build_sensor_context(instance, resources={"project": project})


def test_each_thing_is_told_once_and_again_only_if_it_happens_again(
    project, heard, monkeypatch, context
):
    assert "nothing is wrong" in notices(context).skip_message
    assert heard == []
    go_wrong(project, monkeypatch)

    @dg.job
    def broken():
        dg.op(name="fails")(lambda: 1 / 0)()

    failed = broken.execute_in_process(instance=context.instance, raise_on_error=False)
    for _ in range(2):
        shown = notices(context).skip_message
        (text,) = heard
        for words in (
            "1 changes wait",
            "pilot failed, out of memory",
            "drift of topics",
            "refuse version 2: worse",
            f"run {failed.run_id[:8]} of broken failed: ZeroDivisionError: ",
        ):
            assert words in text
            assert words in shown
    history.append(project, "refuse", "1", "3", {"passed": False, "reasons": ["worse: R@100"]})
    notices(context)
    assert heard[1:] == ["gate: refuse version 3: worse: R@100"]


def test_what_could_not_be_told_is_told_at_the_next_look(project, heard, monkeypatch, context):
    go_wrong(project, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(notices_module, "TIMEOUT", 0.0)
        with pytest.raises((OSError, URLError)):
            notices(context)
    notices(context)
    assert "drift of topics" in heard[-1]


def test_without_an_address_the_page_alone_says_it(project, monkeypatch, context):
    go_wrong(project, monkeypatch)
    assert "drift of topics" in notices(context).skip_message
