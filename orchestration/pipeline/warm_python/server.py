"""Import libraries once, and fork a process for each command: `server.py SOCKET LIBRARY ...`.

SOCKET is the number of an inherited file descriptor. Clients may connect to it while libraries are
imported. No module of the project is imported, because its code may change before a command starts.
The server ends when its standard input is closed and all commands have ended.
"""

import atexit
import gc
import importlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

# Environment variable of a command with the process id of the client that waits for it.
LAUNCHER = "FRESHET_LAUNCHER"
# Number of bytes of a request's length, which is sent before the request.
LENGTH_BYTES = 8
# Number of standard streams: input, output and error.
STREAMS = 3
# Layout of the ids of process, user and group that the kernel knows of a socket's peer.
PEER = struct.Struct("3i")
# If a signal ended a command, its exit code in a shell is this number plus the signal's number.
SIGNAL_BASE = 128
# The garbage collector looks at new objects after this number of them. Python's default of 700
# costs a command that imports much a tenth of its time.
GC_THRESHOLD = 50_000


@dataclass(frozen=True)
class Request:
    """A command that a client asks for.

    Attributes:
        arguments: `-m`, the module, and its arguments.
        folder: Working directory.
        variables: The environment.
        streams: File descriptors of standard input, output and error.
    """

    arguments: list[str]
    folder: str
    variables: dict[str, str]
    streams: list[int]


@dataclass(eq=False)
class RunningCommand:
    """A forked process, and the client that waits for it.

    Attributes:
        pid: Id of the process.
        pidfd: File descriptor that becomes readable when the process ends.
        client: Connection to the client.
        is_wanted: Whether the client has not closed the connection.
    """

    pid: int
    pidfd: int
    client: socket.socket
    is_wanted: bool = True


class QuickExit:
    """Ends this process without freeing its objects, which the operating system does faster.

    Python takes a fifth of the time of a short command to free them. It also writes to all the
    memory that a forked process shares with the server, so that it first has to be copied.

    Attributes:
        exit_code: Exit code of the process. None: the process ends as Python ends it.
    """

    def __init__(self) -> None:
        """Register the exit. It follows all exit handlers that are registered later."""
        self.exit_code: int | None = None
        atexit.register(self._leave)

    @contextmanager
    def note_exit_code(self) -> Iterator[None]:
        """Note the exit code with which Python would end this process after the block.

        Errors are raised again, so that Python prints them.
        """
        self.exit_code = 1
        try:
            yield
        except SystemExit as exit_request:
            self.exit_code = requested_exit_code(exit_request)
            raise
        except KeyboardInterrupt:
            self.exit_code = SIGNAL_BASE + signal.SIGINT
            raise
        self.exit_code = 0

    def _leave(self) -> None:
        if self.exit_code is None:
            return
        for stream in (sys.stdout, sys.stderr):
            # A shell may start a command without the stream.
            if stream is None:
                continue
            # The reader of the stream may have ended, or the command has closed the stream.
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(self.exit_code)


def import_libraries(libraries: list[str]) -> None:
    """Import modules. Those that are not installed are left out."""
    gc.set_threshold(GC_THRESHOLD)
    for library in libraries:
        with suppress(ModuleNotFoundError):
            importlib.import_module(library)
    # Forked processes share these objects, unless the garbage collector writes to them.
    gc.collect()
    gc.freeze()
    # A fork copies only the thread that calls it. A lock that another thread holds would stay
    # locked in the forked process for ever.
    if threading.active_count() > 1:
        raise RuntimeError(f"imports started threads: {threading.enumerate()}")


def serve(listener: socket.socket) -> Request | None:
    """Fork a process for each request.

    Args:
        listener: The socket to which clients connect.

    Returns:
        In each forked process, the request that it runs. In the server None, once standard input
        is closed and all commands have ended.
    """
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ)
    selector.register(listener, selectors.EVENT_READ)
    commands: set[RunningCommand] = set()
    is_closing = False
    while commands or not is_closing:
        for key, _ in selector.select():
            if key.fileobj is sys.stdin:
                # Standard input is a pipe from the build. The build has closed its end, or was
                # killed.
                is_closing = True
                selector.unregister(sys.stdin)
            elif key.fileobj is listener:
                client, _ = listener.accept()
                request = read_request(client)
                if request is None:
                    client.close()
                    continue
                command = fork_command(request, client)
                if command is None:
                    # This is the forked process.
                    client.close()
                    release(commands)
                    selector.close()
                    return request
                selector.register(client, selectors.EVENT_READ, command)
                selector.register(command.pidfd, selectors.EVENT_READ, command)
                commands.add(command)
            elif key.data in commands:
                handle_end(key.data, key.fileobj is key.data.client, selector, commands)
    return None


