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
from model_code.project import Project
from model_code.text.passages import TextRules
from orchestration.running_service import service_registration

MB = 1 << 20
# Bytes of a refusal, including headers.
LONGEST_ANSWER = 4000
# Seconds to wait for an answer or the end of the connection.
PATIENCE = 10.0
POST = ("/search", "/search/batch", "/documents", "/documents/delete", "/feedback")


def rows(
    passages: int = 2000, megabytes: int = 1000, seconds: float = 600.0, base: str | Path = BASE
) -> list[dict[str, Any]]:
    """Send `megabytes` of hostile requests, then work for `seconds`, with one service."""
    with tempfile.TemporaryDirectory(prefix="freshet-hostile-") as folder:
        project = make_project(Path(folder), base, passages)
        with served(project) as client:
            for number in range(50):
                client.search(f"document {number} of the base")
            return [*_hostile(client, project, megabytes), *_everything(client, project, seconds)]


def bodies(large: int) -> dict[str, bytes]:
    """Return bodies of JSON, or nearly JSON, that no route accepts.

    large: Bytes of the bodies that are too large.
    """
    many = json.dumps(
        {"documents": [{"id": str(i), "text": "x"} for i in range(large // 30)]}
    ).encode()
    texts = json.dumps({"texts": ["x"] * (large // 5), "ids": ["x"] * (large // 5)}).encode()
    return {
        "too large a text": json.dumps(
            {"text": "x" * large, "documents": [{"id": "a", "text": "x" * large}]}
        ).encode(),
        "too many documents": many,
        "too many texts and ids": texts,
        "too large a field": json.dumps(
            {"documents": [{"id": "a", "text": "b", "field": "x" * large}]}
        ).encode(),
        "too many fields": json.dumps(
            {"documents": [{"id": "a"} | {str(i): i for i in range(large // 16)}]}
        ).encode(),
        "too large an id": json.dumps(
            {"documents": [{"id": "x" * large}], "ids": ["x" * large]}
        ).encode(),
        "deep lists": b'{"text": ' + b"[" * large,
        "deep objects": b'{"text": ' + b'{"a":' * (large // 5),
        "a long number": b'{"text": "a", "k": ' + b"9" * large + b"}",
        "numbers that are none": b'{"text": "a", "k": NaN, "min_generation": -Infinity}',
        "no UTF-8": b'{"text": "\xff\xfe", "ids": ["\xff"]}',
        "a lone surrogate": b'{"text": "\\ud800", "ids": ["\\ud800"], '
        b'"documents": [{"id": "\\ud800", "text": "a"}]}',
        "null characters": b'{"text": "\\u0000", "ids": ["\\u0000"], '
        b'"documents": [{"id": "\\u0000", "text": "a"}]}',
        "a cut body": b'{"text": "a',
        "no object": b"[1, 2, 3]",
        "nothing": b"",
        "other types": b'{"text": {"a": 1}, "k": "ten", "texts": 5, '
        b'"documents": "all", "ids": 7, "verdict": []}',
        "huge numbers": b'{"text": "a", "k": 1000000000000, '
        b'"min_generation": 9223372036854775808, "texts": ["a"]}',
        "deep filters": b'{"text": "a", "filters": ' + b'{"not": ' * 5000 + b"{}" + b"}" * 5001,
        "terminal escapes": b'{"text": "a", "retriever": "\\u001b[2J\\u202e", '
        b'"ids": ["\\u001b]0;x\\u0007"]}',
    }


def raw(large: int) -> dict[str, bytes]:
    """Return bytes that are not a valid request."""
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
        "a length that is none": head + b"Content-Length: many\r\n\r\n",
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
        + b"\r\n" * 1,
        "a chunk size that is none": head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
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
        "a body that waits for leave": head + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n",
        "many at once": (head + b"Content-Length: 2\r\n\r\n{}") * 1000,
        "an end at once": b"",
    }


def requests(large: int) -> Iterator[tuple[str, bytes]]:
    """Yield each kind once: its name and its bytes; a body goes to each route in turn."""
    for (name, body), path in zip(bodies(large).items(), cycle(POST)):
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            "Content-Type: application/json\r\nConnection: close\r\n"
        )
        yield f"{name} to {path}", f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    yield from raw(large).items()


def send(address: tuple[str, int], content: bytes) -> tuple[int, bytes]:
    """Send the bytes; return how many were accepted, and the answer.

    The answer ends with the connection, or when nothing more arrives.
    """
    sent, answer, view = 0, b"", memoryview(content)
    with socket.create_connection(address, PATIENCE) as connection, suppress(OSError):
        # The service may close the connection early. This counts as an answer.
        with suppress(OSError):
            while sent < len(content):
                sent += connection.send(view[sent : sent + 65536])
        connection.shutdown(socket.SHUT_WR)
        while (piece := connection.recv(65536)) and len(answer) < MB:
            answer += piece
    return sent, answer


def _hostile(client: Client, project: Project, megabytes: int) -> list[dict[str, Any]]:
    service, url = _process(project), urlsplit(client.url)
    before, sent, kinds, large, wrong = service.memory_info().rss, 0, set(), MB, []
    with watched(service) as seen, searching(client, 1) as found:
        while sent < megabytes * MB:
            for name, content in requests(large):
                taken, answer = send((str(url.hostname), int(url.port or 0)), content)
                sent, kinds = sent + taken, kinds | {name}
                status = answer[9:12]
                allowed = LONGEST_ANSWER * (1000 if name == "many at once" else 1)
                if len(answer) > allowed or status.startswith(b"5") or b"Traceback" in answer:
                    wrong.append(f"{name}: {answer[:200]!r}, {len(answer)} bytes")
            large = min(large * 4, 64 * MB)
    for line in dict.fromkeys(wrong):
        print(line, file=sys.stderr)
    little = seen["rss"] <= 1.5 * before
    what = f"{len(kinds)} kinds of hostile requests, {sent / MB:.0f} MB:"
    return [
        row_stated(
            f"{what} answers that are long, or say it failed", len(wrong), 0, "== 0", not wrong
        ),
        row_stated(
            f"{what} searches of others that failed",
            len(found["errors"]),
            len(found["seconds"]),
            "== 0",
        ),
        row_stated(
            f"{what} peak memory against before (MB)",
            seen["rss"] / MB,
            before / MB,
            "<= 1.5 times",
            little,
        ),
        row_stated(
            f"{what} search of others, p99 (s)", float(np.quantile(found["seconds"], 0.99)), 1, "-"
        ),
    ]


def _everything(client: Client, project: Project, seconds: float) -> list[dict[str, Any]]:
    service, failed, written = _process(project), Counter[str](), Counter[str]()
    until = time.monotonic() + seconds
    work = {
        "HTTP 1": lambda number: client.add(documents(f"first-{number}", 3)),
        "HTTP 2": lambda number: client.add(documents(f"second-{number}", 3)),
        "CLI": lambda number: _add(project, documents(f"cli-{number}", 3)),
    }

    def writes(name: str, write: Callable[[int], object]) -> None:
        """Call `write` five times a second with consecutive numbers, and count failures."""
        while time.monotonic() < until:
            try:
                write(written[name])
            # Every failure is counted, whatever its type.
            except Exception as error:
                failed[f"{name}: {error}"[:300]] += 1
            written[name] += 1
            time.sleep(0.2)

    threads = [threading.Thread(target=writes, args=each) for each in work.items()]
    with searching(client, 8) as found:
        for thread in threads:
            thread.start()
        time.sleep(seconds / 3)
        early = _levels(service)
        _freshet(project, "tools", "compact")
        _promote(project)
        for thread in threads:
            thread.join()
        late = _levels(service)
    for line in [*failed, *found["errors"]]:
        print(line, file=sys.stderr)
    errors = failed.total() + len(found["errors"])
    what = (
        f"8 readers, {written.total()} writes of 3 writers, a compaction, another build, "
        f"{seconds:g} s:"
    )
    table = [
        row_stated(
            f"{what} errors, of all",
            errors,
            len(found["seconds"]) + written.total(),
            "== 0",
            not errors,
        )
    ]
    table += [
        row_stated(
            f"{what} {name}, at the end against early",
            late[name],
            early[name],
            "<= 1.3 times",
            ratio <= 1.3,
        )
        for name in early
        for ratio in (late[name] / early[name],)
    ]
    for name, quantile in (("p50", 0.5), ("p99", 0.99)):
        table.append(
            row_stated(
                f"{what} search {name} (s)", float(np.quantile(found["seconds"], quantile)), 1, "-"
            )
        )
    return table


def _process(project: Project) -> psutil.Process:
    return psutil.Process((service_registration(project.state) or {})["pid"])


def _levels(service: psutil.Process) -> dict[str, float]:
    return {"memory (MB)": service.memory_info().rss / MB, "open files": float(service.num_fds())}


@contextmanager
def watched(service: psutil.Process) -> Iterator[dict[str, float]]:
    """Yield a dict whose `rss` is the peak memory of the service in this block."""
    stop, seen = threading.Event(), {"rss": float(service.memory_info().rss)}

    def watch() -> None:
        """Update the peak of the resident memory, in bytes, twenty times a second."""
        while not stop.wait(0.05):
            seen["rss"] = max(seen["rss"], float(service.memory_info().rss))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


@contextmanager
def searching(client: Client, readers: int) -> Iterator[dict[str, list[Any]]]:
    """Run searching clients in this block; yield `seconds` and `errors` of each search."""
    stop, found = threading.Event(), {"seconds": [], "errors": []}

    def search(number: int) -> None:
        """Search as one client until the end; keep the seconds and errors of each search."""
        while not stop.wait(0.05):
            began = time.perf_counter()
            try:
                client.search(f"the marked page {number} of the almanac")
            # Every failure is counted, whatever its type.
            except Exception as error:
                found["errors"].append(str(error)[:300])
            found["seconds"].append(time.perf_counter() - began)

    threads = [threading.Thread(target=search, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _add(project: Project, given: list[dict[str, Any]]) -> None:
    _freshet(project, "add", "-", given="".join(json.dumps(row) + "\n" for row in given))


def _freshet(project: Project, *command: str, given: str = "") -> None:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")
    }
    done = subprocess.run(
        [sys.executable, "-m", "orchestration.cli", *command],
        cwd=project.root,
        env=environment | {"PYTHONPATH": str(CLONE)},
        input=given,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"freshet {command[0]}: {done.stdout[-300:]} {done.stderr[-300:]}")


def _promote(project: Project) -> None:
    """Open another build, like a promotion: the same vectors with another tree."""
    from model_code.hierarchy.tree import Hierarchy

    build = project.root / "build"
    tree = Hierarchy.load(build / "hierarchy")
    Hierarchy(tree.centroids, tree.parents, tree.leaves[::-1].copy()).save(build / "hierarchy")
    parts = BuildArtifacts(
        *(build / name for name in ("encoder", "index", "documents.parquet", "hierarchy"))
    )
    collection = LiveIndex(project, RETRIEVER)
    rules = TextRules(include_title=True, words=180, stride=150)
    open_build(project, RETRIEVER, parts, {}, rules, collection.ledger.position(0))
    collection.ledger.close()
