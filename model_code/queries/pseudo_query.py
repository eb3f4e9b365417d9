"""What a query generator makes, and what one is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from model_code.files import hash_text
from model_code.progress import Progress


class PseudoQuery(NamedTuple):
    """A query, the document that it was made from, and the generator that made it."""

    document_id: str
    text: str
    kind: str


class QueryGenerator(Protocol):
    """Makes queries from documents."""

    def generate(
        self, documents: Mapping[str, str], seed: int, checkpoints: Path, progress: Progress
    ) -> list[PseudoQuery]:
        """Queries for `documents` (id -> text): documents in ascending order of ids, each one's queries together.

        What a document gets depends on its id, its text and `seed` only, never on the documents around it. Long work is
        kept in the folder `checkpoints`, from which a killed call goes on to the same result.
        """


def seed_of(seed: int, *parts: str | int) -> int:
    """A 63-bit seed that depends on the project's seed and on what it is for, and on nothing else.

    >>> seed_of(1, "inverse_cloze", "d7") == seed_of(1, "inverse_cloze", "d7") != seed_of(2, "inverse_cloze", "d7")
    True
    """
    return int(hash_text("\0".join(map(str, (seed, *parts))))[:16], 16) >> 1
