"""Guards that ledger, MLflow and Dagster keep their records in a real PostgreSQL.

The ledger's own tests run on it too: tests/model_code/ledger/test_ledger.py. What is guarded here
is what PostgreSQL does otherwise than SQLite: making tables at once, consistent views, servers that
do not answer. Run: python -m pytest tests/test_postgresql.py
"""

from __future__ import annotations

import threading

import pytest
import sqlalchemy as sa

from model_code.collection.ledger import database as schema
from model_code.collection.ledger.database import open_database, open_database_if_exists
from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.instance import DATABASE, open_instance
from orchestration.pipeline.runs import StageRecord, run_store

EVENT = {"kind": "put", "document_id": "a", "content_hash": "", "source": "", "received": 0.0}


def test_ledger_opened_concurrently_is_created_once(postgresql):
    url = f"postgresql+psycopg://{postgresql('opened_at_once')}"
    assert open_database_if_exists(url) is None
    failures: list[Exception] = []

    def work() -> None:
        try:
            open_database(url).close()
        except Exception as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert open_database_if_exists(url) is not None


def test_ledger_view_is_stable_during_commits(postgresql):
    database = open_database(f"postgresql+psycopg://{postgresql('view')}")
    count = sa.select(sa.func.count()).select_from(schema.events)
    with database.read() as reading:
        assert reading.scalar(count) == 0
        with database.write() as writing:
            writing.execute(sa.insert(schema.events).values(EVENT))
        assert reading.scalar(count) == 0
    with database.read() as reading:
        assert reading.scalar(count) == 1
    database.close()


def test_unreachable_server_is_named_without_password():
    pytest.importorskip("psycopg")
    url = "postgresql+psycopg://me:secret@127.0.0.1:1/ledger"

    for opening in (open_database, open_database_if_exists):
        with pytest.raises(
            FreshetError, match=r"the ledger at .*me:\*\*\*@127.0.0.1:1/ledger cannot be opened: .+"
        ):
            opening(url)


def test_mlflow_records_stages_and_finds_them(postgresql, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"postgresql+psycopg://{postgresql('mlflow')}")
    monkeypatch.setenv("FRESHET_MLFLOW_ARTIFACTS", (tmp_path / "far" / "away").as_uri())
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    report = tmp_path / "report.json"
    report.write_text("{}")
    record = StageRecord(
        "train@hce",
        "k" * 64,
        {"seed": 0},
        {"nDCG@10": 0.5},
        {"artifacts/corpus": "c" * 64},
        [report],
        [{"step": 1, "loss": 2.0}],
        None,
        False,
        None,
        1.0,
        2.0,
    )
    tracker = run_store(Project(tmp_path))
    run_id = tracker.record_stage(record)

    assert tracker.find_run("k" * 64) == run_id
    assert tracker.client.get_run(run_id).data.metrics == {"nDCG_at_10": 0.5, "loss": 2.0}
    assert {path.name for path in (tmp_path / "far" / "away").rglob("*.json")} == {
        "report.json",
        "inputs.json",
    }


def test_dagster_keeps_runs_and_materialisations(postgresql, tmp_path, monkeypatch):
    pytest.importorskip(
        "dagster_postgres", reason="needs dagster-postgres: pip install -e '.[postgres]'"
    )
    import dagster as dg

    address = postgresql("dagster")
    monkeypatch.delenv("FRESHET_STATE", raising=False)
    monkeypatch.setenv(DATABASE, f"postgresql://{address}")
    with pytest.raises(FreshetError, match="must begin with postgresql\\+psycopg2"):
        open_instance(Project(tmp_path))
    monkeypatch.setenv(DATABASE, f"postgresql+psycopg2://{address}")

    @dg.asset
    def corpus():
        return dg.MaterializeResult(data_version=dg.DataVersion("abc"))

    with open_instance(Project(tmp_path)) as instance:
        done = dg.materialize([corpus], instance=instance)
    monkeypatch.delenv(DATABASE)
    with pytest.raises(
        FreshetError, match="was made with FRESHET_DAGSTER_DATABASE, which is not set now"
    ):
        open_instance(Project(tmp_path))
    monkeypatch.setenv(DATABASE, f"postgresql+psycopg2://{address}")
    with open_instance(Project(tmp_path)) as again:
        found = again.get_latest_materialization_event(dg.AssetKey("corpus"))
        assert found.run_id == done.run_id
        assert again.get_runs_count() == 1
    assert not list(tmp_path.rglob("*.db"))
