"""A service in a process of its own, for as long as it is needed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from model_code.errors import FreshetError
from orchestration.project import Project
from orchestration.service.client import ServiceClient

CODE = Path(__file__).parents[2]


@contextmanager
def served(project: Project, seconds: float = 300.0) -> Iterator[ServiceClient]:
    """`freshet serve` for `project` on a free port; FreshetError if it is not ready within `seconds`.

    It is told nothing of another project's state or ledger that the environment may name.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FRESHET_")}
    path = os.pathsep.join(filter(None, [str(CODE), environment.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "orchestration.cli", "serve", "--port", "0"]
    process = subprocess.Popen(
        command, cwd=project.root, env=environment | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL
    )
    try:
        yield _ready(project, process, time.monotonic() + seconds)
    finally:
        process.terminate()
        process.wait()


def _ready(project: Project, process: subprocess.Popen[bytes], latest: float) -> ServiceClient:
    while (client := ServiceClient.of(Project(project.root))) is None:
        if process.poll() is not None or time.monotonic() > latest:
            raise FreshetError("the service did not start; its message is above")
        time.sleep(0.05)
    return client
