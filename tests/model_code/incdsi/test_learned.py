"""Tests of refined additions beside learned vectors.

Training's own representatives protect the old documents. Documents of several passages have one
vector. A replay gives the same vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.refinements import refinement_statuses
from model_code.dsi.settings import DocumentVectorSettings
from model_code.incdsi.dsi_builder import DsiIncDsiBuilder
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.store import load_state
from model_code.stages import train
from model_code.text.documents import Change, Document, Remove
from tests.disk import skip_fsync
from tests.model_code.collection.laws import up_to
from tests.model_code.dsi.small_corpus import RULES, go_live, make_context, run_index

TRAINING = DocumentVectorSettings(epochs=2, batch_size=16, learning_rate=2e-2, patience=None)
ADDITIONS = LearnedAdditionSettings(gamma1=0.5, gamma2=0.1)
LONG_TEXT = "ask1 ask2. ask3 ask4 ask5 ask6"
HISTORY: list[list[Change]] = [
    [Document("new", "", LONG_TEXT, {}, ("ask1 ask7",)), Document("other", "", "ask9")],
    [Document("d05", "", LONG_TEXT), Remove("other"), Remove("d03")],
]


@pytest.fixture(scope="module", autouse=True)
def quick_writes_and_short_passages() -> Iterator[None]:
    """Skip fsync, since no test cuts the power, and use the passages of the small corpus."""
    with pytest.MonkeyPatch.context() as patch:
        skip_fsync(patch)
        patch.setattr(Generation, "text", RULES)
        yield


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four folders with the same live dsi."""
    root = tmp_path_factory.mktemp("dsi")
    training = make_context(root, TRAINING)
    train.run(training)
    indexing = run_index(training, root / "index")
    folders = [root / name for name in ("one", "two", "three", "four")]
    for folder in folders:
        go_live(folder, training, indexing)
    return folders


def apply_history(root: Path, history: list[list[Change]]) -> DsiIncDsiBuilder:
    """Apply the changes of a history, group by group."""
    builder = DsiIncDsiBuilder(root / "live", "dsi", ADDITIONS, root / "additions")
    for number, changes in enumerate(history, start=1):
        builder.apply(changes, up_to(number), {})
    return builder


def state_of(builder: DsiIncDsiBuilder) -> IncDsiState:
    """Load IncDSI's state of the current generation."""
    return load_state(builder.searcher, ADDITIONS.spans, builder.folder)


@pytest.fixture(scope="module")
def added(roots: list[Path]) -> DsiIncDsiBuilder:
    """The builder of a collection after HISTORY."""
    return apply_history(roots[0], HISTORY)


def assert_equal_states(first: IncDsiState, second: IncDsiState) -> None:
    """Check that two states hold the same documents, vectors and queries."""
    assert first.ids == second.ids
    np.testing.assert_array_equal(first.vectors.view, second.vectors.view)
    np.testing.assert_array_equal(first.queries.view, second.queries.view)


def test_replay_gives_the_same_state(added: DsiIncDsiBuilder, roots: list[Path]) -> None:
    replayed = apply_history(roots[1], HISTORY)

    assert_equal_states(state_of(added), state_of(replayed))


def test_state_holds_the_remaining_documents(added: DsiIncDsiBuilder) -> None:
    ids = state_of(added).ids

    assert ids[-2:] == ["new", "d05"]
    assert "other" not in ids
    assert "d03" not in ids


def test_old_documents_keep_trained_representatives(added: DsiIncDsiBuilder) -> None:
    state = state_of(added)
    base = added.searcher.base.retriever
    trained_ids = state.ids[:-2]

    assert trained_ids
    for document_id in trained_ids:
        query = state.queries.view[state.row(document_id)]
        trained_row = base.index.document_ids.index(document_id)
        np.testing.assert_array_equal(query, base.representatives[trained_row])


def test_new_document_is_represented_by_its_known_queries(added: DsiIncDsiBuilder) -> None:
    state = state_of(added)
    encoder = added.searcher.base.retriever.encoder

    query = state.queries.view[state.row("new")]

    np.testing.assert_allclose(query, encoder.encode_queries(["ask1 ask7"])[0], atol=1e-5)


def test_document_without_known_queries_keeps_its_encoding(added: DsiIncDsiBuilder) -> None:
    state = state_of(added)
    retriever = added.searcher.base.retriever
    parts = ["ask1 ask2.", "ask3 ask4 ask5 ask6"]
    passages = retriever.encoder.encode_documents_by_last_layer(RULES.passages("", LONG_TEXT))
    direction = passages.sum(axis=0)

    row = state.row("d05")

    encoding = retriever.encoding_scale * direction / np.linalg.norm(direction)
    np.testing.assert_allclose(state.vectors.view[row], encoding, atol=1e-5)
    mean = retriever.encoder.encode_queries(parts).mean(axis=0)
    np.testing.assert_allclose(state.queries.view[row], mean, atol=1e-5)


def test_added_documents_have_a_status(added: DsiIncDsiBuilder) -> None:
    statuses = refinement_statuses(added.searcher.generation)

    assert statuses.keys() == {"new", "d05"}
    assert statuses["new"] in ("FITS", "COMPROMISE")
    assert statuses["d05"] == "NOT_REFINED"


def test_learned_representatives_need_no_cache(added: DsiIncDsiBuilder) -> None:
    state_of(added)

    assert not added.folder.exists()


def test_learned_vectors_do_not_depend_on_grouping(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Padding changes the last bits of encodings, so each text has a batch of its own.
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
    events = [
        Document("z", "", "ask1 ask2", {}, ("ask1 ask7",)),
        Document("m", "", "ask1 ask2 ask3", {}, ("ask1 ask2",)),
        Document("a", "", "ask1 ask2 ask3 ask4"),
        Document("m", "", "ask1 ask9", {}, ("ask9 ask2",)),
        Remove("z"),
        Document("b", "", "ask1 ask9 ask2", {}, ("ask9 ask1",)),
    ]

    one_by_one = state_of(apply_history(roots[2], [[event] for event in events]))
    together = state_of(apply_history(roots[3], [events]))

    assert one_by_one.ids[-3:] == ["a", "m", "b"]
    assert_equal_states(one_by_one, together)
