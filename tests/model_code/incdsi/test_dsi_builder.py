"""Tests of refined additions in live collections.

Equal histories give equal vectors, however they are grouped, with a warm or a cold builder,
compacted or not, rolled back or not. The cache of representative queries can be lost, and damage to
it is reported. A retriever whose additions cannot be refined is refused.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.refinements import refinement_statuses
from model_code.collection.generations.searcher import Searcher
from model_code.errors import FreshetError, SettingsError
from model_code.incdsi.adder import IncDsiAdder, NewDocument
from model_code.incdsi.dsi_builder import DsiIncDsiBuilder
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import QUERIES, load_state
from model_code.text.documents import Change, Document, Remove
from tests.disk import skip_fsync
from tests.model_code.collection.laws import (
    OLD,
    WORDS,
    go_back,
    make_encoder,
    open_build,
    put,
    up_to,
)

# The old documents, cut to one passage each.
SHORT = {name: (title, " ".join(text.split()[:5])) for name, (title, text) in OLD.items()}
SETTINGS = LearnedAdditionSettings(gamma1=2.0, gamma2=0.1, lambda2=1e-3)
N0 = Document("n0", "word7", "word8 word9")
N1 = Document("n1", "word1", "word2 word3. word4 word5", {}, ("word1 word9", "word3"))
N3 = Document("n3", "word1", "word2")
HISTORY: list[list[Change]] = [
    [N1, N0],
    [Document("n1", "word1", "word2 word3 word11"), Remove("d02")],
    [Remove("n0")],
    [Document("d03", "word12", "word4 word5"), Document("n2", "word1", "word2 word3. word4 word5")],
]

# Title and text of a document of several passages.
LONG = "word1", " ".join(WORDS[:20])
EVENTS: list[Change] = [
    Document("z", "word1", "word2 word3", {}, ("word1 word9",)),
    Document("a", "word1", "word2 word3 word4", {}, ("word1 word4",)),
    Document("d03", "word1", "word2 word4"),
    Document("m", "word1", "word3 word9", {}, ("word3 word9",)),
    Document("d05", "word9", "word1 word2"),
    Remove("d07"),
    Document("k", "word9", "word3 word2"),
    Document("m", *LONG),
    Remove("z"),
    put("d05", SHORT),
    Document("b", "word9", "word1 word3", {}, ("word9 word3",)),
    Document("z", "word1", "word2 word3 word9"),
    Document("m", "word3", "word1 word2", {}, ("word2 word9",)),
    Remove("k"),
    put("d07", SHORT),
    Document("c", "word2", "word1 word9"),
]


@pytest.fixture(scope="module", autouse=True)
def quick_writes() -> Iterator[None]:
    """Skip fsync, since no test cuts the power."""
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        yield


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live collection of the old documents."""
    encoder = tmp_path_factory.mktemp("encoder") / "encoder"
    make_encoder("dense", encoder)
    return open_build("dense", tmp_path_factory.mktemp("opened"), encoder, SHORT)


@pytest.fixture
def live(opened: Path, tmp_path: Path) -> Path:
    """A copy of the opened collection that a test may change."""
    return copy_collection(opened, tmp_path / "live")


@pytest.fixture
def separate_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode each text in a batch of its own: padding changes the last bits of encodings."""
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)


def copy_collection(live: Path, target: Path) -> Path:
    """Copy the folder of a live collection."""
    return Path(shutil.copytree(live, target))


def make_builder(
    live: Path, settings: LearnedAdditionSettings = SETTINGS, cache: str = "additions"
) -> DsiIncDsiBuilder:
    """Make a builder whose cache is a folder beside the live collection."""
    return DsiIncDsiBuilder(live, "r", settings, live.with_name(cache))


def state_of(live: Path) -> IncDsiState:
    """Load IncDSI's state of the current generation."""
    return load_state(make_builder(live).searcher, SETTINGS.spans, live.with_name("additions"))


def vectors_of(live: Path) -> dict[str, list[float]]:
    """Return the searched vector of each document; the last one of a document with several."""
    vectors = {}
    for view in Searcher.open(live, "r").views:
        index = view.segment.retriever.index
        for document_id, vector in zip(index.document_ids, index.vectors, strict=True):
            if document_id in view:
                vectors[document_id] = vector.tolist()
    return vectors


