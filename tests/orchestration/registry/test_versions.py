"""Guards the registry on a real MLflow store: registering, the gate, champion, rollback, history,
the model itself.

The tests of this file follow one registry through its life, in the order they are written in.
"""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import dagster as dg
import numpy as np
import pandas as pd
import pytest

from assets.live import live_generation
from assets.registry import registry_assets
from model_code.collection.ledger.events import Position
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError, SettingsError
from model_code.evaluation.promotion import Verdict
from model_code.evaluation.settings import PromotionSettings
from model_code.files import hash_path, write_json
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from orchestration.cli.garbage import find_garbage
from orchestration.pipeline.runs import KEY, StageRecord, run_store
from orchestration.registry import gate, history, release, versions
from orchestration.registry.built_retriever import BuiltRetriever, serving_requirements
from tests.tiny_encoder import make_tiny_encoder

TEXTS = {"d1": "sort an array", "d2": "read a table", "d3": "solve linear equations"}
METRICS = ("nDCG@10", "hit@1")
RULES = PromotionSettings(
    metric="nDCG@10", protected=METRICS, permutations=500, bootstrap_samples=200
)

SNAPSHOT = Position("log", 7, "a1b2c3d4")


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    """A tiny build whose every query scores .5; other tests vary key and scores."""
    root = tmp_path_factory.mktemp("build")
    encoder = Encoder.load(make_tiny_encoder(root / "encoder", TEXTS.values()), 64)
    vectors = encoder.encode(list(TEXTS.values()))
    DenseIndex.build(vectors, list(TEXTS), encoder.fingerprint()).save(root / "index")
    titles = [text.upper() for text in TEXTS.values()]
    pd.DataFrame(
        {"document_id": list(TEXTS), "title": titles, "text": list(TEXTS.values())}
    ).to_parquet(root / "documents.parquet")
    (root / "hierarchy").mkdir()
    (root / "hierarchy" / "hierarchy.json").write_text("{}")
    (root / "hierarchy" / "document_ids.json").write_text(json.dumps(["d1", "d2"]))
    paths = {name: root / name for name in ("encoder", "index", "hierarchy")}
    evaluation = write_scores(root / "even", 0.0)
    documents = root / "documents.parquet"
    named = {"key": "a" * 64, "corpus": "c" * 64, "text": '{"words":8}'}
    return BuiltRetriever("hce", documents=documents, evaluation=evaluation, **named, **paths)


@pytest.fixture(autouse=True)
def _nothing_live(monkeypatch):
    """Nothing is opened, and every champion here was scored on the challenger's corpus."""
    monkeypatch.setattr(release, "open_version", lambda project, version: None)
    monkeypatch.setattr(
        gate,
        "rescore_champion",
        lambda project, champion: pytest.fail(f"{champion} was scored again"),
    )


def rules(project):
    return gate.GateRules(project, RULES, 0)


def write_scores(folder, gain: float):
    """An evaluation folder of 60 test queries that score .5 + `gain`, give or take a little."""
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    rows = [
        {
            "query_id": f"q{i:02}",
            "split": split,
            "metric": metric,
            "value": 0.5 + (gain + noise[i] if gain else 0),
            "asked_in_training": False,
        }
        for split in ("dev", "test")
        for metric in METRICS
        for i in range(60)
    ]
    folder.mkdir()
    pd.DataFrame(rows).to_parquet(folder / "scores.parquet")
    summary = {"queries": 60, "nDCG@10": 0.5 + gain}
    write_json(folder / "metrics.json", {"system": "hce", "dev": summary, "test": summary})
    return folder


def variant(
    build: BuiltRetriever, key: str, retriever: str = "hce", evaluation=None
) -> BuiltRetriever:
    return BuiltRetriever(
        **{
            **vars(build),
            "key": key,
            "retriever": retriever,
            "evaluation": evaluation or build.evaluation,
        }
    )


def test_empty_registry_has_no_challenger(tracked_project):
    assert versions.version_with_alias(tracked_project) is None
    assert versions.list_versions(tracked_project) == []
    with pytest.raises(FreshetError, match="no challenger.*freshet register"):
        release.promote(tracked_project, rules(tracked_project))
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(tracked_project)


