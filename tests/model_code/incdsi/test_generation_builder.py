"""Guards refined additions: equal histories give equal vectors, however grouped, warm or cold,
compacted or not, rolled back or not; what is kept of texts can be lost and, where it is torn, is
told; and what cannot be refined is refused in words.
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
from model_code.incdsi.generation_builder import IncDsiGenerationBuilder
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import QUERIES, load_state
from model_code.text.documents import Change, Document, Remove
from tests.model_code.collection.laws import (
    OLD,
    WORDS,
    go_back,
    make_encoder,
    open_build,
    put,
    up_to,
)

# one passage each
SHORT = {name: (title, " ".join(text.split()[:5])) for name, (title, text) in OLD.items()}
ON = LearnedAdditionSettings(gamma1=2.0, gamma2=0.1, lambda2=1e-3)
N1 = Document("n1", "word1", "word2 word3. word4 word5", {}, ("word1 word9", "word3"))
HISTORY: list[list[Change]] = [
    [N1, Document("n0", "word7", "word8 word9")],
    [Document("n1", "word1", "word2 word3 word11"), Remove("d02")],
    [Remove("n0")],
    [Document("d03", "word12", "word4 word5"), Document("n2", "word1", "word2 word3. word4 word5")],
]


@pytest.fixture(scope="module", autouse=True)
def no_waiting_for_the_disk() -> Iterator[None]:
    """Nothing here pulls the plug."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        yield


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A live collection of the old documents."""
    encoder = tmp_path_factory.mktemp("encoder") / "encoder"
    make_encoder("dense", encoder)
    return open_build("dense", tmp_path_factory.mktemp("opened"), encoder, SHORT)


@pytest.fixture
def live(opened: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(opened, tmp_path / "live"))


def writer_of(
    live: Path, settings: LearnedAdditionSettings = ON, folder: str = "additions"
) -> IncDsiGenerationBuilder:
    return IncDsiGenerationBuilder(live, "r", settings, live.with_name(folder))


def vectors(live: Path) -> dict[str, list[float]]:
    found = {}
    for view in Searcher.open(live, "r").views:
        index = view.segment.retriever.index
        found |= {
            key: row.tolist()
            for key, row in zip(index.document_ids, index.vectors, strict=True)
            if key in view
        }
    return found


def play(
    live: Path, history: list[list[Change]] = HISTORY, cold: bool = False, compact: bool = False
) -> dict:
    writer = writer_of(live)
    for number, changes in enumerate(history, start=1):
        writer = writer_of(live) if cold else writer
        writer.apply(changes, up_to(number), {"n": number})
        if compact:
            writer.compact()
    return vectors(live)


def state_of(live: Path) -> IncDsiState:
    return load_state(writer_of(live).searcher, ON.spans, live.with_name("additions"))


def test_replaying_gives_the_same_vectors(opened: Path, tmp_path: Path) -> None:
    found = [
        play(Path(shutil.copytree(opened, tmp_path / name / "live")), cold=cold, compact=compact)
        for name, cold, compact in (("a", False, False), ("b", True, False), ("c", True, True))
    ]
    assert found[0] == found[1] == found[2]
    assert sorted(found[0]) == sorted({*SHORT, "n1", "n2"} - {"d02"})


LONG = "word1", " ".join(WORDS[:20])  # several passages
EVENTS: list[Change] = [
    Document("z", "word1", "word2 word3", {}, ("word1 word9",)),
    Document("a", "word1", "word2 word3 word4"),
    Document("d03", "word1", "word2 word4"),
    Document("m", "word1", "word3 word9"),
    Document("d05", "word9", "word1 word2"),
    Remove("d07"),
    Document("k", "word9", "word3 word2"),
    Document("m", *LONG),
    Remove("z"),
    put("d05", SHORT),
    Document("b", "word9", "word1 word3"),
    Document("z", "word1", "word2 word3 word9"),
    Document("m", "word3", "word1 word2", {}, ("word2 word9",)),
    Remove("k"),
    put("d07", SHORT),
    Document("c", "word2", "word1 word9"),
]


def grouped(
    live: Path, sizes: list[int], settings: LearnedAdditionSettings = ON
) -> tuple[dict, dict]:
    """Vectors, and statuses of what is there, after `EVENTS` in groups of these sizes."""
    writer, events = writer_of(live, settings), iter(enumerate(EVENTS, start=1))
    for size in sizes:
        numbers, changes = zip(*itertools.islice(events, size), strict=True)
        generation = writer.apply(changes, up_to(numbers[-1]), {}).generation
    assert next(events, None) is None
    found, told = vectors(live), refinement_statuses(generation)
    return found, {key: told[key] for key in told if key in found}


def test_refined_vectors_do_not_depend_on_grouping(
    opened: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # padding moves the last bits of encodings
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
    found = []
    for name, sizes in (
        ("one by one", [1] * 16),
        ("together", [16]),
        ("threes", [3] * 5 + [1]),
        ("two", [7, 9]),
    ):
        live = Path(shutil.copytree(opened, tmp_path / name / "live"))
        found.append(grouped(live, sizes))
    assert found[0] == found[1] == found[2] == found[3]
    assert sorted(found[0][0]) == sorted({*SHORT, "z", "a", "m", "b", "c"})
    assert found[0][1].keys() == {"z", "a", "m", "b", "c", "d03", "d05", "d07"}


def test_documents_are_added_in_event_order(opened: Path, tmp_path: Path) -> None:
    z, a = Document("z", "word1", "word2 word3"), Document("a", "word1", "word2 word3 word4")
    found = []
    for name, history in (("single", [[z], [a]]), ("both", [[z, a]]), ("other way", [[a, z]])):
        found.append(play(Path(shutil.copytree(opened, tmp_path / name / "live")), history))
    single, both, other = ({key: np.array(one[key]) for key in "az"} for one in found)
    for key in "az":
        np.testing.assert_allclose(single[key], both[key], atol=1e-6)
        assert np.abs(single[key] - other[key]).max() > 0.01


def test_document_changed_back_is_updated(live: Path) -> None:
    writer = writer_of(live)
    applied = writer.apply(
        [Remove("d05"), put("d05", SHORT), Document("n", "a", "b"), Remove("n")], up_to(1), {}
    )
    assert applied.updated == ("d05",)
    assert applied.unchanged == ("n",)
    assert writer.apply([put("d05", SHORT)], up_to(2), {}).unchanged == ("d05",)


def test_stored_vector_equals_solver_result(live: Path) -> None:
    plain = Path(shutil.copytree(live, live.with_name("plain")))
    GenerationBuilder(plain, "r").apply(HISTORY[0], up_to(1), {})
    encoded = vectors(plain)
    writer = writer_of(live)
    writer.apply(HISTORY[0], up_to(1), {})
    encode = writer.searcher.base.retriever.encoder.encode
    old = {key: encode([title, text]).mean(axis=0) for key, (title, text) in SHORT.items()}
    ids = writer.searcher.base.retriever.index.document_ids
    state = IncDsiState(
        np.array([encoded[key] for key in ids]), np.stack([old[key] for key in ids]), ids
    )
    new = {
        "n1": ["word1", "word2 word3.", "word4 word5", "word1 word9", "word3"],
        "n0": ["word7", "word8 word9"],
    }
    for key, texts in new.items():
        added = IncDsiAdder(state, ON).add(NewDocument(key, encode(texts), np.array(encoded[key])))
        np.testing.assert_allclose(vectors(live)[key], added.vector, atol=1e-5)
        assert not np.allclose(vectors(live)[key], encoded[key], atol=1e-3)


def test_rewind_removes_later_additions_from_state(live: Path) -> None:
    writer, n9 = writer_of(live), Document("n9", "word1", "word2 word3. word4 word5")
    first = writer.apply(HISTORY[0], up_to(1), {}).generation.number
    writer.apply([n9], up_to(2), {})
    before = vectors(live)["n9"]
    for event, changes in enumerate(HISTORY[1:], start=3):
        writer.apply(changes, up_to(event), {})
    go_back(live, first)
    assert writer.apply([n9], up_to(9), {}).added == ("n9",)
    assert vectors(live)["n9"] == before
    assert state_of(live).ids == [*SHORT, "n1", "n0", "n9"]


def test_unrefined_additions_are_encoded_from_texts(live: Path) -> None:
    GenerationBuilder(live, "r").apply(HISTORY[0], up_to(1), {})
    assert state_of(live).ids[-2:] == ["n0", "n1"]
    writer_of(live).apply([Document("n3", "word1", "word2")], up_to(2), {})
    assert state_of(live).ids[-3:] == ["n0", "n1", "n3"]
    assert len(list(live.with_name("additions").iterdir())) == 2, (
        "of the base, and of what was not refined"
    )


def test_lost_addition_cache_changes_no_vector(live: Path) -> None:
    before = play(live)
    shutil.rmtree(live.with_name("additions"))
    writer_of(live).apply([Document("n3", "word1", "word2")], up_to(9), {})
    after = vectors(live)
    after.pop("n3")
    assert after == before


def test_torn_addition_cache_is_reported_and_rebuilt(live: Path) -> None:
    before = state_of(live)
    (kept,) = live.with_name("additions").iterdir()
    with (kept / QUERIES).open("r+b") as stream:
        stream.truncate(200)
    with pytest.raises(FreshetError, match=f"{QUERIES} was changed .* delete {kept}"):
        state_of(live)
    shutil.rmtree(kept)
    np.testing.assert_array_equal(state_of(live).queries.view, before.queries.view)


def test_statuses_are_told_and_nothing_is_unsearchable(live: Path) -> None:
    hard = LearnedAdditionSettings(gamma1=0.0, gamma2=0.0)
    writer = writer_of(live, hard)
    twin = SHORT["d00"]
    applied = writer.apply(
        [Document("twin", *twin), Document("own", "word29", "word28 word27")], up_to(1), {}
    )
    assert applied.added == ("own", "twin")
    found = refinement_statuses(applied.generation)
    assert set(found) == {"own", "twin"}
    assert found["own"] != "NOT_REFINED"
    assert {hit.document_id for hit in writer.searcher.search(" ".join(twin), 20)} >= {
        "own",
        "twin",
    }
    unchanged = writer.apply([Document("twin", *twin)], up_to(2), {})
    assert unchanged.unchanged == ("twin",)
    assert refinement_statuses(unchanged.generation) == found


def test_a_failed_publication_leaves_no_trace(live: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(live)
    with monkeypatch.context() as patch:
        patch.setattr(GenerationStore, "write_manifest", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            writer.apply(HISTORY[0], up_to(1), {})
    writer.apply(HISTORY[0], up_to(1), {})
    other = Path(shutil.copytree(live.parent / "live", live.with_name("other")))
    go_back(other, 0)
    writer_of(other, folder="clean").apply(HISTORY[0], up_to(1), {})
    assert vectors(other) == vectors(live)


def passages(live: Path, document: str) -> list[list[float]]:
    indexes = [view.segment.retriever.index for view in Searcher.open(live, "r").views]
    rows = [
        pair for index in indexes for pair in zip(index.document_ids, index.vectors, strict=True)
    ]
    return [vector.tolist() for key, vector in rows if key == document]


def test_long_documents_are_added_unrefined(live: Path) -> None:
    plain, alone = (
        Path(shutil.copytree(live, live.with_name(name))) for name in ("plain", "alone")
    )
    long = Document("long", *LONG, {}, ("word1 word9",))
    GenerationBuilder(plain, "r").apply([long], up_to(1), {})
    writer_of(alone).apply(HISTORY[0], up_to(1), {})
    writer = writer_of(live)
    applied = writer.apply([*HISTORY[0], long], up_to(1), {})
    assert len(passages(live, "long")) > 1
    np.testing.assert_allclose(passages(live, "long"), passages(plain, "long"), atol=1e-6)
    assert [vectors(live)[one] for one in ("n0", "n1")] == [
        vectors(alone)[one] for one in ("n0", "n1")
    ]
    told = refinement_statuses(applied.generation)
    assert told.pop("long") == "NOT_REFINED"
    assert set(told) == {"n0", "n1"}
    assert "NOT_REFINED" not in told.values()
    assert writer.apply([Document("longer", *LONG)], up_to(2), {}).added == ("longer",), (
        "also by itself"
    )


@pytest.mark.parametrize("kind", ["multi_vector", "lexical"])
def test_what_cannot_be_refined_is_refused(kind: str, tmp_path: Path) -> None:
    make_encoder(kind, tmp_path / "encoder")
    live = open_build(kind, tmp_path, tmp_path / "encoder", dict(list(SHORT.items())[:4]))
    with pytest.raises(SettingsError, match="cannot be refined"):
        writer_of(live).apply([Document("n", WORDS[0], WORDS[1])], up_to(1), {})
    assert GenerationStore(live, "r").current_number() == 0
