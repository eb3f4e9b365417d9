"""IncDSI on the fused score: the program, its order, and what it records."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize as scipy_minimize

from model_code.collection.generations.evaluation_segments import judging_segments
from model_code.collection.generations.refinements import (
    documents_solved_with,
    refinement_statuses,
    solved_documents,
)
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import INDEX
from model_code.collection.segments.known_overrides import LaterEvidence
from model_code.collection.segments.segment import BaseSegment
from model_code.collection.segments.solved import SolvedDocument, SolvedDocuments, SolvedSummary
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, query_hash
from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import TokenSigns, pack_signs
from model_code.files import deferred_fsync
from model_code.incdsi import constraints
from model_code.incdsi.constraints import Constraints, PreparedConstraints, limit_queries
from model_code.incdsi.fused_builder import FusedIncDsiBuilder, replace_vectors
from model_code.incdsi.fused_scores import FusedScore
from model_code.incdsi.fused_solver import (
    ConstraintLimits,
    FusedSolver,
    OwnQueries,
    make_problem,
    minimize,
)
from model_code.incdsi.settings import AdditionSettings
from model_code.retrieval import bm25
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.dense_index import EXACT_SETTINGS, DenseIndex
from model_code.retrieval.fused import FusedRetriever
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.index_settings import Bm25Settings
from model_code.retrieval.indexed import NewPassages, RetrieverSegment
from model_code.text.documents import Change, Document, Remove
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.disk import skip_fsync
from tests.model_code.collection.laws import OLD, WORDS, make_encoder, open_build, up_to

# One passage each.
SHORT = {name: (title, " ".join(text.split()[:4])) for name, (title, text) in OLD.items()}
KNOWN = {"d01": ["word3 word9"], "d04": ["word14 word21"], "d07": ["word2 word25"]}
SETTINGS = AdditionSettings(gamma1=0.5, lambda2=3.0)

EVENTS: list[Change] = [
    Document("n3", "word1", "word2 word3", queries=("word22 word23", "word9 word24")),
    Document("n1", "word1", "word2 word4"),
    Document("n2", "word5", "word6 word3", queries=("word23 word24",)),
    Remove("d02"),
    Document("d03", "word7", "word8 word3", queries=("word22 word28",)),
    Document("n0", "word2", "word9 word3", queries=("word28 word9", "word1")),
]


@pytest.fixture(scope="module", autouse=True)
def without_fsync() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        # Padding changes the last bits of encodings.
        patch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
        yield


@pytest.fixture(scope="module", params=["dense", "bm25_fusion"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live collection with known queries."""
    root = tmp_path_factory.mktemp(request.param)
    make_encoder("dense", root / "encoder")
    return open_build(request.param, root / "opened", root / "encoder", SHORT, queries=KNOWN)


@pytest.fixture
def live(opened: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(opened, tmp_path / "live"))


def make_builder(live: Path, settings: AdditionSettings = SETTINGS) -> FusedIncDsiBuilder:
    return FusedIncDsiBuilder(live, "r", settings, live.with_name("additions"))


def apply_in_groups(live: Path, sizes: Sequence[int], cold: bool = False) -> FusedIncDsiBuilder:
    """Apply `EVENTS` in groups of these sizes."""
    builder = make_builder(live)
    first = 0
    for size in sizes:
        if cold:
            builder = make_builder(live)
        last = first + size
        builder.apply(EVENTS[first:last], up_to(last), {})
        first = last
    assert first == len(EVENTS)
    return builder


def read_vectors(live: Path) -> dict[str, list[float]]:
    """The dense vector of each live document."""
    vectors: dict[str, list[float]] = {}
    for view in Searcher.open(live, "r").views:
        index = view.segment.dense.index
        for document_id, row in zip(index.document_ids, index.vectors, strict=True):
            if document_id in view:
                vectors[document_id] = row.tolist()
    return vectors


def read_solved(live: Path) -> dict[str, SolvedDocument]:
    generation = Searcher.open(live, "r").generation
    return {document.document_id: document for document in solved_documents(generation)}


