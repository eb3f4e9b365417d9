"""The group `additions` of the settings: what the user may choose about documents added to a live collection."""

from __future__ import annotations

from model_code.incdsi.settings import IncDsiSettings
from model_code.settings import Field


class AdditionSettings(IncDsiSettings):
    """Keys of `IncDsiSettings`, off by default."""

    refine: bool = Field(
        False, description="find the vector by optimisation (IncDSI); false: take the encoding as it is"
    )
    spans: int = Field(
        4, ge=0, description="parts of a document's text, besides title and first sentence, that it should be found by"
    )
