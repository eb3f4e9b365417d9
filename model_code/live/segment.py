"""Write the folder of a segment: documents that came together, or several segments merged."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from model_code.documents import Document
from model_code.files import write_text
from model_code.live.documents import COLUMNS, document_row, read_columns, write_rows
from model_code.live.generation import DOCUMENTS, INDEX, PASSAGES
from model_code.live.part import Base, Part, View, open_segment
from model_code.live.placement import Placements
from model_code.live.text_rules import TextRules
from model_code.retrievers.base import NewPassages, Refine


def write_segment(folder: Path, base: Base, puts: Sequence[Document], text: TextRules, refine: Refine | None) -> Part:
    """Encode, index and place the documents of `puts`, which differ, in `folder`; encoder and tree are the base's.

    Returns the segment, loaded.
    """
    new = new_passages(puts, text, refine)
    base.retriever.write_segment(folder / INDEX, new)
    write_rows(map(document_row, puts), folder / DOCUMENTS)
    _write_passages(folder, new.document_ids)
    part = open_segment(base, folder)
    Placements.find(base.tree, part.retriever.passage_vectors(new.document_ids)).save(folder)
    return part


def new_passages(puts: Sequence[Document], text: TextRules, refine: Refine | None = None) -> NewPassages:
    """The passages of documents, which differ, in their order."""
    passages = [(put.document_id, passage) for put in puts for passage in text.passages(put.title, put.text)]
    ids, texts = [document for document, _ in passages], [passage for _, passage in passages]
    return NewPassages(texts, ids, {put.document_id: put.queries for put in puts if put.queries}, refine)


def merge_segments(folder: Path, views: Sequence[View]) -> None:
    """One segment in `folder` of what is left of several, as it is: nothing is encoded or placed anew."""
    views = [view for view in views if view.documents]
    parts = [(view.part.retriever, view.document_ids()) for view in views]
    views[0].part.retriever.merge(parts, folder / INDEX)
    documents, ids, placements = [], [], []
    for view in views:
        columns = read_columns(view.part.documents, *COLUMNS)
        documents += [dict(zip(COLUMNS, row, strict=True)) for row in zip(*columns, strict=True) if row[0] in view]
        rows = view.part.rows.rows_of(view.document_ids())
        ids += [view.part.rows.document_ids[row] for row in rows.tolist()]
        placements.append(view.part.placements.take(rows))
    write_rows(documents, folder / DOCUMENTS)
    _write_passages(folder, ids)
    Placements.join(placements).save(folder)


def _write_passages(folder: Path, document_ids: Sequence[str]) -> None:
    write_text(folder / PASSAGES, json.dumps(list(document_ids), ensure_ascii=False, separators=(",", ":")))