def test_build_is_registered_once_and_copied(tracked_project, build):
    first = versions.register(tracked_project, build)
    assert first.version == "1"
    assert first.retriever == "hce"
    assert first.key == "a" * 64
    assert first.fingerprint == Encoder.load(build.encoder, 64).fingerprint()
    assert versions.register(tracked_project, build) == first
    assert versions.list_versions(tracked_project) == [first]
    assert versions.version_with_alias(tracked_project, "challenger") == first
    folder = versions.download_files(tracked_project, first)
    for part in ("encoder", "index", "hierarchy"):
        assert hash_path(folder / part) == hash_path(getattr(build, part))
        assert all(
            path.stat().st_nlink == 1 for path in (folder / part).rglob("*") if path.is_file()
        )
    assert hash_path(folder / "documents.parquet") == hash_path(build.documents)
    assert (folder.parents[1] / "code" / "model_code" / "encoding" / "encoder.py").is_file()


def test_first_champion_needs_no_comparison(tracked_project):
    move = release.promote(tracked_project, rules(tracked_project))
    assert move.passed
    assert move.champion.version == "1"
    assert "there is no champion yet" in move.summary
    assert versions.version_with_alias(tracked_project, "champion") == move.champion
    assert versions.version_with_alias(tracked_project, "challenger") is None


def test_promoting_champion_changes_nothing(tracked_project, build):
    versions.register(tracked_project, build)
    assert versions.version_with_alias(tracked_project, "challenger") is None
    before = history.read(tracked_project)
    move = release.promote(tracked_project, rules(tracked_project))
    assert move.passed
    assert move.champion.version == "1"
    assert move.summary == "version 1 (hce) is the champion already: nothing to promote"
    assert history.read(tracked_project) == before
    asked = release.judge(tracked_project, rules(tracked_project))
    # A promotion that was cut off can be finished.
    assert asked.passed
    assert asked.reasons == (move.summary,)


def test_unchanged_build_keeps_champion_in_dagster(tracked_project, build, monkeypatch):
    opened = []

    def open_version(project, version):
        opened.append(version)
        return SimpleNamespace(retriever=version.retriever, number=0)

    monkeypatch.setattr(release, "open_version", open_version)
    monkeypatch.setattr(release, "require_current", lambda project, retrievers: None)
    monkeypatch.setattr(release, "find_build", lambda project, retriever, snapshot: build)
    monkeypatch.setattr(release, "best_on_dev", lambda project, settings: build.retriever)
    monkeypatch.setattr(
        release.parameters, "load", lambda path: SimpleNamespace(promotion=RULES, seed=0, built=())
    )
    before = history.read(tracked_project)
    assets = [*registry_assets(()), live_generation]
    chosen = ["registered_retriever", "champion", "live_generation"]
    result = dg.materialize(assets, resources={"project": tracked_project}, selection=chosen)
    (shown,) = result.asset_materializations_for_node("champion")
    assert shown.metadata["passed"].value
    assert shown.metadata["champion"].value == "version 1 (hce)"
    assert "passed: there is no champion yet" in shown.metadata["gate's last verdict"].value
    assert shown.metadata["registry version"].value.endswith("/#/models/freshet/versions/1")
    assert shown.tags["dagster/data_version"] == build.key
    (live,) = result.asset_materializations_for_node("live_generation")
    assert live.metadata["retriever"].value == "hce"
    # by the promotion and by the live generation's own asset
    assert opened == [versions.version_with_alias(tracked_project)] * 2
    assert history.read(tracked_project) == before


def test_registering_champion_removes_challenger(tracked_project, build):
    versions.register(tracked_project, variant(build, "b" * 64, "contrastive"))
    assert versions.version_with_alias(tracked_project, "challenger").version == "2"
    assert versions.register(tracked_project, build).version == "1"
    assert versions.version_with_alias(tracked_project, "challenger") is None


def test_challenger_that_is_not_better_is_refused(tracked_project, build):
    versions.register(tracked_project, variant(build, "b" * 64, "contrastive"))
    move = release.promote(tracked_project, rules(tracked_project))
    assert not move.passed
    assert move.champion.version == "1"
    assert "version 2 (contrastive) stays challenger: not better" in move.summary
    assert versions.version_with_alias(tracked_project, "challenger").version == "2"


