"""Tests of the benchmark of rows with queries, with a tiny collection and a tiny encoder.

Run: python -m pytest tests/benchmarks/test_rows_with_queries.py
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import rows_with_queries
from benchmarks.rows_with_queries import Corpus, join_halves, rows
from model_code.errors import FreshetError
from tests.tiny_encoder import make_tiny_encoder

DOCUMENTS = 40
# Documents that have three training queries.
ASKED = 12


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    with gzip.open(path, "wt", encoding="utf-8") as stream:
        for line in lines:
            stream.write(json.dumps(line) + "\n")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A collection in BEIR layout: each of the first documents has three training queries."""
    folder = tmp_path_factory.mktemp("data")
    documents = []
    for number in range(DOCUMENTS):
        text = f"garden{number} soil{number} seed{number} water light"
        documents.append({"_id": f"d{number}", "title": "", "text": text})
    write_lines(folder / "corpus.jsonl.gz", documents)

    queries = []
    judgements = ["query-id\tcorpus-id\tscore"]
    for number in range(ASKED):
        for part in ("garden", "soil", "seed"):
            queries.append({"_id": f"{part}{number}", "text": f"which {part}{number}"})
            judgements.append(f"{part}{number}\td{number}\t1")
    write_lines(folder / "queries.jsonl.gz", queries)
    (folder / "qrels").mkdir()
    (folder / "qrels" / "train.tsv").write_text("\n".join(judgements) + "\n", encoding="utf-8")
    return folder


def test_arriving_documents_have_three_queries(data: Path) -> None:
    corpus = Corpus.read(data, most=DOCUMENTS, arrivals=5)

    assert [len(row["queries"]) for row in corpus.new_rows] == [3] * 5


def test_arriving_documents_are_not_in_the_build(data: Path) -> None:
    corpus = Corpus.read(data, most=DOCUMENTS, arrivals=5)

    assert not {row["text"] for row in corpus.new_rows} & set(corpus.texts)


def test_other_queries_are_known_to_the_build(data: Path) -> None:
    corpus = Corpus.read(data, most=DOCUMENTS, arrivals=5)

    assert len(corpus.known) == 3 * (ASKED - 5)


def test_known_queries_belong_to_their_documents(data: Path) -> None:
    corpus = Corpus.read(data, most=DOCUMENTS, arrivals=5)

    texts = dict(zip(corpus.ids, corpus.texts, strict=True))
    for query in corpus.known:
        word = query.text.removeprefix("which ")
        assert word in texts[query.document_id]


def test_too_few_documents_with_queries_are_an_error(data: Path) -> None:
    with pytest.raises(FreshetError, match="has 12 documents with 3 training queries"):
        Corpus.read(data, most=DOCUMENTS, arrivals=13)


def test_joined_documents_have_halves_of_two_texts() -> None:
    vectors = np.eye(2, dtype=np.float32)

    texts, _ = join_halves(["a b c d", "e f g h"], vectors, count=20)

    assert {"a b g h", "e f c d"} <= set(texts)


def test_joined_vectors_are_unit_vectors() -> None:
    _, vectors = join_halves(["a b", "c d"], np.eye(2, dtype=np.float32), count=20)

    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)


def test_without_data_the_row_is_skipped() -> None:
    (row,) = rows()

    assert row["goal"].startswith("skipped")


def test_rows_with_queries_are_solved(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark would measure nothing if the rows with queries were added like the others."""
    monkeypatch.setattr(rows_with_queries, "WARM_ROWS", 2)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    corpus = Corpus.read(data, most=DOCUMENTS, arrivals=6)
    base = make_tiny_encoder(tmp_path / "tiny", corpus.texts)
    plain = rows_with_queries.make_collection(tmp_path / "plain", corpus, DOCUMENTS, base)
    asked = rows_with_queries.make_collection(tmp_path / "asked", corpus, DOCUMENTS, base)

    seconds = rows_with_queries.measure(plain, asked, corpus.new_rows)

    assert min(seconds.values()) > 0
    assert list(asked.root.glob("live/*/generations/*/solved.json"))
    assert not list(plain.root.glob("live/*/generations/*/solved.json"))
