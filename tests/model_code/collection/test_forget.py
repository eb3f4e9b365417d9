"""Guards `freshet forget`: a query finds nothing, and its text is nowhere but where the message says."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from model_code.collection.erase import erase_documents
from model_code.collection.forget import forget_query
from model_code.collection.generations.refinements import solved_documents
from model_code.collection.index.builder_factory import additions_folder
from model_code.collection.index.live_index import LiveIndex
from model_code.collection.ledger.events import Feedback, Opinion
from model_code.collection.sync.sync import sync
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries
from model_code.corpus.sources.files import write_snapshot
from model_code.errors import FreshetError, SettingsError
from model_code.incdsi import constraints
from model_code.project import Project
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.model_code.collection.known_collection import found, judged, open_known_collection
from tests.model_code.collection.laws import OLD, make_encoder, open_build

pytestmark = pytest.mark.usefixtures("no_waiting_for_the_disk")

SECRET = "who is Jane Doe"

# A fusion whose documents have one passage each, and settings that move vectors far.
SHORT = {name: (title, " ".join(text.split()[:4])) for name, (title, text) in OLD.items()}
FUSION_SETTINGS = """\
retrievers: {r: {}}
additions: {gamma1: 5.0, lambda2: 0.01}
"""
ASKED = "word3 word9"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveIndex:
    """A live collection in which a row and feedback brought the query."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    open_known_collection(tmp_path)
    live_index = LiveIndex(Project(tmp_path))
    row = {"id": "jd", "title": "jd", "text": "A person.", "queries": [SECRET, "a person"]}
    live_index.receive([row], "api")
    live_index.ledger.record_feedback(Feedback("Who is JANE Doe?", "wc", Opinion.UP))
    live_index.ledger.record_feedback(Feedback("count lines", "wc", Opinion.UP))
    live_index.apply()
    return live_index


@pytest.fixture
def fusion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveIndex:
    """A fusion of an encoder and BM25. It has solved a vector, which the query ASKED limits."""
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    # Padding changes the last bits of encodings.
    monkeypatch.setattr("model_code.encoding.encoder.CPU_BATCH_TOKENS", 2)
    root = tmp_path / "fusion"
    make_encoder("dense", root / "encoder")
    open_build("bm25_fusion", root, root / "encoder", SHORT)
    (root / "params.yaml").write_text(FUSION_SETTINGS)
    (root / "dvc.yaml").touch()
    return LiveIndex(Project(root))


def add_row(index: LiveIndex, name: str, title: str, text: str, *queries: str) -> None:
    row = {"id": name, "title": title, "text": text, "queries": list(queries)}
    index.receive([row], "api")
    index.apply()


def limited_by(index: LiveIndex) -> list[str]:
    """The documents whose queries limit the vector of the document `limited`."""
    (limited,) = [d for d in solved_documents(index.generation) if d.document_id == "limited"]
    return [member.document_id for member in limited.members]


def add_limited(index: LiveIndex, owner: str) -> None:
    """Add a document whose vector is limited by the query ASKED of the owner."""
    add_row(index, "limited", "word3", "word9", "word9 word3 word1")
    (limited,) = [d for d in solved_documents(index.generation) if d.document_id == "limited"]
    assert (owner, ASKED) in {(member.document_id, member.text) for member in limited.members}


def vector_bytes(index: LiveIndex, text: str) -> bytes:
    """The bytes of a query's vector."""
    return index.builder.searcher.base.dense.encoder.pytorch.encode_queries([text])[0].tobytes()


def files_with_bytes(folder: Path, content: bytes) -> list[str]:
    return [p.name for p in folder.rglob("*") if p.is_file() and content in p.read_bytes()]


def files_with(folder: Path, text: str) -> list[str]:
    """Return the files that contain a text, whatever its case; tables are read as tables."""
    names = []
    for path in folder.rglob("*"):
        if not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = str(pq.read_table(path).to_pylist()).encode()
        if text.lower().encode() in content.lower():
            names.append(path.name)
    return names


