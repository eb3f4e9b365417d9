"""Statuses of refined documents, as IncDSI gives them and the drift report counts them."""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """How an added document meets the constraints, as text for the user.

    A document can be found in every case.
    """

    FITS = "found first by its own queries, and no old document loses its own"
    COMPROMISE = (
        "not every constraint is met: "
        "the settings weigh them against each other and against the encoding"
    )
    NOT_REFINED = "searched by the vectors of its passages, of which there are several"
