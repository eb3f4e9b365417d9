"""A server of the Model Context Protocol with the tools `search` and `get`; needs the extra `mcp`.

python -m freshet.integrations.mcp http://127.0.0.1:8765
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import Any

from mcp.server.mcpserver import MCPServer

from freshet.client import Client

PASSAGE = ("document_id", "title", "section", "text", "fields", "date", "score")


def server_of(client: Any) -> MCPServer:
    """The server over a `Client` or a `Project`."""
    server = MCPServer(
        "freshet", instructions="Search a collection of documents that is kept up to date."
    )

    @server.tool()
    def search(
        text: str, k: int = 5, filters: dict[str, Any] | None = None
    ) -> list[dict[str, Any]]:
        """Find the k passages that answer a text best; filters such as {"package": "numpy", "year":
        {">=": 2020}}.
        """
        hits = client.search(text, k, filters=filters or {}).hits
        return [{name: getattr(hit, name) for name in PASSAGE} for hit in hits]

    @server.tool()
    def get(document_id: str) -> dict[str, Any]:
        """Read one document, whole."""
        return asdict(client.get(document_id))

    return server


if __name__ == "__main__":
    server_of(Client(sys.argv[1], os.environ.get("FRESHET_TOKEN"))).run()