def handle_end(
    command: RunningCommand,
    is_client: bool,
    selector: selectors.BaseSelector,
    commands: set[RunningCommand],
) -> None:
    """React to the end of a command's process, or of the client that waits for it.

    Args:
        command: The command.
        is_client: Whether the client has closed the connection. Otherwise the process has ended.
        selector: The selector that watches both. What has ended is removed from it.
        commands: The running commands. A command whose process has ended is removed.
    """
    if is_client:
        selector.unregister(command.client)
        stop(command)
        return
    selector.unregister(command.pidfd)
    if command.is_wanted:
        selector.unregister(command.client)
    finish(command)
    commands.remove(command)


def fork_command(request: Request, client: socket.socket) -> RunningCommand | None:
    """Fork a process that will run a request.

    Args:
        request: The request.
        client: Connection to the client that waits for the exit code.

    Returns:
        In the server, the running command. None in the forked process.
    """
    pid = os.fork()
    if pid == 0:
        return None
    # The server does not need the streams any more. The forked process has copies of them.
    for descriptor in request.streams:
        os.close(descriptor)
    return RunningCommand(pid, os.pidfd_open(pid), client)


def read_request(client: socket.socket) -> Request | None:
    """Read the request of a client; None if the client was killed before it was complete.

    The client sends the length of its request, the file descriptors of its standard streams, and
    the request as JSON.
    """
    head, streams, _, _ = socket.recv_fds(client, LENGTH_BYTES, STREAMS)
    length = int.from_bytes(head, "big")
    with client.makefile("rb") as stream:
        content = stream.read(length)
    is_complete = bool(head) and len(content) == length
    if not is_complete:
        for descriptor in streams:
            os.close(descriptor)
        return None
    arguments, folder, variables = json.loads(content)

    # A stage ends when an ancestor of its client ends. It finds them by the process id of the
    # client, which the kernel tells.
    peer = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size)
    client_pid, _, _ = PEER.unpack(peer)
    variables[LAUNCHER] = str(client_pid)
    return Request(arguments, folder, variables, streams)


def release(commands: set[RunningCommand]) -> None:
    """Close the connections and descriptors of other commands, which a forked process inherits."""
    for command in commands:
        command.client.close()
        os.close(command.pidfd)


def stop(command: RunningCommand) -> None:
    """End a process whose client has closed the connection."""
    command.is_wanted = False
    signal.pidfd_send_signal(command.pidfd, signal.SIGTERM)


def finish(command: RunningCommand) -> None:
    """Send the exit code of a process to its client. The process has ended."""
    _, status = os.waitpid(command.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        # The process was ended by the signal with the number -code.
        code = SIGNAL_BASE - code
    os.close(command.pidfd)
    # The client may have been killed, so that it cannot receive the exit code.
    with suppress(OSError):
        command.client.sendall(bytes([code]))
    command.client.close()


def run(request: Request, quick_exit: QuickExit) -> None:
    """Run a command in this process as a new Python would.

    Args:
        request: The command.
        quick_exit: Receives the exit code of the command.
    """
    # The streams become the standard input, output and error, which have the numbers 0, 1 and 2.
    for number, descriptor in enumerate(request.streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.variables)
    # Forked processes start with equal random states, and would all draw the same numbers.
    random.seed()
    # `python -m` looks for modules in the working directory first.
    sys.path.insert(0, request.folder)
    sys.argv = request.arguments[1:]
    with quick_exit.note_exit_code():
        runpy.run_module(request.arguments[1], run_name="__main__", alter_sys=True)


def requested_exit_code(exit_request: SystemExit) -> int:
    """Return the exit code that `sys.exit` asks for: a number, nothing, or an error message."""
    if exit_request.code is None:
        return 0
    if isinstance(exit_request.code, int):
        return exit_request.code
    return 1


def main(descriptor: int, libraries: list[str]) -> None:
    """Serve, and run a request in each forked process."""
    # This is registered before any library registers an exit handler, so that it comes last.
    quick_exit = QuickExit()
    # A build in the background may ignore SIGTERM, because Dagster handles it as SIGINT, which the
    # shell ignores there. Commands have to end by SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with socket.socket(fileno=descriptor) as listener:
        import_libraries(libraries)
        request = serve(listener)
    if request is None:
        quick_exit.exit_code = 0
    else:
        run(request, quick_exit)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
