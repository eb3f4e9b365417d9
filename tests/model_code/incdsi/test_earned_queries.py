"""Documents that earn queries by thumbs are solved for them, and the ledger records it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.opened_build import open_generation_zero
from model_code.collection.erase import erase_documents
from model_code.collection.forget import forget_query
from model_code.collection.generations.build import BuildArtifacts
from model_code.collection.generations.generation_store import set_default_retriever
from model_code.collection.generations.raised_hits import SHOWN_HITS, is_raised_by_known_queries
from model_code.collection.generations.refinements import solved_documents
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index import builds
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.index.pending_changes import collect_changes
from model_code.collection.ledger.events import EventKind, Feedback, Opinion
from model_code.collection.ledger.states import Event
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.incdsi.earned_queries import select_queries_to_solve
from model_code.project import Project
from model_code.retrieval.bm25_known import KnownWords
from model_code.text.documents import Document
from model_code.text.known_queries import KnownQuery, KnownQueryLimits, QuerySource
from tests.disk import skip_fsync
from tests.model_code.collection.laws import OLD, RULES, make_encoder, open_build

# One passage each.
SHORT = {name: (title, " ".join(text.split()[:4])) for name, (title, text) in OLD.items()}
SETTINGS = """\
retrievers: {r: {}}
additions: {gamma1: 1.0, lambda1: 0.9, lambda2: 0.5}
"""
EARNED = "word22 word23"
OTHER = "word9 word24"


@pytest.fixture(scope="module", autouse=True)
def without_fsync() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        # Padding changes the last bits of encodings.
        patch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
        patch.delenv("FRESHET_LEDGER", raising=False)
        patch.delenv("FRESHET_STATE", raising=False)
        yield


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose live collection fuses a dense encoder with BM25."""
    root = tmp_path_factory.mktemp("project")
    make_encoder("dense", root / "encoder")
    open_build("bm25_fusion", root, root / "encoder", SHORT)
    (root / "params.yaml").write_text(SETTINGS)
    (root / "dvc.yaml").touch()
    return root


@pytest.fixture
def index(opened: Path, tmp_path: Path) -> LiveIndex:
    return copy_project(opened, tmp_path / "project")


def copy_project(opened: Path, root: Path) -> LiveIndex:
    shutil.copytree(opened, root)
    return LiveIndex(Project(root))


def rate(index: LiveIndex, document_id: str, text: str = EARNED, **values: object) -> None:
    values.setdefault("verdict", Opinion.UP)
    index.ledger.record_feedback(Feedback(text, document_id, **values))  # type: ignore[arg-type]


def add(index: LiveIndex, name: str, *queries: str) -> None:
    """Add a document, so that there is a next generation."""
    row = {"id": name, "title": "word1", "text": "word2 word3", "queries": list(queries)}
    index.receive([row], "api")
    index.apply()


def solved_texts(index: LiveIndex) -> dict[str, list[str]]:
    """The queries that each solved document is solved for."""
    found: dict[str, list[str]] = {}
    for document in solved_documents(index.generation):
        found[document.document_id] = [query.text for query in document.queries]
    return found


def read_vectors(index: LiveIndex) -> dict[str, list[float]]:
    """The dense vector of each document that can be found."""
    vectors: dict[str, list[float]] = {}
    for view in index.builder.searcher.views:
        dense = view.segment.dense.index
        for document_id, row in zip(dense.document_ids, dense.vectors, strict=True):
            if document_id in view:
                vectors[document_id] = row.tolist()
    return vectors


def solve_events(index: LiveIndex) -> list[Event]:
    """The pending and applied events that solve vectors again."""
    whole_ledger = index.ledger.view_at(index.store.read(0).cursor).pending()
    return [event for event in whole_ledger.events if event.kind == EventKind.SOLVE]


