"""The known kinds of query generators: one more kind is one more file, a line here, and its name in the settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from model_code.errors import SettingsError
from model_code.queries.pseudo_queries import QueryGenerator
from model_code.queries.settings import PseudoQuerySettings

Make = Callable[[PseudoQuerySettings, Path | None, str], QueryGenerator]
TRAINED_FOLDER = "model"  # where the stage `query_generator` leaves its model, in its output


def _cloze(kind: str) -> Make:
    def make(settings: PseudoQuerySettings, trained: Path | None, device: str) -> QueryGenerator:
        from model_code.queries.pseudo_queries import InverseCloze

        return InverseCloze(kind, getattr(settings, kind))

    return make


def _sequence_to_sequence(settings: PseudoQuerySettings, trained: Path | None, device: str) -> QueryGenerator:
    from model_code.queries.sequence_to_sequence import SequenceToSequence

    return SequenceToSequence.load(settings.sequence_to_sequence, trained, device)


GENERATORS: dict[str, Make] = {
    "inverse_cloze": _cloze("inverse_cloze"),
    "short_cloze": _cloze("short_cloze"),
    "held_out_cloze": _cloze("held_out_cloze"),
    "sequence_to_sequence": _sequence_to_sequence,
}


def make_generator(
    kind: str, settings: PseudoQuerySettings, trained: Path | None = None, device: str = "auto"
) -> QueryGenerator:
    """The generator named `kind`; raises `SettingsError` if there is none.

    trained: the folder of the model that `sequence_to_sequence.model: trained` means. device: where a model computes,
      as in `EncoderSettings`.

    >>> make_generator("short_cloze", PseudoQuerySettings()).settings.max_words
    16
    """
    if kind not in GENERATORS:
        raise SettingsError(f"pseudo_queries: {kind!r} is not a query generator. Known: {', '.join(GENERATORS)}")
    return GENERATORS[kind](settings, trained, device)
