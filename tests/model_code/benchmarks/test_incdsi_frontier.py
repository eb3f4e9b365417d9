"""Guards IncDSI's protocol on a dated collection: which documents are old, which queries are for what, how pages
without queries are represented, vectors kept and read again, and a table of every method."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from model_code.additions.texts import constraint_texts
from model_code.benchmarks import incdsi_frontier
from model_code.benchmarks.incdsi_frontier import TUNING_PART, Pages, compare, encode, main, table
from model_code.benchmarks.incdsi_spaces import SPACES
from model_code.encoding.encoder import Encoder
from model_code.errors import SettingsError
from model_code.incdsi.frontier import BEST
from model_code.incdsi.methods import METHODS, PLAIN, SCALED
from tests.tiny_encoder import make_tiny_encoder

WORDS = [f"word{i}" for i in range(40)]
OLD, NEW = 30, 30


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set in BEIR layout: later documents come first in the file."""
    root, random = tmp_path_factory.mktemp("beir"), np.random.default_rng(0)
    (root / "qrels").mkdir()
    documents, queries, qrels = [], [], {"train": [], "dev": [], "test": []}
    for number in range(OLD + NEW)[::-1]:
        own = random.choice(WORDS, 8, replace=False)
        date = f"{2024 if number < OLD else 2025}-01-{number % 28 + 1:02d}"
        documents.append({"_id": f"p{number}", "title": own[0], "text": " ".join(own[1:]), "date": date})
        for split in qrels:
            if split == "train" and number == OLD:
                continue
            queries.append({"_id": f"{split}{number}", "text": " ".join(random.choice(own, 3))})
            qrels[split].append(f"{split}{number}\tp{number}\t1")
    for name, rows in (("corpus", documents), ("queries", queries)):
        (root / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for split, rows in qrels.items():
        (root / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *rows]))
    return root


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An encoder."""
    return make_tiny_encoder(tmp_path_factory.mktemp("tiny") / "encoder", WORDS)


def test_pages_are_split_by_date_and_by_hash(
    folder: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages.read(folder, "2025-01-01")
    assert pages.first_new == OLD
    assert {int(name[1:]) < OLD for name in pages.ids[:OLD]} == {True}
    encoded = encode(pages, base, 32, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 3
    monkeypatch.setattr("model_code.encoding.encoder.Encoder.load", None)
    again = encode(pages, base, 32, cache=tmp_path)
    np.testing.assert_array_equal(again.documents, encoded.documents)
    tuning, test = encoded.splits()
    held = [{one.id for one in split.documents} for split in (tuning, test)]
    assert not held[0] & held[1]
    assert held[0] | held[1] == set(pages.ids[OLD:])
    assert 0 < len(held[0]) < NEW * 3 / TUNING_PART
    assert set(test.new_targets) == held[1]
    assert set(test.old_targets) == set(pages.ids[:OLD])
    assert len(tuning.new_queries) == 2 * len(held[0])
    row = pages.queries.index(pages.queries[pages.asked["test"][test.new_targets[0]][0]])
    np.testing.assert_array_equal(test.new_queries[0], encoded.queries[row])


def test_a_page_without_queries_is_its_own(folder: Path, base: Path) -> None:
    encoded = encode(Pages.read(folder, "2025-01-01"), base, 32)
    row = encoded.pages.ids.index(f"p{OLD}")
    np.testing.assert_array_equal(encoded.asks(row), encoded.documents[row : row + 1])
    other = encoded.pages.ids.index(f"p{OLD + 1}")
    assert not np.allclose(encoded.asks(other), encoded.documents[other])


def test_parts_of_texts_stand_in_for_queries(folder: Path, base: Path) -> None:
    plain = Pages.read(folder, "2025-01-01")
    encoded = encode(plain.with_written(), base, 32)
    for row in (0, OLD):
        text = plain.texts[row]
        np.testing.assert_allclose(encoded.asks(row), encode_texts(base, constraint_texts("", text, 4)), atol=1e-5)
    np.testing.assert_array_equal(encoded.splits()[1].new_queries, encode(plain, base, 32).splits()[1].new_queries)


def encode_texts(base: Path, texts: list[str]) -> np.ndarray:
    return Encoder.load(base, 32, for_search=True).encode(texts)


def test_a_table_of_every_method_with_differences_to_plain(
    folder: Path, base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    encoded = encode(Pages.read(folder, "2025-01-01"), base, 32)
    found = compare(encoded, "own_vectors", trials=2, orders=1)
    assert {one.point.method for one in found} == set(METHODS)
    assert found[0].old == found[0].new == (0.0, 0.0, 0.0)
    for one in found:
        assert (one.old is None) == (one.point.chosen_for != BEST)
        for mean, low, high in filter(None, (one.old, one.new)):
            assert low <= mean <= high
    lines = table(found).splitlines()
    assert len(lines) == 2 + sum(one.point.chosen_for == BEST for one in found)
    monkeypatch.setattr(incdsi_frontier, "BASE", str(base))
    monkeypatch.setattr(incdsi_frontier, "encode", lambda pages, cache: encoded)
    monkeypatch.setattr(sys, "argv", ["x", str(folder), "--trials", "1", "--orders", "1", "--space", "dsi"])
    main()
    assert "before any addition" in capsys.readouterr().out


def test_learned_spaces_answer_their_training_queries_better(folder: Path, base: Path) -> None:
    encoded = encode(Pages.read(folder, "2025-01-01"), base, 32)
    pages = encoded.pages
    rows, owners = pages.of(pages.ids[:OLD], "train")
    targets = [pages.ids.index(one) for one in owners]
    hits = {name: (encoded.queries[rows] @ encoded.state(name).vectors.view.T).argmax(axis=1) == targets
            for name in SPACES}  # fmt: skip
    assert hits["dsi"].mean() >= hits["own_vectors"].mean()
    assert encoded.state("dsi").vectors.view.tolist() == encoded.state("dsi").vectors.view.tolist()


def test_one_side_must_not_be_empty(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no document has a date"):
        Pages.read(folder, "1999-01-01")


def test_plain_is_the_first_of_all_methods() -> None:
    assert next(iter(METHODS.values())) is PLAIN
    assert SCALED.fixed
