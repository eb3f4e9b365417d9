"""Guards the corpus stage: pure output in any folder, a lock that is obeyed, malformed rows of
every kind; and, where they are at hand, the real data sets (`FRESHET_DATA`, else `../shared/data`),
whose counts are published.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from model_code.context import StageContext
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import make_source_lock
from model_code.corpus.tables import load_corpus
from model_code.errors import FreshetError
from model_code.files import hash_path, write_json
from model_code.stages import corpus
from model_code.text.settings import PassageSettings

DATA = Path(os.environ.get("FRESHET_DATA", Path(__file__).parents[3] / ".." / "shared" / "data"))
DOCUMENTS = "".join(
    json.dumps({"_id": f"d{i}", "title": f"t{i}", "text": f"some text number {i}"}) + "\n"
    for i in range(40)
)
MALFORMED = (
    b'{"_id": \n'
    b'{"text": "x"}\n'
    b'{"_id": "d0", "text": "x"}\n'
    b'{"_id": "e", "text": ""}\n'
    b'{"_id": "u", "text": "\xff"}\n'
)


def run(root: Path, lock: dict | None = None, words: int = 3, **settings):
    chosen = CorpusSettings(**{"source": "beir", "path": "data", **settings})
    output = root / "output"
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    if lock is None:
        lock = make_source_lock(chosen, root)
    write_json(root / "corpus.lock.json", lock)
    groups = {"corpus": chosen, "passages": PassageSettings(words=words, stride=words)}
    report = corpus.run(
        StageContext(root, {"lock": root / "corpus.lock.json"}, output, groups, root)
    )
    return report, output


@pytest.fixture
def project(tmp_path) -> Path:
    folder = tmp_path / "project" / "data"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_bytes(DOCUMENTS.encode() + MALFORMED)
    (folder / "queries.jsonl").write_text(
        "".join(f'{{"_id": "q{i}", "text": "number {i}"}}\n' for i in range(40))
    )
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(40))
    (folder / "qrels" / "train.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}q1\td99\t1\n")
    return folder.parent


def test_malformed_rows_are_quarantined_with_their_reasons(project):
    report, output = run(project, quarantine_limit=0.2)
    assert report["quarantine_reasons"] == {
        "documents: bad JSON": 1,
        "documents: duplicate id": 1,
        "documents: empty text": 1,
        "documents: invalid UTF-8": 1,
        "documents: missing id": 1,
        "qrels: dangling qrel": 1,
    }
    assert report["documents_read"] == 45
    assert report["documents"] + report["documents_quarantined"] == 45

    tables = ("documents", "passages", "qrels", "quarantine", "queries")
    expected = [f"{name}.parquet" for name in tables]
    expected.extend(["known_queries.json", "reading_notes.json"])

    assert sorted(path.name for path in output.iterdir()) == sorted(expected)

    built = load_corpus(output)
    # Each text gives a passage of "some text number" and one of the number.
    assert len(built.passages) == 80
    assert set(built.queries["split"]) == {"train", "gate", "dev"}


def test_past_the_limit_the_first_offenders_are_named(project):
    offenders = "5 of 45 rows of documents .*corpus.jsonl:41 bad JSON.*corpus.jsonl:42 missing id"

    with pytest.raises(FreshetError, match=offenders):
        run(project)


def test_equal_sources_give_equal_bytes_in_any_folder(project, tmp_path):
    report, first = run(project, quarantine_limit=0.2)
    shutil.copytree(project, tmp_path / "elsewhere")
    again, second = run(tmp_path / "elsewhere", quarantine_limit=0.2)

    assert report == again
    assert hash_path(first) == hash_path(second)
    assert json.loads(json.dumps(report, allow_nan=False)) == report


def test_source_changed_since_lock_is_refused(project):
    lock = make_source_lock(CorpusSettings(source="beir", path="data"), project)
    with (project / "data" / "corpus.jsonl").open("a") as stream:
        stream.write('{"_id": "late", "text": "came after the lock"}\n')

    with pytest.raises(FreshetError, match="changed since `freshet ingest`"):
        run(project, lock, quarantine_limit=0.2)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        (
            "scifact",
            {},
            {
                "documents": 5183,
                "queries": 1109,
                "qrels": 1258,
                "splits": {"train", "dev", "gate", "test"},
            },
        ),
        ("cranfield", {}, {"documents": 1398, "queries": 225, "qrels": 1836, "splits": {"test"}}),
        (
            "tldr",
            {"merge_duplicates": "none"},
            {
                "documents": 6825,
                "queries": 27116,
                "qrels": 27116,
                "splits": {"train", "dev", "gate", "test"},
            },
        ),
    ],
)
def test_the_real_data_sets_have_their_published_counts(tmp_path, name, settings, expected):
    if not (DATA / name).is_dir():
        pytest.skip(f"{DATA / name} is absent; FRESHET_DATA names the folder of the data sets")
    report, _ = run(tmp_path, words=0, path=str((DATA / name).resolve()), **settings)

    assert {key: report[key] for key in ("documents", "queries", "qrels")} == {
        key: value for key, value in expected.items() if key != "splits"
    }
    assert set(report["queries_by_split"]) == expected["splits"]
    assert report["passages"] == report["documents"]
