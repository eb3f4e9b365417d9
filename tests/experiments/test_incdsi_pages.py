"""Guards what IncDSI's protocol reads: parts that share no document and do not move, whole titles, the queries of what
is read and no others, and parts of texts in place of queries."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.incdsi_frontier.pages import NEW, OLD, TUNING, TUNING_PART, Pages
from model_code.additions.constraints import constraint_texts
from model_code.errors import SettingsError
from tests.experiments import incdsi_collection
from tests.experiments.incdsi_collection import DAY, write_collection


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The collection."""
    return write_collection(tmp_path_factory.mktemp("pages"))


def test_by_date_old_documents_come_first_and_parts_share_nothing(folder: Path) -> None:
    pages = Pages.read(folder, DAY)
    assert pages.old == incdsi_collection.OLD
    assert {int(name[1:]) < pages.old for name in pages.ids[: pages.old]} == {True}
    rows = [pages.rows(part) for part in (OLD, TUNING, NEW)]
    assert sorted(row for part in rows for row in part) == list(range(len(pages.ids)))
    assert 0 < len(rows[1]) < incdsi_collection.NEW * 3 / TUNING_PART


def test_by_share_parts_follow_the_id_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.incdsi_frontier.pages.SHARES", shares(0.2, 0.2))
    pages = Pages.read(folder)
    assert {OLD, TUNING, NEW} == set(pages.parts)
    assert pages.parts[: pages.old] == [OLD] * pages.old
    part = dict(zip(pages.ids, pages.parts, strict=True))
    fewer = Pages.read(folder, documents=40)
    assert {part[name] == own for name, own in zip(fewer.ids, fewer.parts, strict=True)} == {True}


def shares(new: float, tuning: float) -> object:
    from model_code.corpus.settings import PartSettings

    return PartSettings(by="share", new_share=new, tuning_share=tuning)


def test_titles_come_whole_and_only_their_queries(folder: Path) -> None:
    pages = Pages.read(folder, DAY, documents=51)
    assert len(pages.ids) == 52  # two of each title
    assert len({text.split()[0] for text in pages.texts}) == 26
    asked = {one for split in pages.asked.values() for one in split}
    assert asked == set(pages.ids)
    assert len(pages.queries) == sum(len(rows) for of in pages.asked.values() for rows in of.values())
    assert set(Pages.read(folder, DAY, documents=45).ids) < set(pages.ids)


def test_queries_are_those_of_their_documents(folder: Path) -> None:
    pages = Pages.read(folder, DAY)
    rows, owners = pages.of(pages.ids, "test")
    for row, owner in zip(rows, owners, strict=True):
        assert set(pages.queries[row].split()) <= set(pages.texts[pages.ids.index(owner)].split())


def test_parts_of_texts_stand_in_for_train_queries_alone(folder: Path) -> None:
    plain = Pages.read(folder, DAY)
    pages = plain.with_written()
    every = [*pages.queries, *pages.written]
    own = [every[row] for row in pages.asked["train"][pages.ids[0]]]
    assert own == constraint_texts("", pages.texts[0], 4)
    assert pages.asked["test"] == plain.asked["test"]


def test_no_part_may_be_empty(folder: Path) -> None:
    with pytest.raises(SettingsError, match="no document is old"):
        Pages.read(folder, "1999-01-01")
    with pytest.raises(SettingsError, match="no document is tuning"):
        Pages.read(folder, "2026-01-01")
