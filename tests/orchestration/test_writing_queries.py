"""Guards queries that a model writes for added documents, with a tiny encoder and a tiny T5: they come as an update
that places vectors, once for a text and a model; a rollback undoes them, kills lose none, and nobody judges by them.
"""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

from model_code.errors import FreshetError, SettingsError
from model_code.files import read_json, write_json
from model_code.live.collection import Collection
from model_code.live.generation import INDEX
from model_code.live.searcher import Searcher
from model_code.manifest import MANIFEST
from model_code.queries import sequence_to_sequence
from orchestration import parameters, writing_queries
from orchestration.changing import preview_files
from orchestration.cli import additions as commands
from orchestration.file_lock import file_lock
from orchestration.freshening import Freshener
from orchestration.freshness_sensor import note_end
from orchestration.freshness_steps import ATTEMPTS, next_steps
from orchestration.retraining.snapshot import export
from orchestration.unwritten_queries import author_of, unwritten, why_none
from orchestration.watching.watch import watch
from orchestration.writing_queries import write_queries
from tests.model_code.queries.tiny_t5 import make_tiny_t5
from tests.orchestration.test_freshness_steps import run as ended
from tests.orchestration.watching.builds import make_build, open_build
from tests.orchestration.watching.conftest import built, corpus, project  # noqa: F401
from tests.orchestration.watching.subjects import PARAMS, SEA, SPACE, add, documents

NEW = documents(SEA, 3, "new", 7)
ON = {"refine": True, "on_conflict": "keep", "gamma1": 2.0, "gamma2": 0.0, "lambda2": 1e-5, "spans": 1}
TINY = {"section_tokens": 8, "max_query_tokens": 4, "top_k": 8}


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """A T5 that knows no words but those about space, which no document has."""
    return str(make_tiny_t5(tmp_path_factory.mktemp("t5"), SPACE))