def passage_vectors(live: Path, document: str) -> list[list[float]]:
    """Return the vector of each passage of a document."""
    vectors = []
    for view in Searcher.open(live, "r").views:
        index = view.segment.retriever.index
        for document_id, vector in zip(index.document_ids, index.vectors, strict=True):
            if document_id == document:
                vectors.append(vector.tolist())
    return vectors


def apply_history(
    live: Path, history: list[list[Change]], cold: bool = False, compact: bool = False
) -> dict[str, list[float]]:
    """Apply groups of changes and return the vectors.

    Args:
        live: Folder of the live collection.
        history: Groups of changes.
        cold: Whether each group is applied by a new builder.
        compact: Whether the segments are compacted after each group.
    """
    builder = make_builder(live)
    for number, changes in enumerate(history, start=1):
        if cold:
            builder = make_builder(live)
        builder.apply(changes, up_to(number), {"n": number})
        if compact:
            builder.compact()
    return vectors_of(live)


@pytest.mark.parametrize(("cold", "compact"), [(False, False), (True, False), (True, True)])
def test_replay_gives_the_same_vectors(
    opened: Path, live: Path, tmp_path: Path, cold: bool, compact: bool
) -> None:
    expected = apply_history(live, HISTORY)
    replayed = copy_collection(opened, tmp_path / "replayed" / "live")

    vectors = apply_history(replayed, HISTORY, cold, compact)

    assert vectors == expected
    assert sorted(vectors) == sorted({*SHORT, "n1", "n2"} - {"d02"})


def apply_events(live: Path, sizes: list[int]) -> dict[str, str]:
    """Apply EVENTS in groups of these sizes; return the statuses of the documents that remain."""
    builder = make_builder(live)
    numbered_events = enumerate(EVENTS, start=1)
    for size in sizes:
        group = list(itertools.islice(numbered_events, size))
        last_number = group[-1][0]
        changes = [event for _, event in group]
        generation = builder.apply(changes, up_to(last_number), {}).generation
    assert next(numbered_events, None) is None

    remaining = vectors_of(live)
    statuses = refinement_statuses(generation)
    return {name: status for name, status in statuses.items() if name in remaining}


@pytest.mark.usefixtures("separate_batches")
@pytest.mark.parametrize("sizes", [[16], [3, 3, 3, 3, 3, 1], [7, 9]])
def test_refined_vectors_do_not_depend_on_grouping(
    opened: Path, tmp_path: Path, sizes: list[int]
) -> None:
    one_by_one = copy_collection(opened, tmp_path / "one_by_one" / "live")
    grouped = copy_collection(opened, tmp_path / "grouped" / "live")

    expected_statuses = apply_events(one_by_one, [1] * 16)
    statuses = apply_events(grouped, sizes)

    vectors = vectors_of(grouped)
    assert vectors == vectors_of(one_by_one)
    assert statuses == expected_statuses
    assert sorted(vectors) == sorted({*SHORT, "z", "a", "m", "b", "c"})
    assert statuses.keys() == {"z", "a", "m", "b", "c", "d03", "d05", "d07"}


def test_documents_are_added_in_event_order(opened: Path, tmp_path: Path) -> None:
    z = Document("z", "word1", "word2 word3", {}, ("word1 word2",))
    a = Document("a", "word1", "word2 word3 word4", {}, ("word1 word3",))
    single_live = copy_collection(opened, tmp_path / "single" / "live")
    both_live = copy_collection(opened, tmp_path / "both" / "live")
    reversed_live = copy_collection(opened, tmp_path / "reversed" / "live")

    single = apply_history(single_live, [[z], [a]])
    both = apply_history(both_live, [[z, a]])
    reversed_order = apply_history(reversed_live, [[a, z]])

    for name in "az":
        distance = np.abs(np.array(single[name]) - np.array(reversed_order[name])).max()
        np.testing.assert_allclose(single[name], both[name], atol=1e-6)
        assert distance > 0.01


