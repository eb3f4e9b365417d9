"""A project in this process: the methods of `Client`, answered by a service of its own that listens nowhere."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Self

from fastapi.testclient import TestClient

from freshet.client import Client
from orchestration.project import Project
from orchestration.service.app import create_app


class LocalProject(Client):
    """A project that is open, encoder and index in memory, as `freshet.Project`; any number of threads may share it.

    What other processes add is seen, and a service of the same project may run beside it.
    """

    @classmethod
    def open(cls, path: str | PathLike[str] = ".") -> Self:
        """Open the project that the folder `path` lies in; FreshetError outside of one."""
        project = Project.find(Path(path))
        app = create_app(project)
        app.state.service.start()
        opened = cls(str(project.root))
        opened._app = TestClient(app)
        return opened

    _app: TestClient

    def close(self) -> None:
        """Finish what waits, then free what is in memory."""
        self._app.app.state.service.stop()  # type: ignore[attr-defined]

    def _exchange(self, method: str, path: str, content: bytes | None, seconds: float) -> tuple[int, bytes]:
        answer = self._app.request(method, path, content=content, headers=self._headers)
        return answer.status_code, answer.content
