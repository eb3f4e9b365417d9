"""Guards the tuning split out of a live collection: who is taken out, and with which encodings it comes back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from model_code.additions.leave_out import chosen, leave_out, live_texts
from model_code.additions.store import store_of
from model_code.documents import Document, Remove
from model_code.errors import SettingsError
from model_code.live.searcher import Searcher
from model_code.live.writer import LiveWriter
from tests.model_code.live.laws import OLD, make_encoder, open_build, up_to

SHORT = {name: (title, " ".join(text.split()[:5])) for name, (title, text) in OLD.items()}  # one passage each


@pytest.fixture(scope="module")
def searcher(tmp_path_factory: pytest.TempPathFactory) -> Searcher:
    """A live collection to which a document was added, and from which one was removed."""
    root = tmp_path_factory.mktemp("live")
    make_encoder("dense", root / "encoder")
    live = open_build("dense", root, root / "encoder", SHORT)
    LiveWriter(live, "r").apply([Document("new", "word1", "word2 word3"), Remove("d00")], up_to(1), {})
    return Searcher.open(live, "r")


def test_held_out_documents_come_back_as_they_were(searcher: Searcher, tmp_path: Path) -> None:
    texts = live_texts(searcher)
    assert set(texts) == {*SHORT, "new"} - {"d00"}
    store = store_of(tmp_path, searcher.generation, 4)
    asked = {"new": ["word1 word3", "word2"], "d03": ["word4"], "d05": ["word5"]}
    state, split = leave_out(searcher, store, 4, ["d03", "new"], asked)
    assert set(state.ids) == set(texts) - {"d03", "new"}
    assert [one.id for one in split.documents] == ["d03", "new"]
    assert (list(split.new_targets), list(split.old_targets)) == (["new", "new", "d03"], ["d05"])
    for document, view in zip(split.documents, searcher.views, strict=True):
        index = view.part.retriever.index
        searched = index.vectors[index.document_ids.index(document.id)]
        np.testing.assert_allclose(document.encoding, searched, atol=1e-5)


def test_a_choice_is_by_hash_and_leaves_half(searcher: Searcher) -> None:
    ids = [f"d{i}" for i in range(100)]
    first = chosen(ids, 10, "one")
    assert first == chosen(ids[::-1], 10, "one") != chosen(ids, 10, "other")
    assert len(chosen(ids, 80, "one")) == 50
    assert set(first) < set(chosen(ids, 20, "one"))


def test_without_queries_there_is_nothing_to_judge_by(searcher: Searcher, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="no held-out document has a query"):
        leave_out(searcher, store_of(tmp_path, searcher.generation, 4), 4, ["d03"], {"d05": ["word5"]})
