"""Measure a service under hostile requests, and under all kinds of work at once.

First about fifty kinds of hostile requests are repeated until a number of megabytes has been sent,
while a client searches. Each request must be refused with a short answer or a closed connection.
Other requests must be served, and memory must not grow. Then eight readers, two writers over HTTP
and one writer by `freshet add` run together with a compaction and another build in the middle.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import psutil

from benchmarks.freshness import BASE, documents
from benchmarks.live_service import CLONE, RETRIEVER, make_project, served
from benchmarks.measurement import row_stated
from freshet import Client
from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.index.builds import open_build
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.passages import TextRules
from orchestration.running_service import service_registration

MB = 1 << 20
# Largest value of `large`, the size of those requests that are meant to be too large, in bytes.
MAX_REQUEST_BYTES = 64 * MB
# Limit on the bytes of a refusal, including headers.
MAX_ANSWER_BYTES = 4000
# Name of the kind that sends many requests on one connection, and the number of these requests.
MANY_AT_ONCE = "many at once"
REQUESTS_AT_ONCE = 1000
# Bytes that are sent or received by one call of the socket.
SOCKET_BYTES = 65536
# Seconds to wait for an answer or the end of the connection.
ANSWER_TIMEOUT_SECONDS = 10.0
# Goals: largest ratio of the service's memory after the hostile requests to before, and largest
# ratio of its memory and open files after the mixed work to before.
MAX_HOSTILE_GROWTH = 1.5
MAX_LOAD_GROWTH = 1.3
# Number of clients that search in the second part.
READERS = 8
# Routes of the service that take a body. The hostile bodies are sent to them in turn.
POST = ("/search", "/search/batch", "/documents", "/documents/delete", "/feedback")


def rows(
    passages: int = 2000, megabytes: int = 1000, seconds: float = 600.0, base: str | Path = BASE
) -> list[dict[str, Any]]:
    """Send hostile requests to a service, then search and write in it at the same time.

    Args:
        passages: Number of documents of the service.
        megabytes: Number of megabytes of hostile requests that are sent in the first part.
        seconds: Duration of the second part, in which others search and write.
        base: Encoder of the service.
    """
    with tempfile.TemporaryDirectory(prefix="freshet-hostile-") as folder:
        project = make_project(Path(folder), base, passages)
        with served(project) as client:
            # The memory of the first searches must not count as growth.
            for number in range(50):
                client.search(f"document {number} of the base")
            results = _hostile_rows(client, project, megabytes)
            results.extend(_load_rows(client, project, seconds))
            return results


def bodies(large: int) -> dict[str, bytes]:
    """Return request bodies that no route accepts, by a description of each.

    Args:
        large: Size of the bodies that are meant to be too large, in bytes.
    """
    long_text = "x" * large
    many_documents = [{"id": str(i), "text": "x"} for i in range(large // 30)]
    many_texts = ["x"] * (large // 5)
    document_of_many_fields: dict[str, Any] = {"id": "a"}
    for i in range(large // 16):
        document_of_many_fields[str(i)] = i

    return {
        "too large a text": _encode_json(
            {"text": long_text, "documents": [{"id": "a", "text": long_text}]}
        ),
        "too many documents": _encode_json({"documents": many_documents}),
        "too many texts and ids": _encode_json({"texts": many_texts, "ids": many_texts}),
        "too large a field": _encode_json(
            {"documents": [{"id": "a", "text": "b", "field": long_text}]}
        ),
        "too many fields": _encode_json({"documents": [document_of_many_fields]}),
        "too large an id": _encode_json({"documents": [{"id": long_text}], "ids": [long_text]}),
        "deep lists": b'{"text": ' + b"[" * large,
        "deep objects": b'{"text": ' + b'{"a":' * (large // 5),
        "a long number": b'{"text": "a", "k": ' + b"9" * large + b"}",
        "values that are not numbers": b'{"text": "a", "k": NaN, "min_generation": -Infinity}',
        "not UTF-8": b'{"text": "\xff\xfe", "ids": ["\xff"]}',
        "a lone surrogate": b'{"text": "\\ud800", "ids": ["\\ud800"], '
        b'"documents": [{"id": "\\ud800", "text": "a"}]}',
        "null characters": b'{"text": "\\u0000", "ids": ["\\u0000"], '
        b'"documents": [{"id": "\\u0000", "text": "a"}]}',
        "a truncated body": b'{"text": "a',
        "not an object": b"[1, 2, 3]",
        "an empty body": b"",
        "other types": b'{"text": {"a": 1}, "k": "ten", "texts": 5, '
        b'"documents": "all", "ids": 7, "verdict": []}',
        "huge numbers": b'{"text": "a", "k": 1000000000000, '
        b'"min_generation": 9223372036854775808, "texts": ["a"]}',
        "deep filters": b'{"text": "a", "filters": ' + b'{"not": ' * 5000 + b"{}" + b"}" * 5001,
        "terminal escapes": b'{"text": "a", "retriever": "\\u001b[2J\\u202e", '
        b'"ids": ["\\u001b]0;x\\u0007"]}',
    }


def _encode_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def raw(large: int) -> dict[str, bytes]:
    """Return bytes that are not a valid HTTP request, by a description of each.

    Args:
        large: Size of the requests that are meant to be too large, in bytes.
    """
    # Unfinished heads of a valid request with a body, and of a valid one without.
    head = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    get = b"GET /status HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    return {
        "noise": os.urandom(large),
        "a line without end": b"A" * large,
        "a long path": b"GET /" + b"a" * large + b" HTTP/1.1\r\n\r\n",
        "a long header": get + b"X: " + b"a" * large + b"\r\n\r\n",
        "many headers": get + b"X: a\r\n" * (large // 6) + b"\r\n",
        "a header without a colon": get + b"nonsense\r\n\r\n",
        "a long cookie": get + b"Cookie: " + b"a=b; " * (large // 5) + b"\r\n\r\n",
        "another host": b"GET /status HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        "no host": b"GET /status HTTP/1.1\r\n\r\n",
        "another origin": head + b"Origin: https://evil.example\r\nContent-Length: 2\r\n\r\n{}",
        "a negative length": head + b"Content-Length: -5\r\n\r\n",
        "a length that is not a number": head + b"Content-Length: many\r\n\r\n",
        "a length too large": head + b"Content-Length: 99999999999999\r\n\r\n" + b"x" * large,
        "two lengths": head + b"Content-Length: 2\r\nContent-Length: 9\r\n\r\n{}",
        "length and chunks": head
        + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "a chunk too large": head
        + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFF\r\n"
        + b"x" * large,
        "chunks without end": head
        + b"Transfer-Encoding: chunked\r\n\r\n"
        + b"400\r\n"
        + b"x" * 1024
        + b"\r\n",
        "a chunk size that is not a number": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        "an unknown encoding": head + b"Content-Encoding: br\r\nContent-Length: 2\r\n\r\n\xff\xff",
        "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(512),
        "an unknown method": b"BREW / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "CONNECT": b"CONNECT evil.example:443 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "a change by GET": b"GET /documents/delete HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "a path out of the tree": b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "a path with a null": b"GET /documents/%00%ff%2e%2e HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        "a web socket": get
        + b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: x\r\n\r\n",
        "a body that waits for permission": head
        + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        MANY_AT_ONCE: (head + b"Content-Length: 2\r\n\r\n{}") * REQUESTS_AT_ONCE,
        "an empty request": b"",
    }


def requests(large: int) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the bytes of each kind of hostile request.

    Each body is sent to one of the routes in `POST`; the routes take turns.

    Args:
        large: Size of the requests that are meant to be too large, in bytes.
    """
    for (name, body), path in zip(bodies(large).items(), cycle(POST)):
        head = (
            f"POST {path} HTTP/1.1\r\n"
            "Host: 127.0.0.1\r\n"
            "Content-Type: application/json\r\n"
            "Connection: close\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        yield f"{name} to {path}", head.encode() + body
    yield from raw(large).items()


def send(address: tuple[str, int], content: bytes) -> tuple[int, bytes]:
    """Send bytes to the service, and receive its answer.

    The service may close the connection at any time. This counts as a refusal, and the answer is
    then empty or what arrived before.

    Args:
        address: Host and port of the service.
        content: Bytes to send.

    Returns:
        The number of bytes that were sent, and the answer. The answer ends when the service closes
        the connection, after `ANSWER_TIMEOUT_SECONDS` without a byte, or at about one megabyte.
    """
    sent = 0
    answer = b""
    view = memoryview(content)
    with socket.create_connection(address, ANSWER_TIMEOUT_SECONDS) as connection:
        # The service may refuse a request before it has read all of it. Its answer is still read.
        with suppress(OSError):
            while sent < len(content):
                sent += connection.send(view[sent : sent + SOCKET_BYTES])

        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
            while len(answer) < MB:
                received = connection.recv(SOCKET_BYTES)
                if not received:
                    break
                answer += received
    return sent, answer


def _hostile_rows(client: Client, project: Project, megabytes: int) -> list[dict[str, Any]]:
    """Send hostile requests of growing sizes while another client searches.

    Args:
        client: Client of the service, which the searches use.
        project: Project of the service.
        megabytes: Number of megabytes after which the requests end.

    Returns:
        Rows about the answers, the failed searches, the service's memory, and the search times.
    """
    service = _service_process(project)
    url = urlsplit(client.url)
    address = (str(url.hostname), int(url.port or 0))
    memory_before = service.memory_info().rss

    total_bytes = 0
    kinds = set()
    problems = []
    large = MB
    with watched(service) as peak, searching(client, 1) as searches:
        while total_bytes < megabytes * MB:
            for kind, content in requests(large):
                sent_bytes, answer = send(address, content)
                total_bytes += sent_bytes
                kinds.add(kind)
                if not _is_refusal(kind, answer):
                    problems.append(f"{kind}: {answer[:200]!r}, {len(answer)} bytes")
            large = min(large * 4, MAX_REQUEST_BYTES)

    # The same problem occurs with each size, and is printed once.
    for problem in dict.fromkeys(problems):
        print(problem, file=sys.stderr)

    label = f"{len(kinds)} kinds of hostile requests, {total_bytes / MB:.0f} MB:"
    memory_stays = peak["rss"] <= MAX_HOSTILE_GROWTH * memory_before
    p99 = float(np.quantile(searches["seconds"], 0.99))
    return [
        row_stated(
            f"{label} answers that are long, or say it failed",
            len(problems),
            0,
            "== 0",
            not problems,
        ),
        row_stated(
            f"{label} searches of others that failed",
            len(searches["errors"]),
            len(searches["seconds"]),
            "== 0",
        ),
        row_stated(
            f"{label} peak memory against before (MB)",
            peak["rss"] / MB,
            memory_before / MB,
            f"<= {MAX_HOSTILE_GROWTH} times",
            memory_stays,
        ),
        row_stated(f"{label} search of others, p99 (s)", p99, 1, "-"),
    ]


def _is_refusal(kind: str, answer: bytes) -> bool:
    """Return whether an answer is short and reports no failure of the service."""
    max_bytes = MAX_ANSWER_BYTES
    if kind == MANY_AT_ONCE:
        max_bytes *= REQUESTS_AT_ONCE
    is_short = len(answer) <= max_bytes
    # An answer begins with "HTTP/1.1 " and the status code. Codes from 500 on report a failure.
    status = answer[9:12]
    reports_failure = status.startswith(b"5") or b"Traceback" in answer
    return is_short and not reports_failure


def _load_rows(client: Client, project: Project, seconds: float) -> list[dict[str, Any]]:
    """Run readers, writers, a compaction and another build at the same time.

    Memory and open files are measured after a third of the time and at the end.

    Args:
        client: Client of the service.
        project: Project of the service.
        seconds: Duration of the work.
    """
    service = _service_process(project)
    writers = _Writers(client, project, time.monotonic() + seconds)
    with searching(client, READERS) as searches:
        writers.start()
        time.sleep(seconds / 3)
        early_usage = _resource_usage(service)
        _run_freshet(project, "tools", "compact")
        _open_other_build(project)
        writers.join()
        late_usage = _resource_usage(service)

    for problem in (*writers.failures, *searches["errors"]):
        print(problem, file=sys.stderr)
    errors = writers.failures.total() + len(searches["errors"])
    writes = writers.writes.total()
    requests_sent = len(searches["seconds"]) + writes
    label = (
        f"{READERS} readers, {writes} writes of {len(writers.threads)} writers, "
        f"a compaction, another build, {seconds:g} s:"
    )

    results = [row_stated(f"{label} errors, of all", errors, requests_sent, "== 0", errors == 0)]
    for resource, early in early_usage.items():
        late = late_usage[resource]
        results.append(
            row_stated(
                f"{label} {resource}, at the end against early",
                late,
                early,
                f"<= {MAX_LOAD_GROWTH} times",
                late / early <= MAX_LOAD_GROWTH,
            )
        )
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        search_seconds = float(np.quantile(searches["seconds"], quantile))
        results.append(row_stated(f"{label} search {name} (s)", search_seconds, 1, "-"))
    return results


class _Writers:
    """Two threads that add documents over HTTP, and one that adds them by command.

    Args:
        client: The service to which the documents are added.
        project: The project of the service.
        deadline: Time of `time.monotonic` at which the threads end.

    Attributes:
        writes: Number of additions that each writer tried.
        failures: How often each error occurred, by writer and message.
        threads: One thread per writer.
    """

    def __init__(self, client: Client, project: Project, deadline: float) -> None:
        self.client = client
        self.project = project
        self.deadline = deadline
        self.writes = Counter[str]()
        self.failures = Counter[str]()
        writers: dict[str, Callable[[int], None]] = {
            "HTTP 1": partial(self._add_over_http, "first"),
            "HTTP 2": partial(self._add_over_http, "second"),
            "CLI": self._add_by_command,
        }
        self.threads = [
            threading.Thread(target=self._write_until_deadline, args=(writer, write))
            for writer, write in writers.items()
        ]

    def start(self) -> None:
        """Start the threads."""
        for thread in self.threads:
            thread.start()

    def join(self) -> None:
        """Wait until the deadline has ended all threads."""
        for thread in self.threads:
            thread.join()

    def _add_over_http(self, prefix: str, number: int) -> None:
        self.client.add(documents(f"{prefix}-{number}", 3))

    def _add_by_command(self, number: int) -> None:
        lines = [json.dumps(document) + "\n" for document in documents(f"cli-{number}", 3)]
        _run_freshet(self.project, "add", "-", stdin="".join(lines))

    def _write_until_deadline(self, writer: str, write: Callable[[int], None]) -> None:
        """Call `write` five times a second with consecutive numbers, and count failures."""
        while time.monotonic() < self.deadline:
            try:
                write(self.writes[writer])
            # Every failure is counted, whatever its type.
            except Exception as error:
                self.failures[f"{writer}: {error}"[:300]] += 1
            self.writes[writer] += 1
            time.sleep(0.2)


def _service_process(project: Project) -> psutil.Process:
    """Return the process of the running service; raise FreshetError if there is none."""
    registration = service_registration(project.state)
    if registration is None:
        raise FreshetError("the service of the benchmark has ended; its message is above")
    return psutil.Process(registration["pid"])


def _resource_usage(service: psutil.Process) -> dict[str, float]:
    """Return the resident memory and the number of open files of the service, by row name."""
    memory = service.memory_info().rss / MB
    return {"memory (MB)": memory, "open files": float(service.num_fds())}


@contextmanager
def watched(service: psutil.Process) -> Iterator[dict[str, float]]:
    """Yield a dict whose `rss` is the peak memory of the service in this block, in bytes."""
    stop = threading.Event()
    peak = {"rss": float(service.memory_info().rss)}

    def watch() -> None:
        """Update the peak of the resident memory twenty times a second."""
        while not stop.wait(0.05):
            peak["rss"] = max(peak["rss"], float(service.memory_info().rss))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@contextmanager
def searching(client: Client, readers: int) -> Iterator[dict[str, list[Any]]]:
    """Search with several threads until the block ends.

    Args:
        client: Client of the service.
        readers: Number of threads.

    Yields:
        A dict with `seconds`, the duration of each search, and `errors`, messages of failed ones.
        The threads append to it.
    """
    stop = threading.Event()
    searches: dict[str, list[Any]] = {"seconds": [], "errors": []}

    def search(number: int) -> None:
        """Search as one client until the end, and append the seconds and errors of each search."""
        while not stop.wait(0.05):
            started = time.perf_counter()
            try:
                client.search(f"the marked page {number} of the almanac")
            # Every failure is counted, whatever its type.
            except Exception as error:
                searches["errors"].append(str(error)[:300])
            searches["seconds"].append(time.perf_counter() - started)

    threads = [threading.Thread(target=search, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield searches
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _run_freshet(project: Project, *command: str, stdin: str = "") -> None:
    """Run a command of this clone in the project's folder.

    Variables whose names begin with FRESHET_ are left out, because they may name another project.

    Raises:
        RuntimeError: If the command fails.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
    }
    environment["PYTHONPATH"] = str(CLONE)
    completed = subprocess.run(
        [sys.executable, "-m", "orchestration.cli", *command],
        cwd=project.root,
        env=environment,
        input=stdin,
        capture_output=True,
        text=True,
    )
    if completed.returncode != 0:
        output = f"{completed.stdout[-300:]} {completed.stderr[-300:]}"
        raise RuntimeError(f"freshet {command[0]}: {output}")


def _open_other_build(project: Project) -> None:
    """Open another build while the service runs, like a promotion.

    It differs from the first build in its hierarchy: each passage is in the leaf of another one. A
    build that is equal to the first one would not be opened again.
    """
    from model_code.hierarchy.tree import Hierarchy

    build = project.root / "build"
    hierarchy = Hierarchy.load(build / "hierarchy")
    reversed_leaves = hierarchy.leaves[::-1].copy()
    Hierarchy(hierarchy.centroids, hierarchy.parents, reversed_leaves).save(build / "hierarchy")

    artifacts = BuildArtifacts(
        encoder=build / "encoder",
        index=build / "index",
        documents=build / "documents.parquet",
        hierarchy=build / "hierarchy",
    )
    rules = TextRules(include_title=True, words=180, stride=150)
    live_index = LiveIndex(project, RETRIEVER)
    open_build(project, RETRIEVER, artifacts, {}, rules, live_index.ledger.position(0))
    live_index.ledger.close()
