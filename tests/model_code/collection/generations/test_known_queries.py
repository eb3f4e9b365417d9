"""Guards known queries of a live collection: they find their documents, changes one by one equal a
rebuild, and feedback replaces what a segment knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.live_queries import documents_with_known_queries
from model_code.collection.generations.raised_hits import is_raised_by_known_queries
from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import Feedback, Opinion
from model_code.collection.segments.known_overrides import LaterEvidence, evidence_of_feedback
from model_code.corpus.corpus_queries import query_hash
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.fused import FusedSearch, Fusion
from model_code.retrieval.protocol import Ranking
from model_code.text.documents import Document, Remove
from model_code.text.known_queries import (
    KnownQuery,
    KnownQueryLimits,
    QuerySource,
    select_queries,
)
from tests.model_code.collection.known_collection import (
    PAGES,
    RETRIEVER,
    WORDS,
    found,
    judged,
    open_known_collection,
    page,
)
from tests.model_code.collection.laws import up_to

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

QUESTIONS = ("free some space", "compress a directory", "names in a folder", "wipe the disk")


def rankings(searcher: Searcher) -> list[list[tuple[str, float]]]:
    return searcher.retriever.search(list(QUESTIONS), 10)


@pytest.fixture
def builder(tmp_path: Path) -> GenerationBuilder:
    known = {"rm": [judged("rm", "free some space")]}
    return GenerationBuilder(open_known_collection(tmp_path, known=known), RETRIEVER)


def test_document_is_found_by_words_of_its_queries_only(builder: GenerationBuilder) -> None:
    assert found(builder.searcher, "compress directory") == []
    zipped = page("zip", "Pack files.", "compress a directory")
    builder.apply([zipped], up_to(1), {})

    assert found(builder.searcher, "compress directory") == ["zip"]
    assert found(builder.searcher, "some space") == ["rm"]


def test_changes_one_by_one_equal_a_rebuild(builder: GenerationBuilder, tmp_path: Path) -> None:
    changes: list[Document | Remove] = [
        page("zip", "Pack files.", "compress a directory", "make things small"),
        page("dd", "Copy blocks.", "wipe the disk"),
        page("zip", "Pack files again.", "compress a directory"),
        Remove("tar"),
        page("df", "Show free space."),
    ]
    builder.max_segments = 2
    for event, change in enumerate(changes, start=1):
        builder.apply([change], up_to(event), {})

    pages = {name: text for name, text in PAGES.items() if name != "tar"}
    pages |= {"zip": "Pack files again.", "dd": "Copy blocks.", "df": "Show free space."}
    known = {
        "rm": [judged("rm", "free some space")],
        "zip": [judged("zip", "compress a directory")],
        "dd": [judged("dd", "wipe the disk")],
    }
    live = open_known_collection(tmp_path / "rebuilt", pages, known)
    rebuilt = rankings(Searcher.open(live, RETRIEVER))
    assert rankings(builder.searcher) == rebuilt
    builder.compact()
    assert rankings(builder.searcher) == rebuilt
    assert rankings(Searcher.open(builder.collection.live, RETRIEVER)) == rebuilt


def thumbs(document_id: str, text: str, weight: float = 1.0) -> KnownQuery:
    return KnownQuery(document_id, text, QuerySource.FEEDBACK, weight)


def learn(builder: GenerationBuilder, *feedback: KnownQuery, forgotten: Sequence[str] = ()) -> None:
    """Make feedback and forgotten queries known to the builder."""
    hashes = frozenset(query_hash(text) for text in forgotten)

    def later_evidence() -> LaterEvidence:
        return LaterEvidence(feedback, hashes)

    builder.later_evidence = later_evidence


def test_feedback_takes_effect_with_the_next_generation(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("wc", "how long is it"))
    assert found(builder.searcher, "long") == []
    builder.apply([page("df", "Show space.")], up_to(1), {})

    assert found(builder.searcher, "long") == ["wc"]
    known = builder.searcher.known_queries(["wc"])
    assert [(query.text, query.source) for query in known] == [
        ("how long is it", QuerySource.FEEDBACK)
    ]
    reopened = Searcher.open(builder.collection.live, RETRIEVER)
    assert found(reopened, "long") == ["wc"]
    assert reopened.known_queries() == builder.searcher.known_queries()


def test_feedback_adds_to_what_a_document_knows(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("rm", "make room"), thumbs("rm", "free some space", -2))
    builder.apply([page("df", "Show it.", "see room")], up_to(1), {})

    # Negative feedback outweighs the judgement.
    assert found(builder.searcher, "some") == []
    assert set(found(builder.searcher, "room")) == {"rm", "df"}


def test_generations_share_overrides_until_they_change(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("wc", "how long is it"))
    for event in (1, 2):
        builder.apply([page(f"p{event}", "Some page.")], up_to(event), {})

    assert builder.searcher.generation.known == 1

    builder.apply([Remove("wc")], up_to(3), {})
    assert builder.searcher.generation.known is None
    assert found(builder.searcher, "long") == []


def test_unchanged_known_queries_make_no_generation(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("rm", "make room"), thumbs("rm", "clear it"))
    generation = builder.update_known_queries(up_to(0))

    assert builder.update_known_queries(up_to(0)).number == generation.number


def test_overrides_follow_an_updated_document(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("zip", "shrink it"))
    builder.apply([page("zip", "Pack.", "compress a directory")], up_to(1), {})
    builder.apply([page("zip", "Pack.", "squeeze a directory")], up_to(2), {})

    texts = {query.text for query in builder.searcher.known_queries(["zip"])}
    assert texts == {"shrink it", "squeeze a directory"}
    assert found(builder.searcher, "compress") == []
    builder.compact()
    assert found(builder.searcher, "shrink") == ["zip"]
    assert found(builder.searcher, "squeeze") == ["zip"]


def test_judgements_outlive_an_update_of_their_document(builder: GenerationBuilder) -> None:
    builder.apply([page("rm", "Remove files.", "wipe it")], up_to(1), {})

    assert found(builder.searcher, "some space") == ["rm"]
    assert found(builder.searcher, "wipe") == ["rm"]
    texts = {query.text for query in builder.searcher.known_queries(["rm"])}
    assert texts == {"free some space", "wipe it"}


def test_forgotten_query_finds_nothing(builder: GenerationBuilder) -> None:
    learn(builder, forgotten=["Free some SPACE!"])
    generation = builder.update_known_queries(builder.searcher.generation.cursor)

    assert generation.number == 1
    assert found(builder.searcher, "some space") == []
    assert builder.searcher.known_queries() == []
    assert builder.update_known_queries(generation.cursor) == generation


def test_query_that_judges_is_never_indexed(tmp_path: Path) -> None:
    """Rows, feedback and judgements may all repeat a dev query; none of them makes it known."""
    held_out = ["how long is it"]
    live = open_known_collection(tmp_path, held_out=held_out)
    builder = GenerationBuilder(live, RETRIEVER)
    learn(builder, thumbs("wc", "How long is it?"), thumbs("wc", "size of it"))
    builder.apply([page("du", "Measure.", "how LONG is it", "disk use")], up_to(1), {})

    assert found(builder.searcher, "how long") == []
    texts = [query.text for query in builder.searcher.known_queries()]
    assert texts == ["disk use", "size of it"]


def test_known_query_that_judges_later_is_left_out_then(builder: GenerationBuilder) -> None:
    """A champion is older than the corpus whose queries judge it."""
    builder.apply([page("zip", "Pack.", "compress a directory", "shrink it")], up_to(1), {})
    held_out = frozenset({query_hash("Free some space"), query_hash("compress a directory")})

    segments = builder.searcher.segments_without(held_out)
    search = Bm25Retriever.join_segments(segments).search
    assert search(["some space", "compress directory", "shrink"], 9)[:2] == [[], []]
    assert [document_id for document_id, _ in search(["shrink"], 9)[0]] == ["zip"]


def test_plain_search_knows_no_query(builder: GenerationBuilder) -> None:
    """Drift checks ask new documents for their own queries."""
    plain = builder.searcher.plain_retriever

    assert plain.search(["some space"], 9) == [[]]
    assert plain.search(["delete files"], 9) != [[]]


def test_documents_known_by_thumbs_have_known_queries(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("wc", "how long is it"))
    builder.apply([page("df", "Show space.", "how much is left")], up_to(1), {})
    generation = builder.searcher.generation
    held_out = frozenset({query_hash("How long is it?")})

    assert documents_with_known_queries(generation, frozenset()) == {"rm", "wc", "df"}
    assert documents_with_known_queries(generation, held_out) == {"rm", "df"}
    without_feedback = documents_with_known_queries(generation, frozenset(), with_feedback=False)
    assert without_feedback == {"rm", "df"}


def test_explanation_marks_words_of_known_queries(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("rm", "free some private space"))
    builder.apply([page("df", "Show space.")], up_to(1), {})

    for searched in (builder.searcher, Searcher.open(builder.collection.live, RETRIEVER)):
        (hit,) = searched.search("delete free files", 1, explain=True)
        assert hit.document_id == "rm"
        assert hit.tokens is not None
        assert {match.token: match.known for match in hit.tokens} == {
            "delet": False,
            "file": False,
            "free": True,
        }


def test_fusion_names_words_of_known_queries_only(builder: GenerationBuilder) -> None:
    learn(builder, thumbs("rm", "free some private space"))
    builder.apply([page("df", "Show space.")], up_to(1), {})
    fusion = FusedSearch({"words": builder.searcher.retriever}, Fusion({"words": 1.0}))

    (share,) = fusion.explain("delete free files", "rm")
    (plain_share,) = fusion.explain("delete files", "rm")

    assert share.known
    assert share.known_words == ("free",)
    assert not plain_share.known
    assert plain_share.known_words == ()


def test_hit_that_only_known_queries_raised(builder: GenerationBuilder) -> None:
    searcher = builder.searcher

    assert is_raised_by_known_queries(searcher, "free some space", "rm")
    assert not is_raised_by_known_queries(searcher, "delete files", "rm")
    assert not is_raised_by_known_queries(searcher, "delete some files", "rm")


def test_hit_that_only_a_filter_shows_was_not_raised(builder: GenerationBuilder) -> None:
    """The live search without the filter does not find it, so known queries do not raise it."""
    searcher = builder.searcher

    assert found(searcher, "free some space") == ["rm"]
    assert not is_raised_by_known_queries(searcher, "free some space", "wc")


def test_opinion_that_is_sent_again_costs_no_search(
    builder: GenerationBuilder, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched: list[str] = []
    search = Bm25Index.search

    def record_search(index: Bm25Index, texts: Sequence[str], k: int) -> list[Ranking]:
        searched.extend(texts)
        return search(index, texts, k)

    monkeypatch.setattr(Bm25Index, "search", record_search)
    searcher = builder.searcher
    assert is_raised_by_known_queries(searcher, "free some space", "rm")
    before = list(searched)
    assert is_raised_by_known_queries(searcher, "free some space", "rm")
    assert searched == before

    builder.apply([page("df", "Show free space of disks.")], up_to(1), {})
    is_raised_by_known_queries(builder.searcher, "free some space", "rm")
    assert len(searched) > len(before)


def test_evaluation_can_leave_feedback_out(builder: GenerationBuilder) -> None:
    """A build knows no feedback, so that a comparison with one must not use it."""
    learn(builder, thumbs("rm", "free some private space"))
    builder.apply([page("df", "Show space.")], up_to(1), {})
    searcher = builder.searcher

    def found_with(with_feedback: bool) -> dict[str, float]:
        segments = searcher.segments_without(frozenset(), with_feedback)
        retriever = type(searcher.base.retriever).join_segments(segments)
        (ranking,) = retriever.search(["private"], 9)
        return {document_id: score for document_id, score in ranking if score > 0}

    assert "rm" in found_with(True)
    assert "rm" not in found_with(False)


def test_a_thousand_thumbs_of_one_person_are_bounded(builder: GenerationBuilder) -> None:
    """A spammer asks for one page by 1,000 texts, and gives each a thumb up."""
    spam = [
        Feedback(f"list names number{i}", "wc", Opinion.UP, who="spammer", received=float(i))
        for i in range(1000)
    ]
    before = rankings(builder.searcher)
    evidence = evidence_of_feedback(spam)
    learn(builder, *evidence)
    builder.update_known_queries(builder.searcher.generation.cursor)

    index = builder.searcher.retriever
    assert isinstance(index, Bm25Index)
    (queries,) = [
        part.known.queries
        for part in index.known
        if "wc" in part.known.queries.ids and "wc" not in part.excluded
    ]
    rows = queries.ids.rows_of(["wc"])
    assert len(rows) <= WORDS.limits.max_queries
    assert queries.lengths[rows].sum() <= WORDS.limits.max_words + len(rows)
    # The words of the document itself still win.
    assert found(builder.searcher, "list names of files")[0] == "ls"
    for old, new in zip(before, rankings(builder.searcher), strict=True):
        others = [document_id for document_id, _ in new if document_id != "wc"]
        assert others == [document_id for document_id, _ in old if document_id != "wc"]


def test_equal_thumbs_of_one_person_count_once() -> None:
    spam = [
        Feedback("List names" + "!" * i, "wc", Opinion.UP, who="spammer", received=float(i))
        for i in range(1000)
    ]
    other = Feedback("list names", "wc", Opinion.UP, who="reader")

    assert [query.weight for query in evidence_of_feedback(spam)] == [1]
    assert [query.weight for query in evidence_of_feedback([*spam, other])] == [2]


def test_latest_thumb_of_a_person_counts() -> None:
    up = Feedback("list names", "wc", Opinion.UP, who="reader", received=1.0)
    down = Feedback("List names", "wc", Opinion.DOWN, who="reader", received=2.0)

    assert [query.weight for query in evidence_of_feedback([down, up])] == [-1]


def test_raised_hit_earns_no_weight_but_loses_some() -> None:
    up = Feedback("list names", "wc", Opinion.UP, raised=True)
    down = Feedback("list names", "wc", Opinion.DOWN, who="reader", raised=True)

    assert evidence_of_feedback([up]) == ()
    assert [query.weight for query in evidence_of_feedback([up, down])] == [-1]


def test_raised_thumb_does_not_replace_an_earlier_one() -> None:
    up = Feedback("list names", "wc", Opinion.UP, who="reader", received=1.0)
    again = Feedback("List names?", "wc", Opinion.UP, who="reader", received=2.0, raised=True)

    assert [query.weight for query in evidence_of_feedback([up, again])] == [1]


def test_evidence_has_the_date_of_the_first_thumb() -> None:
    first = Feedback("list names", "wc", Opinion.UP, who="reader", received=5.0)
    second = Feedback("List names", "wc", Opinion.UP, who="writer", received=90.0)

    (query,) = evidence_of_feedback([second, first])

    assert query.date == "1970-01-01T00:00:05+00:00"


def test_new_thumbs_do_not_displace_old_queries() -> None:
    old = Feedback("zebra stripes", "wc", Opinion.UP, who="reader", received=5.0)
    new = Feedback("apple pie", "wc", Opinion.UP, who="spammer", received=6.0)
    row = KnownQuery("wc", "zoo tickets", QuerySource.ROW)

    thumbs_only = select_queries(evidence_of_feedback([new, old]), KnownQueryLimits(1, 9))
    with_row = select_queries([*evidence_of_feedback([new, old]), row], KnownQueryLimits(1, 9))

    assert [query.text for query in thumbs_only] == ["zebra stripes"]
    assert with_row == [row]


def test_clicks_are_no_evidence() -> None:
    clicks = [
        Feedback("list names", "wc", Opinion.CLICK, who=str(i), rank=9, received=float(i))
        for i in range(50)
    ]

    assert evidence_of_feedback(clicks) == ()
