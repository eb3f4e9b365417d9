"""Measure the gain of late interaction if token vectors are stored in fewer bytes.

Late interaction scores a document by the best match of each query token with its token vectors
(MaxSim). `python -m experiments.late_interaction.compact NAME=PROJECT ...` writes `compact.json`
and the second table of `README.md`. It uses every fourth dev query. Weights are learned on one half
of them and evaluated on the other, in both directions. The test split is not read.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.late_interaction.run import HERE, PARTS, RETRIEVERS
from experiments.parts.run import (
    COSINE_SCALE,
    Build,
    Query,
    learn,
    max_of_groups,
    mean_ndcg,
    tokens,
)
from experiments.tables import measure_into, write_tables
from model_code.files import read_json

# Of this many dev queries, one is used.
DEV_QUERIES_PER_USED = 4
# Numbers whose absolute value is above this quantile are clipped before they are quantised.
CLIPPED_QUANTILE = 0.995
START = "<!-- compact -->\n"
END = "<!-- end of compact -->\n"


@dataclass(frozen=True)
class Form:
    """A form in which token vectors are stored.

    Attributes:
        numbers: Number of principal components that are kept of each vector.
        bits: Bits per number; 1 keeps only the sign.
        signs: Whether query tokens are also reduced to signs, so that an inner product only counts
            equal bits.
    """

    numbers: int
    bits: int
    signs: bool = False


FORMS = [
    Form(384, 16),
    Form(128, 8),
    Form(128, 4),
    Form(64, 4),
    Form(128, 1),
    Form(384, 1),
    Form(384, 1, signs=True),
]


class Tokens:
    """Unit vectors of the tokens of passages and queries, by the trained encoder.

    Args:
        build: The built project.
        query_texts: Texts of the queries.

    Attributes:
        passages: Token vectors of each passage, (tokens, H).
        queries: Token vectors of each query, (tokens, H).
        rows: Rows of each document's passages.
        starts: Position in `flat` of the first token of each passage, and the end (passages + 1).
    """

    def __init__(self, build: Build, query_texts: Sequence[str]) -> None:
        self.passages = tokens(build.late_encoder, build.stripped_passages())
        self.queries = tokens(build.late_encoder, query_texts)
        self.rows = build.passage_rows()
        token_counts = [len(passage_tokens) for passage_tokens in self.passages]
        self.starts = np.cumsum([0, *token_counts])

    @cached_property
    def flat(self) -> np.ndarray:
        """All tokens of passages (n, H), float32."""
        return np.concatenate(self.passages).astype(np.float32)

    @cached_property
    def directions(self) -> np.ndarray:
        """Principal directions (H, H) of the passages' token vectors, the largest first."""
        covariance = self.flat.T @ self.flat / len(self.flat)
        # Eigenvalues are in ascending order.
        _, eigenvectors = np.linalg.eigh(covariance)
        return eigenvectors[:, ::-1]

    def convert(self, form: Form, vectors: np.ndarray, are_queries: bool = False) -> np.ndarray:
        """Convert unit vectors (n, H) to the form and back to unit vectors.

        Args:
            form: The form.
            vectors: The vectors.
            are_queries: Whether they are tokens of queries, which are only reduced to signs.
        """
        converted = vectors.astype(np.float32)
        if form.numbers < converted.shape[1]:
            converted = converted @ self.directions[:, : form.numbers]
        converted = _unit(converted)
        if are_queries and not form.signs:
            return converted
        return _unit(quantise(converted, form.bits))

    def add_late_scores(self, queries: Sequence[Query], form: Form) -> list[Query]:
        """Return the queries with a score by MaxSim for each candidate.

        Args:
            queries: Queries with their candidates.
            form: Form in which the tokens of passages are stored.
        """
        stored_tokens = self.convert(form, self.flat)
        scored_queries = []
        for query, query_tokens in zip(queries, self.queries, strict=True):
            # Rows of the candidates' passages, and positions of these passages' tokens.
            rows = [row for document_id in query.documents for row in self.rows[document_id]]
            token_positions = np.concatenate(
                [np.arange(self.starts[row], self.starts[row + 1]) for row in rows]
            )
            converted_query = self.convert(form, query_tokens, are_queries=True)
            # Cosines of passage tokens and query tokens; then of each passage and query token.
            cosines = stored_tokens[token_positions] @ converted_query.T
            nearest = max_of_groups(cosines, [len(self.passages[row]) for row in rows])
            passage_scores = nearest.mean(axis=1)
            passage_counts = [len(self.rows[document_id]) for document_id in query.documents]
            late_scores = COSINE_SCALE * max_of_groups(passage_scores, passage_counts)
            scored_queries.append(replace(query, scores={**query.scores, "late": late_scores}))
        return scored_queries


