"""Guards the searcher: ranks, titles, snippets and paths of hits, batch = one by one, no slow
import on the way, and searches that filter or explain.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from freshet.results import SearchResult
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.query_options import QueryOptions
from model_code.collection.generations.searcher import FLOOR_RUN_LENGTH, Hit, Searcher
from model_code.errors import FreshetError, SettingsError
from model_code.hierarchy.tree import Hierarchy
from model_code.text.documents import Document, Remove
from model_code.text.snippets import find_marks, make_snippet
from tests.model_code.collection.conftest import DOCUMENTS, NAMES, PASSAGES, RULES, Build
from tests.model_code.collection.laws import up_to


@pytest.fixture(scope="module")
def searcher(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """The build, live and opened."""
    root = tmp_path_factory.mktemp("root")
    build.open(root)
    return Searcher.open(root / "live")


def test_hits_are_complete_and_one_per_document(
    searcher: Searcher,
) -> None:
    hits = searcher.search("split a string into words", 4)
    assert [hit.rank for hit in hits] == [1, 2, 3, 4]
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert hits[0].document_id == "str.split"
    assert hits[0].title == "str.split"
    assert hits[0].snippet == DOCUMENTS["str.split"]
    assert hits[0].text == DOCUMENTS["str.split"]

    marked = [hits[0].snippet[start:end] for start, end in hits[0].marks]
    assert marked == ["Split", "string", "words"]
    assert hits[0].fields["package"] == "str"
    assert hits[0].date is None
    assert hits[0].generation == 0
    assert hits[0].tokens is None
    assert len(searcher.search("list", 100)) == len(DOCUMENTS)


def test_hit_is_best_passage_with_its_position(searcher: Searcher) -> None:
    whole = DOCUMENTS["csv.reader"]
    for passage in RULES.passage_spans(whole):
        text = passage.read(whole)
        (hit,) = (
            one
            for one in searcher.search(f"csv.reader {text}", 9)
            if one.document_id == "csv.reader"
        )
        assert hit.text == text
        assert hit.start == passage.start
        assert hit.end == passage.end
        assert hit.section is None


def test_documents_are_read_by_id_and_listed(searcher: Searcher) -> None:
    assert searcher.ids_after("csv.reader", 3) == sorted(DOCUMENTS)[2:5]

    found = searcher.documents(["str.split", "later.document"])
    assert [(one.document_id, one.text) for one in found.values()] == [
        ("str.split", DOCUMENTS["str.split"])
    ]


def test_path_is_that_of_the_best_passage(searcher: Searcher, build: Build) -> None:
    tree = Hierarchy.load(build.hierarchy)
    for hit in searcher.search("read a table from a file", 9):
        passages = [row for row, document in enumerate(PASSAGES) if document == hit.document_id]
        assert hit.path in {tree.path(row) for row in passages}
        assert hit.topics == (NAMES[hit.path[0]],)
    first = searcher.search("csv.reader " + DOCUMENTS["csv.reader"], 1)[0]

    assert first.document_id == "csv.reader"
    assert first.path == tree.path(1)


def ids_of(hits: list[Hit]) -> list[str]:
    """Return the documents of hits, best first."""
    return [hit.document_id for hit in hits]


def test_batch_equals_single_searches(searcher: Searcher) -> None:
    texts = ["split", "read a json file", "square root", "?"]

    batch = searcher.search_batch(texts, 9)

    for text, hits in zip(texts, batch, strict=True):
        assert ids_of(hits) == ids_of(searcher.search(text, 9))


def test_empty_batch_has_no_rankings(searcher: Searcher) -> None:
    assert searcher.search_batch([], 3) == []


def test_ready_searcher_has_built_its_retriever(searcher: Searcher) -> None:
    anew = Searcher(searcher.live, searcher.generation, searcher.parts)

    assert "retriever" not in vars(anew)
    assert "retriever" in vars(anew.ready())


PACKAGES = ["package=csv", "package=json", "package=str"]


def test_filters_keep_order_and_scores(searcher: Searcher) -> None:
    hits = searcher.search("read a list", 9, PACKAGES)

    expected = []
    for hit in searcher.search("read a list", 9):
        if hit.document_id in ("csv.reader", "json.load", "str.split"):
            expected.append((hit.document_id, hit.score))
    assert [(hit.document_id, hit.score) for hit in hits] == expected
    assert [hit.rank for hit in hits] == [1, 2, 3]


def test_filtered_search_has_at_most_k_hits(searcher: Searcher) -> None:
    assert len(searcher.search("read a list", 2, PACKAGES)) == 2


def test_filters_of_several_fields_must_all_match(searcher: Searcher) -> None:
    hits = searcher.search("x", 9, ["tags=text", "package=re"])

    assert ids_of(hits) == ["re.split"]


def test_filter_of_unknown_field_is_refused(searcher: Searcher) -> None:
    with pytest.raises(
        FreshetError, match="no document has a field 'color'; fields: package, since, tags"
    ):
        searcher.search("read", 3, ["color=red"])


def page(searcher: Searcher, **options: Any) -> SearchResult:
    (result,) = searcher.search_pages(["read a list"], QueryOptions(**options))
    return result


def ids(result: SearchResult) -> list[str]:
    return [hit.document_id for hit in result.hits]


def test_pages_continue_the_ranking(searcher: Searcher) -> None:
    whole = page(searcher, k=9)

    first = page(searcher, k=4)
    second = page(searcher, k=4, offset=4)

    assert [*first.hits, *second.hits] == whole.hits[:8]
    assert first.total == len(DOCUMENTS)
    assert second.total == len(DOCUMENTS)


def test_page_beyond_the_ranking_is_empty(searcher: Searcher) -> None:
    assert page(searcher, k=4, offset=100).hits == []


def test_total_counts_matching_documents(searcher: Searcher) -> None:
    assert page(searcher, k=1, filters={"tags": "text"}).total == 2


def test_facets_of_no_documents_are_empty(searcher: Searcher) -> None:
    found = page(searcher, filters={"package": "nothing"}, facets=["tags"])

    assert found.facets == {"tags": {}}


def test_facets_count_the_window(searcher: Searcher) -> None:
    result = page(searcher, k=1, facets=["tags", "since"])

    assert result.facets == {"tags": {"strings": 2, "text": 2}, "since": {"3": 2}}
    best = ids(page(searcher, k=3))
    packages = Counter(document_id.partition(".")[0] for document_id in best)
    assert page(searcher, window=3, facets=["package"]).facets == {"package": packages}


def test_sort_and_group_order_the_window(searcher: Searcher) -> None:
    best = ids(page(searcher, k=9))
    packages = [document_id.partition(".")[0] for document_id in best]

    by_package = ids(page(searcher, k=9, sort=["-package"]))
    grouped = page(searcher, k=9, group_by="package")

    assert by_package == sorted(best, key=lambda name: name.partition(".")[0], reverse=True)
    assert ids(grouped) == [best[packages.index(name)] for name in dict.fromkeys(packages)]
    assert grouped.total == len(set(packages))
    assert page(searcher, k=2, offset=2, sort=["-package"], window=3).total == 3
    assert len(page(searcher, k=2, offset=2, sort=["-package"], window=3).hits) == 1


def test_boost_is_added_and_explained(searcher: Searcher) -> None:
    plain = page(searcher, k=9)
    spread = plain.hits[0].score - plain.hits[-1].score

    boosted = page(searcher, k=9, boost={"since": {"weight": 4, "pivot": 3}}, explain=True)

    assert {hit.document_id for hit in boosted.hits[:2]} == {"str.split", "re.split"}
    scores = {hit.document_id: hit.score for hit in plain.hits}
    for hit in boosted.hits:
        retriever, boost = hit.tokens or ()
        assert retriever.weight == scores[hit.document_id]
        assert boost.token == "boost since"
        expected_boost = 2 * spread if hit.fields.get("since") else 0.0
        assert boost.weight == pytest.approx(expected_boost)
        assert hit.score == pytest.approx(retriever.weight + boost.weight)


class ShortestFirst:
    """A reranker that prefers short passages."""

    depth = 3

    def score(self, query: str, passages: list[str]) -> np.ndarray:
        self.query = query
        self.passages = passages
        return np.array([-float(len(passage)) for passage in passages])


def test_best_documents_are_reranked(searcher: Searcher, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = page(searcher, k=9)
    reranker = ShortestFirst()
    monkeypatch.setattr(searcher, "reranker", reranker)

    reranked = page(searcher, k=9, explain=True)

    assert reranker.query == "read a list"
    assert sorted(ids(reranked)) == sorted(ids(plain)[:3])
    assert [hit.score for hit in reranked.hits] == sorted(
        (-float(len(passage)) for passage in reranker.passages), reverse=True
    )
    assert reranked.total == 3
    assert reranked.rerank_ms is not None
    assert [hit.tokens[0].token for hit in reranked.hits if hit.tokens] == ["reranker"] * 3
    assert page(searcher, k=9, rerank=False).hits == plain.hits
    assert plain.rerank_ms is None
    assert searcher.search("read a list", 1)[0].score < 0


def test_pages_of_similar_documents_share_a_reranking(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "reranker", ShortestFirst())
    whole = searcher.search_like("str.split", QueryOptions(k=3))

    first = searcher.search_like("str.split", QueryOptions(k=2))
    second = searcher.search_like("str.split", QueryOptions(k=2, offset=2))

    assert [*ids(first), *ids(second)] == ids(whole)
    assert first.total == 3


def test_reranker_leaves_searches_by_vector_alone(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    vector = searcher.base.dense.encode_queries(["read a list"])[0].tolist()
    plain = searcher.search_vector(vector, QueryOptions(k=2))
    monkeypatch.setattr(searcher, "reranker", ShortestFirst())

    result = searcher.search_vector(vector, QueryOptions(k=2))

    assert result.hits == plain.hits
    assert result.total == plain.total == len(DOCUMENTS)


def test_lowest_score_is_compared_after_reranking(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher, "reranker", ShortestFirst())
    second = page(searcher, k=9).hits[1].score

    limited = page(searcher, k=9, min_score=second)

    assert [hit.score >= second for hit in limited.hits] == [True, True]
    assert limited.total == 2


def test_like_finds_resembling_documents_without_itself(searcher: Searcher) -> None:
    result = searcher.search_like("str.split", QueryOptions(k=20))

    assert ids(result)[0] == "re.split"
    assert "str.split" not in ids(result)
    assert result.total == len(DOCUMENTS) - 1
    assert len(result.hits) == result.total
    filtered = searcher.search_like("str.split", QueryOptions(filters={"tags": "text"}))
    assert ids(filtered) == ["re.split"]
    assert searcher.search_like("str.split", QueryOptions(filters={"package": "str"})).hits == []
    with pytest.raises(FreshetError, match="the collection holds no document 'nothing'"):
        searcher.search_like("nothing", QueryOptions())


def test_vector_search_equals_text_search(searcher: Searcher) -> None:
    vector = searcher.retriever.encode_queries(["split a string"])[0]
    expected = searcher.search("split a string", 9)

    result = searcher.search_vector((vector * 7.0).tolist(), QueryOptions(k=9))

    assert ids(result) == [hit.document_id for hit in expected]
    scores = [hit.score for hit in result.hits]
    assert scores == pytest.approx([hit.score for hit in expected], abs=1e-6)
    assert result.hits[0].snippet
    assert result.hits[0].marks == ()
    assert ids(searcher.search_vector(vector, QueryOptions(filters={"package": "re"}))) == [
        "re.split"
    ]


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([1.0], "the vector must be a list of"),
        ([], "the vector must be a list of"),
        ("ab", "the vector must be a list of"),
        ([0.0] * 1000, "the largest absolute value of the vector is 0"),
        ([float("inf")] * 1000, "the largest absolute value of the vector is inf"),
        ([float("nan")] * 1000, "the largest absolute value of the vector is nan"),
    ],
)
def test_wrong_vector_is_refused(searcher: Searcher, vector: Any, message: str) -> None:
    dense = searcher.retriever.dense
    assert dense is not None
    if len(vector) == 1000:
        vector = vector[: dense.index.dimension]

    with pytest.raises(SettingsError, match=message):
        searcher.search_vector(vector, QueryOptions())


@pytest.mark.parametrize("option", ["sort", "facets", "boost", "group_by"])
def test_unknown_field_of_an_option_is_refused(searcher: Searcher, option: str) -> None:
    value: Any = "color" if option == "group_by" else ["color"]

    with pytest.raises(FreshetError, match="no document has a field 'color'; fields: package"):
        page(searcher, **{option: value})


def test_empty_or_non_utf8_query_is_refused(searcher: Searcher) -> None:
    for text in ("", " \n"):
        with pytest.raises(SettingsError, match="text is empty"):
            searcher.search_batch(["split", text])
    with pytest.raises(FreshetError, match="no UTF-8"):
        searcher.search("caf\udce9")


def test_a_dense_retriever_explains_why_it_cannot(searcher: Searcher) -> None:
    with pytest.raises(FreshetError, match="does not score by token"):
        searcher.search("read", 1, explain=True)


def test_cold_search_avoids_slow_imports(searcher: Searcher) -> None:
    code = (
        "import sys; from pathlib import Path; from model_code.collection.generations.searcher "
        "import Searcher;"
        "Searcher.open(Path(sys.argv[1])).search('split', 2);"
        "print([name for name in ('sentence_transformers', 'pandas', 'sklearn', 'mlflow', "
        "'dagster', 'dvc',"
        "'pandera', 'datasets', 'matplotlib', 'bm25s', 'model_code.collection.segments.filters')"
        "if name in sys.modules])"
    )
    command = [sys.executable, "-c", code, str(searcher.generation.folder.parents[2])]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[4]
    )

    assert done.stdout.strip() == "[]"
    assert done.stderr == ""


def test_snippet_prefers_rare_words_close_together() -> None:
    text = (
        "the " * 30 + "sorted copy " + "of the " * 30 + "sorted copy of an array " + "the end " * 20
    )

    assert "array" in make_snippet(text, "the sorted array", width=12)
    assert make_snippet(text, "nothing here", width=4) == "the the the the ..."
    assert make_snippet("", "query") == ""
    assert make_snippet("a b c", "c", width=24) == "a b c"


def test_snippet_has_requested_width_around_match() -> None:
    words = [f"w{i}" for i in range(100)]
    for place in range(100):
        shown = (
            make_snippet(" ".join(words), f"W{place}!", width=10)
            .replace("... ", "")
            .replace(" ...", "")
            .split()
        )
        assert len(shown) == 10
        assert f"w{place}" in shown


def test_snippet_keeps_sentences_and_marks_words() -> None:
    text = "It was late. Nobody sorts a list! " + "And so on and on. " * 20
    assert make_snippet(text, "sorts", width=9) == "Nobody sorts a list! And so on and on."

    chinese = "排序算法很重要。它把列表中的元素排列好。" * 9
    shown = make_snippet(chinese, "列表", width=12)

    assert "列表" in shown
    assert {shown[start:end] for start, end in find_marks(shown, "列表")} == {"列表"}
    assert {shown[start:end] for start, end in find_marks(shown, "列")} == {"列"}
    assert find_marks("Häuser und Haus", "Haus", "german") == ((0, 6), (11, 15))
    assert find_marks("Häuser und Haus", "Haus", None) == ((11, 15),)
    assert find_marks("<b>List</b>", "list b") == ((1, 2), (3, 7), (9, 10))


def test_searcher_lists_known_queries_of_live_documents(build: Build, tmp_path: Path) -> None:
    build.open(tmp_path)
    builder = GenerationBuilder(tmp_path / "live", "hce")
    asked = Document("a.one", "one", "Count words.", queries=("how many words", "How many words?"))
    other = Document("b.two", "two", "Draw lines.", queries=("draw a line",), date="2025-05-01")
    builder.apply([asked, other], up_to(2), {})

    queries = builder.searcher.known_queries()
    assert [(query.document_id, query.text) for query in queries] == [
        ("a.one", "How many words?"),
        ("b.two", "draw a line"),
    ]
    assert queries[1].date == "2025-05-01"
    assert builder.searcher.known_queries(["b.two"]) == queries[1:]

    builder.apply([Remove("a.one")], up_to(3), {})
    assert builder.searcher.known_queries() == queries[1:]


def test_relevance_floor_does_not_list_all_ids(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = []
    ids_after = Searcher.ids_after

    def note_limit(searcher: Searcher, after: str, limit: int) -> list[str]:
        limits.append(limit)
        return ids_after(searcher, after, limit)

    monkeypatch.setattr(Searcher, "ids_after", note_limit)

    _ = Searcher.open(live, "r").relevance_floor

    assert 0 < max(limits) < FLOOR_RUN_LENGTH
