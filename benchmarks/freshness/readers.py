"""Readers that search while a writer changes documents, and what would be wrong if they saw two generations at once.

The writer gives a few documents, all in one request, the same new edition as their title; so every answer that finds
them must show one edition, and the one that the writer knows its generation by.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from model_code.errors import FreshetError
from orchestration.service.client import ServiceClient

MARKERS = 5
TEXT = "the marked page of this edition of the almanac"


@dataclass
class Reading:
    """What readers and writer noted: seconds of each search, refusals and failures, answers of two generations."""

    seconds: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    answers: list[tuple[int, tuple[str, ...]]] = field(default_factory=list)
    editions: dict[int, str] = field(default_factory=dict)  # generation -> the edition that it holds

    @property
    def generations(self) -> int:
        """Generations that the writer made."""
        return len(self.editions)

    @property
    def mixed(self) -> int:
        """Answers that do not show exactly the edition of the generation that they name."""
        return sum(not self._whole(generation, titles) for generation, titles in self.answers)

    def _whole(self, generation: int, titles: tuple[str, ...]) -> bool:
        expected = self.editions.get(generation)
        same = len(titles) == MARKERS and len(set(titles)) == 1
        return same and (expected is None or titles[0] == expected)


def read_while_writing(client: ServiceClient, seconds: float, readers: int, first: int, write: bool = True) -> Reading:
    """Search by `readers` threads for so many seconds, and write all the while unless told not to.

    first: the number of the first edition, which must be a new one.
    """
    found, stop, edition = Reading(), threading.Event(), first
    _write(client, found, edition)
    with ThreadPoolExecutor(readers) as pool:
        reading = [pool.submit(_read, client, found, stop) for _ in range(readers)]
        latest = time.monotonic() + seconds
        while time.monotonic() < latest:
            edition += 1
            if write:
                _write(client, found, edition)
            else:
                time.sleep(0.01)
        stop.set()
        for each in reading:
            each.result()
    return found


def _write(client: ServiceClient, found: Reading, edition: int) -> None:
    title = f"edition {edition}"
    try:
        answer = client.add([{"_id": f"marker.{i}", "title": title, "text": TEXT} for i in range(MARKERS)], "bench")
    except FreshetError as error:
        found.errors.append(str(error))
        return
    found.editions[answer["generation"]] = title


def _read(client: ServiceClient, found: Reading, stop: threading.Event) -> None:
    while not stop.is_set():
        started = time.perf_counter()
        try:
            answer = client.search(f"edition {TEXT}", MARKERS)
        except FreshetError as error:
            found.errors.append(str(error))
            continue
        found.seconds.append(time.perf_counter() - started)
        found.answers.append((answer["generation"], _titles(answer["hits"])))


def _titles(hits: list[dict[str, Any]]) -> tuple[str, ...]:
    return tuple(hit["title"] for hit in hits if hit["document_id"].startswith("marker."))
