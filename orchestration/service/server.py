"""Run the service until a signal stops it.

After the signal, the service accepts no more requests, finishes the running ones, and ends.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType

import uvicorn
from fastapi import FastAPI

from model_code.collection.follow.follower import Follower
from model_code.collection.settings import MAX_SEARCH_PROCESSES, LiveSettings
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.settings import require
from orchestration.guard import (
    LOOPBACK_ADDRESSES,
    check_origins,
    connection_limits,
    local_address,
    required_token,
)
from orchestration.running_service import NoRegistration, Registration
from orchestration.service.app import create_app
from orchestration.service.apply_process import ApplyProcess
from orchestration.service.telemetry import telemetry_from_environment

# Largest number of seconds from the signal to the end of the process. It is smaller than the 90
# seconds after which systemd kills a process.
STOP_SECONDS = 60
# Number of these seconds in which running requests can end. The rest is for the changes that they
# have queued.
REQUEST_SECONDS = 40


def serve(
    project: Project,
    host: str,
    port: int,
    registration: Registration | NoRegistration,
    token: bool = False,
    origins: Sequence[str] = (),
    follower: Follower | None = None,
    search_processes: int | None = None,
) -> None:
    """Serve a project until SIGINT, SIGTERM or SIGHUP.

    Args:
        project: The project.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        registration: Publishes the address of the service for clients on this machine.
        token: Whether the token is also required on this machine's own addresses.
        origins: Other sites whose pages may send requests.
        follower: Updates the project from a published collection. None if the project is not a
            copy of one.
        search_processes: Number of processes that search. None: the setting
            `live.search_processes`.

    Raises:
        FreshetError: If the port is taken, the live index is damaged, or OpenTelemetry is
            configured without its exporter.
    """
    check_origins(origins)
    telemetry = telemetry_from_environment()
    expected_token = required_token(host, project.token_file, token)
    if host not in LOOPBACK_ADDRESSES:
        print(
            f"note: listening on {host}; requests need the token in {project.token_file}. "
            "Without a TLS proxy in front, the token can be read on the network.",
            file=sys.stderr,
            flush=True,
        )

    process_count = choose_search_processes(project, search_processes)
    with bind_socket(host, port) as listening_socket:
        app = create_app(
            project,
            host,
            expected_token,
            origins,
            follower,
            telemetry,
            make_apply_process(project),
            process_count,
        )
        bound_host, bound_port = listening_socket.getsockname()[:2]
        server = _Server(app, registration, local_address(bound_host, bound_port))
        # The service is started here and not inside the server, which would print a traceback for
        # an error.
        app.state.service.start()
        try:
            server.run(sockets=[listening_socket])
        finally:
            is_finished = app.state.service.stop(server.seconds_left)

    if not server.started:
        raise FreshetError("the service could not start; its messages above say why")
    if is_finished:
        print("stopped; everything that was received is kept", flush=True)
        return
    print(
        "stopped; changes that could not be made searchable in time are in the ledger, "
        "and the next start applies them",
        flush=True,
    )
    registration.withdraw()
    # Threads may still work, or wait for a lock of another process. The process does not wait for
    # them: the data survives their sudden end, as it survives `kill -9`.
    os._exit(0)


def make_apply_process(project: Project) -> ApplyProcess | None:
    """Return the process that applies changes, which is not started yet.

    None if the service cannot change the project, or the setting `live.apply_process` is off.
    """
    is_changeable = not project.is_follower and not project.is_read_only
    if is_changeable and project.settings("live", LiveSettings).apply_process:
        return ApplyProcess(project)
    return None


def choose_search_processes(project: Project, requested: int | None) -> int:
    """Return the number of processes that search.

    Args:
        project: The project.
        requested: The option `--search-processes`. None: the setting `live.search_processes`.

    Raises:
        SettingsError: If the number is too large.
    """
    if requested is None:
        return project.settings("live", LiveSettings).search_processes
    require(
        requested <= MAX_SEARCH_PROCESSES,
        f"--search-processes is {requested}, but one service has at most {MAX_SEARCH_PROCESSES}",
    )
    return requested


class _Server(uvicorn.Server):
    """A uvicorn server that registers itself while it accepts requests."""

    def __init__(self, app: FastAPI, registration: Registration | NoRegistration, url: str) -> None:
        """Configure uvicorn, and handle the signals that end the service.

        Args:
            app: The service.
            registration: Publishes the address of the service for clients on this machine.
            url: The address.
        """
        # `lifespan` is off because `serve` starts and stops the service itself.
        config = uvicorn.Config(
            app,
            timeout_graceful_shutdown=REQUEST_SECONDS,
            log_level="warning",
            access_log=False,
            lifespan="off",
            **connection_limits(),
        )
        super().__init__(config)
        self.registration = registration
        self.url = url
        self.service = app.state.service
        self.stopping_since: float | None = None
        # uvicorn handles only SIGINT and SIGTERM, and raises them again when it has ended.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self.handle_exit)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and register the service."""
        await super().startup(sockets)
        if self.started:
            self.registration.announce(self.url, self.service.started)
            print(
                f"serving {self.url}   (open it to search; API: {self.url}/docs; Ctrl-C stops it)",
                flush=True,
            )

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """Begin to stop when a signal arrives, and remember the time for `seconds_left`."""
        if self.stopping_since is None:
            self.stopping_since = time.monotonic()
        super().handle_exit(number, frame)

    @property
    def seconds_left(self) -> float:
        """Seconds until the process has to end; `STOP_SECONDS` before a signal arrives."""
        if self.stopping_since is None:
            return STOP_SECONDS
        return STOP_SECONDS - (time.monotonic() - self.stopping_since)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Withdraw the registration, and finish the running requests."""
        self.registration.withdraw()
        # uvicorn cuts requests off after `REQUEST_SECONDS`. Requests that wait for a change are
        # answered after half of this time, so that their clients get an answer.
        asyncio.get_running_loop().call_later(
            REQUEST_SECONDS / 2, self.service.ingest_queue.answer_all
        )
        await super().shutdown(sockets)


def bind_socket(host: str, port: int) -> socket.socket:
    """Return a socket that is bound and not listening yet.

    Raises:
        FreshetError: If the address cannot be used.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol has to be given. Otherwise asyncio does not switch off Nagle's algorithm.
    bound_socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound_socket.bind((host, port))
    except OSError as error:
        bound_socket.close()
        reason = error.strerror or error
        raise FreshetError(
            f"cannot listen on {host}:{port} ({reason}); choose another --host or --port"
        ) from None
    return bound_socket
