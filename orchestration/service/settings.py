"""How large a request may be, how much may wait, and how often the service looks for new generations."""

from __future__ import annotations

from dataclasses import dataclass

from model_code.settings import require_at_least


@dataclass(frozen=True)
class ServiceSettings:
    """Bounds of the service; what exceeds one is refused with a clear message, never queued without end.

    search_threads: searches at the same time. waiting_searches: how many more may wait, none longer than
    `search_wait_seconds`. queued_documents: changes that may wait for the writer. add_wait_seconds: how long a request
    waits until its documents are searchable before it is answered with a receipt only. query_log: keep the queries in
    files of `query_log_bytes`, the newest `query_log_files` of them.
    """

    host: str = "127.0.0.1"
    port: int = 8765
    max_k: int = 1000
    max_text_characters: int = 10_000
    max_filters: int = 50
    max_body_bytes: int = 64_000_000
    max_documents: int = 10_000
    search_threads: int = 2
    waiting_searches: int = 64
    search_wait_seconds: float = 10.0
    queued_documents: int = 20_000
    add_wait_seconds: float = 600.0
    poll_seconds: float = 0.2
    retry_seconds: float = 5.0
    stop_seconds: int = 60
    query_log: bool = False
    query_log_bytes: int = 10_000_000
    query_log_files: int = 10

    def __post_init__(self) -> None:
        require_at_least(0, self, "port", "waiting_searches", "search_wait_seconds", "add_wait_seconds")
        positive = ("max_k", "max_text_characters", "max_filters", "max_body_bytes", "max_documents", "search_threads")
        require_at_least(1, self, *positive, "queued_documents", "query_log_bytes", "query_log_files", "stop_seconds")
        require_at_least(0.001, self, "poll_seconds", "retry_seconds")
