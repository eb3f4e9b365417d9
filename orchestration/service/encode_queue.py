"""Recorded documents that are encoded before the batch that makes them searchable."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

from model_code.text.documents import Document

log = logging.getLogger(__name__)
# Largest number of documents that are encoded at once before a batch.
MAX_ENCODED_TOGETHER = 8


class EncodeQueue:
    """Documents that wait to be encoded, and the loop of the thread that encodes them.

    A batch encodes all its documents itself if they are not encoded yet. So the documents in this
    queue may be dropped at any time, and an error only costs time.

    Args:
        encode: Encodes documents, and keeps the encodings for the next batch.
    """

    def __init__(self, encode: Callable[[Sequence[Document]], None]) -> None:
        self._encode = encode
        self._waiting: deque[Document] = deque()
        self._changed = threading.Condition()
        self._is_closed = False

    def put(self, documents: Sequence[Document]) -> None:
        """Append documents."""
        with self._changed:
            self._waiting.extend(documents)
            self._changed.notify_all()

    def clear(self) -> None:
        """Drop all waiting documents, because a batch is about to encode them."""
        with self._changed:
            self._waiting.clear()

    def close(self) -> None:
        """End `run`. Waiting documents are not encoded any more."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def run(self) -> None:
        """Encode documents until the queue is closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if self._is_closed:
                    return
                count = min(len(self._waiting), MAX_ENCODED_TOGETHER)
                documents = [self._waiting.popleft() for _ in range(count)]
            try:
                self._encode(documents)
            except Exception:
                # The batch encodes the documents again, and reports an error that persists.
                log.exception("documents could not be encoded before their batch")
