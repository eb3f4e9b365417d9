"""The group `additions` of the settings: what the user may choose about documents added to a live collection."""

from __future__ import annotations

from model_code.incdsi.settings import IncDsiSettings, Prior
from model_code.settings import Field


class AdditionSettings(IncDsiSettings):
    """Keys of `IncDsiSettings`, off by default, and pulled to the document's encoding where they are on."""

    refine: bool = Field(False, description="find the vector by optimisation (IncDSI); false: take the prior as it is")
    prior: Prior = Field(
        "encoder", description="where lambda2 pulls: 0, the document's encoding, or its mix with its mean query"
    )
    spans: int = Field(
        4, ge=0, description="parts of a document's text, besides title and first sentence, that it should be found by"
    )

    @property
    def incdsi(self) -> IncDsiSettings:
        """The part that the solver reads."""
        return IncDsiSettings(**{name: getattr(self, name) for name in IncDsiSettings.model_fields})

    @property
    def changes_vectors(self) -> bool:
        """Whether an added document gets another vector than the encoder's.

        >>> AdditionSettings().changes_vectors, AdditionSettings(prior_scale=.9).changes_vectors
        (False, True)
        """
        return self.refine or self.prior != "encoder" or self.prior_scale != 1.0