def test_refused_version_keeps_alias(tracked_project):
    second, by = versions.version_with_alias(tracked_project, "challenger"), rules(tracked_project)
    release.promote(tracked_project, by, second, release.judge(tracked_project, by, second))
    first, again = history.read(tracked_project)[-2:]
    assert first | {"when": ""} == again | {"when": ""}, "asked beforehand, as Dagster's check does"
    assert versions.version_with_alias(tracked_project, "challenger").version == "2"
    move = release.promote(tracked_project, by, challenger=second)
    assert move.summary.startswith("version 2 (contrastive) is refused: not better")


def test_better_challenger_becomes_champion(tracked_project, build, tmp_path):
    better = write_scores(tmp_path / "better", 0.1)
    versions.register(tracked_project, variant(build, "c" * 64, evaluation=better))
    move = release.promote(tracked_project, rules(tracked_project))
    assert move.passed
    assert move.champion.version == "3"
    assert versions.version_with_alias(tracked_project, "previous").version == "1"


def test_model_answers_queries_under_alias(tracked_project, build):
    import mlflow

    model = mlflow.pyfunc.load_model("models:/freshet@champion")
    queries = pd.DataFrame({"query": ["sort an array", "linear equations"]})
    (first, second) = model.predict(queries, params={"k": 2})
    assert [(hit["rank"], hit["document_id"], hit["title"]) for hit in first][0] == (
        1,
        "d1",
        "SORT AN ARRAY",
    )
    assert [hit["text"] for hit in first] == [TEXTS[hit["document_id"]] for hit in first]
    assert model.input_example.equals(pd.DataFrame({"query": ["split a string on whitespace"]}))
    assert [hit["rank"] for hit in second] == [1, 2]
    assert [len(hits) for hits in model.predict(queries)] == [3, 3], "ten, where there are as many"
    encoder = Encoder.load(build.encoder, 64, for_search=True)
    expected = DenseIndex.load(build.index).search(
        encoder.encode(queries["query"]), 2, encoder.fingerprint()
    )
    assert [
        [(hit["document_id"], hit["score"]) for hit in hits] for hits in (first, second)
    ] == expected
    with pytest.raises(mlflow.MlflowException, match="missing inputs"):
        model.predict(pd.DataFrame({"text": ["wrong column"]}))
    with pytest.raises(SettingsError, match="text is empty"):
        model.predict(pd.DataFrame({"query": ["sort an array", ""]}))


def test_rollback_goes_back_one_champion(tracked_project):
    move = release.rollback(tracked_project)
    assert move.champion.version == "1"
    assert versions.version_with_alias(tracked_project, "champion").version == "1"
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(tracked_project)


def test_history_has_every_change_and_refusal(tracked_project):
    lines = history.read(tracked_project)
    assert [(line["action"], line["from"], line["to"]) for line in lines] == [
        ("promote", None, "1"),
        *3 * [("refuse", "1", "2")],
        ("promote", "1", "3"),
        ("rollback", "3", "1"),
    ]
    gain = next(row for row in lines[4]["verdict"]["intervals"] if row["metric"] == "nDCG@10")
    assert gain["low"] <= gain["difference"] <= gain["high"]
    assert gain["difference"] == pytest.approx(0.1, abs=0.01)


def test_page_of_version_shows_metrics_and_verdict(
    tracked_project,
):
    client, champion = (
        run_store(tracked_project).client,
        versions.version_with_alias(tracked_project),
    )
    data = client.get_run(champion.run_id).data
    assert data.metrics["test.nDCG_at_10"] == 0.5
    assert data.tags[KEY] == "a" * 64
    card = client.get_model_version("freshet", champion.version).description
    assert "**hce**" in card
    assert "**Gate** passed: there is no champion yet" in card
    assert "| nDCG_at_10 | 0.5 | 0.5 |" in card
    assert f"/runs/{champion.run_id})" in card
    refused = client.get_model_version("freshet", "2")
    assert refused.tags["gate"].startswith("refused: ")
    (model,) = [
        one for one in client.search_logged_models(["1"]) if one.source_run_id == champion.run_id
    ]
    assert {metric.key: metric.value for metric in model.metrics}["test.nDCG_at_10"] == 0.5


