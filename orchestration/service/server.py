"""Run the service until it is told to stop: then it takes no more requests, finishes what it has,
and leaves.
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

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.guard import LOOPBACK_ADDRESSES, check_origins, connection_limits, required_token
from orchestration.running_service import Registration
from orchestration.service.app import create_app

STOP_SECONDS = 60  # from the signal to the end, whatever holds a lock: systemd waits for 90
REQUEST_SECONDS = 40  # of these, for the requests that run; the rest is for what they have begun
EXPOSED = (
    "note: listening on {host}: whoever asks needs the token in {file}, which anybody on the way can read unless a "
    "proxy with TLS stands in front"
)


def serve(
    project: Project,
    host: str,
    port: int,
    registration: Registration,
    token: bool = False,
    origins: Sequence[str] = (),
) -> None:
    """Serve `project` until SIGINT, SIGTERM or SIGHUP; FreshetError if the port is taken or what is
    live is damaged.

    token: demand it on this machine's own addresses, too; origins: other sites whose pages may ask.
    """
    check_origins(origins)
    demanded = required_token(host, project.token_file, token)
    if host not in LOOPBACK_ADDRESSES:
        print(EXPOSED.format(host=host, file=project.token_file), file=sys.stderr, flush=True)
    with _bound(host, port) as listening:
        app = create_app(project, host, token=demanded, origins=origins)
        server = _Server(app, registration, _url(listening))
        app.state.service.start()  # before the server, which would turn its errors into tracebacks
        try:
            server.run(sockets=[listening])
        finally:
            finished = app.state.service.stop(server.seconds_left)
    if not server.started:
        raise FreshetError("the service could not start; its messages above say why")
    if finished:
        print("stopped; everything that was received is kept", flush=True)
        return
    print(
        "stopped; what could not be made searchable in time waits in the ledger for the next start",
        flush=True,
    )
    registration.withdraw()
    # what still works, or waits for another process's lock, is as safe as from `kill -9`
    os._exit(0)


class _Server(uvicorn.Server):
    """A server that tells clients where it is once it listens, and no longer when it begins to
    stop.
    """

    def __init__(self, app: FastAPI, registration: Registration, url: str) -> None:
        quiet = {"log_level": "warning", "access_log": False, "lifespan": "off"}
        super().__init__(
            uvicorn.Config(
                app, timeout_graceful_shutdown=REQUEST_SECONDS, **quiet, **connection_limits()
            )
        )
        self.registration, self.url, self.service = registration, url, app.state.service
        self.stopping_since: float | None = None  # when it was told to stop
        # uvicorn takes two while it runs, and raises them
        for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(each, self.handle_exit)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, then say so."""
        await super().startup(sockets)
        if self.started:
            self.registration.announce(self.url, self.service.started)
            print(
                f"serving {self.url}   (open it to search; also {self.url}/docs; Ctrl-C ends it)",
                flush=True,
            )

    def handle_exit(self, number: int, frame: FrameType | None) -> None:
        """Begin to stop."""
        self.stopping_since = self.stopping_since or time.monotonic()
        super().handle_exit(number, frame)

    @property
    def seconds_left(self) -> float:
        """Seconds until it has to be over."""
        return STOP_SECONDS - (
            time.monotonic() - self.stopping_since if self.stopping_since else 0.0
        )

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Send no more clients here, then finish."""
        self.registration.withdraw()
        # answers who waits
        asyncio.get_running_loop().call_later(REQUEST_SECONDS / 2, self.service.writer.release)
        await super().shutdown(sockets)


def _bound(host: str, port: int) -> socket.socket:
    """A socket bound to host and port, not listening yet; FreshetError if that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # stated, or asyncio leaves Nagle's delay on
    bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        where = f"{host}:{port}"
        raise FreshetError(
            f"cannot listen on {where} ({error.strerror or error}); choose another --port"
        ) from None
    return bound


def _url(bound: socket.socket) -> str:
    host, port = bound.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = LOOPBACK_ADDRESSES[0]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