def test_vectors_do_not_depend_on_grouping(opened: Path, tmp_path: Path) -> None:
    vectors = []
    for name, sizes in (("single", [1] * 6), ("all", [6]), ("two", [3, 3]), ("odd", [1, 4, 1])):
        live = Path(shutil.copytree(opened, tmp_path / name / "live"))
        apply_in_groups(live, sizes)
        vectors.append(read_vectors(live))

    assert vectors[1] == vectors[0]
    assert vectors[2] == vectors[0]
    assert vectors[3] == vectors[0]


def test_cold_builders_give_equal_vectors(opened: Path, tmp_path: Path) -> None:
    vectors = []
    for name, cold in (("warm", False), ("cold", True)):
        live = Path(shutil.copytree(opened, tmp_path / name / "live"))
        apply_in_groups(live, [2, 2, 2], cold)
        vectors.append(read_vectors(live))

    assert vectors[0] == vectors[1]


def test_constraints_are_computed_by_one_of_two_processes(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service computes them when it starts, while another process may make an addition."""
    score = FusedScore(make_builder(live).searcher.base)
    find = constraints.find_constraints
    calls: list[Path] = []

    def find_slowly(score: FusedScore, known: Any, encoding: Path) -> Constraints:
        calls.append(encoding)
        sleep(0.3)
        return find(score, known, encoding)

    monkeypatch.setattr(constraints, "find_constraints", find_slowly)
    with ThreadPoolExecutor(2) as pool:
        folders = [live.with_name("additions")] * 2
        first, second = pool.map(constraints.build_constraints, [score, score], folders)

    assert len(calls) == 1
    assert first.texts == second.texts


def test_nothing_is_solved_if_vectors_have_no_weight(live: Path) -> None:
    builder = make_builder(live)
    built: Any = builder.searcher.base.built
    if not isinstance(built, FusedRetriever):
        pytest.skip("a dense retriever has no weights")
    weights = {name: float(name == "bm25") for name in built.fusion.weights}
    built.fusion = replace(built.fusion, weights=weights)

    with np.errstate(all="raise"):
        result = builder.apply(EVENTS[:3], up_to(3), {})

    assert result.added == ("n1", "n2", "n3")
    assert read_solved(live) == {}
    thumb = KnownQuery("d05", "word22 word24", QuerySource.FEEDBACK)
    builder.later_evidence = lambda: LaterEvidence((thumb,), frozenset())
    assert builder.find_documents_to_solve({}) == {}


def test_compaction_copies_vectors_and_records(live: Path) -> None:
    builder = apply_in_groups(live, [1] * 6)
    vectors = read_vectors(live)
    solved = read_solved(live)

    builder.compact()

    assert read_vectors(live) == vectors
    assert read_solved(live).keys() == solved.keys()
    for document_id, document in read_solved(live).items():
        assert document.queries == solved[document_id].queries
        assert document.members == solved[document_id].members


def test_only_documents_with_queries_are_solved(live: Path) -> None:
    plain = Path(shutil.copytree(live, live.with_name("plain")))
    make_builder(plain, AdditionSettings(gamma1=0.5, lambda2=1e12)).apply(EVENTS, up_to(6), {})

    apply_in_groups(live, [6])

    assert read_solved(live).keys() == {"n3", "n2", "d03", "n0"}
    solved = read_vectors(live)
    encoded = read_vectors(plain)
    assert solved["n1"] == encoded["n1"]
    assert solved["n0"] != encoded["n0"]


@pytest.mark.parametrize("documents", [1, 2, 3])
def test_documents_per_chunk_change_no_bit(
    live: Path, documents: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Path(shutil.copytree(live, live.with_name("whole")))
    apply_in_groups(whole, [6])
    monkeypatch.setattr("model_code.incdsi.fused_solver.CHUNK_DOCUMENTS", documents)

    apply_in_groups(live, [6])

    assert read_vectors(live) == read_vectors(whole)
    for name, document in read_solved(whole).items():
        assert read_solved(live)[name].queries == document.queries


def test_earlier_documents_are_scored_once_per_chunk(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("model_code.incdsi.fused_solver.CHUNK_DOCUMENTS", 10)
    read: list[int] = []
    vectors_of = FusedSolver.vectors_of

    def count(solver: FusedSolver, first: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        vectors, starts = vectors_of(solver, first, end)
        read.append(len(vectors))
        return vectors, starts

    monkeypatch.setattr(FusedSolver, "vectors_of", count)
    events = [Document(f"n{i:02}", "word1", "word2", queries=(WORDS[i],)) for i in range(20)]
    make_builder(live).apply(events, up_to(20), {})

    # The second chunk reads the ten documents of the first one once. Each of the 20 documents also
    # reads those before it in its chunk.
    assert sum(read) == 10 + 2 * sum(range(10))


def test_queries_find_the_document_better(live: Path) -> None:
    eager = AdditionSettings(gamma1=1.0, lambda1=0.95, lambda2=0.1)
    make_builder(live, eager).apply(EVENTS, up_to(6), {})

    summary = SolvedSummary.of(list(read_solved(live).values()), k=1)

    assert summary.queries == 6
    assert summary.answered_after > summary.answered_before


def test_recorded_score_follows_from_the_indexes(live: Path) -> None:
    apply_in_groups(live, [6])
    searcher = Searcher.open(live, "r")
    document = read_solved(live)["n2"]
    query = document.queries[0]
    score = FusedScore(searcher.base)
    encoded = score.encode([query.text])

    (competitors,) = score.competitors(encoded, score.search_over(searcher.views), ["n2"])

    assert competitors.included_row is not None
    fused = score.fuse(competitors.dense, competitors.bm25, query.highest_bm25)
    assert fused[competitors.included_row] == pytest.approx(query.own_score, rel=1e-5)


@pytest.mark.parametrize("included_ids", [(), ("n2", "d05", "d01")])
def test_competitors_by_row_equal_those_by_id(
    live: Path, included_ids: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    apply_in_groups(live, [1, 5])
    searcher = Searcher.open(live, "r")
    score = FusedScore(searcher.base)
    queries = score.encode(["word1 word3", "word22", "word28 word9 word1"])
    search = score.search_over(searcher.views)
    monkeypatch.setattr("model_code.incdsi.fused_scores.CANDIDATES", 4)

    assert search.shared_rows is not None
    by_row = score.competitors(queries, search, included_ids)
    without_rows = replace(search)
    monkeypatch.setattr(type(search), "shared_rows", None)
    by_id = score.competitors(queries, without_rows, included_ids)

    for found, expected in zip(by_row, by_id, strict=True):
        pairs = zip(found.dense.tolist(), found.bm25.tolist(), strict=True)
        expected_pairs = zip(expected.dense.tolist(), expected.bm25.tolist(), strict=True)
        assert sorted(pairs) == sorted(expected_pairs)
        assert (found.included_row is None) == (not included_ids)
        if found.included_row is not None and expected.included_row is not None:
            assert found.dense[found.included_row] == expected.dense[expected.included_row]


def test_own_query_is_left_out_of_the_words(live: Path, tmp_path: Path) -> None:
    known = {"a": [KnownQuery("a", "musty cellar", QuerySource.ROW)]}
    passages = NewPassages(["keep it dry", "musty books"], ["a", "b"], known=known)
    words = KnownWords(1.0, in_length=True)
    bm25.build_folders(passages, Bm25Settings(language=None), tmp_path / "e", tmp_path / "i", words)
    retriever = bm25.open_folders(tmp_path / "e", tmp_path / "i")
    index: Any = retriever.join_segments([RetrieverSegment(retriever, IdMap(["a", "b"]))])
    score = FusedScore(Searcher.open(live, "r").base)
    queries = replace(
        score.encode(["word1"], score.encoder_retriever.encode_queries(["word1"])),
        terms=index.encode_queries(["musty cellar"]),
    )

    assert score.bm25_without(index, queries, ["a"]).tolist() == [0.0]
    assert score.bm25_without(index, queries, ["b"])[0] > 0


@pytest.fixture
def live_with_words(tmp_path: Path) -> Path:
    """A live fusion whose BM25 counts known queries as words."""
    make_encoder("dense", tmp_path / "encoder")
    words = KnownWords(1.0, in_length=True)
    encoder = tmp_path / "encoder"
    return open_build("bm25_fusion", tmp_path / "opened", encoder, SHORT, known_words=words)


def ranks_before(live: Path, queries: tuple[str, ...]) -> list[int]:
    """Add a document with queries, and return its rank for each of them by its encoding."""
    document = Document("n", "word1", "word2 word3", queries=queries)
    make_builder(live).apply([document], up_to(1), {})
    return [query.rank_before for query in read_solved(live)["n"].queries]


def test_document_does_not_win_its_query_by_the_words_of_the_query(live_with_words: Path) -> None:
    (rank,) = ranks_before(live_with_words, ("word17 word18",))

    # Only the query of the document matches. Its words would put the document first.
    assert rank > 1


def test_document_does_not_win_its_query_by_a_near_duplicate(live_with_words: Path) -> None:
    words = ["word10", "word13", "word17", "word18", "word19"]
    queries = (" ".join(words), " ".join(words[:4]))

    assert min(ranks_before(live_with_words, queries)) > 1


def test_documents_with_several_rows_are_compared_by_id(tmp_path: Path) -> None:
    make_encoder("dense", tmp_path / "encoder")
    live = open_build("dense", tmp_path / "opened", tmp_path / "encoder", OLD)
    searcher = Searcher.open(live, "r")

    assert FusedScore(searcher.base).search_over(searcher.views).shared_rows is None


def test_known_queries_of_old_documents_are_members(live: Path) -> None:
    thief = Document("t", "word3", "word9", queries=("word3 word9 word1",))

    make_builder(live, AdditionSettings(gamma1=5.0, lambda2=0.01)).apply([thief], up_to(1), {})

    members = {member.document_id for member in read_solved(live)["t"].members}
    assert "d01" in members


def test_limit_of_a_constraint_counts_words_of_the_new_document(live: Path) -> None:
    """A document whose inner product is at the limit has the fused score of the older one."""
    thief = Document("t", "word3", "word9", queries=("word3 word9 word1",))
    make_builder(live, AdditionSettings(gamma1=5.0, lambda2=0.01)).apply([thief], up_to(1), {})
    (member,) = [m for m in read_solved(live)["t"].members if m.document_id == "d01"]
    searcher = Searcher.open(live, "r")
    score = FusedScore(searcher.base)

    queries = score.encode([member.text])
    bm25 = 0.0
    index = score.bm25_over(searcher.views)
    if index is not None and queries.terms is not None:
        bm25 = float(index.score_encoded(queries.terms, [["t"]])[0][0])
        assert bm25 > 0
    known = constraints.build_constraints(score, live.with_name("additions"))
    row = known.texts.index(member.text)
    highest = max(float(known.highest_bm25[row]), bm25)
    dense = score.dense_weight * (member.limit - queries.means) / queries.deviations
    (fused,) = score.fuse(dense, np.array([bm25]), highest)

    assert fused == pytest.approx(known.owner_scores[row])


def test_old_documents_keep_more_queries_with_more_weight(live: Path) -> None:
    copy = Path(shutil.copytree(live, live.with_name("copy")))
    thief = Document("t", "word3", "word9", queries=("word3 word9 word1",))
    for folder, lambda1 in ((live, 0.01), (copy, 0.99)):
        settings = AdditionSettings(gamma1=5.0, lambda2=0.01, lambda1=lambda1)
        make_builder(folder, settings).apply([thief], up_to(1), {})

    careful = read_solved(live)["t"]
    bold = read_solved(copy)["t"]

    assert careful.queries[0].own_score < bold.queries[0].own_score


def test_a_query_of_both_documents_is_no_constraint(live: Path) -> None:
    twin = Document("t", "word3", "word9", queries=("Word3 WORD9!",))

    make_builder(live, AdditionSettings(gamma1=5.0, lambda2=0.01)).apply([twin], up_to(1), {})

    assert not [m for m in read_solved(live)["t"].members if m.document_id == "d01"]


def test_queries_of_a_former_version_are_not_encoded_again(
    live: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = make_builder(live)
    builder.apply(EVENTS, up_to(len(EVENTS)), {})
    (first,) = [query.text for query in read_solved(live)["n2"].queries]
    asked: list[str] = []
    encode = Encoder.encode_queries

    def record(self: Encoder, texts: Sequence[str], *arguments: Any) -> np.ndarray:
        asked.extend(texts)
        return encode(self, texts, *arguments)

    monkeypatch.setattr(Encoder, "encode_queries", record)
    changed = Document("n2", "word5", "word6 word1", queries=(first, "word17 word29"))

    builder.apply([changed], up_to(len(EVENTS) + 1), {})

    assert asked == ["word17 word29"]
    assert [query.text for query in read_solved(live)["n2"].queries] == [first, "word17 word29"]


def test_deleted_documents_are_no_constraint(live: Path) -> None:
    thief = Document("t", "word3", "word9", queries=("word3 word9 word1",))
    builder = make_builder(live, AdditionSettings(gamma1=5.0, lambda2=0.01))

    builder.apply([Remove("d01"), thief], up_to(2), {})

    assert not [m for m in read_solved(live)["t"].members if m.document_id == "d01"]


def test_dependent_documents_are_named(live: Path) -> None:
    thief = Document("t", "word3", "word9", queries=("word3 word9 word1",))
    make_builder(live, AdditionSettings(gamma1=5.0, lambda2=0.01)).apply([thief], up_to(1), {})
    generation = Searcher.open(live, "r").generation

    assert documents_solved_with(generation, document_ids=["d01"]) == ["t"]
    assert documents_solved_with(generation, texts=["Word3 Word9?"]) == ["t"]
    assert documents_solved_with(generation, texts=["word3 word9 WORD1"]) == ["t"]
    assert documents_solved_with(generation, ["d05"], ["word5"]) == []


def test_queries_that_judge_are_never_solved_for(live: Path) -> None:
    base = Searcher.open(live, "r").base.folder
    held_out = frozenset({query_hash("Word22 WORD23")})
    CorpusQueries((), held_out).save(base / KNOWN_QUERIES)

    apply_in_groups(live, [6])

    texts = [query.text for query in read_solved(live)["n3"].queries]
    assert texts == ["word9 word24"]


def test_forgotten_queries_are_no_constraint(live: Path) -> None:
    searcher = Searcher.open(live, "r")
    score = FusedScore(searcher.base)
    vectors = np.zeros((2, score.encoder_retriever.encoder.dimension), np.float32)
    constraints = Constraints(
        ["d01", "d04"],
        ["word3 word9", "word14 word21"],
        vectors,
        np.zeros(2),
        np.ones(2),
        np.zeros(2),
        np.ones(2),
    )
    prepared = PreparedConstraints.prepare(score, constraints)
    view = searcher.views[0]

    assert prepared.find_live(view).tolist() == [True, True]
    assert prepared.find_live(replace(view, known={"d01": []})).tolist() == [False, True]
    assert prepared.find_live(replace(view, removed=frozenset({"d04"}))).tolist() == [True, False]


def test_document_below_its_own_rivals_fits(live: Path) -> None:
    """A vector that stays at its encoding takes no query from an older document."""
    builder = make_builder(live, AdditionSettings(lambda2=1e9))

    result = builder.apply(EVENTS[:3], up_to(3), {})

    (document, _) = solved_documents(result.generation)
    assert any(query.rank_after > 1 for query in document.queries)
    assert document.old_outranked_after == document.old_outranked_before
    assert document.status == "FITS"


def test_statuses_name_solved_documents(live: Path) -> None:
    apply_in_groups(live, [6])

    assert refinement_statuses(Searcher.open(live, "r").generation).keys() == {
        "n3",
        "n2",
        "d03",
        "n0",
    }


def test_documents_with_several_passages_keep_their_encodings(live: Path) -> None:
    long = Document("n", "word1", " ".join(f"word{i}" for i in range(20)), queries=("word29",))

    make_builder(live).apply([long], up_to(1), {})

    assert read_solved(live) == {}


def make_case(seed: int) -> tuple[OwnQueries, ConstraintLimits, np.ndarray]:
    """Random queries, limits of known queries, and encoding."""
    random = np.random.default_rng(seed)
    known_vectors = random.normal(size=(12, 5)).astype(np.float32)
    deviations = random.uniform(0.5, 2.0, size=3)
    own = OwnQueries(
        texts=["a", "b", "c"],
        vectors=random.normal(size=(3, 5)),
        means=random.normal(size=3),
        deviations=deviations,
        best_rivals=random.uniform(1, 4, size=3),
        rival_scores=[],
        bm25_terms=random.uniform(0, 1, size=3),
        highest_bm25=np.ones(3),
        dense_weight=1.5,
    )
    texts = [f"query {i}" for i in range(12)]
    prior = random.normal(size=5)
    limits = ConstraintLimits(
        document_ids=texts,
        texts=texts,
        vectors=known_vectors,
        lengths=np.linalg.norm(known_vectors, axis=1),
        scales=random.uniform(0.5, 2.0, size=12),
        max_products=random.uniform(-0.5, 1.0, size=12),
        prior=prior,
        prior_products=known_vectors @ prior.astype(np.float32),
    )
    return own, limits, prior


def loss(
    vector: np.ndarray,
    own: OwnQueries,
    limits: ConstraintLimits,
    prior: np.ndarray,
    settings: AdditionSettings,
) -> float:
    """L(v) as the module writes it, term by term."""
    total = settings.lambda2 * float(((vector - prior) ** 2).sum())
    for k in range(len(own.texts)):
        dense = (own.vectors[k] @ vector - own.means[k]) / own.deviations[k]
        score = own.dense_weight * dense + own.bm25_terms[k]
        missing = max(0.0, own.best_rivals[k] + settings.gamma1 - score)
        total += settings.lambda1 / len(own.texts) * missing**2
    for j in range(len(limits.max_products)):
        excess = (
            limits.vectors[j].astype(float) @ vector - limits.max_products[j]
        ) / limits.scales[j]
        total += (1 - settings.lambda1) * max(0.0, excess + settings.gamma2) ** 2
    return total


@pytest.mark.parametrize("seed", range(6))
def test_solution_is_the_minimum_of_scipy(seed: int) -> None:
    settings = AdditionSettings(gamma1=1.0, gamma2=0.2, lambda2=0.3)
    own, limits, prior = make_case(seed)

    vector, _ = minimize(own, limits, prior, settings)

    best = scipy_minimize(loss, prior, (own, limits, prior, settings), method="BFGS", tol=1e-10)
    assert loss(vector, own, limits, prior, settings) <= best.fun * (1 + 1e-9)


def test_order_of_constraints_changes_no_bit() -> None:
    own, limits, prior = make_case(3)
    order = np.random.default_rng(0).permutation(12)
    texts = [limits.texts[row] for row in order]
    shuffled = ConstraintLimits(
        document_ids=texts,
        texts=texts,
        vectors=limits.vectors[order],
        lengths=limits.lengths[order],
        scales=limits.scales[order],
        max_products=limits.max_products[order],
        prior=prior,
        prior_products=limits.prior_products[order],
    )

    first, _ = minimize(own, limits, prior, SETTINGS)
    second, _ = minimize(own, shuffled, prior, SETTINGS)

    assert first.tolist() == second.tolist()


def test_problem_is_in_units_of_the_fused_score() -> None:
    own, limits, prior = make_case(1)
    rows = np.arange(12)

    problem = make_problem(own, limits, rows, prior, SETTINGS)

    assert problem.value(prior) == pytest.approx(loss(prior, own, limits, prior, SETTINGS))


def test_limits_do_not_depend_on_order() -> None:
    known = [(f"d{i}", f"query {i}") for i in range(50)]

    assert limit_queries(known, 10) == sorted(limit_queries(known[::-1], 10))
    assert len(limit_queries(known, 10)) == 10


def test_limit_keeps_a_query_of_each_document() -> None:
    known = [("asked often", f"query {i}") for i in range(90)]
    known += [(f"d{i}", f"about {i} {j}") for i in range(9) for j in range(2)]

    kept = Counter(document_id for document_id, _ in limit_queries(known, 12))

    assert kept.keys() == {"asked often", *(f"d{i}" for i in range(9))}
    assert sorted(kept.values())[-2:] == [2, 2]


def test_solved_documents_survive_a_file(tmp_path: Path, live: Path) -> None:
    apply_in_groups(live, [6])
    solved = SolvedDocuments(read_solved(live))

    solved.save(tmp_path)
    loaded = SolvedDocuments.load(tmp_path)

    assert loaded.documents.keys() == solved.documents.keys()
    assert loaded.documents["n3"].vectors.tolist() == solved.documents["n3"].vectors.tolist()


def test_tokens_survive_new_vectors_in_the_same_file(tmp_path: Path) -> None:
    # The tokens fill several pages of memory, as those of a few real documents do.
    random = np.random.default_rng(0)
    signs = [pack_signs(random.normal(size=(400, 64))) for _ in range(5)]
    vectors = np.eye(5, 64, dtype=np.float32)
    names = [f"d{number}" for number in range(5)]
    index = DenseIndex.build(vectors, names, "fingerprint", EXACT_SETTINGS, 1, TokenSigns.of(signs))
    index.save(tmp_path / INDEX)
    loaded = DenseIndex.load(tmp_path / INDEX)
    score: Any = SimpleNamespace(dense_of=lambda _: SimpleNamespace(index=loaded), dense_name=None)
    segment: Any = SimpleNamespace(folder=tmp_path, retriever=None)
    solver: Any = SimpleNamespace(vectors=vectors[::-1].copy())

    with deferred_fsync(tmp_path):
        replace_vectors(score, segment, solver)

    written = DenseIndex.load(tmp_path / INDEX)
    assert written.token_signs is not None
    assert written.token_signs.bits.tolist() == TokenSigns.of(signs).bits.tolist()
    assert written.vectors.tolist() == vectors[::-1].tolist()


def dense_vectors(
    segments: Sequence[RetrieverSegment], base: BaseSegment
) -> dict[str, list[float]]:
    """The dense vector of each document that the segments hold."""
    score = FusedScore(base)
    vectors: dict[str, list[float]] = {}
    for segment in segments:
        retriever: Any = segment.retriever
        if score.dense_name is not None:
            retriever = retriever.components[score.dense_name]
        for document_id, row in zip(
            retriever.index.document_ids, retriever.index.vectors, strict=True
        ):
            if document_id in segment:
                vectors[document_id] = row.tolist()
    return vectors


def test_vectors_solved_with_judging_queries_do_not_judge(live: Path, tmp_path: Path) -> None:
    plain = Path(shutil.copytree(live, live.with_name("plain")))
    make_builder(plain, AdditionSettings(gamma1=0.5, lambda2=1e12)).apply(EVENTS, up_to(6), {})
    encodings = read_vectors(plain)
    apply_in_groups(live, [6])
    solved = read_vectors(live)
    searcher = Searcher.open(live, "r")
    held_out = frozenset({query_hash("WORD22 word23?")})

    segments = judging_segments(searcher, held_out, tmp_path / "encodings")

    vectors = dense_vectors(segments, searcher.base)
    replaced = documents_solved_with(searcher.generation, hashes=held_out)
    assert "n3" in replaced
    for document_id, vector in vectors.items():
        expected = encodings if document_id in replaced else solved
        assert vector == expected[document_id]
    assert vectors["n3"] != solved["n3"]
    assert vectors.keys() == solved.keys()


def test_segments_stay_without_judging_queries(live: Path, tmp_path: Path) -> None:
    apply_in_groups(live, [6])
    searcher = Searcher.open(live, "r")

    segments = judging_segments(searcher, frozenset({query_hash("word5")}), tmp_path / "none")

    assert [segment.retriever for segment in segments] == [
        view.segment.retriever for view in searcher.views
    ]
    assert not (tmp_path / "none").exists()
