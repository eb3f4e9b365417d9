"""Statuses of documents that were added with IncDSI. The drift report counts them.

IncDSI solves the vector of a new document so that its own queries find it. Constraints keep it from
outranking old documents for theirs. Beside learned document vectors (DSI), it also breaks a
constraint if it does not win its own mean query.
"""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Which of the constraints an added document meets. The values are texts for the user.

    The document can be found with every status.
    """

    FITS = "every constraint is met: no old document loses a query by it"
    COMPROMISE = (
        "not every constraint is met: "
        "the settings weigh them against each other and against the encoding"
    )
    NOT_REFINED = "searched by its encodings: it has several passages or no known queries"
