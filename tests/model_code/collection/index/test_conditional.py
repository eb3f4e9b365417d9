"""Guards conditional and partial changes, deletion by filter, and expiry, through the live index."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from model_code.collection.generations.query_options import QueryOptions
from model_code.collection.index import live_index as live_index_module
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError, SettingsError
from model_code.project import Project
from model_code.text.documents import Document

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")


@pytest.fixture
def index(live: Path, tmp_path: Path) -> LiveIndex:
    """The live index of a project with the old documents of the laws."""
    (tmp_path / "params.yaml").write_text("{retrievers: {r: {}}}")
    (tmp_path / "dvc.yaml").touch()
    return LiveIndex(Project(tmp_path), "r")


ROW = {"_id": "new", "title": "New", "text": "word1 word2", "year": 2020, "tags": ["a"]}


ROW_FIELDS = {"tags": ["a"], "year": 2020}


def present(index: LiveIndex, document_id: str = "new") -> Document | None:
    return index.present_documents([document_id]).get(document_id)


def version(index: LiveIndex, document_id: str = "new") -> str:
    document = present(index, document_id)
    assert document is not None
    return document.content_hash


def reasons(receipt: Any) -> list[str]:
    return [rejection.reason for rejection in receipt.rejected]


def test_row_with_the_present_version_is_recorded(index: LiveIndex) -> None:
    index.receive([ROW], "test")

    receipt = index.receive([{**ROW, "year": 2021, "if_version": version(index)}], "test")

    assert len(receipt.events) == 1
    changed = present(index)
    assert changed is not None
    assert changed.fields == {"year": 2021, "tags": ["a"]}


def test_row_with_another_version_is_refused(index: LiveIndex) -> None:
    index.receive([ROW], "test")
    old = version(index)
    index.receive([{**ROW, "year": 2021}], "test")

    receipt = index.receive(
        [{**ROW, "_id": "other"}, {**ROW, "year": 2022, "if_version": old}], "t"
    )

    assert len(receipt.events) == 1
    assert receipt.received == 2
    assert receipt.unchanged == 0
    assert [rejection.row for rejection in receipt.rejected] == [2]
    assert reasons(receipt)[0].startswith("version conflict: the document has version ")
    changed = present(index)
    assert changed is not None
    assert changed.fields["year"] == 2021


def test_repeated_conditional_row_is_unchanged(index: LiveIndex) -> None:
    index.receive([ROW], "test")
    row = {**ROW, "year": 2021, "if_version": version(index)}
    index.receive([row], "test")

    receipt = index.receive([row], "test")

    assert receipt.events == ()
    assert receipt.unchanged == 1
    assert receipt.rejected == ()


def test_absent_document_is_only_added_once(index: LiveIndex) -> None:
    first = index.receive([{**ROW, "if_version": "absent"}], "test")
    second = index.receive([{**ROW, "year": 1, "if_version": "absent"}], "test")
    index.remove(["new"], "test")
    third = index.receive([{**ROW, "year": 2, "if_version": "absent"}], "test")

    assert len(first.events) == 1
    assert len(second.events) == 0
    assert len(third.events) == 1
    assert "but it must not exist" in reasons(second)[0]


def test_version_of_a_built_document_is_compared(index: LiveIndex) -> None:
    row = {"_id": "d03", "text": "word1", "title": "t"}

    refused = index.receive([{**row, "if_version": "absent"}, {**row, "if_version": 3}], "test")
    recorded = index.receive([{**row, "if_version": version(index, "d03")}], "test")

    assert refused.events == ()
    assert sorted(reason.partition(":")[0] for reason in reasons(refused)) == [
        "version conflict",
        "wrong type",
    ]
    assert len(recorded.events) == 1


def test_removal_with_another_version_is_refused(index: LiveIndex) -> None:
    index.receive([ROW], "test")

    refused = index.remove(["new"], "test", {"new": "other"})
    removed = index.remove(["new"], "test", {"new": version(index)})

    assert refused.events == ()
    assert "version other is expected" in reasons(refused)[0]
    assert len(removed.events) == 1


def test_partial_row_changes_named_values_only(index: LiveIndex) -> None:
    index.receive([{**ROW, "date": "2024-05-01", "queries": ["q"]}], "test")

    receipt = index.receive_partial(
        [{"_id": "new", "year": None, "kind": "x"}, {"_id": "new", "title": "Newer"}], "test"
    )

    assert len(receipt.events) == 1
    changed = present(index)
    assert changed is not None
    assert changed.title == "Newer"
    assert changed.text == "word1 word2"
    assert changed.fields == {"tags": ["a"], "kind": "x"}
    assert changed.queries == ("q",)
    assert changed.date == "2024-05-01T00:00:00+00:00"


def test_partial_row_of_a_built_document_is_searchable(index: LiveIndex) -> None:
    before = present(index, "d03")
    assert before is not None

    index.receive_partial([{"_id": "d03", "colour": "red"}], "test")
    index.apply()

    (hit,) = index.builder.searcher.search("word1", 5, {"colour": "red"})
    assert hit.document_id == "d03"
    assert hit.fields == {**before.fields, "colour": "red"}


def test_partial_row_of_an_unknown_document_is_refused(index: LiveIndex) -> None:
    receipt = index.receive_partial(
        [{"_id": "nothing", "year": 3}, {"year": 3}, {"_id": "d03", "queries": 3}], "test"
    )

    assert receipt.events == ()
    assert receipt.received == 3
    assert sorted(reason.partition(":")[0] for reason in reasons(receipt)) == [
        "missing id",
        "unknown id",
        "wrong type",
    ]


def test_partial_row_is_applied_to_a_concurrent_change(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.receive([ROW], "test")
    read = LiveIndex.present_documents
    waiting = [{**ROW, "title": "Changed meanwhile"}]

    def read_before_change(self: LiveIndex, ids: Any) -> Any:
        documents = read(self, ids)
        if waiting:
            self.receive([waiting.pop()], "another writer")
        return documents

    monkeypatch.setattr(LiveIndex, "present_documents", read_before_change)
    receipt = index.receive_partial([{"_id": "new", "year": 1}], "test")

    assert len(receipt.events) == 1
    assert receipt.rejected == ()
    changed = present(index)
    assert changed is not None
    assert changed.title == "Changed meanwhile"
    assert changed.fields["year"] == 1


def test_explicit_version_of_a_partial_row_is_compared(index: LiveIndex) -> None:
    index.receive([ROW], "test")

    refused = index.receive_partial([{"_id": "new", "year": 1, "if_version": "old"}], "test")
    recorded = index.receive_partial(
        [{"_id": "new", "year": 1, "if_version": version(index)}], "test"
    )

    assert reasons(refused)[0].startswith("version conflict")
    assert len(recorded.events) == 1


def test_filter_matches_recorded_changes(index: LiveIndex) -> None:
    index.receive([ROW, {**ROW, "_id": "b", "year": 2021}, {**ROW, "_id": "c"}], "test")
    index.apply()
    index.receive([{**ROW, "_id": "b"}, {**ROW, "_id": "d"}], "test")
    index.remove(["c"], "test")

    assert list(index.matching_versions({"year": 2020})) == ["b", "d", "new"]
    matched, receipt = index.remove_matching(["year = 2020"], "test")
    index.apply()

    assert matched == ["b", "d", "new"]
    assert len(receipt.events) == 3
    assert list(index.builder.searcher.matching({"year": {"exists": True}})) == []


def test_filter_deletion_refuses_everything_and_nonsense(index: LiveIndex) -> None:
    index.receive([ROW], "test")
    index.apply()

    with pytest.raises(SettingsError, match="the filter is empty, so that it matches every"):
        index.remove_matching({}, "test")
    with pytest.raises(FreshetError, match="no document has a field 'colour'"):
        index.remove_matching({"colour": "red"}, "test")


def test_document_changed_during_filter_deletion_stays(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    index.receive([ROW], "test")
    index.apply()
    remove = LiveIndex.remove

    def change_first(self: LiveIndex, *arguments: Any) -> Any:
        self.receive([{**ROW, "year": 1999}], "another writer")
        return remove(self, *arguments)

    monkeypatch.setattr(LiveIndex, "remove", change_first)
    _, receipt = index.remove_matching({"year": 2020}, "test")

    assert receipt.events == ()
    assert reasons(receipt)[0].startswith("version conflict")


def test_expired_document_is_hidden_then_removed(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(UTC)
    rows = [
        {**ROW, "_id": "later", "expires": (now + timedelta(days=2)).isoformat()},
        {**ROW, "_id": "never", "expires": ""},
        {**ROW, "_id": "soon", "expires": (now + timedelta(seconds=60)).isoformat()},
    ]
    index.receive(rows, "test")
    index.apply()
    assert {hit.document_id for hit in index.builder.searcher.search("word1", 99)} >= {"soon"}

    monkeypatch.setattr("model_code.collection.generations.searcher.datetime", _Later)
    hidden = {hit.document_id for hit in index.builder.searcher.search("word1", 99)}
    applied = index.apply()

    assert "soon" not in hidden
    assert {"later", "never"} <= hidden
    assert applied is not None
    assert applied.deleted == ("soon",)
    last = index.ledger.latest(["soon"])["soon"]
    assert last.source == live_index_module.EXPIRY_SOURCE
    assert index.apply() is None


@pytest.mark.parametrize(
    "expires", ["soon", "2030-02-30", ["2030-01-01"], {"at": "2030-01-01"}, 1893456000, "20300101"]
)
def test_expiry_that_is_no_date_is_refused(index: LiveIndex, expires: Any) -> None:
    receipt = index.receive([{**ROW, "expires": expires}], "test")

    assert receipt.events == ()
    assert "it is the date from which the document is not found" in reasons(receipt)[0]


@pytest.mark.parametrize("expires", ["2020-06", 2020, "2020", "2020-06-01T12:00+02:00"])
def test_expiry_may_be_a_month_or_a_year(index: LiveIndex, expires: Any) -> None:
    index.receive([{**ROW, "expires": expires}], "test")
    index.apply()

    assert list(index.builder.searcher.expired_documents()) == ["new"]


def test_expired_document_is_hidden_from_readers(index: LiveIndex) -> None:
    index.receive([{**ROW, "expires": "2020-01-01"}, {**ROW, "_id": "other"}], "test")
    index.apply()
    searcher = index.builder.searcher

    assert searcher.unexpired_documents(["new", "other"]).keys() == {"other"}
    assert searcher.field_values(9)["year"] == {"2020": 1}
    assert "expires" not in searcher.field_values(9)
    with pytest.raises(FreshetError, match="'new' has expired"):
        searcher.search_like("new", QueryOptions())


def test_id_of_expired_document_is_free(index: LiveIndex) -> None:
    index.receive([{**ROW, "expires": "2020-01-01"}], "test")
    index.apply()

    receipt = index.receive([{**ROW, "if_version": "absent"}], "test")

    assert receipt.rejected == ()
    assert version(index) == Document("new", "New", "word1 word2", ROW_FIELDS).content_hash


def test_condition_needs_the_only_row_of_its_document(index: LiveIndex) -> None:
    index.receive([ROW], "test")
    rows = [{**ROW, "year": 1, "if_version": version(index)}, {**ROW, "year": 2}]

    receipt = index.receive([*rows, {**ROW, "_id": "other"}], "test")

    assert [rejection.row for rejection in receipt.rejected] == [1, 2]
    assert reasons(receipt)[0].startswith("repeated id: a row with if_version must be the only row")
    assert len(receipt.events) == 1


class _Later(datetime):
    """A clock that is a day ahead."""

    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return datetime.now(tz) + timedelta(days=1)


def test_expired_document_that_changed_stays(index: LiveIndex) -> None:
    past = "2020-01-01"
    index.receive([{**ROW, "expires": "2999-01-01"}], "test")
    index.apply()
    index.receive([{**ROW, "expires": past}], "test")
    index.apply()
    assert present(index) is not None

    index.receive([{**ROW, "expires": "2999-01-01"}], "test")
    index.apply()

    assert present(index) is not None
    assert list(index.builder.searcher.matching({"expires": {">": "2900-01-01"}})) == ["new"]


@pytest.mark.parametrize(
    "filters", [{}, [], {"and": []}, {"and": [{}]}, {"or": [{}]}, {"not": {"or": []}}]
)
def test_deletion_by_filter_of_everything_is_refused(index: LiveIndex, filters: Any) -> None:
    with pytest.raises(SettingsError, match="the filter is empty"):
        index.matching_versions(filters)


def test_filter_may_name_what_only_waiting_documents_have(index: LiveIndex) -> None:
    index.receive([{**ROW, "colour": "red"}], "test")

    assert list(index.matching_versions({"colour": "red"})) == ["new"]
    assert list(index.matching_versions(["colour=red"])) == ["new"]
    with pytest.raises(FreshetError, match="no document has a field 'size'"):
        index.matching_versions({"size": 3})


@pytest.mark.parametrize("text", [None, "", " ", float("nan")])
def test_partial_row_does_not_erase_the_text(index: LiveIndex, text: Any) -> None:
    index.receive([ROW], "test")

    receipt = index.receive_partial([{"_id": "new", "text": text, "year": 1}], "test")

    assert reasons(receipt)[0].startswith("empty text: the text would be erased")
    assert present(index) == Document("new", "New", "word1 word2", ROW_FIELDS)


@pytest.mark.parametrize("refused", [{"queries": "no list"}, {"if_version": 7}])
def test_refused_partial_row_does_not_change_the_next(
    index: LiveIndex, refused: dict[str, Any]
) -> None:
    index.receive([{"_id": "new", "title": "t", "text": "body", "year": 2020}], "test")

    receipt = index.receive_partial(
        [{"_id": "new", "year": 1, **refused}, {"_id": "new", "colour": "red"}], "test"
    )

    assert [rejection.row for rejection in receipt.rejected] == [1]
    fields = index.present_documents(["new"])["new"].fields
    assert fields == {"year": 2020, "colour": "red"}


def test_partial_row_changes_a_field_inside_an_object(index: LiveIndex) -> None:
    index.receive([{**ROW, "author": {"name": "Ann", "age": 30}}], "test")

    index.receive_partial([{"_id": "new", "author.name": "Bo"}], "test")

    changed = present(index)
    assert changed is not None
    assert changed.fields == {**ROW_FIELDS, "author": {"name": "Bo", "age": 30}}


def test_partial_row_replaces_a_date_that_was_unreadable(index: LiveIndex) -> None:
    index.receive([{**ROW, "date": "last spring", "queries": ["q"]}], "test")

    index.receive_partial([{"_id": "new", "date": "2025-02-02", "queries": None}], "test")

    changed = present(index)
    assert changed == Document(
        "new", "New", "word1 word2", ROW_FIELDS, (), "2025-02-02T00:00:00+00:00"
    )
