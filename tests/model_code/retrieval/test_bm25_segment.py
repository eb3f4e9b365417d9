"""Tests of the segments of BM25: building, merging, and reading them from disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from model_code.errors import FreshetError
from model_code.files import MANIFEST, hash_path
from model_code.retrieval.bm25_segment import Bm25Segment

TEXTS = [
    "sort list numbers",
    "sort sort table",
    "read file",
    "read table file numbers numbers",
    "read file",
]
DOCUMENTS = ["b", "b", "d", "a", "c"]


def test_merged_bm25_segment_equals_built_segment(tmp_path: Path) -> None:
    first = Bm25Segment.build(TEXTS[:2], DOCUMENTS[:2], "english")
    second = Bm25Segment.build(
        [*TEXTS[2:], "gone with the wind"], [*DOCUMENTS[2:], "gone"], "english"
    )

    merged = Bm25Segment.merge([(first, ["b"]), (second, ["a", "c", "d"])])
    merged.save(tmp_path / "merged", {})

    Bm25Segment.build(TEXTS, DOCUMENTS, "english").save(tmp_path / "built", {})
    for path in (tmp_path / "built").iterdir():
        assert (tmp_path / "merged" / path.name).read_bytes() == path.read_bytes(), path.name


@pytest.mark.parametrize("block_passages", [1, 2, 4])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_blocks_do_not_change_the_segment(count: int, block_passages: int, tmp_path: Path) -> None:
    texts = TEXTS[:count]
    documents = DOCUMENTS[:count]

    segment = Bm25Segment.build(texts, documents, "english", block_passages)
    segment.save(tmp_path / "blocks", {})

    Bm25Segment.build(texts, documents, "english").save(tmp_path / "whole", {})
    assert hash_path(tmp_path / "blocks") == hash_path(tmp_path / "whole")


def test_frequencies_above_255_are_kept() -> None:
    segment = Bm25Segment.build(["rare", "often " * 300], ["a", "b"], None, block_passages=1)

    assert segment.frequencies.tolist() == [300, 1]


def test_damaged_file_is_named(tmp_path: Path) -> None:
    Bm25Segment.build(TEXTS, DOCUMENTS, None).save(tmp_path, {})
    (tmp_path / "vocabulary.json").write_text("[]")

    with pytest.raises(FreshetError, match=r"vocabulary\.json was changed"):
        Bm25Segment.load(tmp_path)


def test_segment_of_another_format_is_refused(tmp_path: Path) -> None:
    Bm25Segment.build(TEXTS, DOCUMENTS, None).save(tmp_path, {})
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    manifest["format"] = 1
    (tmp_path / MANIFEST).write_text(json.dumps(manifest))

    with pytest.raises(FreshetError, match="has format 1, .* build it again: freshet run"):
        Bm25Segment.load(tmp_path)