@pytest.fixture
def without_garbage(tracked_project):
    """Without what tests before recorded in the store that they share."""
    for left in find_garbage(tracked_project, keep=9):
        left.delete()


@pytest.mark.usefixtures("without_garbage")
def test_model_of_killed_registration_is_deleted(tracked_project, build, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(
            "mlflow.log_metrics", lambda *_, model_id=None, **__: 1 / 0 if model_id else None
        )
        with pytest.raises(ZeroDivisionError):
            versions.register(tracked_project, variant(build, "f" * 64))
    (left,) = find_garbage(tracked_project, keep=9)
    assert left.label.startswith("registration without a version")
    assert left.megabytes > 0.01
    left.delete()
    assert not find_garbage(tracked_project, keep=9)


@pytest.mark.usefixtures("without_garbage")
def test_version_with_role_cannot_be_deleted(tracked_project):
    first, second, third = versions.list_versions(tracked_project)
    with pytest.raises(FreshetError, match=r"version 1 \(hce\) is champion"):
        versions.delete_version(tracked_project, first)
    folder = versions.download_files(tracked_project, third)
    assert folder.is_dir()
    (run, model) = versions.run_folders(tracked_project, [third.run_id])
    assert model == folder.parents[2]
    versions.delete_version(tracked_project, third)
    assert [each.exists() for each in (run, model)] == [False, False]
    assert find_garbage(tracked_project, keep=9) == []
    assert versions.list_versions(tracked_project) == [first, second]
    assert not folder.exists()


@pytest.mark.usefixtures("without_garbage")
def test_runs_of_pilots_are_deleted(tracked_project, tmp_path):
    (tmp_path / "report.json").write_text("0" * 200_000)
    stage = StageRecord(
        "train@hce", "", {}, {}, {}, [tmp_path / "report.json"], [], None, False, None, 5.0, 6.0
    )
    store = run_store(tracked_project)
    for build in ("pilot 1a2b3c4d", "build 2"):
        store.record_stage(replace(stage, build=build, key=build[0] * 64))
    (item,) = find_garbage(tracked_project, keep=9)
    assert item.label == "2 runs of pilots"
    assert item.megabytes > 0.1
    item.delete()
    assert find_garbage(tracked_project, keep=9) == []
    assert store.find_run("p" * 64) is None
    assert store.find_run("b" * 64), "a build's runs stay"


@pytest.mark.parametrize(
    "place", ["s3://bucket/freshet", "mlflow-artifacts:/1", "file:///somewhere/else"]
)
def test_files_outside_store_are_left_alone(tmp_path, monkeypatch, place):
    named = SimpleNamespace(experiment_id="1", name="freshet")
    model = SimpleNamespace(source_run_id="r", artifact_location=f"{place}/models/m/artifacts")
    run = SimpleNamespace(info=SimpleNamespace(artifact_uri=f"{place}/r/artifacts"))
    client = SimpleNamespace(get_run=lambda _: run, search_logged_models=lambda _: [model])
    monkeypatch.setattr(
        versions,
        "open_registry",
        lambda project: nullcontext(versions.Registry(client, named, "p-1")),
    )
    assert versions.run_folders(Project(tmp_path), ["r"]) == []


def test_serving_requirements_are_pinned():
    pins = dict(pin.split("==") for pin in serving_requirements())
    assert {"torch", "transformers", "mlflow", "numpy"} <= pins.keys()
    assert not any("+" in version for version in pins.values())


def test_champion_of_another_corpus_is_scored_again(tracked_project, build, tmp_path, monkeypatch):
    scored = []

    def rescore_champion(project, champion):
        scored.append(champion)
        return write_scores(tmp_path / "again", 0.3)

    monkeypatch.setattr(gate, "rescore_champion", rescore_champion)
    champion = versions.version_with_alias(tracked_project)
    later = BuiltRetriever(
        **{
            **vars(variant(build, "d" * 64, "later", write_scores(tmp_path / "l", 0.1))),
            "corpus": "e" * 64,
        }
    )
    versions.register(tracked_project, later)
    move = release.promote(tracked_project, rules(tracked_project))
    assert scored == [champion]
    assert not move.passed, "it beats the champion's old scores, and not those of today"
    assert "0.8" in move.summary


def test_gate_searches_registered_files_of_champion(tracked_project, build, tmp_path, monkeypatch):
    def again(project, champion):
        (segment,) = gate._champion_segments(project, champion, tmp_path)
        assert segment.retriever.search(["sort an array"], 1)[0][0][0] == "d1"
        return write_scores(tmp_path / "again", 0.3)

    monkeypatch.setattr(gate, "rescore_champion", again)
    monkeypatch.setattr(gate, "judging_queries", lambda project: frozenset())
    assert versions.version_with_alias(tracked_project, "challenger").retriever == "later"
    assert not release.judge(tracked_project, rules(tracked_project)).passed
    shutil.rmtree(tmp_path / "again")
    assert not release.promote(tracked_project, rules(tracked_project)).passed


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(scope="module")
def champions(tmp_path_factory, build):
    """A store whose champions were 1, 2 and 3, in this order."""
    project = Project(tmp_path_factory.mktemp("champions"))
    with pytest.MonkeyPatch.context() as patch:
        pass_all_versions(patch)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("FRESHET_STATE", raising=False)
        for key in "123":
            versions.register(project, variant(build, key * 64))
            release.promote(project, rules(project))
    return project


@pytest.fixture
def three(champions, tmp_path, monkeypatch):
    """Copy the store, because making one takes seconds, with a gate that passes everything."""
    pass_all_versions(monkeypatch)
    shutil.copytree(champions.root, tmp_path / "three")
    return Project(tmp_path / "three")


def pass_all_versions(patch):
    verdict = Verdict(True, ("ok",), queries=1, intervals=())
    patch.setattr(gate, "judge_challenger", lambda *_: verdict)
    patch.setattr(release, "open_version", lambda *_: None)
    patch.setattr(versions, "log_retriever", lambda build: str(build.index))


def test_interrupted_rollback_is_completed(three, monkeypatch):
    from mlflow import MlflowClient

    def die(*_):
        raise Killed

    for place in ((history, "append"), (MlflowClient, "set_registered_model_alias")):
        with monkeypatch.context() as patch:
            patch.setattr(*place, die)
            with pytest.raises(Killed):
                release.rollback(three)
        assert versions.version_with_alias(three).version == "3"
    with monkeypatch.context() as patch:
        patch.setattr(release, "open_version", die)
        with pytest.raises(Killed):
            release.rollback(three)
    assert versions.version_with_alias(three).version == "3", (
        "what cannot be opened is not champion"
    )
    assert release.rollback(three).champion.version == "2"
    assert [line["to"] for line in history.read(three)] == ["1", "2", "3", "2"], (
        "each move is one line"
    )
    assert release.rollback(three).champion.version == "1"


def test_failed_opening_leaves_champion(three, build, monkeypatch):
    def fail(project, version):
        raise FreshetError("it does not fit")

    monkeypatch.setattr(release, "open_version", fail)
    versions.register(three, variant(build, "4" * 64))
    with pytest.raises(FreshetError, match="does not fit"):
        release.promote(three, rules(three))
    assert versions.version_with_alias(three).version == "3"
    assert versions.version_with_alias(three, "challenger").version == "4"
    assert versions.version_with_alias(three, "previous").version == "2"


def test_given_version_is_judged_instead_of_challenger(three, build):
    own = versions.register(three, variant(build, "4" * 64))
    versions.register(three, variant(build, "5" * 64))
    assert release.promote(three, rules(three), challenger=own).champion.version == "4"
    assert versions.version_with_alias(three, "challenger").version == "5"
    assert release.promote(three, rules(three), challenger=own).champion.version == "4", (
        "once is enough"
    )


def test_version_keeps_rules_and_snapshot(three, build):
    retrained = replace(variant(build, "4" * 64), snapshot=SNAPSHOT)
    assert versions.register(three, retrained).snapshot == SNAPSHOT
    again = versions.register(three, replace(retrained, snapshot=Position(), text="{}"))
    # Its documents are the same.
    assert again.snapshot == SNAPSHOT
    assert again.text == "{}"
    assert versions.version_with_alias(three).snapshot == Position()
