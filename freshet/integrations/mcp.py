"""A Model Context Protocol server with the tools `search` and `get`; needs the extra `mcp`.

Run it with `python -m freshet.integrations.mcp http://127.0.0.1:8765`. The environment variable
FRESHET_TOKEN holds the token of the service, if it requires one.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mcp.server.mcpserver import MCPServer

from freshet.client import Client

RETURNED_KEYS = ("document_id", "title", "section", "text", "fields", "date", "score")


def make_server(client: Any) -> MCPServer:
    """Return a server over a `Client` or a `Project`."""
    server = MCPServer(
        "freshet", instructions="Search a collection of documents that is kept up to date."
    )

    @server.tool()
    def search(
        text: str, k: int = 5, filters: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Find the k passages that answer a text best.

        Filters are conditions on fields, such as {"package": "numpy", "year": {">=": 2020}}.
        """
        hits = client.search(text, k, filters=filters or {}).hits
        return [{key: getattr(hit, key) for key in RETURNED_KEYS} for hit in hits]

    @server.tool()
    def get(document_id: str) -> dict[str, Any]:
        """Read one whole document."""
        return asdict(client.get(document_id))

    return server


def main(arguments: Sequence[str]) -> None:
    """Serve until the standard input is closed.

    Args:
        arguments: The address of the service, such as `http://127.0.0.1:8765`.
    """
    if len(arguments) != 1:
        sys.exit("usage: python -m freshet.integrations.mcp http://127.0.0.1:8765")
    make_server(Client(arguments[0], os.environ.get("FRESHET_TOKEN"))).run()


if __name__ == "__main__":
    main(sys.argv[1:])