@pytest.fixture
def change(project, model, monkeypatch):  # noqa: F811
    """Changes settings of a project in which that model writes; keys are group.name."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.chdir(project.root)
    stated = {
        "pseudo_queries": {"sequence_to_sequence": TINY | {"model": model}},
        "additions": ON | {"written_queries": {"generator": "sequence_to_sequence", "per_document": 3}},
    }

    def write(**values):
        for name, own in values.items():
            stated[name] = stated.get(name, {}) | own
        project.params_file.write_text(json.dumps(PARAMS | stated))

    write()
    return write


def vector(project, document):  # noqa: F811
    """What is searched for a document."""
    views = [view for view in Searcher.open(project.live).views if document in view]
    index = views[0].part.retriever.index
    return index.vectors[index.document_ids.index(document)]


def written(project, document):  # noqa: F811
    """The queries that a model wrote for what is live of a document."""
    one = Freshener(project).ledger.newest([document])[document].written
    return one.queries if one else ()


def lacking(project):  # noqa: F811
    """What the model would write for."""
    return unwritten(project, Collection(project.live, "hce").current(), author_of(project))


def rank(project, document, query):  # noqa: F811
    """Where a query finds its document."""
    found = [hit.document_id for hit in Searcher.open(project.live).search(query, 200)]
    return found.index(document) + 1


def states(project):  # noqa: F811
    return {name: number for name, number in Freshener(project).ledger.counts().items() if number}


def rows(tmp_path, **texts):
    file = tmp_path / "new.jsonl"
    file.write_text("".join(json.dumps({"_id": one, "title": one, "text": texts[one]}) + "\n" for one in texts))
    return file


def test_a_document_is_searchable_and_later_found_by_queries_that_a_model_wrote(project, change):  # noqa: F811
    add(project, NEW)
    before = vector(project, "new-000")
    found = write_queries(project)
    assert (found.documents, found.left, found.generation, found.behind) == (3, 0, 2, {})
    assert 3 <= found.queries <= 9
    assert found.queries == sum(len(written(project, one)) for one in NEW)
    assert set(" ".join(written(project, "new-000")).split()) <= {*SPACE, "<unk>"}
    assert not np.array_equal(vector(project, "new-000"), before)
    assert states(project) == {"live": 3, "superseded": 3}


def test_what_the_model_wrote_finds_its_document_first(project, change):  # noqa: F811
    change(additions={"written_queries": {"generator": "sequence_to_sequence", "per_document": 5}, "spans": 0})
    add(project, {"new": NEW["new-000"]})
    write_queries(project)
    asked, own = written(project, "new"), Freshener(project)
    after = [rank(project, "new", one) for one in asked]
    own.rollback(1)
    before = [rank(project, "new", one) for one in asked]
    assert after == [1] * len(asked)
    assert min(before) > 1


def test_the_same_again_changes_nothing_and_another_text_gets_other_queries(project, change, tmp_path):  # noqa: F811
    add(project, NEW)
    write_queries(project)
    again = write_queries(project)
    assert (again.documents, again.generation) == (0, 2)
    assert preview_files(Freshener(project), [rows(tmp_path, **NEW)]).unchanged == 3
    add(project, NEW)
    assert Collection(project.live, "hce").current().number == 2
    add(project, {"new-000": NEW["new-001"]})
    assert written(project, "new-000") == ()
    assert write_queries(project).documents == 1
    told = Freshener(project).ledger.history("new-000")
    assert [(one.id, one.written and one.written.event) for one in told] == [(1, None), (4, 1), (7, None), (8, 7)]


def test_documents_that_came_with_queries_and_those_of_the_corpus_get_none(project, change):  # noqa: F811
    old = documents(SEA, 150, "sea", 0)
    add(project, {one: old[one] for one in ("sea-000", "sea-001")})
    add(project, {"a": NEW["new-000"]}, {"a": ["what is a"]})
    assert write_queries(project).documents == 0
    add(project, {"sea-000": "another text about the reef"})
    assert write_queries(project).documents == 1, "it is no document of the corpus any more"


def test_a_rollback_takes_them_away_and_they_stay_away_until_they_are_asked_for(project, change):  # noqa: F811
    add(project, NEW)
    before = vector(project, "new-000")
    write_queries(project)
    placed = vector(project, "new-000")
    Freshener(project).rollback(1)
    assert np.array_equal(vector(project, "new-000"), before)
    assert states(project) == {"live": 3, "rolled_back": 3}
    assert next_steps(project) == []
    assert write_queries(project).documents == 0
    assert write_queries(project, again=True).documents == 3
    assert np.array_equal(vector(project, "new-000"), placed)


def test_vectors_do_not_depend_on_how_the_events_are_grouped(project, change, monkeypatch):  # noqa: F811
    add(project, NEW)
    monkeypatch.setattr(writing_queries, "PIECE", 1)
    told = []
    assert write_queries(project, progress=lambda *done: told.append(done)).generation == 4
    assert told == [(1, 3, "documents"), (2, 3, "documents"), (3, 3, "documents")]
    found = {one: vector(project, one) for one in NEW}
    freshener = Freshener(project)
    freshener.rollback(0)
    events = freshener.ledger.between(1, 6)
    freshener.writer.apply([event.change for event in events], 6, {})
    for one in NEW:
        np.testing.assert_allclose(vector(project, one), found[one], atol=1e-5)


def test_a_run_that_is_killed_goes_on_and_loses_nothing(project, change, monkeypatch):  # noqa: F811
    add(project, NEW)
    monkeypatch.setattr(writing_queries, "PIECE", 2)
    monkeypatch.setattr(sequence_to_sequence, "CHUNK", 1)
    with monkeypatch.context() as killed:
        killed.setattr(Freshener, "receive_queries", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_queries(project)
    drafts = project.state / "additions" / "written_queries"
    assert len(list(drafts.iterdir())) == 2, "what the model wrote is kept"
    with monkeypatch.context() as killed:
        calls = []
        apply = Freshener.apply_pending
        killed.setattr(
            Freshener, "apply_pending", lambda self: calls.append(1) or (apply(self) if calls == [1] else 1 / 0)
        )
        with pytest.raises(ZeroDivisionError):
            write_queries(project)
    assert states(project) == {"pending": 2, "live": 3}
    assert write_queries(project).documents == 1
    assert states(project) == {"live": 3, "superseded": 3}
    assert not drafts.exists()


def test_a_run_that_was_killed_before_other_retrievers_had_it_lets_them_follow(project, change, monkeypatch):  # noqa: F811
    add(project, NEW)
    with monkeypatch.context() as killed:
        killed.setattr(writing_queries.Upkeep, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            write_queries(project)
    monkeypatch.setattr(writing_queries.Upkeep, "finish", lambda self: {"other": "cannot"})
    again = write_queries(project)
    assert (again.documents, again.behind) == (0, {"other": "cannot"})


def test_a_second_run_says_that_it_waits(project, change, capsys):  # noqa: F811
    second = threading.Thread(target=lambda: write_queries(project))
    with file_lock(project.state / "additions" / "written_queries.lock"):
        second.start()
        second.join(timeout=0.1)
        assert "waiting for another freshet write-queries" in capsys.readouterr().err
    second.join(timeout=20)


def test_what_changed_while_the_model_wrote_is_left_as_it_is(project, change, monkeypatch):  # noqa: F811
    add(project, NEW)
    own = writing_queries._written

    def slow(freshener, *rest):
        freshener.remove(["new-001"], "user")
        return own(freshener, *rest)

    monkeypatch.setattr(writing_queries, "_written", slow)
    assert write_queries(project).documents == 2
    assert states(project) == {"live": 2, "superseded": 3, "deleted": 1}


def test_a_limit_takes_the_oldest_and_another_model_writes_anew(project, change):  # noqa: F811
    add(project, NEW)
    found = write_queries(project, limit=2)
    assert (found.documents, found.left, written(project, "new-002")) == (2, 1, ())
    assert write_queries(project).documents == 1
    name = author_of(project).name
    change(pseudo_queries={"sequence_to_sequence": TINY | {"batch_size": 2, "model": parameters.load(
        project.params_file).pseudo_queries.sequence_to_sequence.model}})  # fmt: skip
    assert author_of(project).name == name, "how many are written at once changes none"
    change(additions={"written_queries": {"generator": "sequence_to_sequence", "per_document": 1}})
    assert write_queries(project).documents == 3
    assert len(written(project, "new-000")) == 1


def test_drift_counts_the_document_once_and_a_retrain_takes_no_query(project, change, corpus, tmp_path):  # noqa: F811
    more = documents(SEA, 24, "more", 1)
    change(additions={"written_queries": {"generator": "sequence_to_sequence", "per_document": 1}})
    add(project, more)
    write_queries(project)
    assert Freshener(project).ledger.watermark() == 48
    watched = watch(project)
    assert (watched.report.documents, watched.batch) == (24, (1, 48))
    assert watch(project, record=False) is None, "nothing arrived since"
    change(additions={"written_queries": {"generator": "sequence_to_sequence", "per_document": 2}})
    write_queries(project)
    assert watch(project, record=False) is None, "another model's queries are no arrival"
    tables = project.artifacts / "corpus"
    for name, split in (("queries", "assigned_split"), ("qrels", "split")):
        table = pd.read_parquet(tables / f"{name}.parquet")
        table.assign(**{split: "test"}).to_parquet(tables / f"{name}.parquet")
    folder = export(project, Collection(project.live, "hce").current(), tmp_path / "snapshot")
    kept = set(pd.read_parquet(folder / "queries.parquet")["text"])
    assert kept.isdisjoint(one for document in more for one in written(project, document))
    assert set(more) <= set(pd.read_parquet(folder / "documents.parquet")["id"])


def test_the_same_model_is_not_asked_how_well_its_queries_placed_a_document(project, change):  # noqa: F811
    change(pseudo_queries={"held_out_generator": "sequence_to_sequence"})
    add(project, documents(SEA, 24, "more", 1))
    measured = {one.name for one in watch(project, record=False).report.measures}
    write_queries(project)
    assert measured - {one.name for one in watch(project, record=False).report.measures} == {"new_quality"}


def test_what_a_build_was_trained_on_keeps_its_vector(project, change, tmp_path):  # noqa: F811
    add(project, NEW)
    add(project, {"later": "a later text about the mast"})
    write_queries(project)
    build = make_build(tmp_path / "retrained", documents(SEA, 20, "sea", 0) | NEW)
    open_build(project.root, build, watermark=3)  # a retrain on a snapshot of the first three
    applied = Freshener(project).apply_pending()
    assert (applied.added, applied.updated) == (("later",), ())
    change(additions={"written_queries": {"generator": "sequence_to_sequence", "per_document": 1}})
    assert [one.document_id for one in lacking(project)] == ["later"], "another model is not asked for what stays"


def test_why_nothing_is_written_is_said_and_the_sensor_asks_for_nothing(project, change):  # noqa: F811
    add(project, NEW)
    generation = Collection(project.live, "hce").current()
    assert why_none(project, generation) is None
    change(additions={"use": "tuned"})
    best = project.state / "additions" / "best" / "hce.json"
    write_json(best, {"retriever": "hce", "spans": 1, "settings": {"refine": False, "prior": "encoder"}})
    assert "tune again" in why_none(project, generation)
    change(additions={"use": "these"}, pseudo_queries={"sequence_to_sequence": {"model": "trained"}})
    with pytest.raises(SettingsError, match=r"pseudo_queries.training.base is null"):
        why_none(project, generation)
    change(pseudo_queries={"training": {"base": "warm_start"}})
    assert "freshet run query_generator" in why_none(project, generation)
    assert next_steps(project) == []
    with pytest.raises(FreshetError, match="freshet run query_generator"):
        write_queries(project)
    manifest = generation.folder.parent / "000000" / INDEX / MANIFEST
    write_json(manifest, read_json(manifest) | {"kind": "lexical"})
    assert "kind lexical" in why_none(project, generation)
    change(additions={"written_queries": {}})
    assert "additions.written_queries.generator" in why_none(project, generation)


def test_a_model_that_was_trained_here_goes_by_its_weights(project, change, model):  # noqa: F811
    change(pseudo_queries={"sequence_to_sequence": TINY | {"model": "trained"}, "training": {"base": "warm_start"}})
    folder = project.artifacts / "query_generator" / "model"
    make_tiny_t5(folder, SPACE)
    add(project, NEW)
    name = author_of(project).name
    assert write_queries(project).documents == 3
    assert author_of(project).name == name
    make_tiny_t5(folder, SEA)
    assert author_of(project).name != name


def test_the_sensor_asks_for_additions_first_then_for_queries_once_for_all_and_not_for_ever(project, change):  # noqa: F811
    freshener = Freshener(project)
    freshener.receive([{"id": one, "title": one, "text": text} for one, text in NEW.items()], "test")
    assert [step.kind for step in next_steps(project)] == ["add"]
    freshener.apply_pending()
    (step,) = next_steps(project)
    assert (step.kind, step.reason) == ("write", "3 documents came without queries")
    write_queries(project, limit=2)
    (later,) = next_steps(project)
    assert later.key == step.key, "a run that works on it is not asked for twice"
    freshener.receive([{"id": "more", "title": "more", "text": "more"}], "test")
    assert [one.kind for one in next_steps(project)] == ["add"]
    freshener.remove(["more"], "test")
    freshener.apply_pending()
    for attempt in range(1, ATTEMPTS + 1):
        (step,) = next_steps(project)
        assert step.key.endswith(f"-{attempt}")
        note_end(project, ended("write_queries", step.key, attempt), "out of memory")
    assert next_steps(project) == []
    write_queries(project)
    assert next_steps(project) == []


def test_the_running_service_does_the_work(project, change, monkeypatch):  # noqa: F811
    add(project, NEW)
    serving, sent = Freshener(project), []

    class Client:
        """What the service would do, in this process."""

        def write_queries(self, written, source):
            from model_code.ledger.records import Written

            sent.append(source)
            one = [
                Written(each["event"], each["generator"], tuple(each["queries"]))
                for each in json.loads(json.dumps(written))
            ]
            receipt = serving.receive_queries(one, source)
            serving.apply_pending()
            return vars(receipt) | {"rejected": []}

    monkeypatch.setattr(writing_queries.ServiceClient, "of", lambda project: Client())
    own = SimpleNamespace(apply=Freshener.apply_pending)
    monkeypatch.setattr(Freshener, "apply_pending", lambda self: own.apply(self) if self is serving else 1 / 0)
    assert (write_queries(project).documents, sent) == (3, ["freshet write-queries"])
    assert written(project, "new-002") != ()


def test_the_command_says_what_it_did(project, change):  # noqa: F811
    app = typer.Typer()
    commands.add_to(app)

    def call(*arguments):
        return CliRunner().invoke(app, ["write-queries", *arguments], catch_exceptions=False).output

    assert call() == "nothing to write (generation 0)\n"
    add(project, NEW)
    assert call("--dry-run") == "3 documents are left without\n"
    assert json.loads(call("--limit", "1", "--json")) | {"documents": 1, "left": 2, "generation": 2} == json.loads(
        call("--dry-run", "--json")
    ) | {"documents": 1, "queries": 3, "generation": 2, "dry_run": False}
    assert call().endswith("written for 2 documents (generation 3)\n")
