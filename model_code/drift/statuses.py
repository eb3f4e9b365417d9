"""Statuses of documents that were added with IncDSI. The drift report counts them.

IncDSI solves the vector of a new document under constraints: the document should be found by its
own queries, and old documents should stay first for theirs.
"""

from __future__ import annotations

from enum import Enum


class Status(Enum):
    """Which of the constraints an added document meets. The values are texts for the user.

    The document can be found with every status.
    """

    FITS = "found first by its own queries, and no old document loses its own"
    COMPROMISE = (
        "not every constraint is met: "
        "the settings weigh them against each other and against the encoding"
    )
    NOT_REFINED = "searched by its encodings: it has several passages or no known queries"
