"""What shadow mode found out about a challenger: counts, and no text of any query.

In shadow mode, the challenger answers a share of the live queries, and nobody sees its answers.
The record is a finding for the gate. It changes no verdict.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from model_code.files import read_json, write_json
from model_code.project import Project

# Name of the folder in the project's state with the records of all challengers.
FOLDER = "shadow"
# Number of the format. A record of another format is ignored, and counting begins again.
SHADOW_FORMAT = 1


@dataclass
class ShadowRecord:
    """Counts of the comparisons of one challenger with one champion.

    Attributes:
        version: Number of the challenger's version.
        retriever: Name of the challenger's retriever.
        champion: Name of the champion's retriever.
        champion_fingerprint: Fingerprint of the champion's encoder.
        champion_tuned: Number of the generation whose retune chose the champion's weights; None if
            it has the weights of its build.
        queries: Number of compared queries.
        overlap: Sum over the queries: the share of the first ten documents that both rankings have.
        rbo: Sum over the queries of the rank-biased overlap, a similarity of two rankings from 0 to
            1.
        wins: Number of documents with feedback that the challenger ranked better than the champion.
        losses: Number of documents with feedback that it ranked worse.
        ties: Number of documents with feedback that both ranked equally.
        dropped: Number of queries that were not compared, because the service was busy.
    """

    version: str
    retriever: str
    champion: str
    champion_fingerprint: str
    champion_tuned: int | None = None
    queries: int = 0
    overlap: float = 0.0
    rbo: float = 0.0
    wins: int = 0
    losses: int = 0
    ties: int = 0
    dropped: int = 0

    def is_about(self, retriever: str, fingerprint: str) -> bool:
        """Return whether the challenger was compared with this champion."""
        return self.champion == retriever and self.champion_fingerprint == fingerprint

    @property
    def mean_overlap(self) -> float | None:
        """Mean overlap of the first ten documents; None if no query was compared."""
        return self.overlap / self.queries if self.queries else None

    @property
    def mean_rbo(self) -> float | None:
        """Mean rank-biased overlap; None if no query was compared."""
        return self.rbo / self.queries if self.queries else None

    @property
    def text(self) -> str:
        """The means and the counts of wins, losses and ties in one line."""
        champion = f"with champion {self.champion}"
        if not self.queries:
            return f"version {self.version} ({self.retriever}): no query compared {champion} yet"
        line = (
            f"version {self.version} ({self.retriever}) on {self.queries:,} live queries: "
            f"overlap@10 {self.mean_overlap:.2f}, RBO {self.mean_rbo:.2f} {champion}"
        )
        if self.wins or self.losses or self.ties:
            line += f"; by feedback: wins {self.wins}, losses {self.losses}, ties {self.ties}"
        if self.dropped:
            line += f"; {self.dropped:,} queries dropped while busy"
        return line

    def as_dict(self) -> dict[str, Any]:
        """Return counts and means as values that JSON can hold."""
        values = asdict(self)
        values["overlap"] = self.mean_overlap
        values["rbo"] = self.mean_rbo
        values["text"] = self.text
        return values


def record_path(project: Project, version: str) -> Path:
    """Return the path of the file with the counts of shadow mode about a challenger's version."""
    return project.state / FOLDER / f"{version}.json"


def load_record(project: Project, version: str) -> ShadowRecord | None:
    """Return the counts of shadow mode about a challenger's version, or None if there are none.

    In shadow mode, the challenger answers a share of the live queries, and nobody sees its answers.
    """
    path = record_path(project, version)
    if not path.is_file():
        return None
    values = read_json(path)
    if values.pop("format", None) != SHADOW_FORMAT:
        return None
    return ShadowRecord(**values)


def save_record(project: Project, record: ShadowRecord) -> None:
    """Write the counts about a challenger in place of earlier ones."""
    values: dict[str, Any] = {"format": SHADOW_FORMAT}
    values.update(asdict(record))
    write_json(record_path(project, record.version), values)
