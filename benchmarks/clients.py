"""Measure searches of several clients at once, by threads of the service and by search processes.

One service searches in its threads, another one in processes. Both have the same documents, and
encode all queries. Clients search without a pause. The two services take turns, so that a busy
machine slows down both.

The clients are threads of this process and need processor time as well, which is measured too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.freshness import BASE, documents
from benchmarks.live_service import ServiceProcess, make_project
from benchmarks.measurement import row, row_below, row_without_goal
from model_code.errors import FreshetError

# Numbers of clients that search at the same time.
CLIENTS = (1, 4)
PROCESSES = 2
ROUNDS = 3
K = 10
WORDS_PER_QUERY = 6
# Number of documents between the first queries of two clients.
QUERY_DISTANCE = 997
# Longest wait until the search processes are ready.
START_SECONDS = 120.0
# Goals: queries per second as a ratio to those of threads, by number of clients.
MIN_RATIO = {1: 0.9, 4: 1.5}
BYTES_PER_MB = 1_000_000
MILLISECONDS = 1000.0


def rows(
    passages: int = 10_000,
    seconds: float = 5.0,
    base: str | Path = BASE,
    processes: int = PROCESSES,
    rounds: int = ROUNDS,
) -> list[dict[str, Any]]:
    """Compare a service that searches in processes with one that searches in threads.

    Args:
        passages: Number of documents of one passage each.
        seconds: Duration of each measurement.
        base: Encoder of the queries.
        processes: Number of search processes of the first service.
        rounds: How often each measurement is repeated.
    """
    texts = [document["text"] for document in documents("base", passages)]
    queries = [" ".join(text.split()[:WORDS_PER_QUERY]) for text in texts]
    with ExitStack() as stack:
        services: list[ServiceProcess] = []
        for count in (processes, 0):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="freshet-clients-"))
            project = make_project(
                Path(folder), base, passages, texts, feedback=0.3, search_processes=count
            )
            service = stack.enter_context(ServiceProcess(project))
            wait_for_processes(service, count)
            services.append(service)

        logs: dict[tuple[int, int], Log] = {}
        for _ in range(rounds):
            for clients in CLIENTS:
                for i, service in enumerate(services):
                    log = logs.setdefault((clients, i), Log())
                    measure(service, queries, clients, seconds, log)
        megabytes = [memory(service) for service in services]

    results: list[dict[str, Any]] = []
    for clients in CLIENTS:
        results.extend(_result_rows(clients, logs[clients, 0], logs[clients, 1]))
    results.append(row_without_goal("memory of all processes, MB", *megabytes))
    return results


@dataclass
class Log:
    """The searches of some clients of one service.

    Attributes:
        latencies: Seconds of each search.
        seconds: Duration of all measurements together.
        service_seconds: Processor time of all processes of the service.
        client_seconds: Processor time of the clients.
    """

    latencies: list[float] = field(default_factory=list)
    seconds: float = 0.0
    service_seconds: float = 0.0
    client_seconds: float = 0.0

    @property
    def rate(self) -> float:
        """Queries per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return a percentile of the latencies in milliseconds."""
        return float(np.percentile(self.latencies, percent)) * MILLISECONDS

    def service_milliseconds(self) -> float:
        """Return the processor time of the service per query, in milliseconds."""
        return self.service_seconds / len(self.latencies) * MILLISECONDS

    def client_milliseconds(self) -> float:
        """Return the processor time of the clients per query, in milliseconds."""
        return self.client_seconds / len(self.latencies) * MILLISECONDS


def processes_of(service: ServiceProcess) -> list[psutil.Process]:
    """Return the process of a service and its child processes."""
    process = psutil.Process(service.pid)
    return [process, *process.children()]


def wait_for_processes(service: ServiceProcess, count: int) -> None:
    """Wait until all search processes of a service are ready.

    Raises:
        FreshetError: If they are not within `START_SECONDS`.
    """
    deadline = time.monotonic() + START_SECONDS
    while service.client.status()["search_processes"] < count:
        if time.monotonic() > deadline:
            raise FreshetError(f"{count} search processes were not ready in {START_SECONDS:g} s")
        time.sleep(0.1)


def measure(
    service: ServiceProcess, queries: Sequence[str], clients: int, seconds: float, log: Log
) -> None:
    """Search with some clients at the same time, and add the searches to a log.

    Args:
        service: The service.
        queries: The queries. Each client begins at another one.
        clients: Number of clients, each in a thread.
        seconds: Duration.
        log: Receives the searches.
    """
    processes = processes_of(service)
    service_start = sum(cpu_seconds(process) for process in processes)
    client_start = time.process_time()
    started = time.monotonic()
    deadline = started + seconds

    def search(first: int) -> list[float]:
        latencies: list[float] = []
        number = first
        while time.monotonic() < deadline:
            search_start = time.monotonic()
            service.client.search(queries[number % len(queries)], k=K)
            latencies.append(time.monotonic() - search_start)
            number += 1
        return latencies

    with ThreadPoolExecutor(clients) as pool:
        for latencies in pool.map(search, range(0, clients * QUERY_DISTANCE, QUERY_DISTANCE)):
            log.latencies.extend(latencies)
    log.seconds += time.monotonic() - started
    log.service_seconds += sum(cpu_seconds(process) for process in processes) - service_start
    log.client_seconds += time.process_time() - client_start


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time that a process has used."""
    times = process.cpu_times()
    return times.user + times.system


def memory(service: ServiceProcess) -> float:
    """Return the memory of a service with its child processes in MB.

    A page that several processes share is counted once (PSS).
    """
    total = sum(process.memory_full_info().pss for process in processes_of(service))
    return total / BYTES_PER_MB


def _result_rows(clients: int, ours: Log, peer: Log) -> list[dict[str, Any]]:
    """Return the rows of one number of clients.

    Args:
        clients: Number of clients.
        ours: Searches by processes.
        peer: Searches by threads.
    """
    name = "1 client" if clients == 1 else f"{clients} clients"
    return [
        row(f"{name}, queries/s", ours.rate, peer.rate, MIN_RATIO[clients]),
        row_below(f"{name}, p50 ms", ours.percentile(50), peer.percentile(50), 1.1),
        row_below(f"{name}, p95 ms", ours.percentile(95), peer.percentile(95), 1.1),
        row_without_goal(
            f"{name}, processor ms per query",
            ours.service_milliseconds(),
            peer.service_milliseconds(),
        ),
        row_without_goal(
            f"{name}, processor ms per query of the client",
            ours.client_milliseconds(),
            peer.client_milliseconds(),
        ),
    ]
