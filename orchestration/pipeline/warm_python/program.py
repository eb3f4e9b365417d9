"""Start and stop a warm Python: a server that runs the Python commands of a build faster.

The server is a Python process that has already imported slow libraries, such as torch. For each
command of the build it forks a process, which need not import them again. Commands reach the server
through a program named `python`, which this module also writes.
"""

from __future__ import annotations

import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path

from model_code.files import write_text
from model_code.settings import require

# Libraries that several commands of a build import. DVC and a stage each import some of them.
LIBRARIES = (
    "dvc.cli",
    "dvc.commands.repro",
    "dvc.dvcfile",
    "dvc.repo",
    "dvc.stage.loader",
    "dvc_data.index",
    "pandas",
    "pandera.pandas",
    "pyarrow.parquet",
    "pydantic",
    "ruamel.yaml",
    "safetensors",
    "scipy.stats",
    "torch",
)
# Environment variable that switches off the use of a warm Python for builds.
SWITCH = "FRESHET_WARM_PYTHON"
SERVER = Path(__file__).with_name("server.py")
CLIENT = Path(__file__).with_name("client.py")


class WarmPython:
    """A server that has imported `LIBRARIES`, and a program `python` that runs commands in it.

    The server ends with this process, also if it is killed.

    Attributes:
        program: Path of the program `python`. Commands of the form `-m MODULE` run in the server.
            All others run in a new Python.
    """

    def __init__(self) -> None:
        """Start the server, and write the program.

        DVC starts the commands of stages with the `python` that it finds first. The program is a
        shell script of that name, which passes its arguments to the server.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="freshet-"))
        address = self._folder / "socket"
        self.program = self._folder / "bin" / "python"
        command = [sys.executable, "-IS", str(CLIENT), str(address)]
        # The path in a first line that begins with "#!" must be short and have no spaces. A shell
        # therefore starts the client.
        write_text(self.program, f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        self.program.chmod(0o700)
        self._server = _start_server(address)
        self._finalizer = weakref.finalize(self, _end_server, self._server, self._folder)

    def close(self) -> None:
        """End the server, once its commands have ended."""
        self._finalizer()


def is_on() -> bool:
    """Return whether builds fork their commands from a Python that has imported slow libraries.

    `FRESHET_WARM_PYTHON=off` switches this off. Only Linux can fork a process with these libraries
    safely, and watch it.

    Raises:
        SettingsError: If the variable is neither "on" nor "off".
    """
    switch = os.environ.get(SWITCH, "on")
    require(switch in ("on", "off"), f"{SWITCH} is {switch!r}, but must be on or off")
    if switch == "off" or sys.platform != "linux":
        return False
    # The server waits for the end of its processes by this function, which some builds of Python
    # lack.
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        # Old versions of Linux do not have this system call.
        return False
    return True


def _start_server(address: Path) -> subprocess.Popen[bytes]:
    """Start the server at a socket. Clients may connect at once, before it has imported anything.

    The server inherits the listening socket. It ends when its standard input is closed, which the
    operating system does even if this process is killed.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        command = [sys.executable, "-P", str(SERVER), str(listener.fileno()), *LIBRARIES]
        # The server gets a separate session, so that Ctrl-C in the terminal reaches only the build.
        # The build ends its commands itself.
        return subprocess.Popen(
            command,
            cwd=address.parent,
            stdin=subprocess.PIPE,
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )


def _end_server(server: subprocess.Popen[bytes], folder: Path) -> None:
    """Close the server's standard input, wait until it has ended, and delete its folder."""
    if server.stdin is not None:
        server.stdin.close()
    server.wait()
    shutil.rmtree(folder)