def test_thumb_moves_vector_with_next_generation(index: LiveIndex) -> None:
    encoding = read_vectors(index)["d03"]
    rate(index, "d03")

    assert index.apply() is None
    assert solve_events(index) == []
    add(index, "n")

    assert solved_texts(index) == {"d03": [EARNED]}
    assert read_vectors(index)["d03"] != encoding
    (solved,) = solved_documents(index.generation)
    assert solved.queries[0].rank_after <= solved.queries[0].rank_before


def test_event_records_hashes_and_no_text(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")

    (event,) = solve_events(index)
    assert event.document_id == "d03"
    assert event.solved_queries == {query_hash(EARNED)}
    assert event.payload == {"queries": [query_hash(EARNED)], "retriever": "r"}


def test_solved_document_is_no_arrival(index: LiveIndex) -> None:
    rate(index, "d03")
    index.receive([{"id": "n", "title": "word1", "text": "word2"}], "api")

    applied = index.apply()

    assert applied is not None
    assert applied.solved_again == ("d03",)
    assert applied.updated == ()
    view = index.ledger_view
    last = index.ledger.position().event
    assert [event.document_id for event in view.arrivals(1, last)] == ["n"]
    assert view.backlog().number == 0
    assert sum(view.counts().values()) == 1
    assert index.ledger.latest(["d03"]) == {}


def test_later_put_replaces_an_earlier_solve(index: LiveIndex) -> None:
    put = Document("d03", "word1", "word2")
    solve = Event(1, "solve", "d03", "", {"queries": ["hash"]}, "feedback", 0.0)
    later_put = Event(2, "put", "d03", put.content_hash, put.payload, "api", 0.0)
    gone = Event(3, "solve", "unknown", "", {"queries": ["hash"]}, "feedback", 0.0)

    changes, solve_for = collect_changes(index.builder, [solve, later_put, gone])
    assert changes[-1] == put
    assert solve_for == {}

    _, solve_for = collect_changes(index.builder, [later_put, solve])
    assert solve_for == {"d03": {"hash"}}


def test_nothing_is_recorded_while_a_part_is_applied(index: LiveIndex) -> None:
    rate(index, "d03")
    rows = [{"id": name, "title": "word1", "text": "word2"} for name in ("n", "m")]
    index.receive(rows, "api")

    index.apply(limit=1)
    assert solve_events(index) == []
    index.apply(limit=1)

    assert len(solve_events(index)) == 1


def test_judged_queries_are_solved_for_beside_earned_ones(index: LiveIndex) -> None:
    base = index.builder.searcher.base.folder
    CorpusQueries((KnownQuery("d03", OTHER, QuerySource.QRELS),)).save(base / KNOWN_QUERIES)
    rate(index, "d03")
    add(index, "n")

    assert solved_texts(index) == {"d03": [OTHER, EARNED]}


def test_recorded_solve_is_not_recorded_again(index: LiveIndex) -> None:
    rate(index, "d03")
    index.ledger.record_solves({"d03": [query_hash(EARNED)]}, "feedback", "r")
    add(index, "n")

    assert len(solve_events(index)) == 1


def test_nothing_is_solved_twice(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    vectors = read_vectors(index)
    rate(index, "d03", "Word22 WORD23!", who="another")
    add(index, "m")

    assert len(solve_events(index)) == 1
    assert read_vectors(index)["d03"] == vectors["d03"]


def test_thumb_down_and_withdrawal_give_the_encoding_back(index: LiveIndex) -> None:
    encodings = read_vectors(index)
    rate(index, "d03")
    rate(index, "d04", who="b")
    add(index, "n")
    rate(index, "d03", who="reader", verdict=Opinion.DOWN)
    index.ledger.withdraw_feedback("b", EARNED, "d04")
    add(index, "m")

    assert solved_texts(index) == {}
    assert read_vectors(index)["d03"] == encodings["d03"]
    assert read_vectors(index)["d04"] == encodings["d04"]


def test_thumb_down_takes_a_query_of_the_row_away(index: LiveIndex) -> None:
    add(index, "n", EARNED, OTHER)
    rate(index, "n", EARNED, verdict=Opinion.DOWN)
    add(index, "m")

    assert solved_texts(index) == {"n": [OTHER]}


def test_thumb_that_the_build_was_trained_on_earns_nothing_more(index: LiveIndex) -> None:
    """After a retrain, the encoding of a document has learned the queries of its thumbs."""
    base = index.builder.searcher.base.folder
    trained = frozenset({("d03", query_hash(EARNED))})
    CorpusQueries(trained_feedback=trained).save(base / KNOWN_QUERIES)
    rate(index, "d03")
    rate(index, "d04")
    add(index, "n")

    assert solved_texts(index) == {"d04": [EARNED]}
    assert [query.text for query in index.builder.searcher.known_queries(["d03"])] == [EARNED]


def test_query_of_the_row_is_kept_beside_an_earned_one(index: LiveIndex) -> None:
    add(index, "n", OTHER)
    rate(index, "n")
    add(index, "m")

    assert solved_texts(index) == {"n": [OTHER, EARNED]}


def test_updated_document_keeps_its_earned_queries(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    add(index, "d03", OTHER)

    assert solved_texts(index) == {"d03": [OTHER, EARNED]}


def test_raised_thumbs_and_clicks_earn_nothing(index: LiveIndex) -> None:
    rate(index, "d03", raised=True)
    rate(index, "d04", verdict=Opinion.CLICK)
    add(index, "n")

    assert solved_texts(index) == {}
    assert solve_events(index) == []


def test_hit_is_raised_by_its_solved_vector(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    searcher = index.builder.searcher
    (solved,) = solved_documents(index.generation)
    rank_before = solved.queries[0].rank_before

    assert rank_before > 10
    assert is_raised_by_known_queries(searcher, "WORD22 word23", "d03")
    assert not is_raised_by_known_queries(searcher, "word1", "d03")


def test_paraphrase_is_raised_by_the_solved_vector(index: LiveIndex) -> None:
    """A query that is near the earned one finds the document by its solved vector alone."""
    paraphrase = "word22 word17"
    before = index.builder.searcher
    rate(index, "d03")
    add(index, "n")
    searcher = index.builder.searcher

    assert "d03" not in found_first(before, paraphrase)
    assert "d03" in found_first(searcher, paraphrase)
    assert is_raised_by_known_queries(searcher, paraphrase, "d03")


def test_place_of_a_solved_document_by_its_text_is_its_own(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    searcher = index.builder.searcher
    document = searcher.documents(["d03"])["d03"]

    assert not is_raised_by_known_queries(searcher, document.text, "d03")


def found_first(searcher: Searcher, query: str) -> list[str]:
    """The documents of the first page."""
    return [hit.document_id for hit in searcher.search(query, SHOWN_HITS)]


def test_query_that_judges_earns_nothing(index: LiveIndex) -> None:
    base = index.builder.searcher.base.folder
    CorpusQueries((), frozenset({query_hash(EARNED)})).save(base / KNOWN_QUERIES)
    rate(index, "d03")
    add(index, "n")

    assert solved_texts(index) == {}
    assert solve_events(index) == []


def test_document_with_several_passages_is_left_alone(index: LiveIndex) -> None:
    long_text = " ".join(f"word{number}" for number in range(20))
    index.receive([{"id": "long", "title": "word1", "text": long_text}], "api")
    index.apply()
    rate(index, "long")
    add(index, "n")

    assert solve_events(index) == []


def test_replay_gives_equal_vectors(opened: Path, index: LiveIndex, tmp_path: Path) -> None:
    rate(index, "d03")
    add(index, "n", OTHER)
    rate(index, "n", "word28 word1")
    add(index, "m", "word22 word9")
    replayed = copy_project(opened, tmp_path / "replayed")
    for file in index.project.live.glob("ledger.sqlite*"):
        shutil.copy(file, replayed.project.live)

    replayed.apply(limit=1)
    replayed.apply(limit=1)

    assert replayed.generation.cursor.position == index.generation.cursor.position
    assert solved_texts(replayed) == solved_texts(index)
    assert read_vectors(replayed) == read_vectors(index)


def replay(opened: Path, index: LiveIndex, root: Path) -> LiveIndex:
    """Apply all changes of a ledger to a copy of the build, one after the other."""
    replayed = copy_project(opened, root)
    shutil.copy(index.project.params_file, replayed.project.params_file)
    for file in index.project.live.glob("ledger.sqlite*"):
        shutil.copy(file, replayed.project.live)
    while replayed.apply(limit=1) is not None:
        pass
    assert replayed.generation.cursor.position == index.generation.cursor.position
    return replayed


# With these settings, a vector moves so far that queries of older documents limit it.
FAR = "retrievers: {r: {}}\nadditions: {gamma1: 5.0, lambda2: 0.01}\n"
SHARED = "word3 word9"


def add_limited(index: LiveIndex, owner: str) -> None:
    """Add a document whose vector is limited by the query SHARED of the owner."""
    row = {"id": "limited", "title": "word3", "text": "word9", "queries": ["word9 word3 word1"]}
    index.receive([row], "api")
    index.apply()
    assert (owner, SHARED) in limits_of(index)


def limits_of(index: LiveIndex) -> list[tuple[str, str]]:
    """The queries of older documents that limit the vector of the document `limited`."""
    for document in solved_documents(index.generation):
        if document.document_id == "limited":
            return [(member.document_id, member.text) for member in document.members]
    raise AssertionError("the document is not solved")


def earn_shared_query(index: LiveIndex) -> str:
    """Let an old document earn the query SHARED, and add a document that this query limits."""
    index.project.params_file.write_text(FAR)
    rate(index, "d01", SHARED)
    add(index, "n")
    assert solved_texts(index) == {"d01": [SHARED]}
    add_limited(index, "d01")
    return "d01"


def test_forgetting_and_erasing_are_events_without_texts(index: LiveIndex) -> None:
    rate(index, "d03")
    rate(index, "d03", OTHER)
    add(index, "n")

    forget_query(index, EARNED)

    before, after = solve_events(index)
    assert before.source == "feedback"
    assert after.source == "forgotten"
    assert after.payload == {"queries": [query_hash(OTHER)], "retriever": "r"}
    assert index.generation.cursor.position == index.ledger.position()


def test_erasing_a_document_solves_limited_vectors_by_an_event(index: LiveIndex) -> None:
    index.project.params_file.write_text(FAR)
    index.receive(
        [{"id": "owner", "title": "word3", "text": "word9 word5", "queries": [SHARED]}], "api"
    )
    index.apply()
    add_limited(index, "owner")

    erase_documents(index, ["owner"])

    (event,) = solve_events(index)
    assert event.source == "erased"
    assert event.document_id == "limited"
    assert event.payload == {"queries": [query_hash("word9 word3 word1")], "retriever": "r"}
    assert limits_of(index) == []


def test_replay_after_forgetting_gives_equal_vectors(
    opened: Path, index: LiveIndex, tmp_path: Path
) -> None:
    earn_shared_query(index)
    forget_query(index, SHARED)
    add(index, "m", OTHER)

    replayed = replay(opened, index, tmp_path / "replayed")

    assert limits_of(index) == limits_of(replayed) == []
    assert solved_texts(replayed) == solved_texts(index)
    assert read_vectors(replayed) == read_vectors(index)


def test_replay_after_withdrawal_and_thumb_down_ends_with_equal_vectors(
    opened: Path, index: LiveIndex, tmp_path: Path
) -> None:
    rate(index, "d03")
    rate(index, "d04", who="b")
    add(index, "n")
    rate(index, "d03", verdict=Opinion.DOWN)
    index.ledger.withdraw_feedback("b", EARNED, "d04")
    add(index, "m", OTHER)

    replayed = replay(opened, index, tmp_path / "replayed")

    assert solved_texts(index) == {"m": [OTHER]}
    assert solved_texts(replayed) == solved_texts(index)
    assert read_vectors(replayed) == read_vectors(index)


@pytest.mark.parametrize("is_withdrawn", [True, False])
def test_replay_does_not_know_former_thumbs(
    opened: Path, index: LiveIndex, tmp_path: Path, is_withdrawn: bool
) -> None:
    """A vector that a former thumb limited is another one: the thumb's text cannot come back."""
    owner = earn_shared_query(index)
    if is_withdrawn:
        index.ledger.withdraw_feedback("", SHARED, owner)
    else:
        rate(index, owner, SHARED, verdict=Opinion.DOWN)
    add(index, "m")

    replayed = replay(opened, index, tmp_path / "replayed")

    assert limits_of(index) == [(owner, SHARED)]
    assert limits_of(replayed) == []
    assert solved_texts(replayed) == solved_texts(index)
    vectors = read_vectors(index)
    replayed_vectors = read_vectors(replayed)
    different = {name for name in vectors if replayed_vectors[name] != vectors[name]}
    assert different == {"limited"}


def test_retrain_starts_from_encodings(index: LiveIndex, tmp_path: Path) -> None:
    rate(index, "d03")
    add(index, "d12", OTHER)
    assert solved_texts(index).keys() == {"d03", "d12"}
    solved = read_vectors(index)

    # The build of a retrain has all live documents, and was trained with their known queries.
    root = tmp_path / "retrained"
    texts = {**SHORT, "d12": ("word1", "word2 word3")}
    open_build("bm25_fusion", root, index.project.root / "encoder", texts)
    shutil.copy(index.project.params_file, root)
    build = root / "build"
    trained = (
        KnownQuery("d03", EARNED, QuerySource.QRELS),
        KnownQuery("d12", OTHER, QuerySource.ROW),
    )
    CorpusQueries(trained).save(build / KNOWN_QUERIES)
    artifacts = BuildArtifacts(
        build / "encoder",
        build / "index",
        build / "documents.parquet",
        build / "hierarchy",
        build / KNOWN_QUERIES,
    )
    position = index.ledger.position()
    builds.open_build(index.project, "r", artifacts, {"build": 2}, RULES, position)

    encodings = read_vectors(LiveIndex(Project(root)))
    assert solved_documents(index.generation) == []
    assert read_vectors(index) == encodings
    assert encodings["d03"] != solved["d03"]
    assert encodings["d12"] != solved["d12"]
    add(index, "m")
    assert solved_documents(index.generation) == []
    assert read_vectors(index)["d03"] == encodings["d03"]
    assert read_vectors(index)["d12"] == encodings["d12"]


@pytest.fixture
def indexes(index: LiveIndex, tmp_path: Path) -> tuple[LiveIndex, LiveIndex]:
    """Two live retrievers. A document of the second one may earn only one query."""
    project = index.project
    words = KnownWords(1.0, in_length=True, limits=KnownQueryLimits(max_queries=1))
    open_build("bm25_fusion", tmp_path, project.root / "encoder", SHORT, known_words=words)
    build = tmp_path / "build"
    open_generation_zero(
        project.root,
        "s",
        encoder=build / "encoder",
        index=build / "index",
        documents=build / "documents.parquet",
        hierarchy=build / "hierarchy",
        provenance={"build": 1},
        text=RULES,
    )
    set_default_retriever(project.live, "r")
    return index, LiveIndex(project, "s")


def test_two_retrievers_do_not_override_each_other(
    indexes: tuple[LiveIndex, LiveIndex],
) -> None:
    index, other = indexes
    rate(index, "d03")
    rate(index, "d03", OTHER)

    vectors = set()
    for number in range(10):
        add(index, f"n{number}")
        other.apply()
        vectors.add((str(read_vectors(index)["d03"]), str(read_vectors(other)["d03"])))

    assert len(vectors) == 1
    assert solved_texts(index) == {"d03": [EARNED, OTHER]}
    assert solved_texts(other) == {"d03": [EARNED]}
    assert [event.payload["retriever"] for event in solve_events(index)] == ["r", "s"]
    assert index.ledger.position().event == 12


def test_solve_events_of_another_retriever_make_no_generation(
    indexes: tuple[LiveIndex, LiveIndex],
) -> None:
    index, other = indexes
    rate(index, "d03")
    add(index, "n")
    other.apply()
    number = index.generation.number

    assert index.apply() is None
    assert other.apply() is None
    assert index.generation.number == number
    add(index, "m")
    assert index.generation.cursor.position == index.ledger.position()


def test_solve_event_without_a_retriever_is_for_all(
    indexes: tuple[LiveIndex, LiveIndex],
) -> None:
    index, other = indexes
    event = Event(1, "solve", "d03", "", {"queries": ["hash"]}, "feedback", 0.0)

    assert collect_changes(index.builder, [event])[1] == {"d03": {"hash"}}
    assert collect_changes(other.builder, [event])[1] == {"d03": {"hash"}}


def test_compaction_copies_vectors(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n", OTHER)
    add(index, "m")
    vectors = read_vectors(index)

    index.compact()
    assert read_vectors(index) == vectors
    add(index, "o")

    assert len(solve_events(index)) == 1
    assert read_vectors(index)["d03"] == vectors["d03"]


def test_revert_is_followed_by_a_new_solution(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    vector = read_vectors(index)["d03"]

    index.revert(0)
    assert solved_texts(index) == {}
    add(index, "n")

    assert read_vectors(index)["d03"] == vector


def test_forgotten_query_leaves_the_vector(index: LiveIndex) -> None:
    rate(index, "d03")
    rate(index, "d03", OTHER)
    add(index, "n")
    assert solved_texts(index) == {"d03": [EARNED, OTHER]}

    report = forget_query(index, EARNED)

    assert report.solved_again == ["d03"]
    assert solved_texts(index) == {"d03": [OTHER]}


def test_erased_document_leaves_no_hash(index: LiveIndex) -> None:
    rate(index, "d03")
    add(index, "n")
    add(index, "d03")
    index.remove(["d03"], "api")
    index.apply()

    index.ledger.erase(["d03"])

    assert {event.payload is None for event in solve_events(index)} == {True}


def test_many_thumbs_of_one_person_stay_within_the_limits(index: LiveIndex) -> None:
    for number in range(1000):
        text = f"word{number % 30} word{number // 30} again"
        rate(index, "d03", text, who="attacker")
    add(index, "n")

    (solved,) = solved_documents(index.generation)
    limits = KnownQueryLimits()
    assert 0 < len(solved.queries) <= limits.max_queries
    assert sum(len(query.text.split()) for query in solved.queries) <= limits.max_words


def evidence(text: str, source: QuerySource, weight: float = 1.0) -> KnownQuery:
    return KnownQuery("d", text, source, weight)


def test_judged_queries_count_beside_earned_ones_only() -> None:
    judged = evidence("sort a list", QuerySource.QRELS)
    earned = evidence("order rows", QuerySource.FEEDBACK)
    limits = KnownQueryLimits()

    assert select_queries_to_solve([judged], limits) == frozenset()
    assert select_queries_to_solve([judged, earned], limits) == {
        query_hash("sort a list"),
        query_hash("order rows"),
    }


def test_near_duplicate_with_more_thumbs_replaces_no_judged_query() -> None:
    judged = evidence("how to sort a list", QuerySource.QRELS)
    near_duplicate = evidence("how to sort a list quickly", QuerySource.FEEDBACK, weight=2)
    earned = evidence("order rows", QuerySource.FEEDBACK)

    hashes = select_queries_to_solve([judged, near_duplicate, earned], KnownQueryLimits())

    assert hashes == {query_hash("how to sort a list"), query_hash("order rows")}


def test_build_keeps_encodings_without_new_queries() -> None:
    row = evidence("sort a list", QuerySource.ROW)
    thumb = evidence("Sort a list", QuerySource.FEEDBACK)
    limits = KnownQueryLimits()

    assert select_queries_to_solve([row, thumb], limits, is_of_build=True) == frozenset()
    assert select_queries_to_solve([row, thumb], limits) == {query_hash("sort a list")}
