"""Guards that each problem is sent once, and that nothing is sent while all is well."""

from __future__ import annotations

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import dagster as dg
import httpx
import pytest

from model_code.collection.ledger.tasks import MAX_ATTEMPTS, EventRange, TaskKind
from orchestration import parameters
from orchestration.freshness import notices
from orchestration.registry import history
from orchestration.sensors import notices as notices_sensor
from tests.live_example import collection_of, make_project, receive


@pytest.fixture
def project(tmp_path):
    return make_project(tmp_path)


@pytest.fixture
def context(project):
    """A tick of the sensor in an instance of Dagster."""
    with dg.DagsterInstance.ephemeral() as instance:
        yield dg.build_sensor_context(instance, resources={"project": project})


@pytest.fixture
def received(project):
    """The messages that a web server received, whose address is set in `live.webhook`."""
    messages = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            messages.append(json.loads(body)["text"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    parameters.write_overrides(project.params_file, [f"live.webhook={address}"])
    yield messages
    server.shutdown()
    server.server_close()


class MailHandler(socketserver.StreamRequestHandler):
    """As much of SMTP as a client needs to send a mail."""

    def handle(self):
        self.wfile.write(b"220 here\r\n")
        while True:
            command = self.rfile.readline().upper()
            if not command:
                break
            if command.startswith(b"DATA"):
                self.wfile.write(b"354 go on\r\n")
                mail = b"".join(iter(self.rfile.readline, b".\r\n"))
                self.server.mails.append(mail.decode())
            answer = b"250 ok\r\n"
            if command.startswith(b"QUIT"):
                answer = b"221 bye\r\n"
            self.wfile.write(answer)


@pytest.fixture
def mail_server():
    with socketserver.TCPServer(("127.0.0.1", 0), MailHandler) as server:
        server.mails = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def problems(project, monkeypatch):
    """A stuck document, a failed pilot, drift, and a refused challenger."""
    receive(project, "a")
    monkeypatch.setattr(notices, "MAX_WAIT_SECONDS", 0.0)

    ledger = collection_of(project).ledger
    pilot = ledger.tasks.request(
        TaskKind.PILOT, "hce", EventRange(1, 1), "topics moved", requested_by="drift"
    )
    for attempt in range(MAX_ATTEMPTS):
        ledger.tasks.fail(pilot, "out of memory", f"run-{attempt}")
        pilot = next(iter(ledger.tasks.open("hce", TaskKind.PILOT)), pilot)

    measures = [{"name": "topics", "value": 0.3, "threshold": 0.1, "tripped": True}]
    ledger.record_drift_report({"report": {"measures": measures}}, (1, 1))
    refuse_version(project, "2", "worse: hit@1")


def refuse_version(project, version, reason):
    history.append(project, "refuse", "1", version, {"passed": False, "reasons": [reason]})


def test_mail_address_receives_mail(project, mail_server):
    host, port = mail_server.server_address
    address = f"mailto:me@example.org?server={host}:{port}"
    parameters.write_overrides(project.params_file, [f"live.webhook='{address}'"])

    notices.send_notice(project, ["the disk is full", "hce: drift of topics"])

    (mail,) = mail_server.mails
    assert "To: me@example.org" in mail
    assert "Subject: Freshet: the disk is full" in mail
    assert mail.rstrip().endswith("the disk is full\r\nhce: drift of topics")


def test_nothing_is_sent_while_all_is_well(received, context):
    assert "nothing is wrong" in notices_sensor(context).skip_message
    assert received == []


@pytest.mark.parametrize(
    "words",
    [
        "1 changes are waiting",
        "pilot failed, out of memory",
        "drift of topics",
        "refuse version 2: worse",
    ],
)
def test_problem_is_sent_and_shown(problems, received, context, words):
    shown = notices_sensor(context).skip_message

    (message,) = received
    assert words in message
    assert words in shown


def test_failed_run_is_sent_with_its_error(project, received, context):
    @dg.op
    def fails():
        raise ZeroDivisionError("division by zero")

    @dg.job
    def broken():
        fails()

    run = broken.execute_in_process(instance=context.instance, raise_on_error=False)

    notices_sensor(context)

    (message,) = received
    assert f"run {run.run_id[:8]} of broken failed: ZeroDivisionError: " in message


def test_problem_is_sent_once(problems, received, context):
    first = notices_sensor(context).skip_message
    second = notices_sensor(context).skip_message

    assert len(received) == 1
    assert second == first


def test_new_occurrence_is_sent_again(project, problems, received, context):
    notices_sensor(context)
    refuse_version(project, "3", "worse: R@100")

    notices_sensor(context)

    assert received[1:] == ["gate: refuse version 3: worse: R@100"]


def test_unsent_problem_is_sent_by_next_tick(problems, received, monkeypatch, context):
    with monkeypatch.context() as patch:
        patch.setattr(notices, "SEND_TIMEOUT_SECONDS", 0.0)
        with pytest.raises(httpx.HTTPError):
            notices_sensor(context)

    notices_sensor(context)

    assert "drift of topics" in received[-1]


def test_damaged_ledger_is_sent(project, received, context):
    receive(project, "a")
    for file in project.live.glob("ledger.sqlite*"):
        file.write_bytes(b"no database" * 500)

    notices_sensor(context)

    (message,) = received
    assert "ledger.sqlite is damaged" in message


def test_problems_are_shown_without_address(problems, context):
    assert "drift of topics" in notices_sensor(context).skip_message
