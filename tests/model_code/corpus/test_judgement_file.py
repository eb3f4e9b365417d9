"""Guards the project's own judgements: the file, and that a build of any source has them."""

from __future__ import annotations

import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.judgement_file import (
    JUDGEMENT_LOCK,
    JudgedPair,
    JudgementChanges,
    judgement_hash,
    open_judged_source,
    read_judgements,
    record_judgements,
    text_query_id,
)
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import make_source_lock
from model_code.errors import FreshetError, SettingsError
from model_code.text.settings import PassageSettings

TEA = JudgedPair("How hot is tea?", "tea.md", 1, "train")
NOTES = CorpusSettings(source="folder", path="notes")


@pytest.fixture
def root(tmp_path):
    """A project with two notes."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/tea.md").write_text("# Tea\n\nBrew it at eighty degrees.\n")
    (tmp_path / "notes/oven.md").write_text("# Oven\n\nHeat it first.\n")
    return tmp_path


@pytest.fixture
def path(root):
    return root / "judgements.jsonl"


def build(root, settings=NOTES):
    lock = make_source_lock(settings, root)
    content_hash = judgement_hash(root / "judgements.jsonl")
    if content_hash is not None:
        lock[JUDGEMENT_LOCK] = content_hash
    source = open_judged_source(settings, root, lock)
    return build_corpus(source, settings, PassageSettings()), source


def test_recorded_judgements_are_read_back(path):
    record_judgements(path, [TEA, JudgedPair("Fern?", "oven.md", 0)])

    assert read_judgements(path) == [TEA, JudgedPair("Fern?", "oven.md", 0)]


def test_question_with_a_line_separator_is_read_back(path):
    path.write_text('{"question": "hot\u2028tea", "document_id": "tea.md", "relevance": 1}\n')

    assert read_judgements(path) == [JudgedPair("hot\u2028tea", "tea.md", 1)]


def test_file_that_is_not_utf8_is_refused(path):
    path.write_bytes('{"question": "café", "document_id": "tea.md"}\n'.encode("latin-1"))

    with pytest.raises(FreshetError, match=r"judgements.jsonl holds bytes that are no UTF-8"):
        read_judgements(path)


def test_no_file_has_no_judgements(path):
    assert read_judgements(path) == []


def test_recording_twice_changes_nothing(path):
    record_judgements(path, [TEA])
    before = path.stat().st_mtime_ns

    assert record_judgements(path, [TEA]) == JudgementChanges(0, 0, 1)
    assert path.stat().st_mtime_ns == before


def test_judgements_may_come_from_an_iterator(path):
    changes = record_judgements(path, iter([TEA, JudgedPair("Fern?", "oven.md", 0)]))

    assert changes == JudgementChanges(2, 0, 0)
    assert len(read_judgements(path)) == 2


def test_later_judgement_replaces_the_earlier_one(path):
    record_judgements(path, [TEA])

    changes = record_judgements(path, [JudgedPair("how hot is tea", "tea.md", 0)])

    assert changes == JudgementChanges(0, 1, 0)
    assert [pair.relevance for pair in read_judgements(path)] == [0]


def test_questions_that_differ_in_a_sign_of_a_name_are_kept(path):
    pairs = [JudgedPair("Sort in C", "sort.md", 1), JudgedPair("Sort in C++", "sort.md", 0)]

    record_judgements(path, pairs)

    assert read_judgements(path) == pairs


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("{", "no JSON"),
        ("[1]", "no object"),
        ('{"question": "q"}', "document_id is 'None', not text"),
        ('{"question": "q", "document_id": "d", "grade": 1}', "unknown key 'grade'"),
        ('{"question": "q", "document_id": "d", "relevance": true}', "not a whole number"),
        ('{"question": "q", "document_id": "d", "split": "x"}', "split is 'x'"),
    ],
)
def test_bad_line_is_named(path, line, fault):
    path.write_text(f"\n{line}\n")

    with pytest.raises(FreshetError, match=f"judgements.jsonl:2 is no judgement .*{fault}"):
        read_judgements(path)


def test_folder_is_built_with_own_judgements(root, path):
    record_judgements(path, [TEA, JudgedPair("Fern?", "gone.md")])

    built, source = build(root)

    qrels = built.tables["qrels"]
    assert qrels.to_dict("records") == [
        {
            "query_id": text_query_id("How hot is tea?"),
            "document_id": "tea.md",
            "relevance": 1,
            "split": "train",
        }
    ]
    assert source.missing == 1
    assert built.report["qrels_quarantined"] == 0


def test_own_judgement_replaces_that_of_the_source(root, path):
    (root / "d.csv").write_text("_id,text\n1,tea\n2,oven\n")
    (root / "q.csv").write_text("_id,text\na,How hot is tea?\n")
    (root / "r.csv").write_text("query-id,corpus-id,score,split\na,1,1,test\n")
    settings = CorpusSettings(
        source="files", path="d.csv", files={"queries": "q.csv", "qrels": "r.csv"}
    )
    record_judgements(
        path, [JudgedPair("how hot is TEA?", "1", 3), JudgedPair("How hot is tea", "2", 1)]
    )

    built, _ = build(root, settings)

    rows = built.tables["qrels"][["query_id", "document_id", "relevance", "split"]]
    assert sorted(rows.itertuples(index=False, name=None)) == [
        ("a", "1", 3, "test"),
        ("a", "2", 1, "test"),
    ]


def test_changed_file_is_refused_with_remedy(root, path):
    record_judgements(path, [TEA])
    lock = make_source_lock(NOTES, root)

    with pytest.raises(FreshetError, match="judgements.jsonl changed since `freshet ingest`"):
        open_judged_source(NOTES, root, lock)


@pytest.mark.parametrize(
    "group",
    [
        {"files": {"queries": "q.csv", "qrels": "r.csv"}},
        {"qrels": "others"},
        {"columns": {"text": "body"}},
        {"hub": {"name": "BeIR/nq"}},
    ],
)
def test_key_that_a_folder_does_not_read_is_refused(root, group):
    settings = CorpusSettings(source="auto", path="notes", **group)

    key = next(iter(group))
    with pytest.raises(SettingsError, match=f"corpus.{key} is set, but the source 'folder' does"):
        make_source_lock(settings, root)
