"""Guards what Qdrant, LanceDB and OpenSearch receive.

Qdrant runs in its local mode, LanceDB in a folder. OpenSearch gets files, which are replayed here
as its bulk API would do.

Run: python -m pytest tests/model_code/collection/handover/test_engines.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from model_code.collection.handover import opensearch
from model_code.collection.handover.engines import open_engine
from model_code.collection.handover.opensearch import engine_id, index_mapping
from model_code.collection.handover.passages import EncodedDocument
from model_code.errors import FreshetError
from model_code.text.documents import Document

DIMENSION = 3


def encoded(document_id: str, *vectors: tuple[float, float, float]) -> EncodedDocument:
    """A document with one passage per vector."""
    fields = {"package": "notes", "year": 2024, "tags": ["a", "b"]}
    texts = [f"passage {number}" for number in range(len(vectors))]
    document = Document(document_id, f"Title of {document_id}", "text", fields, date="2024-05-01")
    return EncodedDocument(document, texts, np.array(vectors, np.float32))


BEES = encoded("bees", (1, 0, 0), (0, 1, 0))
QUOTED = encoded("Ada's note", (0, 0, 1))


def write(engine_name: str, target: Path, *documents: EncodedDocument) -> None:
    """Write documents into a new collection."""
    engine = open_engine(engine_name, str(target), "notes", change_set=0)
    engine.create(DIMENSION)
    engine.write(documents)
    engine.finish()


def require(module: str) -> None:
    pytest.importorskip(module, reason=f"{module} is an extra, which is not installed")


def qdrant_payloads(folder: Path) -> list[dict]:
    from qdrant_client import QdrantClient

    client = QdrantClient(path=str(folder))
    points, _ = client.scroll("notes", limit=100)
    client.close()
    return [point.payload for point in points]


def test_qdrant_holds_texts_fields_and_ids(tmp_path):
    require("qdrant_client")

    write("qdrant", tmp_path, BEES, QUOTED)

    payload = next(one for one in qdrant_payloads(tmp_path) if one["document_id"] == "Ada's note")
    assert payload == {
        "document_id": "Ada's note",
        "passage": 0,
        "title": "Title of Ada's note",
        "text": "passage 0",
        "fields": {"package": "notes", "year": 2024, "tags": ["a", "b"]},
        "date": "2024-05-01",
    }


def test_qdrant_finds_by_vector_and_filter(tmp_path):
    require("qdrant_client")
    from qdrant_client import QdrantClient, models

    write("qdrant", tmp_path, BEES, QUOTED)

    client = QdrantClient(path=str(tmp_path))
    is_note = models.FieldCondition(key="fields.package", match=models.MatchValue(value="notes"))
    found = client.query_points(
        "notes", query=[0, 1, 0.5], query_filter=models.Filter(must=[is_note]), limit=1
    ).points
    client.close()

    (point,) = found
    assert point.payload["document_id"] == "bees"
    assert point.payload["passage"] == 1
    assert point.score == pytest.approx(1.0)


def test_qdrant_replaces_and_deletes_passages(tmp_path):
    require("qdrant_client")
    write("qdrant", tmp_path, BEES, QUOTED)

    engine = open_engine("qdrant", str(tmp_path), "notes", change_set=1)
    engine.write([encoded("bees", (0, 0, 1))])
    engine.delete(["Ada's note", "unknown"])
    engine.finish()

    payloads = qdrant_payloads(tmp_path)
    assert [(one["document_id"], one["passage"]) for one in payloads] == [("bees", 0)]


def test_lance_holds_texts_fields_and_ids(tmp_path):
    require("lancedb")
    import lancedb

    write("lancedb", tmp_path, BEES, QUOTED)

    rows = lancedb.connect(str(tmp_path)).open_table("notes").to_arrow().to_pylist()
    row = next(row for row in rows if row["document_id"] == "Ada's note")
    assert json.loads(row["fields"]) == {"package": "notes", "year": 2024, "tags": ["a", "b"]}
    assert row["passage"] == 0
    assert row["title"] == "Title of Ada's note"
    assert row["text"] == "passage 0"
    assert row["date"] == "2024-05-01"
    assert row["vector"] == [0.0, 0.0, 1.0]


def test_lance_finds_by_vector(tmp_path):
    require("lancedb")
    import lancedb

    write("lancedb", tmp_path, BEES, QUOTED)

    table = lancedb.connect(str(tmp_path)).open_table("notes")
    (row,) = table.search([0, 1, 0.5]).distance_type("dot").limit(1).to_list()
    assert row["document_id"] == "bees"
    assert row["passage"] == 1


def test_lance_replaces_and_deletes_passages(tmp_path):
    require("lancedb")
    import lancedb

    write("lancedb", tmp_path, BEES, QUOTED)

    engine = open_engine("lancedb", str(tmp_path), "notes", change_set=1)
    engine.write([encoded("bees", (0, 0, 1))])
    engine.delete(["Ada's note", "unknown"])
    engine.finish()

    rows = lancedb.connect(str(tmp_path)).open_table("notes").to_arrow().to_pylist()
    assert [(row["document_id"], row["passage"]) for row in rows] == [("bees", 0)]


def replay_bulk_files(folder: Path) -> dict[str, dict]:
    """Return the documents of an index after all bulk requests, in order of their names."""
    documents: dict[str, dict] = {}
    first = sorted(folder.glob("documents-*.ndjson"))
    for path in [*first, *sorted(folder.glob("changes-*.ndjson"))]:
        content = path.read_text()
        # The bulk API refuses a request without a final newline.
        assert content.endswith("\n")
        lines = iter(content.splitlines())
        for line in lines:
            ((action, target),) = json.loads(line).items()
            if action == "delete":
                documents.pop(target["_id"], None)
            else:
                documents[target["_id"]] = json.loads(next(lines))
    return documents


def test_opensearch_files_hold_documents(tmp_path):
    write("opensearch", tmp_path, BEES, QUOTED)

    document = replay_bulk_files(tmp_path)["bees"]

    assert document["fields"] == {"package": "notes", "year": 2024, "tags": ["a", "b"]}
    assert [passage["vector"] for passage in document["passages"]] == [[1, 0, 0], [0, 1, 0]]


def test_opensearch_changes_follow_the_documents(tmp_path):
    write("opensearch", tmp_path, BEES, QUOTED)

    engine = open_engine("opensearch", str(tmp_path), "notes", change_set=1)
    engine.write([encoded("bees", (0, 0, 1))])
    engine.delete(["Ada's note"])
    engine.finish()

    documents = replay_bulk_files(tmp_path)
    assert documents.keys() == {"bees"}
    assert len(documents["bees"]["passages"]) == 1


def test_opensearch_files_of_an_interrupted_hand_over_are_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr(opensearch, "MAX_FILE_BYTES", 1)
    write("opensearch", tmp_path, BEES)
    interrupted = open_engine("opensearch", str(tmp_path), "notes", change_set=1)
    interrupted.write([BEES, QUOTED])
    interrupted.finish()

    # Meanwhile, one of the documents was deleted.
    again = open_engine("opensearch", str(tmp_path), "notes", change_set=1)
    again.delete(["Ada's note"])
    again.finish()

    names = sorted(path.name for path in tmp_path.glob("*.ndjson"))
    assert names == ["changes-000001-0000.ndjson", "documents-000000-0000.ndjson"]


def test_opensearch_mapping_fits_every_written_field(tmp_path):
    write("opensearch", tmp_path, BEES)

    mapping = json.loads((tmp_path / "mapping.json").read_text())
    document = replay_bulk_files(tmp_path)["bees"]

    properties = mapping["mappings"]["properties"]
    assert document.keys() <= properties.keys()
    assert document["passages"][0].keys() == properties["passages"]["properties"].keys()
    assert (
        index_mapping(7)["mappings"]["properties"]["passages"]["properties"]["vector"]["dimension"]
        == 7
    )


def test_opensearch_requests_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(opensearch, "MAX_FILE_BYTES", 300)

    write("opensearch", tmp_path, BEES, QUOTED)

    assert len(list(tmp_path.glob("documents-*.ndjson"))) == 2
    assert replay_bulk_files(tmp_path).keys() == {"bees", "Ada's note"}


def test_opensearch_files_of_others_are_left_alone(tmp_path):
    (tmp_path / "documents-mine.ndjson").write_text("{}\n")
    write("opensearch", tmp_path, BEES, QUOTED)

    write("opensearch", tmp_path, BEES)

    names = {path.name for path in tmp_path.glob("*.ndjson")}
    assert names == {"documents-mine.ndjson", "documents-000000-0000.ndjson"}


def test_opensearch_accepts_long_ids():
    long_id = "é" * 300

    assert len(engine_id(long_id).encode()) <= 512
    assert engine_id(long_id) != engine_id(long_id + "x")


@pytest.mark.parametrize(
    ("engine", "module"), [("qdrant", "qdrant_client"), ("lancedb", "lancedb")]
)
def test_missing_library_names_its_extra(engine, module, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(FreshetError) as raised:
        open_engine(engine, str(tmp_path), "notes", change_set=0)

    assert f"pip install -e '.[{engine}]'" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_unreachable_qdrant_is_one_line():
    require("qdrant_client")

    with pytest.raises(
        FreshetError, match="Qdrant at http://127.0.0.1:9 does not answer"
    ) as raised:
        open_engine("qdrant", "http://127.0.0.1:9", "notes", change_set=0)

    assert "\n" not in str(raised.value)