def test_forgotten_query_is_in_no_file(index: LiveIndex) -> None:
    root = index.project.root
    assert set(found(index.builder.searcher, "jane")) == {"jd", "wc"}
    assert files_with(root, "jane")

    report = forget_query(index, "WHO is Jane Doe")

    assert report.documents == ["jd", "wc"]
    assert report.rewritten == ["jd"]
    assert report.opinions == 1
    assert files_with(root, "jane") == []
    assert found(index.builder.searcher, "jane") == []
    texts = {query.text for query in index.builder.searcher.known_queries()}
    assert texts == {"a person", "count lines"}


def test_forgotten_query_of_a_fusion_is_in_no_file(fusion: LiveIndex) -> None:
    root = fusion.project.root
    add_row(fusion, "owner", "word3", "word9 word5", ASKED, "word5 word1")
    vector = vector_bytes(fusion, ASKED)
    add_limited(fusion, "owner")
    assert "solved.json" in files_with(root, ASKED)
    assert files_with_bytes(root, vector) == ["solved.npy"]

    report = forget_query(fusion, ASKED)

    assert report.rewritten == ["owner"]
    assert report.solved_again == ["limited"]
    assert files_with(root, ASKED) == []
    assert files_with_bytes(root, vector) == []


def test_cache_of_constraints_is_not_filled_with_forgotten_query(fusion: LiveIndex) -> None:
    base = fusion.builder.searcher.base.folder
    asked = KnownQuery("d01", ASKED, QuerySource.QRELS)
    kept = KnownQuery("d04", "word14 word21", QuerySource.QRELS)
    CorpusQueries((asked, kept)).save(base / KNOWN_QUERIES)
    vector = vector_bytes(fusion, ASKED)
    cache = additions_folder(fusion.project)
    add_limited(fusion, "d01")
    assert files_with(cache, ASKED) == ["constraints.json"]
    assert files_with_bytes(cache, vector) == ["vectors.npy"]

    # A process that has no constraints in memory reads or computes them again.
    with pytest.raises(FreshetError, match="generation 0 of r, the build that is searched"):
        forget_query(LiveIndex(fusion.project), ASKED)
    assert [name for name in limited_by(fusion) if name == "d01"] == []
    assert files_with(cache, ASKED) == []
    assert files_with_bytes(cache, vector) == []

    shutil.rmtree(cache)
    add_row(LiveIndex(fusion.project), "later", "word14", "word21", "word14 word2")
    assert files_with(cache, "word14 word21") == ["constraints.json"]
    assert files_with(cache, ASKED) == []
    assert files_with_bytes(cache, vector) == []


def test_cache_without_a_query_equals_one_computed_without_it(fusion: LiveIndex) -> None:
    base = fusion.builder.searcher.base.folder
    asked = KnownQuery("d01", ASKED, QuerySource.QRELS)
    kept = KnownQuery("d04", "word14 word21", QuerySource.QRELS)
    CorpusQueries((asked, kept)).save(base / KNOWN_QUERIES)
    fusion.builder.prepare()
    with pytest.raises(FreshetError, match="its text remains"):
        forget_query(fusion, ASKED)
    (cache,) = additions_folder(fusion.project).glob("r-known-*")
    erased = constraints._read_cache(cache)

    shutil.rmtree(cache)
    LiveIndex(fusion.project).builder.prepare()

    computed = constraints._read_cache(cache)
    assert erased.texts == computed.texts == ["word14 word21"]
    assert erased.vectors.tolist() == computed.vectors.tolist()
    assert erased.owner_scores.tolist() == computed.owner_scores.tolist()


def test_judged_query_is_not_solved_for_after_it_was_forgotten(fusion: LiveIndex) -> None:
    base = fusion.builder.searcher.base.folder
    CorpusQueries((KnownQuery("d03", ASKED, QuerySource.QRELS),)).save(base / KNOWN_QUERIES)
    fusion.ledger.record_feedback(Feedback("word22 word23", "d03", Opinion.UP))
    add_row(fusion, "n", "word1", "word2")
    (solved,) = solved_documents(fusion.generation)
    assert [query.text for query in solved.queries] == [ASKED, "word22 word23"]

    with pytest.raises(FreshetError, match="its text remains"):
        forget_query(fusion, ASKED)
    add_row(fusion, "m", "word1", "word2")

    (solved,) = solved_documents(fusion.generation)
    assert [query.text for query in solved.queries] == ["word22 word23"]


