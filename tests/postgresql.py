"""A throwaway PostgreSQL server for tests: in a folder of its own, on a loopback port, gone
afterwards.

`tests/conftest.py` has it as the fixture `postgresql`, whose value makes fresh databases.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

USER = "freshet"
SPEED = "-c fsync=off -c synchronous_commit=off -c full_page_writes=off -c shared_buffers=16MB -c max_connections=40"


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Callable[[str], str]]:
    """Makes an empty database of the given name, and returns its address without a driver:
    `user@host:port/name`.
    """
    psycopg = pytest.importorskip("psycopg", reason="needs a driver: pip install -e '.[postgres]'")
    # pytest's own folders are closed to other users
    folder = Path(tempfile.mkdtemp(prefix="freshet-postgresql-"))
    as_owner = owner(folder)
    (port,) = free_ports(1)
    run(
        [
            *as_owner,
            binary("initdb"),
            "-D",
            f"{folder}/data",
            "-U",
            USER,
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--no-sync",
        ]
    )
    options = f"-h 127.0.0.1 -p {port} -k {folder} {SPEED}"
    control = [*as_owner, binary("pg_ctl"), "-D", f"{folder}/data", "-l", f"{folder}/log", "-w"]
    run([*control, "-o", options, "start"])
    try:

        def fresh(name: str) -> str:
            with psycopg.connect(
                f"postgresql://{USER}@127.0.0.1:{port}/postgres", autocommit=True
            ) as connection:
                connection.execute(f"CREATE DATABASE {name}")
            return f"{USER}@127.0.0.1:{port}/{name}"

        yield fresh
    finally:
        run([*control, "-m", "immediate", "stop"])
        shutil.rmtree(folder)


def binary(name: str) -> str:
    """The server's program `name`; on Debian these are not on PATH. Without it the test is skipped."""
    places = [Path(found) for found in [shutil.which(name)] if found]
    places += sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    if not places:
        pytest.skip(f"needs PostgreSQL's {name}: apt-get install postgresql")
    return str(places[0])


def owner(folder: Path) -> list[str]:
    """What to put before a command so that PostgreSQL, which refuses root, runs; `folder` then
    belongs to that user.
    """
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip(
            "PostgreSQL refuses to run as root, and there is no setpriv to become someone else"
        )
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def run(command: list[str]) -> None:
    """Run it in a folder that everyone may enter; its output is shown if it fails."""
    done = subprocess.run(
        command, cwd="/", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout
