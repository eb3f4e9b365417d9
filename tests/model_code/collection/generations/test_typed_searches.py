"""Guards searches as people type them: conditions, completion, typos, limits and diversity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from freshet.results import Hit
from model_code.collection.generations.query_options import QueryOptions
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import SettingsError
from model_code.project import Project
from model_code.retrieval import relevance_floor
from model_code.retrieval.typed_words import split_unfinished_word
from tests.disk import skip_fsync
from tests.model_code.collection.laws import make_encoder, open_build

TEXTS = {
    "d10gate": (
        "Sluice gates",
        "The keeper opens the sluice gate at dawn. The embankment is steep.",
    ),
    "d11boat": ("Boats", "A boat waits at the gate of the sluice until dawn."),
    "d12toll": ("Tolls", "The keeper collects the toll of every boat."),
    "d13copy": (
        "Sluice gates",
        "The keeper opens the sluice gate at dawn. The embankment is steep.",
    ),
    "d14find": ("Commands", "find . -path pattern"),
    "d15bridge": ("Old bridge", "Crossing the river on foot."),
}
ID_PREFIX = len("d10")
KINDS = ("bm25_fusion", "dense")


@pytest.fixture(scope="module", params=KINDS)
def searcher(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """A live collection of `TEXTS`, with and without an index of words."""
    root = tmp_path_factory.mktemp(request.param)
    make_encoder("dense", root / "encoder")
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        open_build(request.param, root, root / "encoder", TEXTS)
    return Searcher.open(root / "live")


@pytest.fixture(scope="module")
def word_searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """A live collection of `TEXTS` whose retriever fuses a dense encoder with BM25."""
    root: Path = tmp_path_factory.mktemp("words")
    make_encoder("dense", root / "encoder")
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        open_build("bm25_fusion", root, root / "encoder", TEXTS)
    return Searcher.open(root / "live")


def search(searcher: Searcher, text: str, **options: object) -> list[Hit]:
    """Return the hits of one search, with ids that say what the documents are about."""
    (page,) = searcher.search_pages([text], QueryOptions(**options))  # type: ignore[arg-type]
    return [replace(hit, document_id=hit.document_id[ID_PREFIX:]) for hit in page.hits]


def found(searcher: Searcher, text: str, **options: object) -> set[str]:
    """Return the documents that a search finds."""
    return {hit.document_id for hit in search(searcher, text, **options)}


@pytest.mark.parametrize(
    ("text", "documents"),
    [
        ('"sluice gate"', {"gate", "copy"}),
        ('"sluice GATES"', {"gate", "copy"}),
        ('"gate of the sluice" dawn', {"boat"}),
        ('"no such phrase"', set()),
        ("dawn -boat", {"gate", "copy", "bridge", "find"}),
        ("find -path", {"gate", "boat", "toll", "copy", "find", "bridge"}),
        ('keeper -"sluice gate"', {"boat", "toll", "find", "bridge"}),
        ("title:gate", {"gate", "copy"}),
        ("dawn -title:gates -title:commands", {"boat", "toll", "bridge"}),
        ('"keeper opens" -title:gate', set()),
    ],
)
def test_every_hit_meets_the_conditions(searcher: Searcher, text: str, documents: set[str]) -> None:
    assert found(searcher, text) == documents


def test_conditions_hold_in_every_segment(own: Project) -> None:
    """The first segment keeps an old text of the document that was changed."""
    index = LiveIndex(own)
    index.receive([{"id": "both", "text": "quay ferry"}, {"id": "changed", "text": "quay"}], "test")
    index.apply()
    index.receive([{"id": "changed", "text": "ferry"}, {"id": "one", "text": "quay"}], "test")
    index.apply()
    searcher = Searcher.open(own.live)

    assert {hit.document_id for hit in page_of(searcher, '"quay"')} == {"both", "one"}
    assert {hit.document_id for hit in page_of(searcher, '"quay" -ferry')} == {"one"}
    excluding = page_of(searcher, "word1 -quay")
    assert len(excluding) == searcher.document_count - 2
    assert "changed" in {hit.document_id for hit in excluding}


def page_of(searcher: Searcher, text: str) -> tuple[Hit, ...]:
    """Return all hits of one search."""
    (page,) = searcher.search_pages([text], QueryOptions(k=100))
    return page.hits


def test_unfinished_title_is_completed(word_searcher: Searcher) -> None:
    assert found(word_searcher, "title:slui", prefix=True) == {"gate", "copy"}
    assert found(word_searcher, "title:slui") == set()


def test_excluded_word_finishes_the_word_before(word_searcher: Searcher) -> None:
    """Else the last letters, which are equal, would make of "embankm" an unfinished word."""
    hits = search(word_searcher, "embankm -boatm", prefix=True, typos=False)

    assert [hit.marks for hit in hits if hit.document_id == "gate"] == [()]


def test_long_word_is_not_completed(word_searcher: Searcher) -> None:
    typed = split_unfinished_word("e" * 1000)

    assert typed.word == ""
    assert len(found(word_searcher, "e" * 1000, prefix=True)) == len(TEXTS)


def test_conditions_join_with_filters_and_are_counted(searcher: Searcher) -> None:
    options = QueryOptions(k=1, filters={"title": "Boats"})
    with_condition, without = searcher.search_pages(['"the sluice"', "sluice"], options)
    (all_titles,) = searcher.search_pages(['"the sluice"'], QueryOptions(k=1))

    assert [hit.title for hit in with_condition.hits] == ["Boats"]
    assert [hit.title for hit in without.hits] == ["Boats"]
    assert all_titles.total == 3


def test_literal_search_has_no_conditions(searcher: Searcher) -> None:
    assert len(found(searcher, '"no such phrase"', syntax=False)) == len(TEXTS)
    assert len(searcher.search('"no such phrase"', 10)) == len(TEXTS)


def test_unfinished_word_is_completed_and_marked(word_searcher: Searcher) -> None:
    hits = search(word_searcher, "embankm", prefix=True)

    assert {hits[0].document_id, hits[1].document_id} == {"gate", "copy"}
    marked = [hits[0].snippet[start:end] for start, end in hits[0].marks]
    assert "embankment" in marked


def test_typo_is_tolerated_and_marked(word_searcher: Searcher) -> None:
    hits = search(word_searcher, "embnakment")

    assert {hits[0].document_id, hits[1].document_id} == {"gate", "copy"}
    assert "embankment" in [hits[0].snippet[start:end] for start, end in hits[0].marks]
    shares = search(word_searcher, "embnakment", explain=True)[0].tokens
    assert shares is not None
    assert dict((share.token, share.weight) for share in shares)["bm25"] == pytest.approx(2.0)


def test_typos_can_be_refused(word_searcher: Searcher) -> None:
    (hit, *_) = search(word_searcher, "embnakment", typos=False, explain=True)

    assert hit.tokens is not None
    assert all(share.weight == 0 for share in hit.tokens if share.token == "bm25")


def test_hits_below_the_lowest_score_are_left_out(searcher: Searcher) -> None:
    hits = search(searcher, "sluice gate")
    lowest = hits[2].score

    (page,) = searcher.search_pages(["sluice gate"], QueryOptions(min_score=lowest))

    assert [hit.score for hit in page.hits] == [hit.score for hit in hits if hit.score >= lowest]
    assert page.total == len(page.hits)
    assert search(searcher, "sluice gate", min_score=1e6) == []


def test_diversity_moves_copies_behind_other_documents(word_searcher: Searcher) -> None:
    plain = search(word_searcher, "steep embankment at dawn")
    diverse = search(word_searcher, "steep embankment at dawn", diversity=0.7)

    assert {plain[0].document_id, plain[1].document_id} == {"gate", "copy"}
    assert diverse[0].document_id == plain[0].document_id
    assert diverse[1].document_id not in {"gate", "copy"}


def test_diversity_keeps_documents_and_scores(searcher: Searcher) -> None:
    plain = search(searcher, "the keeper opens the sluice gate")
    diverse = search(searcher, "the keeper opens the sluice gate", diversity=0.7)

    assert {hit.document_id for hit in diverse} == {hit.document_id for hit in plain}
    scores = {hit.document_id: hit.score for hit in plain}
    assert all(hit.score == scores[hit.document_id] for hit in diverse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"diversity": 1.5}, "diversity is 1.5, but it must be between 0 and 1"),
        ({"min_score": float("nan")}, "min_score is nan, but it must be a finite number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        QueryOptions(**options)  # type: ignore[arg-type]


def test_query_without_words_has_only_hits_below_the_floor(searcher: Searcher) -> None:
    assert all(hit.below_floor for hit in search(searcher, "???"))
    assert not any(hit.below_floor for hit in search(searcher, "???", floor=False))
    assert not any(hit.below_floor for hit in searcher.search("???", 5))


def open_again(searcher: Searcher) -> Searcher:
    """Return another searcher of the same generation, with the same open segments."""
    return Searcher(searcher.live, searcher.generation, searcher.parts)


def test_floor_is_learned_once_for_all_generations(
    searcher: Searcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searcher.base, "floor", None)
    # An empty floor of few documents is learned again when there are more.
    assert open_again(searcher).relevance_floor.thresholds == {}
    monkeypatch.setattr(relevance_floor, "MIN_DOCUMENTS", len(TEXTS))

    floor = open_again(searcher).ready().relevance_floor

    assert floor.thresholds
    assert open_again(searcher).relevance_floor is floor
