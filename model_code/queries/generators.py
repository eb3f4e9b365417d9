"""What a query generator is, and the registry of the known kinds: one more kind is one more file and one line here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from model_code.errors import SettingsError
from model_code.files import hash_text
from model_code.progress import Progress
from model_code.queries.settings import PseudoQuerySettings

TRAINED_FOLDER = "model"  # where the stage `query_generator` leaves its model, in its output


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


def _cloze(kind: str) -> Callable[[PseudoQuerySettings, Path | None], QueryGenerator]:
    def make(settings: PseudoQuerySettings, trained: Path | None) -> QueryGenerator:
        from model_code.queries.inverse_cloze import InverseCloze

        return InverseCloze(kind, getattr(settings, kind))

    return make


def _sequence_to_sequence(settings: PseudoQuerySettings, trained: Path | None) -> QueryGenerator:
    from model_code.queries.sequence_to_sequence import SequenceToSequence

    return SequenceToSequence.load(settings.sequence_to_sequence, trained)


GENERATORS: dict[str, Callable[[PseudoQuerySettings, Path | None], Any]] = {
    "inverse_cloze": _cloze("inverse_cloze"),
    "short_cloze": _cloze("short_cloze"),
    "held_out_cloze": _cloze("held_out_cloze"),
    "sequence_to_sequence": _sequence_to_sequence,
}


def make_generator(kind: str, settings: PseudoQuerySettings, trained: Path | None = None) -> QueryGenerator:
    """The generator named `kind`; raises `SettingsError` if there is none.

    trained: the folder of the model that `sequence_to_sequence.model: trained` means.

    >>> make_generator("short_cloze", PseudoQuerySettings()).settings.max_words
    16
    """
    if kind not in GENERATORS:
        raise SettingsError(f"pseudo_queries: {kind!r} is not a query generator. Known: {', '.join(GENERATORS)}")
    return GENERATORS[kind](settings, trained)
