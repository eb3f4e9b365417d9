"""The queries for old documents that a drift reference keeps, to be searched anew for every report.

Queries, not scores: in a larger collection a document has more rivals, so beside scores from before it grew, documents
like the old ones would look harmed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json


@dataclass(frozen=True)
class Question:
    """A query that stands for `document_id`, and all documents that answer it."""

    document_id: str
    text: str
    answers: frozenset[str]


@dataclass(frozen=True)
class ProtectedQuery:
    """A query that additions must not harm, the old documents that answer it, and the rank of the first of them before
    any addition, from 1; 0 if it was not found."""

    text: str
    answers: tuple[str, ...]
    rank: int


@dataclass(frozen=True)
class Questions:
    """For old documents: `made` from them, `asked` by people (judged in the corpus), and `protected` from additions."""

    made: tuple[Question, ...] = ()
    asked: tuple[Question, ...] = ()
    protected: tuple[ProtectedQuery, ...] = ()

    def save(self, path: Path) -> None:
        """Write a JSON file; equal questions give equal bytes."""
        stated = {"made": [_stated(one) for one in self.made], "asked": [_stated(one) for one in self.asked]}
        write_json(path, stated | {"protected": [asdict(one) for one in self.protected]})

    @classmethod
    def load(cls, path: Path) -> Questions:
        """Read what `save` wrote."""
        stated = read_json(path)
        made, asked = (
            tuple(Question(one["document_id"], one["text"], frozenset(one["answers"])) for one in stated[kind])
            for kind in ("made", "asked")
        )
        protected = (ProtectedQuery(one["text"], tuple(one["answers"]), one["rank"]) for one in stated["protected"])
        return cls(made, asked, tuple(protected))


def _stated(one: Question) -> dict[str, Any]:
    return {"document_id": one.document_id, "text": one.text, "answers": sorted(one.answers)}