def test_query_beside_a_searched_segment_is_erased(tmp_path: Path, index: LiveIndex) -> None:
    """A generation keeps changed known queries in the folder of its segment."""
    root = tmp_path / "other"
    open_known_collection(root)
    thumbed = LiveIndex(Project(root))
    thumbed.ledger.record_feedback(Feedback(SECRET, "wc", Opinion.UP))
    add_row(thumbed, "n", "n", "A person.")
    assert "known_overrides.json" in files_with(root, "jane")

    forget_query(thumbed, SECRET)

    assert files_with(root, "jane") == []
    assert found(thumbed.builder.searcher, "person") == ["n"]


def test_query_beside_removed_documents_is_erased(tmp_path: Path, index: LiveIndex) -> None:
    root = tmp_path / "other"
    open_known_collection(root)
    thumbed = LiveIndex(Project(root))
    thumbed.ledger.record_feedback(Feedback(SECRET, "wc", Opinion.UP))
    thumbed.remove(["ls"], "api")
    thumbed.apply()

    forget_query(thumbed, SECRET)

    assert files_with(root, "jane") == []
    assert "ls" not in found(thumbed.builder.searcher, "list the names of files")


def test_query_beside_tuned_weights_is_erased(fusion: LiveIndex) -> None:
    fusion.ledger.record_feedback(Feedback(SECRET, "d03", Opinion.UP))
    fusion.tune({"dense": 1.0, "bm25": 3.0}, {})
    assert files_with(fusion.project.root, "jane")

    forget_query(fusion, SECRET)

    assert files_with(fusion.project.root, "jane") == []
    retriever = fusion.builder.searcher.base.retriever
    assert retriever.fusion.weights == {"dense": 1.0, "bm25": 3.0}


def test_queries_of_erased_document_beside_a_segment_are_erased(
    tmp_path: Path, index: LiveIndex
) -> None:
    root = tmp_path / "other"
    open_known_collection(root)
    thumbed = LiveIndex(Project(root))
    add_row(thumbed, "erased", "erased", "Some person.")
    thumbed.ledger.record_feedback(Feedback(SECRET, "erased", Opinion.UP))
    add_row(thumbed, "n", "n", "A person.")
    assert "known_overrides.json" in files_with(root, "jane")

    assert erase_documents(thumbed, ["erased"]).erased == ["erased"]

    assert files_with(root, "jane") == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("judgements.jsonl", "judgements.jsonl, which judges documents for it"),
        ("inbox/done/rows.jsonl", "rows.jsonl, which has it: delete the file"),
        ("inbox/failed/rows.jsonl", "rows.jsonl, which has it: delete the file"),
        ("inbox/failed/broken.jsonl", "broken.jsonl, which has it: delete the file"),
        ("imported/queries.jsonl", "queries.jsonl, which has it: take it out"),
        ("artifacts/corpus", "artifacts/corpus: take the query out of the corpus's source"),
        (".freshet/retraining/k/project/snapshot", "retraining/k, the work of a retrain"),
    ],
)
def test_remaining_copies_of_a_query_are_named(index: LiveIndex, name: str, message: str) -> None:
    path = index.project.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = {
        "judgements.jsonl": {"question": "Who is Jane Doe?", "document_id": "wc", "relevance": 1},
        "rows.jsonl": {"id": "p", "text": "A person.", "queries": ["others", "Who is JANE Doe?"]},
        "broken.jsonl": {"id": "p", "text": 3, "queries": ["Who is JANE Doe?"]},
        "queries.jsonl": {"query_id": "q", "text": "who is jane doe"},
    }
    if path.name in lines:
        path.write_text(json.dumps(lines[path.name]) + "\n")
    else:
        query = {"id": "q", "text": "Who is Jane Doe?", "split": "train"}
        write_snapshot(path, {"documents": [], "queries": [query], "qrels": []})

    with pytest.raises(FreshetError, match=f"its text remains: .*{message}"):
        forget_query(index, SECRET)


def test_copy_with_a_line_separator_is_named(index: LiveIndex) -> None:
    row = {"query_id": "q", "text": "who is\u2028Jane Doe"}
    path = index.project.root / "imported" / "queries.jsonl"
    path.parent.mkdir()
    path.write_text(json.dumps(row, ensure_ascii=False) + "\n")

    with pytest.raises(FreshetError, match="queries.jsonl, which has it"):
        forget_query(index, SECRET)