def test_document_changed_back_is_updated(live: Path) -> None:
    builder = make_builder(live)
    changed_back = [Remove("d05"), put("d05", SHORT)]
    added_and_removed = [Document("n", "a", "b"), Remove("n")]

    result = builder.apply([*changed_back, *added_and_removed], up_to(1), {})

    assert result.updated == ("d05",)
    assert result.unchanged == ("n",)


def test_equal_document_is_unchanged_after_a_change_back(live: Path) -> None:
    builder = make_builder(live)
    builder.apply([Remove("d05"), put("d05", SHORT)], up_to(1), {})

    result = builder.apply([put("d05", SHORT)], up_to(2), {})

    assert result.unchanged == ("d05",)


def test_stored_vector_equals_solver_result(live: Path) -> None:
    plain = copy_collection(live, live.with_name("plain"))
    GenerationBuilder(plain, "r").apply(HISTORY[0], up_to(1), {})
    encodings = vectors_of(plain)
    builder = make_builder(live)
    encode = builder.searcher.base.retriever.encoder.pytorch.encode_queries
    old_ids = builder.searcher.base.retriever.index.document_ids
    old_queries = {name: encode(list(texts)).mean(axis=0) for name, texts in SHORT.items()}
    state = IncDsiState(
        np.array([encodings[name] for name in old_ids]),
        np.stack([old_queries[name] for name in old_ids]),
        old_ids,
    )
    adder = IncDsiAdder(state, SETTINGS)

    builder.apply(HISTORY[0], up_to(1), {})

    vectors = vectors_of(live)
    encoding = np.array(encodings["n1"])
    added = adder.add(NewDocument("n1", encode(["word1 word9", "word3"]), encoding))
    np.testing.assert_allclose(vectors["n1"], added.vector, atol=1e-5)
    assert not np.allclose(vectors["n1"], encoding, atol=1e-3)
    # The document n0 has no known queries, so it keeps its encoding.
    np.testing.assert_allclose(vectors["n0"], encodings["n0"], atol=1e-6)


def test_rewind_removes_later_additions_from_state(live: Path) -> None:
    n9 = Document("n9", "word1", "word2 word3. word4 word5", {}, ("word1 word4",))
    builder = make_builder(live)
    first = builder.apply(HISTORY[0], up_to(1), {}).generation.number
    builder.apply([n9], up_to(2), {})
    vector_before = vectors_of(live)["n9"]
    for event, changes in enumerate(HISTORY[1:], start=3):
        builder.apply(changes, up_to(event), {})

    go_back(live, first)
    result = builder.apply([n9], up_to(9), {})

    assert result.added == ("n9",)
    assert vectors_of(live)["n9"] == vector_before
    assert state_of(live).ids == [*SHORT, "n1", "n0", "n9"]


def test_unrefined_additions_are_in_the_state(live: Path) -> None:
    GenerationBuilder(live, "r").apply(HISTORY[0], up_to(1), {})

    assert state_of(live).ids[-2:] == ["n0", "n1"]


def test_refined_additions_follow_unrefined_ones(live: Path) -> None:
    GenerationBuilder(live, "r").apply(HISTORY[0], up_to(1), {})

    make_builder(live).apply([N3], up_to(2), {})

    assert state_of(live).ids[-3:] == ["n0", "n1", "n3"]
    # The cache holds the queries of the base, and those of the unrefined additions.
    assert len(list(live.with_name("additions").iterdir())) == 2


def test_lost_addition_cache_changes_no_vector(live: Path) -> None:
    before = apply_history(live, HISTORY)

    shutil.rmtree(live.with_name("additions"))
    make_builder(live).apply([N3], up_to(9), {})

    after = vectors_of(live)
    after.pop("n3")
    assert after == before


def test_torn_addition_cache_is_reported(live: Path) -> None:
    state_of(live)
    (cached,) = live.with_name("additions").iterdir()

    with (cached / QUERIES).open("r+b") as stream:
        stream.truncate(200)

    with pytest.raises(FreshetError, match=f"{QUERIES} was changed .* delete {cached}"):
        state_of(live)


def test_deleted_addition_cache_is_rebuilt(live: Path) -> None:
    before = state_of(live)

    shutil.rmtree(live.with_name("additions"))

    np.testing.assert_array_equal(state_of(live).queries.view, before.queries.view)


