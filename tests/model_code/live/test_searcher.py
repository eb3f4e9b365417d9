"""Guards the searcher: ranks, titles, snippets and paths of hits, batch = one by one, and no slow import on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from model_code.hierarchy.tree import Hierarchy
from model_code.live.searcher import Searcher
from model_code.live.snippet import snippet
from tests.model_code.live.conftest import DOCUMENTS, PASSAGES, Build


@pytest.fixture(scope="module")
def searcher(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """The build, live and opened."""
    root = tmp_path_factory.mktemp("root")
    build.open(root)
    return Searcher.open(root / "live", device="cpu")


def test_hits_carry_everything_a_reader_needs(searcher: Searcher) -> None:
    hits = searcher.search("split a string into words", 4)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[0].document_id == hits[0].title == "str.split"
    assert hits[0].snippet == DOCUMENTS["str.split"]


def test_path_is_that_of_the_best_passage(searcher: Searcher, build: Build) -> None:
    tree = Hierarchy.load(build.hierarchy)
    for hit in searcher.search("read a table from a file", 9):
        passages = [row for row, document in enumerate(PASSAGES) if document == hit.document_id]
        assert hit.path in {tree.path(row) for row in passages}
    first = searcher.search("csv.reader " + DOCUMENTS["csv.reader"], 1)[0]
    assert (first.document_id, first.path) == ("csv.reader", tree.path(1))


def test_a_batch_equals_single_searches(searcher: Searcher) -> None:
    texts = ["split", "read a json file", "square root", ""]
    batch, single = searcher.search_batch(texts, 9), [searcher.search(text, 9) for text in texts]
    assert [[hit.document_id for hit in hits] for hits in batch] == [[h.document_id for h in hits] for hits in single]
    assert searcher.search_batch([], 3) == []


def test_more_hits_than_documents(searcher: Searcher) -> None:
    assert len(searcher.search("list", 100)) == len(DOCUMENTS)


def test_a_cold_search_imports_nothing_slow_that_it_does_not_need(searcher: Searcher) -> None:
    code = (
        "import sys; from pathlib import Path; from model_code.live.searcher import Searcher;"
        "Searcher.open(Path(sys.argv[1])).search('split', 2);"
        "print([name for name in ('sentence_transformers', 'pandas', 'sklearn', 'mlflow', 'dagster', 'dvc',"
        "'pandera', 'datasets', 'matplotlib', 'bm25s') if name in sys.modules])"
    )
    live = searcher.generation.folder.parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code, str(live)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[3],
    )
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_snippet_prefers_rare_words_close_together() -> None:
    text = "the " * 30 + "sorted copy " + "of the " * 30 + "sorted copy of an array " + "the end " * 20
    assert "array" in snippet(text, "the sorted array", width=12)
    assert snippet(text, "nothing here", width=4) == "the the the the ..."
    assert snippet("", "query") == ""
    assert snippet("a b c", "c", width=24) == "a b c"


def test_snippet_is_as_wide_as_asked_for_and_keeps_the_match() -> None:
    words = [f"w{i}" for i in range(100)]
    for place in range(100):
        shown = snippet(" ".join(words), f"W{place}!", width=10).replace("... ", "").replace(" ...", "").split()
        assert len(shown) == 10
        assert f"w{place}" in shown