def _unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def quantise(vectors: np.ndarray, bits: int) -> np.ndarray:
    """Round numbers to 2^bits evenly spaced values. The largest half a percent is clipped.

    With 16 bits, numbers are rounded to float16. With 1 bit, only the sign is kept.
    """
    if bits == 16:
        return vectors.astype(np.float16).astype(np.float32)
    if bits == 1:
        return np.where(vectors < 0, -1.0, 1.0).astype(np.float32)
    largest = np.quantile(np.abs(vectors), CLIPPED_QUANTILE)
    # Values on either side of 0. A number becomes the middle of the interval that it lies in.
    levels = 2 ** (bits - 1)
    numbers = np.floor(vectors / largest * levels)
    return (np.clip(numbers, -levels, levels - 1) + 0.5) / levels


def cross_validate(queries: Sequence[Query], components: Sequence[str]) -> float:
    """Return the mean nDCG@10 of two halves of the queries.

    Each half is evaluated with the weights that are learned on the other half.
    """
    first_half = queries[::2]
    second_half = queries[1::2]
    first_score = mean_ndcg(first_half, learn(second_half, components))
    second_score = mean_ndcg(second_half, learn(first_half, components))
    return float(np.mean([first_score, second_score]))


def measure(project: Path) -> dict[str, Any]:
    """Measure the fusion alone, and with MaxSim in every form."""
    with TemporaryDirectory() as folder:
        build = Build(project, Path(folder), RETRIEVERS)
    # Only some dev queries are used. `build.queries` reads them from the evaluation set.
    dev = build.evaluation_set.judgements["dev"]
    used_ids = list(dev.queries)[::DEV_QUERIES_PER_USED]
    used = replace(
        dev,
        queries={query_id: dev.queries[query_id] for query_id in used_ids},
        qrels={query_id: dev.qrels[query_id] for query_id in used_ids},
    )
    build.evaluation_set.judgements["dev"] = used
    queries = build.queries("dev")
    token_vectors = Tokens(build, list(used.queries.values()))

    fused_score = cross_validate(queries, PARTS["fused"])
    rows = []
    for form in FORMS:
        scored_queries = token_vectors.add_late_scores(queries, form)
        score = cross_validate(scored_queries, PARTS["fused with late"])
        token_bytes = form.numbers * form.bits / 8
        row = {
            "numbers": form.numbers,
            "bits": form.bits,
            "signs": form.signs,
            "bytes": token_bytes,
            "bytes a document": token_bytes * len(token_vectors.flat) / len(token_vectors.rows),
            "nDCG@10": round(score, 4),
            "gain": round(score - fused_score, 4),
        }
        rows.append(row)
        print(row, flush=True)
    return {"queries": len(queries), "fused": round(fused_score, 4), "forms": rows}


def table(result: Mapping[str, Any]) -> str:
    """Return the page's second table."""
    lines = []
    for corpus, corpus_result in sorted(result.items()):
        lines.append(
            f"**{corpus}**, {corpus_result['queries']:,} dev queries, "
            f"the fusion alone {corpus_result['fused']:.4f}"
        )
        lines.append("")
        lines.append("| a token is kept as | bytes | a document | nDCG@10 | gain |")
        lines.append("|---|---|---|---|---|")
        for row in corpus_result["forms"]:
            form = "signs" if row["bits"] == 1 else f"{row['bits']} bits"
            if row["signs"]:
                form += ", and so is the query"
            lines.append(
                f"| {row['numbers']} numbers: {form} | {row['bytes']:.0f} | "
                f"{row['bytes a document']:,.0f} | {row['nDCG@10']:.4f} | {row['gain']:+.4f} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the projects of the command line, and write the result and the table."""
    path = HERE / "compact.json"
    measure_into(path, sys.argv[1:], measure)
    write_tables(HERE, table(read_json(path)), START, END)


if __name__ == "__main__":
    main()
