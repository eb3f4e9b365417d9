"""What became of added documents, for people and for the drift measure of conflicting constraints."""

from __future__ import annotations

from pathlib import Path

from model_code.additions.memory import store_of, token_of
from model_code.live.generation import Generation


def statuses(folder: Path, generation: Generation, spans: int) -> dict[str, str]:
    """The name of the `Status` of each document that was refined and that a generation stands on, by id.

    folder: that of the writer. Empty where nothing was refined, or with other `spans`.
    """
    return store_of(folder, generation, spans).statuses(token_of(generation))
