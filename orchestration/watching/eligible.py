"""Which documents of a live build stand for what its retriever was trained for, and in which order they came."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from model_code.corpus.cleaning import parse_date
from model_code.errors import FreshetError
from model_code.live.documents import read_columns
from model_code.live.generation import DOCUMENTS, Generation
from model_code.live.trained import trained_documents
from orchestration.ledgers import existing_ledger
from orchestration.project import Project

if TYPE_CHECKING:
    from datetime import datetime


def eligible(project: Project, generation: Generation, least: int) -> tuple[set[str], str]:
    """The documents that the retriever was trained with and that no training query asked for, as training moves those;
    all that it was trained with where the others are fewer than `least`, and then a note that says so."""
    trained = trained_documents(generation)
    untouched = trained & not_asked_in_training(project.artifacts)
    if len(untouched) >= least:
        return untouched, ""
    return trained, (
        f"also documents that training queries ask for: {len(untouched)} of {len(trained)} are asked for by none, and "
        f"{least} are wanted (3 x drift.largest_batch)"
    )


def not_asked_in_training(artifacts: Path) -> set[str]:
    """The corpus's documents that no judged or made query of the split train asks for; none without a corpus."""
    corpus, made = artifacts / "corpus", artifacts / "pseudo_queries" / "pseudo_queries.parquet"
    if not made.is_file():
        return set()
    pairs = [
        pair
        for path in (corpus / "qrels.parquet", made)
        for pair in zip(*read_columns(path, "document_id", "split"), strict=True)
    ]
    asked = {document for document, split in pairs if split == "train"}
    return set(read_columns(corpus / DOCUMENTS, "document_id")[0]) - asked


def by_date(project: Project, generation: Generation, documents: Collection[str]) -> list[str]:
    """`documents` by the date that the corpus, or the ledger, has of each; FreshetError if one has none."""
    known = _dates(project, generation)
    missing = sorted(one for one in documents if known.get(one) is None)
    if missing:
        raise FreshetError(
            f"drift.batches is in_order, but {len(missing)} of {len(documents)} documents have no date, first "
            f"{missing[0]!r}: say which column holds it (corpus.columns.date), or set drift.batches to random"
        )
    return sorted(documents, key=lambda one: (known[one], one))


def _dates(project: Project, generation: Generation) -> dict[str, datetime | None]:
    path, ledger = project.artifacts / "corpus" / DOCUMENTS, existing_ledger(project, generation.retriever)
    found = dict(zip(*read_columns(path, "document_id", "date"), strict=True)) if path.is_file() else {}
    found |= {one.document_id: one.date for one in (ledger.snapshot(generation.watermark) if ledger else ())}
    return {one: parse_date(date) for one, date in found.items()}