def test_document_that_meets_no_constraint_is_searchable(live: Path) -> None:
    twin = SHORT["d00"]
    builder = make_builder(live, LearnedAdditionSettings(gamma1=0.0, gamma2=0.0))

    result = builder.apply(
        [
            Document("twin", *twin, {}, twin),
            Document("own", "word29", "word28 word27", {}, ("word29", "word28")),
        ],
        up_to(1),
        {},
    )

    statuses = refinement_statuses(result.generation)
    hits = builder.searcher.search(" ".join(twin), 20)
    found = {hit.document_id for hit in hits}
    assert result.added == ("own", "twin")
    assert set(statuses) == {"own", "twin"}
    assert statuses["own"] != "NOT_REFINED"
    assert {"own", "twin"} <= found


def test_unchanged_document_keeps_its_status(live: Path) -> None:
    twin = Document("twin", *SHORT["d00"], {}, SHORT["d00"])
    builder = make_builder(live, LearnedAdditionSettings(gamma1=0.0, gamma2=0.0))
    first = builder.apply([twin], up_to(1), {})

    second = builder.apply([twin], up_to(2), {})

    assert second.unchanged == ("twin",)
    assert refinement_statuses(second.generation) == refinement_statuses(first.generation)


def test_failed_publication_leaves_no_trace(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clean = copy_collection(live, live.with_name("clean"))
    builder = make_builder(live)

    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "write_manifest", fail)
        with pytest.raises(ZeroDivisionError):
            builder.apply(HISTORY[0], up_to(1), {})
    builder.apply(HISTORY[0], up_to(1), {})

    make_builder(clean, cache="clean_additions").apply(HISTORY[0], up_to(1), {})
    assert vectors_of(live) == vectors_of(clean)


def test_rewound_collection_adds_like_a_new_one(live: Path) -> None:
    make_builder(live).apply(HISTORY[0], up_to(1), {})
    rewound = copy_collection(live, live.with_name("rewound"))

    go_back(rewound, 0)
    make_builder(rewound, cache="rewound_additions").apply(HISTORY[0], up_to(1), {})

    assert vectors_of(rewound) == vectors_of(live)


def test_long_documents_are_added_unrefined(live: Path) -> None:
    plain = copy_collection(live, live.with_name("plain"))
    without_long = copy_collection(live, live.with_name("without_long"))
    long = Document("long", *LONG, {}, ("word1 word9",))
    GenerationBuilder(plain, "r").apply([long], up_to(1), {})
    make_builder(without_long).apply(HISTORY[0], up_to(1), {})

    result = make_builder(live).apply([*HISTORY[0], long], up_to(1), {})

    long_vectors = passage_vectors(live, "long")
    assert len(long_vectors) > 1
    np.testing.assert_allclose(long_vectors, passage_vectors(plain, "long"), atol=1e-6)
    vectors = vectors_of(live)
    expected_vectors = vectors_of(without_long)
    assert vectors["n0"] == expected_vectors["n0"]
    assert vectors["n1"] == expected_vectors["n1"]
    statuses = refinement_statuses(result.generation)
    assert statuses.pop("long") == "NOT_REFINED"
    assert statuses.pop("n0") == "NOT_REFINED"
    assert statuses["n1"] in ("FITS", "COMPROMISE")


def test_long_document_can_be_added_by_itself(live: Path) -> None:
    builder = make_builder(live)
    builder.apply([*HISTORY[0], Document("long", *LONG)], up_to(1), {})

    result = builder.apply([Document("longer", *LONG)], up_to(2), {})

    assert result.added == ("longer",)


@pytest.mark.parametrize("kind", ["multi_vector", "lexical"])
def test_retriever_that_cannot_be_refined_is_refused(kind: str, tmp_path: Path) -> None:
    make_encoder(kind, tmp_path / "encoder")
    four_documents = dict(list(SHORT.items())[:4])
    live = open_build(kind, tmp_path, tmp_path / "encoder", four_documents)

    with pytest.raises(SettingsError, match="cannot be refined"):
        make_builder(live).apply([Document("n", WORDS[0], WORDS[1])], up_to(1), {})

    assert GenerationStore(live, "r").current_number() == 0
