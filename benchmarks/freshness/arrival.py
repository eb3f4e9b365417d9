"""From sending documents to the service until a search finds them."""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError
from orchestration.service.client import ServiceClient

Row = dict[str, Any]


def documents(name: str, count: int) -> list[Row]:
    """Documents of about 40 words of the standard library's documentation, each with a title of its own."""
    words = " ".join(filter(None, map(inspect.getdoc, (inspect, random, Path, dict, str)))).split()
    chance = random.Random(name)
    return [
        {
            "_id": f"{name}.{i}",
            "title": f"{name} {i}",
            "text": " ".join(chance.choices(words, k=chance.randint(20, 60))),
        }
        for i in range(count)
    ]


def arrival_seconds(client: ServiceClient, rows: Sequence[Row]) -> list[float]:
    """The seconds of each document, sent alone, until the service says that it is searchable; it is then searched."""
    seconds = []
    for row in rows:
        started = time.perf_counter()
        answer = client.add([row], "bench")
        seconds.append(time.perf_counter() - started)
        require_found(client, row, answer)
    return seconds


def batch_seconds(client: ServiceClient, live: Path, rows: Sequence[Row]) -> tuple[float, float]:
    """The seconds of all documents sent at once, and those of encoding them alone, before and after, on average."""
    from model_code.live.searcher import Searcher

    searcher = Searcher.open(live)
    encoder = searcher.base.retriever.encoder
    texts = [f"{row['title']} {row['text']}" for row in rows]
    encoder.encode(texts[:32])
    encoding = []
    for _ in range(2):
        started = time.perf_counter()
        encoder.encode_documents(texts)
        encoding.append(time.perf_counter() - started)
        if len(encoding) == 1:
            started = time.perf_counter()
            answer = client.add(rows, "bench")
            sent = time.perf_counter() - started
    require_found(client, rows[-1], answer)
    return sent, sum(encoding) / 2


def require_found(client: ServiceClient, row: Row, answer: dict[str, Any]) -> None:
    """FreshetError unless the answer says searchable and a search for the document's own words finds it first."""
    hits = client.search(f"{row['title']} {row['text']}", 1)["hits"]
    if not answer["searchable"] or hits[0]["document_id"] != row["_id"]:
        raise FreshetError(f"document {row['_id']} was sent, but {hits[0]['document_id']} is found in its place")
