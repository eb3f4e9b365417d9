"""What goes into an addition and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np

from model_code.incdsi.solver import Solution
from model_code.settings import require


class Status(Enum):
    """How an added document stands to the constraints, in words for the user; it can be searched in every case."""

    FITS = "found first by its own queries, and no old document loses its own"
    COMPROMISE = "not every constraint is met: the settings weigh them against each other and against the encoding"
    NOT_REFINED = "searched by the vectors of its passages, of which there are several"


@dataclass(frozen=True)
class NewDocument:
    """A document to add or update.

    queries: (m, H) vectors of what it should be found by: generated queries, title, summary, spans; at least one.
    encoding: (H) the document's own vector from the encoder, to which its vector is pulled; None: pulled to 0, as
    published.
    """

    id: str
    queries: np.ndarray
    encoding: np.ndarray | None = None

    def check(self, width: int) -> None:
        """Raise SettingsError unless all vectors have `width` finite numbers and there is a query."""
        shape = np.shape(self.queries)
        require(
            len(shape) == 2 and shape[0] >= 1 and shape[1] == width,
            f"queries of document {self.id!r} have shape {shape}, but must be at least one row of {width} numbers",
        )
        given = self.encoding is not None
        require(
            not given or np.shape(self.encoding) == (width,),
            f"the encoding of document {self.id!r} has shape {np.shape(self.encoding)}, not ({width},)",
        )
        finite = np.isfinite(self.queries).all() and (not given or np.isfinite(self.encoding).all())
        require(bool(finite), f"a vector of document {self.id!r} holds a number that is not finite: encode it again")

    @property
    def prior(self) -> np.ndarray:
        """v0 (H), float64."""
        return np.zeros(np.shape(self.queries)[1]) if self.encoding is None else np.asarray(self.encoding, np.float64)


@dataclass(frozen=True)
class Added:
    """What became of a document.

    row: its row in the state. vector, query: (H) float32, as stored.
    broken: constraints that the vector breaks: its own query lost, or old documents' queries lost to it.
    solution: of the optimisation.
    """

    id: str
    row: int
    vector: np.ndarray
    query: np.ndarray
    status: Status
    broken: int
    solution: Solution


def mean_query(queries: np.ndarray) -> np.ndarray:
    """The mean (H) of `queries` (m, H), in float64 of what float32 stores, so that a replay from the state is equal.

    >>> mean_query(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist()
    [0.5, 0.5]
    """
    return np.asarray(queries, np.float64).mean(axis=0).astype(np.float32).astype(np.float64)
