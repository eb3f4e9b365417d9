"""Measure the gain of late interaction with fewer bytes per token.

`python -m experiments.late_interaction.compact NAME=PROJECT ...` writes `compact.json` and the
second table of `README.md`. It uses every fourth dev query. Weights are learned on one half and
evaluated on the other, in both directions. The test split is not read.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.late_interaction.run import HERE, PARTS, RETRIEVERS
from experiments.parts.run import TIMES, Build, Query, learn, mean_ndcg, tokens
from model_code.corpus.tables import strip_query_lines
from model_code.files import read_json, write_json, write_text

EVERY, CLIPPED = 4, 0.995
START, END = "<!-- compact -->\n", "<!-- end of compact -->\n"


@dataclass(frozen=True)
class Form:
    """Form in which tokens are stored.

    numbers: Number of main directions of all tokens that are kept.
    bits: Bits per number; 1 keeps the sign.
    signs: Whether queries are signs too, so that a product counts equal bits.
    """

    numbers: int
    bits: int
    signs: bool = False


FORMS = [
    Form(*own)
    for own in ((384, 16), (128, 8), (128, 4), (64, 4), (128, 1), (384, 1), (384, 1, True))
]


class Tokens:
    """Unit vectors of the tokens of passages and of queries (n, H each), by the trained encoder."""

    def __init__(self, build: Build, texts: Sequence[str]) -> None:
        passages = build._passages(strip_query_lines(build.corpus))
        self.documents, self.queries = (list(tokens(build.late, own)) for own in (passages, texts))
        self.rows = build._rows()
        self.starts = np.cumsum([0, *map(len, self.documents)])

    @cached_property
    def flat(self) -> np.ndarray:
        """All tokens of passages (n, H), float32."""
        return np.concatenate(self.documents).astype(np.float32)

    @cached_property
    def directions(self) -> np.ndarray:
        """Main directions (H, H) of the passages' tokens, the largest first."""
        return np.linalg.eigh(self.flat.T @ self.flat / len(self.flat))[1][:, ::-1]

    def of(self, form: Form, vectors: np.ndarray, queries: bool = False) -> np.ndarray:
        """Convert unit vectors (n, H) to the form and back to unit vectors."""
        own = vectors.astype(np.float32)
        if form.numbers < own.shape[1]:
            own = own @ self.directions[:, : form.numbers]
        own = own / np.linalg.norm(own, axis=1, keepdims=True)
        if queries and not form.signs:
            return own
        own = quantised(own, form.bits)
        return own / np.linalg.norm(own, axis=1, keepdims=True)

    def scored(self, queries: Sequence[Query], form: Form) -> Iterator[Query]:
        """Return the queries with MaxSim's score of each candidate."""
        held = self.of(form, self.flat)
        for query, own in zip(queries, self.queries, strict=True):
            rows = [row for document in query.documents for row in self.rows[document]]
            lengths = [len(self.documents[row]) for row in rows]
            places = np.concatenate(
                [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
            )
            products = held[places] @ self.of(form, own, queries=True).T
            passages = np.maximum.reduceat(products, np.cumsum([0, *lengths[:-1]]), axis=0).mean(
                axis=1
            )
            counts = [len(self.rows[document]) for document in query.documents]
            late = np.maximum.reduceat(passages, np.cumsum([0, *counts[:-1]]))
            yield replace(query, scores={**query.scores, "late": TIMES * late})


def quantised(vectors: np.ndarray, bits: int) -> np.ndarray:
    """Return the nearest of 2^bits evenly spaced values, with the largest half a percent clipped.

    16 bits are float16, and 1 bit is the sign.
    """
    if bits == 16:
        return vectors.astype(np.float16).astype(np.float32)
    if bits == 1:
        return np.where(vectors < 0, -1.0, 1.0).astype(np.float32)
    largest, levels = np.quantile(np.abs(vectors), CLIPPED), 2 ** (bits - 1)
    return (np.clip(np.floor(vectors / largest * levels), -levels, levels - 1) + 0.5) / levels


def crossed(queries: Sequence[Query], parts: Sequence[str]) -> float:
    """Return nDCG@10 of each half with weights from the other."""
    halves = queries[::2], queries[1::2]
    return float(
        np.mean([mean_ndcg(one, learn(other, parts)) for one, other in (halves, halves[::-1])])
    )


def measured(project: Path) -> dict[str, Any]:
    """Measure the fusion alone, and with MaxSim in every form."""
    with TemporaryDirectory() as aside:
        build = Build(project, Path(aside), RETRIEVERS)
    own = build.bench.judgements["dev"]
    kept = list(own.queries)[::EVERY]
    some = replace(
        own,
        queries={key: own.queries[key] for key in kept},
        qrels={key: own.qrels[key] for key in kept},
    )
    build.bench.judgements["dev"] = some
    queries = build.queries("dev")
    held = Tokens(build, list(some.queries.values()))
    alone = crossed(queries, PARTS["fused"])
    rows = []
    for form in FORMS:
        value = crossed(list(held.scored(queries, form)), PARTS["fused with late"])
        size = form.numbers * form.bits / 8
        each = size * len(held.flat) / len(held.rows)
        rows.append(
            {
                "numbers": form.numbers,
                "bits": form.bits,
                "signs": form.signs,
                "bytes": size,
                "bytes a document": each,
            }
            | {"nDCG@10": round(value, 4), "gain": round(value - alone, 4)}
        )
        print(rows[-1], flush=True)
    return {"queries": len(queries), "fused": round(alone, 4), "forms": rows}


def table(result: Mapping[str, Any]) -> str:
    """Return the page's second table."""
    lines = []
    for corpus, own in sorted(result.items()):
        lines += [
            f"**{corpus}**, {own['queries']:,} dev queries, the fusion alone {own['fused']:.4f}",
            "",
        ]
        lines += [
            "| a token is kept as | bytes | a document | nDCG@10 | gain |",
            "|---|---|---|---|---|",
        ]
        for row in own["forms"]:
            kept = "signs" if row["bits"] == 1 else f"{row['bits']} bits"
            kept += ", and so is the query" * row["signs"]
            numbers = f"{row['numbers']} numbers: {kept}"
            size, each = f"{row['bytes']:.0f}", f"{row['bytes a document']:,.0f}"
            lines.append(
                f"| {numbers} | {size} | {each} | {row['nDCG@10']:.4f} | {row['gain']:+.4f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path, page = HERE / "compact.json", HERE / "README.md"
    known = read_json(path) if path.is_file() else {}
    for argument in sys.argv[1:]:
        name, _, folder = argument.partition("=")
        known[name] = measured(Path(folder).resolve())
    write_json(path, known)
    before, _, rest = page.read_text().partition(START)
    write_text(
        page, before + START + "\n" + table(read_json(path)) + "\n" + END + rest.partition(END)[2]
    )
