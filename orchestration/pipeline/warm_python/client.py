"""Hand a command to the server, and end as the command ends: `client.py ADDRESS -m MODULE ...`.

The server is a Python that has imported slow libraries. It gets the arguments, the folder, the
environment and the standard streams of this process. This file imports only the standard library,
because it starts for every command.
"""

import json
import os
import signal
import socket
import sys

# Number of bytes of a request's length, which is sent before the request.
LENGTH_BYTES = 8
# Exit code of this program if the server ended before the command.
SERVER_ENDED = 70


def main(address: str, arguments: list[str]) -> int:
    """Run a command in a process that the server forks, and return its exit code.

    The server is a Python that has imported slow libraries already.

    Args:
        address: Path of the server's socket.
        arguments: `-m`, the module, and its arguments.
    """
    request = [arguments, os.getcwd(), dict(os.environ)]
    content = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)

        def end_command(*signal_arguments: object) -> None:
            # Closing the sending side tells the server to end the command. The server still sends
            # the exit code.
            server.shutdown(socket.SHUT_WR)

        signal.signal(signal.SIGTERM, end_command)
        # The descriptors 0, 1 and 2 are the standard input, output and error of the command.
        length = len(content).to_bytes(LENGTH_BYTES, "big")
        socket.send_fds(server, [length], [0, 1, 2])
        server.sendall(content)
        # The answer is the exit code as one byte. It is empty if the server has ended.
        answer = server.recv(1)
    if not answer:
        print("error: the Python of this build ended; run the command again", file=sys.stderr)
        return SERVER_ENDED
    return answer[0]


if __name__ == "__main__":
    # The server runs modules only. This process becomes a new Python for anything else.
    if sys.argv[2:3] != ["-m"]:
        os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
    sys.exit(main(sys.argv[1], sys.argv[2:]))
