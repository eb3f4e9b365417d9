"""A project in this process: the methods of `Client`, answered by a service of its own that listens
nowhere.
"""

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
    """A project that is open, encoder and index in memory, as `freshet.Project`; any number of
    threads may share it.

    What other processes add is seen, and a service of the same project may run beside it.
    """

    @classmethod
    def open(cls, path: str | PathLike[str] = ".") -> Self:
        """Open the project that the folder `path` lies in; FreshetError outside of one."""
        project = Project.find(Path(path))
        opened = cls(str(project.root))
        opened._app, opened._open = create_app(project), ExitStack()
        opened.service = opened._app.state.service
        opened.service.start()
        opened._loop = opened._open.enter_context(start_blocking_portal())
        return opened

    service: Service
    _app: FastAPI
    _open: ExitStack
    _loop: BlockingPortal

    def close(self) -> None:
        """Finish what waits, then free what is in memory."""
        self.service.stop()
        self._open.close()

    def _exchange(
        self, method: str, path: str, content: bytes | None, seconds: float
    ) -> tuple[int, bytes]:
        return self._loop.call(self._ask_app, method, path, content or b"")

    async def _ask_app(self, method: str, path: str, content: bytes) -> tuple[int, bytes]:
        """One request and its answer, as ASGI passes them on."""
        coming, answer = [{"type": "http.request", "body": content}], []

        async def receive() -> dict[str, Any]:
            return coming.pop() if coming else await sleep_forever()

        async def send(message: Any) -> None:
            answer.append(message)

        path, _, query = path.partition("?")
        headers = {"Host": "localhost", "Content-Length": str(len(content))} | self._headers
        scope = {
            "type": "http",
            "method": method,
            "path": unquote(path),
            "query_string": query.encode(),
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers.items()],
        }
        await self._app(scope, receive, send)
        return answer[0]["status"], b"".join(message.get("body", b"") for message in answer[1:])
