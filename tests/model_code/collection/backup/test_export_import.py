"""Guards exports and imports: a project that is imported elsewhere finds the same documents."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from model_code.collection.backup.export import (
    DOCUMENTS_FILE,
    EVENTS_FILE,
    FEEDBACK_FILE,
    FORGOTTEN_FILE,
    KNOWN_FILE,
    PROMOTIONS_FILE,
    QRELS_FILE,
    QUERIES_FILE,
    export_documents,
    export_project,
    known_query_rows,
)
from model_code.collection.backup.import_ import import_project
from model_code.collection.forget import forget_query
from model_code.collection.generations.generation import REMOVED
from model_code.collection.generations.live_queries import live_known_queries
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex, forecast_changes
from model_code.collection.index.project_ledger import read_feedback
from model_code.collection.ledger.events import Feedback
from model_code.collection.segments.documents import DOCUMENTS
from model_code.corpus.build import build_corpus
from model_code.corpus.sources.base import open_source
from model_code.corpus.tables import make_table
from model_code.errors import Damaged, FreshetError
from model_code.files import MANIFEST, read_json, write_json, write_text
from model_code.project import Project
from model_code.text.known_queries import KnownQuery
from model_code.text.settings import PassageSettings
from orchestration import parameters
from orchestration.cli.app import app
from tests.live_example import row

FEEDBACK = Feedback("how to sort", "n1", "up", rank=2, who="ann", received=17.5)


@pytest.fixture
def elsewhere(own: Project, tmp_path: Path) -> Project:
    """A second project with the same build, to which nothing was added."""
    return Project(Path(shutil.copytree(own.root, tmp_path / "elsewhere")))


@pytest.fixture
def source(own: Project, elsewhere: Project) -> Project:
    """A project with added, updated and deleted documents, queries, fields, dates and feedback."""
    index = LiveIndex(own)
    added = row("n1", "word1 word2", queries=["what is word1"], package="x", date="2024-05-01")
    index.receive([added, row("d03", "word9")], "api")
    index.remove(["d04"], "test")
    index.apply()
    index.ledger.record_feedback(FEEDBACK, FEEDBACK.received)
    return own


@pytest.fixture
def export_folder(source: Project, tmp_path: Path) -> Path:
    export_project(source, tmp_path / "export")
    return tmp_path / "export"


def read_lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def found_ids(project: Project, query: str) -> list[str]:
    hits = Searcher.open(project.live).search(query, 99)
    return sorted(hit.document_id for hit in hits)


def write_corpus_tables(project: Project) -> None:
    """Write the judged queries of a built corpus."""
    folder = project.artifacts / "corpus"
    folder.mkdir(parents=True)
    queries = [
        {"query_id": "q1", "text": "sorting", "split": "train", "answers": '["a copy"]'},
        {"query_id": "q2", "text": "gone", "split": "test"},
    ]
    qrels = [
        {"query_id": "q1", "document_id": "d05", "relevance": 2, "split": "train"},
        {"query_id": "q2", "document_id": "d04", "relevance": 1, "split": "test"},
    ]
    make_table("queries", queries).to_parquet(folder / "queries.parquet")
    make_table("qrels", qrels).to_parquet(folder / "qrels.parquet")


def test_exported_rows_are_unchanged_when_added(source):
    rows = json.loads(json.dumps(list(export_documents(source, "r"))))

    index = LiveIndex(source)
    documents = index.clean_rows(rows, "export").documents
    expected = forecast_changes(index.generation, documents)

    assert len(rows) == 24
    assert len(expected["unchanged"]) == 24


def test_exported_row_has_queries_and_fields(source):
    rows = {row["_id"]: row for row in export_documents(source, "r")}

    assert rows["n1"]["queries"] == ["what is word1"]
    assert rows["n1"]["fields"] == {"package": "x"}
    assert rows["n1"]["date"] == "2024-05-01T00:00:00+00:00"


@pytest.mark.parametrize("name", [DOCUMENTS, REMOVED])
def test_changed_file_is_not_exported(source, name):
    (LiveIndex(source).generation.folder / name).write_text("{}")

    with pytest.raises(Damaged, match=f"{name} was changed"):
        next(export_documents(source, "r"))


def test_imported_project_finds_the_same_documents(source, elsewhere, export_folder):
    LiveIndex(elsewhere).remove(["d04"], "test")
    LiveIndex(elsewhere).apply()

    report = import_project(elsewhere, export_folder)

    assert report.added == ["n1"]
    assert report.updated == ["d03"]
    assert report.feedback == 1
    for query in ("word1", "word9", "word3"):
        assert found_ids(elsewhere, query) == found_ids(source, query)
    assert LiveIndex(elsewhere).content_hashes() == LiveIndex(source).content_hashes()
    assert read_feedback(elsewhere) == [FEEDBACK]


def test_second_import_changes_nothing(elsewhere, export_folder):
    first = import_project(elsewhere, export_folder)
    events = LiveIndex(elsewhere).ledger.position().event

    second = import_project(elsewhere, export_folder)

    assert second.changed == []
    assert second.unchanged == 24
    assert second.generation == first.generation
    assert LiveIndex(elsewhere).ledger.position().event == events
    assert read_feedback(elsewhere) == [FEEDBACK]


def test_imported_documents_keep_their_origin(source, elsewhere, export_folder):
    import_project(elsewhere, export_folder)

    assert (
        LiveIndex(elsewhere).ledger.document_sources()
        == LiveIndex(source).ledger.document_sources()
    )


def test_pending_documents_are_exported(source, tmp_path):
    index = LiveIndex(source)
    index.receive([row("waiting", "word5")], "test")
    index.remove(["n1"], "test")

    export_project(source, tmp_path / "export")

    ids = {line["_id"] for line in read_lines(tmp_path / "export" / DOCUMENTS_FILE)}
    assert "waiting" in ids
    assert "n1" not in ids


def test_export_becomes_corpus_of_fresh_project(source, tmp_path):
    write_corpus_tables(source)
    export_project(source, tmp_path / "export")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    write_text(fresh / "params.yaml", "{retrievers: {hce: {}}}\n")
    project = Project(fresh)

    def write_settings(settings):
        parameters.write_overrides(project.params_file, settings)

    report = import_project(project, tmp_path / "export", use_as_corpus=write_settings)

    assert report.corpus_documents == 24
    assert report.queries == 2
    assert report.judgements == 1
    settings = parameters.load(project.params_file).corpus
    corpus = build_corpus(open_source(settings, fresh), settings, PassageSettings()).tables
    assert set(corpus["documents"]["document_id"]) == LiveIndex(source).content_hashes().keys()
    assert corpus["queries"]["text"].tolist() == ["sorting", "gone"]
    assert corpus["qrels"]["document_id"].tolist() == ["d05"]
    assert corpus["qrels"]["split"].tolist() == ["train"]
    assert len(corpus["quarantine"]) == 0
    assert read_feedback(project) == [FEEDBACK]


def test_imported_corpus_hides_what_users_typed(source, tmp_path):
    write_corpus_tables(source)
    path = source.artifacts / "corpus" / "qrels.parquet"
    pd.read_parquet(path).assign(origin="feedback").to_parquet(path)
    export_project(source, tmp_path / "export")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    write_text(fresh / "params.yaml", "{retrievers: {hce: {}}}\n")
    project = Project(fresh)

    def write_settings(settings):
        parameters.write_overrides(project.params_file, settings)

    import_project(project, tmp_path / "export", use_as_corpus=write_settings)

    settings = parameters.load(project.params_file).corpus
    built = build_corpus(open_source(settings, fresh), settings, PassageSettings())
    assert built.tables["qrels"]["split"].tolist() == ["train"]
    assert "sorting" not in {query.text for query in built.known_queries.queries}


def test_history_is_exported_for_the_record(source, tmp_path):
    source.promotions.parent.mkdir(parents=True, exist_ok=True)
    source.promotions.write_text('{"action": "promote", "to": "1"}\n{"cut o')

    counts = export_project(source, tmp_path / "export")

    events = read_lines(tmp_path / "export" / EVENTS_FILE)
    assert [(event["kind"], event["document_id"]) for event in events] == [
        ("put", "n1"),
        ("put", "d03"),
        ("remove", "d04"),
    ]
    assert "word1" not in (tmp_path / "export" / EVENTS_FILE).read_text()
    promotions = read_lines(tmp_path / "export" / PROMOTIONS_FILE)
    assert promotions == [{"action": "promote", "to": "1"}]
    assert read_json(tmp_path / "export" / MANIFEST)["rows"] == counts


def test_bad_rows_are_refused_with_reasons(elsewhere, export_folder):
    with (export_folder / DOCUMENTS_FILE).open("a") as stream:
        stream.write('{"_id": "empty", "text": ""}\nno json\n')
    with (export_folder / FEEDBACK_FILE).open("a") as stream:
        stream.write('{"query": "q", "document_id": "n1", "verdict": "maybe"}\n[]\n')
        stream.write('{"query": 5, "document_id": "n1", "verdict": "up"}\n')
        stream.write('{"query": "q", "document_id": "n1", "verdict": "up", "rank": 0}\n')

    report = import_project(elsewhere, export_folder)

    reasons = [
        (row["file"], row["row"], row["reason"].partition(":")[0]) for row in report.rejected
    ]
    assert reasons == [
        (DOCUMENTS_FILE, 25, "empty text"),
        (DOCUMENTS_FILE, 26, "bad JSON"),
        (FEEDBACK_FILE, 2, "bad verdict"),
        (FEEDBACK_FILE, 3, "bad JSON"),
        (FEEDBACK_FILE, 4, "wrong type"),
        (FEEDBACK_FILE, 5, "bad rank"),
    ]
    assert report.feedback == 1
    assert not report.failed


def test_bad_judgements_are_refused_with_reasons(source, tmp_path):
    write_corpus_tables(source)
    export_project(source, tmp_path / "export")
    with (tmp_path / "export" / QUERIES_FILE).open("a") as stream:
        stream.write('{"_id": "q3", "text": " "}\n')
    with (tmp_path / "export" / QRELS_FILE).open("a") as stream:
        stream.write('{"query-id": "q1", "corpus-id": "nowhere", "score": 1}\n')
    (tmp_path / "fresh").mkdir()
    write_text(tmp_path / "fresh" / "params.yaml", "{retrievers: {hce: {}}}\n")

    report = import_project(Project(tmp_path / "fresh"), tmp_path / "export")

    reasons = [(row["file"], row["reason"].partition(":")[0]) for row in report.rejected]
    assert reasons == [(QUERIES_FILE, "empty text"), (QRELS_FILE, "dangling qrel")]
    assert report.judgements == 1


def test_folder_that_is_no_export_is_refused(elsewhere, export_folder, tmp_path):
    with pytest.raises(FreshetError, match=r"is no export: it lacks manifest\.json"):
        import_project(elsewhere, tmp_path)

    write_json(export_folder / MANIFEST, {"format": 99})
    with pytest.raises(FreshetError, match="has the export format 99, and this version reads"):
        import_project(elsewhere, export_folder)


def test_torn_manifest_of_an_export_is_explained(elsewhere, export_folder):
    (export_folder / MANIFEST).write_text('{"format"')

    with pytest.raises(FreshetError, match=r"manifest\.json is torn; copy the folder again"):
        import_project(elsewhere, export_folder)


def test_export_does_not_overwrite_a_folder(source, export_folder):
    with pytest.raises(FreshetError, match=r"export exists\. Name a new folder"):
        export_project(source, export_folder)


def test_commands_export_and_import(source, elsewhere, tmp_path, monkeypatch):
    monkeypatch.chdir(source.root)
    exported = CliRunner().invoke(app, ["export", "--all", str(tmp_path / "export")])
    assert exported.exit_code == 0
    assert "24 in documents.jsonl" in exported.output

    monkeypatch.chdir(elsewhere.root)
    imported = CliRunner().invoke(app, ["import", str(tmp_path / "export"), "--json"])
    assert imported.exit_code == 0
    report = json.loads(imported.output)
    assert report["added"] == ["n1"]
    assert report["feedback"] == 1


@pytest.fixture
def rated(source: Project) -> LiveIndex:
    """The project with thumbs on two queries, which are known."""
    index = LiveIndex(source)
    for text in ("secret words", "how to sort"):
        index.ledger.record_feedback(Feedback(text, "n1", "up", who="ann"))
    index.receive([row("n2", "word3", queries=["what is word3"])], "api")
    index.apply()
    return index


def test_texts_of_feedback_are_counted_only(rated):
    rows = {row["id"]: row for row in known_query_rows(rated.project, rated.generation)}

    assert rows["n1"]["known_queries"] == [
        {"text": "what is word1", "source": "row", "weight": 1.0}
    ]
    assert rows["n1"]["hidden_queries"] == 2
    assert rows["n2"]["hidden_queries"] == 0


def test_texts_of_feedback_are_shown_if_set(rated):
    parameters.write_overrides(rated.project.params_file, ["known_queries.show=true"])

    rows = {row["id"]: row for row in known_query_rows(rated.project, rated.generation)}

    texts = [query["text"] for query in rows["n1"]["known_queries"]]
    assert sorted(texts) == ["how to sort", "secret words", "what is word1"]
    assert rows["n1"]["hidden_queries"] == 0


def known_queries_of_files(index: LiveIndex) -> list[KnownQuery]:
    return list(chain.from_iterable(live_known_queries(index.generation).values()))


def test_files_know_the_queries_of_the_searcher(rated):
    known = rated.builder.searcher.known_queries()

    assert known_queries_of_files(rated) == known
    rated.compact()
    assert known_queries_of_files(rated) == known


def test_forgotten_query_is_not_exported(rated, tmp_path):
    write_corpus_tables(rated.project)
    forget_query(rated, "SECRET words?")
    with pytest.raises(FreshetError, match="artifacts/corpus: take the query out"):
        forget_query(rated, "sorting")

    export_project(rated.project, tmp_path / "export")

    texts = "".join(path.read_text() for path in (tmp_path / "export").iterdir()).lower()
    assert "secret" not in texts
    assert "sorting" not in texts
    assert [row["_id"] for row in read_lines(tmp_path / "export" / QUERIES_FILE)] == ["q2"]
    assert read_lines(tmp_path / "export" / QRELS_FILE) == []


def test_forgotten_query_does_not_come_back_elsewhere(rated, elsewhere, tmp_path):
    forget_query(rated, "secret words")
    export_project(rated.project, tmp_path / "export")

    report = import_project(elsewhere, tmp_path / "export")
    index = LiveIndex(elsewhere)
    index.ledger.record_feedback(Feedback("Secret words", "n1", "up", who="bob"))
    index.receive([row("n3", "word4", queries=["SECRET words!"])], "api")
    index.apply()

    assert report.forgotten == 1
    assert "1 forgotten queries" in str(report)
    assert index.ledger.forgotten_times() == rated.ledger.forgotten_times()
    known = {query.text.lower() for query in index.builder.searcher.known_queries()}
    assert not any(text.startswith("secret") for text in known)
    assert "how to sort" in known


def test_bad_rows_of_forgotten_queries_are_refused(elsewhere, export_folder):
    (export_folder / FORGOTTEN_FILE).write_text('{"hash": "short", "received": 1}\n[]\n')

    report = import_project(elsewhere, export_folder)

    rejected = [(one["file"], one["row"]) for one in report.rejected]
    assert rejected == [(FORGOTTEN_FILE, 1), (FORGOTTEN_FILE, 2)]


def test_command_prints_known_queries(rated, monkeypatch):
    monkeypatch.chdir(rated.project.root)

    printed = CliRunner().invoke(app, ["export", "--known-queries"])

    rows = [json.loads(line) for line in printed.output.splitlines()]
    assert [row["id"] for row in rows] == ["n1", "n2"]
    assert "secret" not in printed.output


def test_known_queries_are_exported_for_the_record(rated, tmp_path):
    export_project(rated.project, tmp_path / "export")

    rows = read_lines(tmp_path / "export" / KNOWN_FILE)

    assert [row["id"] for row in rows] == ["n1", "n2"]
