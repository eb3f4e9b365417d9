"""Guards refined additions beside learned vectors: training's own representatives protect the old
documents, documents of several passages have one vector, and a replay gives the same.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.collection.generations.generation import Generation
from model_code.collection.generations.refinements import refinement_statuses
from model_code.dsi.settings import DocumentVectorSettings
from model_code.incdsi.generation_builder import IncDsiGenerationBuilder
from model_code.incdsi.settings import LearnedAdditionSettings
from model_code.incdsi.store import load_state
from model_code.stages import train
from model_code.text.documents import Change, Document, Remove
from tests.model_code.collection.laws import up_to
from tests.model_code.dsi.small_corpus import RULES, go_live, make_context, run_index

TRAINED = DocumentVectorSettings(epochs=2, batch_size=16, learning_rate=2e-2, patience=None)
ON = LearnedAdditionSettings(gamma1=0.5, gamma2=0.1)
LONG = "ask1 ask2. ask3 ask4 ask5 ask6"
HISTORY: list[list[Change]] = [
    [Document("new", "", LONG, {}, ("ask1 ask7",)), Document("other", "", "ask9")],
    [Document("d05", "", LONG), Remove("other"), Remove("d03")],
]


@pytest.fixture(scope="module", autouse=True)
def in_short():
    """Nothing here pulls the plug, and the corpus of these tests was cut by hand."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda handle: None)
        patch.setattr(Generation, "text", RULES)
        yield


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four folders with the same live dsi."""
    root = tmp_path_factory.mktemp("dsi")
    training = make_context(root, TRAINED)
    train.run(training)
    indexing = run_index(training, root / "index")
    names = ("one", "two", "three", "four")
    for name in names:
        go_live(root / name, training, indexing)
    return [root / name for name in names]


def play(root: Path, history: list[list[Change]] = HISTORY) -> IncDsiGenerationBuilder:
    writer = IncDsiGenerationBuilder(root / "live", "dsi", ON, root / "additions")
    for number, changes in enumerate(history, start=1):
        writer.apply(changes, up_to(number), {})
    return writer


def test_additions_to_learned_vectors(roots: list[Path]) -> None:
    writers = [play(root) for root in roots[:2]]
    state, other = (load_state(writer.searcher, ON.spans, writer.folder) for writer in writers)
    assert state.ids == other.ids
    np.testing.assert_array_equal(state.vectors.view, other.vectors.view)
    np.testing.assert_array_equal(state.queries.view, other.queries.view)
    assert state.ids[-2:] == ["new", "d05"]
    assert not {"other", "d03"} & set(state.ids)
    base = writers[0].searcher.base.retriever
    for key in state.ids[:-2]:
        row = base.index.document_ids.index(key)
        np.testing.assert_array_equal(state.queries.view[state.row(key)], base.representatives[row])
    encode = base.encoder.encode
    asked = encode(["ask1 ask2.", "ask3 ask4 ask5 ask6", "ask1 ask7"]).mean(axis=0)
    told = refinement_statuses(writers[0].searcher.generation)
    assert told.keys() == {"new", "d05"}
    assert not writers[0].folder.exists(), "nothing is made from texts"
    assert set(told.values()) <= {"FITS", "COMPROMISE"}
    np.testing.assert_allclose(state.queries.view[state.row("new")], asked, atol=1e-5)


def test_learned_vectors_do_not_depend_on_grouping(
    roots: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # padding moves the last bits of encodings
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
    events = [
        Document("z", "", "ask1 ask2", {}, ("ask1 ask7",)),
        Document("m", "", "ask1 ask2 ask3", {}, ("ask1 ask2",)),
        Document("a", "", "ask1 ask2 ask3 ask4"),
        Document("m", "", "ask1 ask9"),
        Remove("z"),
        Document("b", "", "ask1 ask9 ask2"),
    ]
    alone, together = play(roots[2], [[one] for one in events]), play(roots[3], [events])
    ours, theirs = (load_state(one.searcher, ON.spans, one.folder) for one in (alone, together))
    assert ours.ids == theirs.ids
    assert ours.ids[-3:] == ["a", "m", "b"]
    np.testing.assert_array_equal(ours.vectors.view, theirs.vectors.view)
    np.testing.assert_array_equal(ours.queries.view, theirs.queries.view)