def test_files_without_the_query_are_not_named(index: LiveIndex) -> None:
    root = index.project.root
    row = {"id": SECRET, "title": SECRET, "text": SECRET, "queries": ["who is Jane"]}
    path = root / "inbox" / "done" / "rows.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(row) + "\n")
    imported = root / "imported" / "documents.jsonl"
    imported.parent.mkdir()
    imported.write_text(json.dumps(row) + "\n")
    document = {"id": SECRET, "title": SECRET, "text": SECRET, "fields": "{}"}
    document["queries"] = '["who is Jane"]'
    snapshot = root / ".freshet" / "retraining" / "k" / "project" / "snapshot"
    write_snapshot(snapshot, {"documents": [document], "queries": [], "qrels": []})

    assert forget_query(index, SECRET).remains == []


def test_forgotten_query_never_comes_back(index: LiveIndex) -> None:
    forget_query(index, SECRET)
    index.ledger.record_feedback(Feedback(SECRET, "ls", Opinion.UP))
    index.receive([{"id": "j2", "title": "j2", "text": "Someone.", "queries": [SECRET]}], "api")
    index.apply()

    assert found(index.builder.searcher, "jane") == []
    texts = {query.text for query in index.builder.searcher.known_queries()}
    assert texts == {"a person", "count lines"}


def test_sync_does_not_bring_back_forgotten_query(index: LiveIndex, tmp_path: Path) -> None:
    source = tmp_path / "people.jsonl"
    row = {"id": "p1", "title": "p1", "text": "Someone.", "queries": [SECRET, "someone"]}
    source.write_text(json.dumps(row) + "\n")
    sync(index, str(source), name="people")
    forget_query(index, SECRET)

    unchanged = sync(index, str(source), name="people")
    row["text"] = "Someone else."
    source.write_text(json.dumps(row) + "\n")
    changed = sync(index, str(source), name="people")

    assert unchanged.changed == []
    assert changed.updated == ["people:p1"]
    assert index.present_documents(["people:p1"])["people:p1"].queries == ("someone",)
    source.unlink()
    assert files_with(index.project.root, "jane") == []


def test_row_with_forgotten_query_is_recorded_without_it(index: LiveIndex) -> None:
    forget_query(index, SECRET)

    index.receive([{"id": "j2", "text": "Someone.", "queries": [SECRET, "someone"]}], "api")

    assert index.present_documents(["j2"])["j2"].queries == ("someone",)


def test_caches_are_erased_under_their_lock(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    unfinished = additions_folder(index.project) / "r-known-0"
    unfinished.mkdir(parents=True)
    locked: list[str] = []

    @contextmanager
    def lock(path: Path) -> Iterator[None]:
        locked.append(path.name)
        assert unfinished.exists()
        yield
        assert not unfinished.exists()

    monkeypatch.setattr("model_code.incdsi.cache.file_lock", lock)
    forget_query(index, SECRET)

    assert locked == ["additions.lock"]


def test_report_says_that_nothing_knew_a_query(index: LiveIndex) -> None:
    report = forget_query(index, "nobody asked this")
    assert str(report).startswith("no document knew the query")


def test_feedback_and_forgetting_are_one_transaction(
    index: LiveIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("killed")

    monkeypatch.setattr("model_code.collection.ledger.ledger._insert_forgotten", fail)
    with pytest.raises(RuntimeError, match="killed"):
        index.ledger.forget_query(SECRET)

    assert len(index.ledger.feedback()) == 2


def test_query_of_the_build_stays_in_its_files_and_the_message_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FRESHET_LEDGER", raising=False)
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    open_known_collection(tmp_path, known={"wc": [judged("wc", SECRET)]})
    index = LiveIndex(Project(tmp_path))
    assert found(index.builder.searcher, "jane") == ["wc"]

    with pytest.raises(FreshetError, match="its text remains: generation 0 .* build again"):
        forget_query(index, SECRET)
    assert found(index.builder.searcher, "jane") == []


def test_empty_query_is_refused(index: LiveIndex) -> None:
    with pytest.raises(SettingsError, match="the query is empty"):
        forget_query(index, "  ")
