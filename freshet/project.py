"""A project in this process, with the methods of `Client` and without a network."""

from __future__ import annotations

from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from typing import Any, Self
from urllib.parse import unquote

from anyio import sleep_forever
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI

from freshet.client import Client
from model_code.project import Project
from orchestration.service.app import create_app
from orchestration.service.service import Service


class LocalProject(Client):
    """An open project, with encoder and index in memory. It is exported as `freshet.Project`.

    Requests are passed directly to the ASGI application of a service, which listens on no address.
    Threads may share a project. Changes by other processes become visible. A service of the same
    project may run at the same time.
    """

    service: Service
    _app: FastAPI
    _exit_stack: ExitStack
    _portal: BlockingPortal

    def __init__(self, path: str | PathLike[str] = ".") -> None:
        """Open the project that contains the folder `path`.

        Raises:
            FreshetError: If the folder is not in a project, or the live index is damaged.
        """
        project = Project.find(Path(path))
        super().__init__(str(project.root))
        self._app = create_app(project)
        self.service = self._app.state.service
        self.service.start()
        # The portal runs an event loop in another thread, in which the application answers
        # requests.
        self._exit_stack = ExitStack()
        self._portal = self._exit_stack.enter_context(start_blocking_portal())

    @classmethod
    def open(cls, path: str | PathLike[str] = ".") -> Self:
        """Open the project that contains the folder `path`, as the class itself does."""
        return cls(path)

    def close(self) -> None:
        """Finish waiting changes, and free the memory."""
        self.service.stop()
        self._exit_stack.close()

    def _exchange(
        self, method: str, path: str, content: bytes | None, timeout: float
    ) -> tuple[int, bytes]:
        """Send a request to the application in this process. The timeout is not used."""
        return self._portal.call(self._call_app, method, path, content or b"")

    async def _call_app(self, method: str, path: str, content: bytes) -> tuple[int, bytes]:
        """Send one request to the application by the ASGI protocol.

        Returns:
            Status and body of the answer.
        """
        requests = [{"type": "http.request", "body": content}]
        answers: list[Any] = []

        async def receive() -> dict[str, Any]:
            if requests:
                return requests.pop()
            # The application waits here for the client to disconnect, which never happens.
            return await sleep_forever()

        async def send(message: Any) -> None:
            answers.append(message)

        path, _, query = path.partition("?")
        headers = {"Host": "localhost", "Content-Length": str(len(content))}
        headers.update(self._headers)
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        await self._app(scope, receive, send)

        # The first message has the status, and the others have parts of the body.
        start, *body_messages = answers
        body = b"".join(message.get("body", b"") for message in body_messages)
        return start["status"], body
