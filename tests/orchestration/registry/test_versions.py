"""Tests of the registry on a real MLflow store.

A build is registered, judged by the gate, promoted and rolled back. Each step is in the history, and
the registered model answers queries.

The first tests follow one registry through its life, because making a store takes seconds. They
depend on the order in which they are written.
"""

from __future__ import annotations

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import numpy as np
import pandas as pd
import pytest
from mlflow.store.entities import PagedList

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
from orchestration.registry import built_retriever, gate, history, release, versions
from orchestration.registry.built_retriever import BuiltRetriever, serving_requirements
from tests.tiny_encoder import make_tiny_encoder

TEXTS = {"d1": "sort an array", "d2": "read a table", "d3": "solve linear equations"}
METRICS = ("nDCG@10", "hit@1")
RULES = PromotionSettings(
    metric="nDCG@10", protected=METRICS, permutations=500, bootstrap_samples=200
)

SNAPSHOT = Position("log", 7, "a1b2c3d4")


@pytest.fixture(scope="module")
def build(tmp_path_factory) -> BuiltRetriever:
    """A tiny build whose every query scores 0.5. Tests make variants with other keys and scores."""
    root = tmp_path_factory.mktemp("build")
    texts = list(TEXTS.values())
    encoder = Encoder.load(make_tiny_encoder(root / "encoder", texts), 64)
    index = DenseIndex.build(encoder.encode_documents(texts), list(TEXTS), encoder.fingerprint())
    index.save(root / "index")

    titles = [text.upper() for text in texts]
    documents = pd.DataFrame({"document_id": list(TEXTS), "title": titles, "text": texts})
    documents.to_parquet(root / "documents.parquet")

    (root / "hierarchy").mkdir()
    (root / "hierarchy" / "hierarchy.json").write_text("{}")
    (root / "hierarchy" / "document_ids.json").write_text(json.dumps(["d1", "d2"]))

    return BuiltRetriever(
        "hce",
        key="a" * 64,
        corpus="c" * 64,
        text='{"words":8}',
        encoder=root / "encoder",
        index=root / "index",
        hierarchy=root / "hierarchy",
        documents=root / "documents.parquet",
        evaluation=write_scores(root / "even", 0.0),
    )


def fail_on_rescoring(project, champion):
    """Stand in for `rescore_champion`, where the champion's scores are of the present corpus."""
    pytest.fail(f"{champion} was scored again")


def open_nothing(project, version):
    """Stand in for `open_version`."""


@pytest.fixture(autouse=True)
def _nothing_live(monkeypatch):
    """Open no live collection, and score no champion again."""
    monkeypatch.setattr(release, "open_version", open_nothing)
    monkeypatch.setattr(gate, "rescore_champion", fail_on_rescoring)


def make_rules(project: Project) -> gate.GateRules:
    """Make the rules of the gate."""
    return gate.GateRules(project, RULES, 0)


def write_scores(folder: Path, gain: float) -> Path:
    """Write an evaluation of 60 queries that score about 0.5 + `gain`; exactly 0.5 without gain."""
    noise = np.random.default_rng(0).normal(0, 0.01, 60)
    rows = []
    for split in ("dev", "test"):
        for metric in METRICS:
            for number in range(60):
                value = 0.5
                if gain:
                    value += gain + noise[number]
                rows.append(
                    {
                        "query_id": f"q{number:02}",
                        "split": split,
                        "metric": metric,
                        "value": value,
                        "with_known": False,
                    }
                )
    folder.mkdir()
    pd.DataFrame(rows).to_parquet(folder / "scores.parquet")
    summary = {"queries": 60, "nDCG@10": 0.5 + gain}
    write_json(folder / "metrics.json", {"system": "hce", "dev": summary, "test": summary})
    return folder


def make_variant(build: BuiltRetriever, letter: str, **changes) -> BuiltRetriever:
    """Change a build. Its key consists of one letter only."""
    return replace(build, key=letter * 64, **changes)


def champion_of(project: Project) -> versions.Version | None:
    """Return the version with the alias of the champion."""
    return versions.version_with_alias(project, "champion")


def challenger_of(project: Project) -> versions.Version | None:
    """Return the version with the alias of the challenger."""
    return versions.version_with_alias(project, "challenger")


def previous_of(project: Project) -> versions.Version | None:
    """Return the version with the alias of the previous champion."""
    return versions.version_with_alias(project, "previous")


def test_empty_registry_has_no_version(tracked_project):
    assert champion_of(tracked_project) is None
    assert versions.list_versions(tracked_project) == []


def test_empty_registry_has_no_challenger(tracked_project):
    with pytest.raises(FreshetError, match="no challenger.*freshet register"):
        release.promote(tracked_project, make_rules(tracked_project))


def test_empty_registry_cannot_be_rolled_back(tracked_project):
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(tracked_project)


def test_registered_build_is_challenger(tracked_project, build):
    version = versions.register(tracked_project, build)

    assert version.version == "1"
    assert version.retriever == "hce"
    assert version.key == "a" * 64
    assert version.fingerprint == Encoder.load(build.encoder, 64).fingerprint()
    assert challenger_of(tracked_project) == version


def test_build_is_registered_once(tracked_project, build):
    first = challenger_of(tracked_project)

    again = versions.register(tracked_project, build)

    assert again == first
    assert versions.list_versions(tracked_project) == [first]


def test_registered_files_are_copies(tracked_project, build):
    folder = versions.download_files(tracked_project, challenger_of(tracked_project))

    assert hash_path(folder / "encoder") == hash_path(build.encoder)
    assert hash_path(folder / "index") == hash_path(build.index)
    assert hash_path(folder / "hierarchy") == hash_path(build.hierarchy)
    assert hash_path(folder / "documents.parquet") == hash_path(build.documents)
    for path in folder.rglob("*"):
        if path.is_file():
            assert path.stat().st_nlink == 1


def test_registered_files_have_the_code(tracked_project):
    folder = versions.download_files(tracked_project, challenger_of(tracked_project))

    assert (folder.parents[1] / "code" / "model_code" / "encoding" / "encoder.py").is_file()


def test_first_champion_needs_no_comparison(tracked_project):
    result = release.promote(tracked_project, make_rules(tracked_project))

    assert result.passed
    assert result.champion.version == "1"
    assert "there was no champion before" in result.summary
    assert champion_of(tracked_project) == result.champion
    assert challenger_of(tracked_project) is None


def test_registered_champion_is_no_challenger(tracked_project, build):
    versions.register(tracked_project, build)

    assert challenger_of(tracked_project) is None


def test_promoting_champion_changes_nothing(tracked_project):
    before = history.read(tracked_project)

    result = release.promote(tracked_project, make_rules(tracked_project))

    assert result.passed
    assert result.champion.version == "1"
    assert result.summary == "version 1 (hce) is the champion already: nothing to promote"
    assert history.read(tracked_project) == before


def test_champion_passes_its_own_gate(tracked_project):
    """So a promotion that was interrupted can be finished."""
    verdict = release.judge(tracked_project, make_rules(tracked_project))

    assert verdict.passed
    assert verdict.reasons == ("version 1 (hce) is the champion already: nothing to promote",)


def test_unchanged_build_keeps_champion_in_dagster(tracked_project, build, monkeypatch):
    opened = []

    def record_and_open(project, version):
        opened.append(version)
        return SimpleNamespace(retriever=version.retriever, number=0)

    def require_nothing(project, retrievers):
        """Accept every build as current."""

    def find_only_build(project, retriever, snapshot):
        return build

    def choose_only_retriever(project, settings):
        return build.retriever

    def load_rules(path):
        return SimpleNamespace(promotion=RULES, seed=0, built=())

    monkeypatch.setattr(release, "open_version", record_and_open)
    monkeypatch.setattr(release, "require_current", require_nothing)
    monkeypatch.setattr(release, "find_build", find_only_build)
    monkeypatch.setattr(release, "best_on_dev", choose_only_retriever)
    monkeypatch.setattr(release.parameters, "load", load_rules)
    before = history.read(tracked_project)

    result = dg.materialize(
        [*registry_assets(()), live_generation],
        resources={"project": tracked_project},
        selection=["registered_retriever", "champion", "live_generation"],
    )

    (champion,) = result.asset_materializations_for_node("champion")
    assert champion.metadata["passed"].value
    assert champion.metadata["champion"].value == "version 1 (hce)"
    assert "passed: there was no champion before" in champion.metadata["gate's last verdict"].value
    assert champion.metadata["registry version"].value.endswith("/#/models/freshet/versions/1")
    assert champion.tags["dagster/data_version"] == build.key
    (live,) = result.asset_materializations_for_node("live_generation")
    assert live.metadata["retriever"].value == "hce"
    # The promotion opens the version, and the asset of the live generation opens it again.
    assert opened == [champion_of(tracked_project), champion_of(tracked_project)]
    assert history.read(tracked_project) == before


def test_registering_champion_removes_challenger(tracked_project, build):
    contrastive = make_variant(build, "b", retriever="contrastive")
    versions.register(tracked_project, contrastive)
    challenger_before = challenger_of(tracked_project)

    champion = versions.register(tracked_project, build)

    assert challenger_before.version == "2"
    assert champion.version == "1"
    assert challenger_of(tracked_project) is None


def test_challenger_that_is_not_better_is_refused(tracked_project, build):
    versions.register(tracked_project, make_variant(build, "b", retriever="contrastive"))

    result = release.promote(tracked_project, make_rules(tracked_project))

    assert not result.passed
    assert result.champion.version == "1"
    assert "version 2 (contrastive) stays challenger: not better" in result.summary
    assert challenger_of(tracked_project).version == "2"


def test_earlier_verdict_is_recorded_like_a_new_one(tracked_project):
    """Dagster's check judges before the promotion."""
    challenger = challenger_of(tracked_project)
    rules = make_rules(tracked_project)

    verdict = release.judge(tracked_project, rules, challenger)
    release.promote(tracked_project, rules, challenger, verdict)

    judged_in_promotion, judged_before = history.read(tracked_project)[-2:]
    judged_in_promotion.pop("when")
    judged_before.pop("when")
    assert judged_before == judged_in_promotion
    assert challenger_of(tracked_project).version == "2"


def test_refused_version_is_named(tracked_project):
    challenger = challenger_of(tracked_project)

    result = release.promote(tracked_project, make_rules(tracked_project), challenger=challenger)

    assert result.summary.startswith("version 2 (contrastive) is refused: not better")


def test_better_challenger_becomes_champion(tracked_project, build, tmp_path):
    better_scores = write_scores(tmp_path / "better", 0.1)
    versions.register(tracked_project, make_variant(build, "c", evaluation=better_scores))

    result = release.promote(tracked_project, make_rules(tracked_project))

    assert result.passed
    assert result.champion.version == "3"
    assert previous_of(tracked_project).version == "1"


@pytest.fixture
def champion_model(tracked_project):
    """The champion, as MLflow loads it."""
    import mlflow

    return mlflow.pyfunc.load_model("models:/freshet@champion")


def test_model_ranks_as_the_index(champion_model, build):
    queries = ["sort an array", "linear equations"]

    predicted = champion_model.predict(pd.DataFrame({"query": queries}), params={"k": 2})

    rankings = []
    for hits in predicted:
        assert [hit["rank"] for hit in hits] == [1, 2]
        rankings.append([(hit["document_id"], hit["score"]) for hit in hits])
    encoder = Encoder.load(build.encoder, 64, for_search=True)
    index = DenseIndex.load(build.index)
    assert rankings == index.search(encoder.encode_queries(queries), 2, encoder.fingerprint())


def test_model_returns_titles_and_texts(champion_model):
    (hits,) = champion_model.predict(pd.DataFrame({"query": ["sort an array"]}), params={"k": 2})

    assert hits[0]["document_id"] == "d1"
    assert hits[0]["title"] == "SORT AN ARRAY"
    for hit in hits:
        assert hit["text"] == TEXTS[hit["document_id"]]


def test_model_returns_all_of_few_documents(champion_model):
    queries = pd.DataFrame({"query": ["sort an array", "linear equations"]})

    predicted = champion_model.predict(queries)

    # Ten documents are the default, but there are only three.
    assert [len(hits) for hits in predicted] == [3, 3]


def test_model_has_an_input_example(champion_model):
    expected = pd.DataFrame({"query": ["split a string on whitespace"]})

    assert champion_model.input_example.equals(expected)


def test_model_refuses_other_columns(champion_model):
    import mlflow

    with pytest.raises(mlflow.MlflowException, match="missing inputs"):
        champion_model.predict(pd.DataFrame({"text": ["wrong column"]}))


def test_model_refuses_empty_queries(champion_model):
    with pytest.raises(SettingsError, match="text is empty"):
        champion_model.predict(pd.DataFrame({"query": ["sort an array", ""]}))


def test_rollback_goes_back_one_champion(tracked_project):
    result = release.rollback(tracked_project)

    assert result.champion.version == "1"
    assert champion_of(tracked_project).version == "1"


def test_second_rollback_in_a_row_is_refused(tracked_project):
    with pytest.raises(FreshetError, match="no previous champion"):
        release.rollback(tracked_project)


def test_history_has_every_change_and_refusal(tracked_project):
    lines = history.read(tracked_project)

    changes = [(line["action"], line["from"], line["to"]) for line in lines]
    assert changes == [
        ("promote", None, "1"),
        ("refuse", "1", "2"),
        ("refuse", "1", "2"),
        ("refuse", "1", "2"),
        ("promote", "1", "3"),
        ("rollback", "3", "1"),
    ]


def test_history_has_the_gain_of_a_promotion(tracked_project):
    promotion = history.read(tracked_project)[4]

    intervals = {interval["metric"]: interval for interval in promotion["verdict"]["intervals"]}

    gain = intervals["nDCG@10"]
    assert gain["difference"] == pytest.approx(0.1, abs=0.01)
    assert gain["low"] <= gain["difference"]
    assert gain["difference"] <= gain["high"]


def test_run_of_version_has_metrics_and_key(tracked_project):
    client = run_store(tracked_project).client

    data = client.get_run(champion_of(tracked_project).run_id).data

    assert data.metrics["test.nDCG_at_10"] == 0.5
    assert data.tags[KEY] == "a" * 64


def test_page_of_version_shows_metrics_and_verdict(tracked_project):
    client = run_store(tracked_project).client
    champion = champion_of(tracked_project)

    page = client.get_model_version("freshet", champion.version).description

    assert "**hce**" in page
    assert "**Gate** passed: there was no champion before" in page
    assert "| nDCG@10 | 0.5 | 0.5 |" in page
    assert f"/runs/{champion.run_id})" in page


def test_refused_version_is_tagged(tracked_project):
    client = run_store(tracked_project).client

    assert client.get_model_version("freshet", "2").tags["gate"].startswith("refused: ")


def test_logged_model_has_the_metrics(tracked_project):
    client = run_store(tracked_project).client
    champion = champion_of(tracked_project)

    logged = client.search_logged_models(["1"])

    (model,) = [model for model in logged if model.source_run_id == champion.run_id]
    metrics = {metric.key: metric.value for metric in model.metrics}
    assert metrics["test.nDCG_at_10"] == 0.5


@pytest.fixture
def without_garbage(tracked_project):
    """Delete what earlier tests recorded in the store that they share."""
    for item in find_garbage(tracked_project, keep=9):
        item.delete()


@pytest.mark.usefixtures("without_garbage")
def test_model_of_killed_registration_is_deleted(tracked_project, build, monkeypatch):
    def fail_for_model(*arguments, model_id=None, **options):
        if model_id:
            raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("mlflow.log_metrics", fail_for_model)
        with pytest.raises(ZeroDivisionError):
            versions.register(tracked_project, make_variant(build, "f"))
    (item,) = find_garbage(tracked_project, keep=9)
    item.delete()

    assert item.label.startswith("registration without a version")
    assert item.megabytes > 0.01
    assert not find_garbage(tracked_project, keep=9)


def test_version_with_role_cannot_be_deleted(tracked_project):
    with pytest.raises(FreshetError, match=r"version 1 \(hce\) is champion"):
        versions.delete_version(tracked_project, champion_of(tracked_project))


@pytest.mark.usefixtures("without_garbage")
def test_deleted_version_leaves_no_files(tracked_project):
    first, second, third = versions.list_versions(tracked_project)
    folder = versions.download_files(tracked_project, third)
    assert folder.is_dir()
    run_folder, model_folder = versions.run_folders(tracked_project, [third.run_id])
    assert model_folder == folder.parents[2]

    versions.delete_version(tracked_project, third)

    assert versions.list_versions(tracked_project) == [first, second]
    assert find_garbage(tracked_project, keep=9) == []
    assert not run_folder.exists()
    assert not model_folder.exists()
    assert not folder.exists()


@pytest.mark.usefixtures("without_garbage")
def test_runs_of_pilots_are_deleted(tracked_project, tmp_path):
    report = tmp_path / "report.json"
    report.write_text("0" * 200_000)
    pilot = StageRecord(
        stage="train@hce",
        key="p" * 64,
        params={},
        metrics={},
        inputs={},
        artifacts=[report],
        curves=[],
        git_commit=None,
        git_dirty=False,
        dagster_run_id=None,
        started=5.0,
        ended=6.0,
        build="pilot 1a2b3c4d",
    )
    store = run_store(tracked_project)
    store.record_stage(pilot)
    store.record_stage(replace(pilot, build="build 2", key="b" * 64))

    (item,) = find_garbage(tracked_project, keep=9)
    item.delete()

    assert item.label == "2 runs of pilots"
    assert item.megabytes > 0.1
    assert find_garbage(tracked_project, keep=9) == []
    assert store.find_run("p" * 64) is None
    # The runs of a build stay.
    assert store.find_run("b" * 64)


class RemoteClient:
    """An MLflow client with one run and one model, whose files are outside the store."""

    def __init__(self, place: str) -> None:
        self.run = SimpleNamespace(info=SimpleNamespace(artifact_uri=f"{place}/r/artifacts"))
        self.model = SimpleNamespace(
            source_run_id="r", artifact_location=f"{place}/models/m/artifacts"
        )

    def get_run(self, run_id: str) -> SimpleNamespace:
        return self.run

    def search_logged_models(
        self, experiment_ids: list[str], page_token: str | None
    ) -> PagedList[SimpleNamespace]:
        return PagedList([self.model], token=None)


@pytest.mark.parametrize(
    "place", ["s3://bucket/freshet", "mlflow-artifacts:/1", "file:///somewhere/else"]
)
def test_files_outside_store_are_left_alone(tmp_path, monkeypatch, place):
    experiment = SimpleNamespace(experiment_id="1", name="freshet")
    registry = versions.Registry(RemoteClient(place), experiment, "p-1")

    def open_remote_registry(project):
        return nullcontext(registry)

    monkeypatch.setattr(versions, "open_registry", open_remote_registry)

    assert versions.run_folders(Project(tmp_path), ["r"]) == []


def test_serving_requirements_are_pinned():
    pins = dict(pin.split("==") for pin in serving_requirements())

    assert {"torch", "transformers", "mlflow", "numpy"} <= pins.keys()
    assert not any("+" in version for version in pins.values())


def test_champion_of_another_corpus_is_scored_again(tracked_project, build, tmp_path, monkeypatch):
    rescored = []

    def rescore_champion(project, champion):
        rescored.append(champion)
        return write_scores(tmp_path / "again", 0.3)

    monkeypatch.setattr(gate, "rescore_champion", rescore_champion)
    champion = champion_of(tracked_project)
    scores = write_scores(tmp_path / "later", 0.1)
    later = make_variant(build, "d", retriever="later", evaluation=scores, corpus="e" * 64)
    versions.register(tracked_project, later)

    result = release.promote(tracked_project, make_rules(tracked_project))

    assert rescored == [champion]
    # The challenger is better than the old scores of the champion, and worse than the new ones.
    assert not result.passed
    assert "0.8" in result.summary


@pytest.fixture
def rescored_folder(tmp_path, monkeypatch) -> Path:
    """Score the champion again by searching its registered files; the folder of the scores."""
    folder = tmp_path / "again"

    def search_and_score(project, champion):
        (segment,) = gate._champion_segments(project, champion, tmp_path)
        (ranking,) = segment.retriever.search(["sort an array"], 1)
        best_document, _ = ranking[0]
        assert best_document == "d1"
        return write_scores(folder, 0.3)

    def no_judging_queries(project):
        return frozenset()

    monkeypatch.setattr(gate, "rescore_champion", search_and_score)
    monkeypatch.setattr(gate, "judging_queries", no_judging_queries)
    return folder


def test_gate_searches_registered_files_of_champion(tracked_project, rescored_folder):
    assert challenger_of(tracked_project).retriever == "later"

    verdict = release.judge(tracked_project, make_rules(tracked_project))

    assert not verdict.passed
    assert rescored_folder.is_dir()


def test_promotion_searches_registered_files_of_champion(tracked_project, rescored_folder):
    result = release.promote(tracked_project, make_rules(tracked_project))

    assert not result.passed
    assert rescored_folder.is_dir()


class Killed(BaseException):
    """The process ends here."""


def kill(*arguments):
    """Stand in for a function during which the process is killed."""
    raise Killed


def pass_all_versions(patch: pytest.MonkeyPatch) -> None:
    """Let every challenger pass the gate, and copy no files."""
    verdict = Verdict(True, ("ok",), queries=1, intervals=())

    def pass_challenger(*arguments):
        return verdict

    def locate_index(build):
        return str(build.index)

    patch.setattr(gate, "judge_challenger", pass_challenger)
    patch.setattr(release, "open_version", open_nothing)
    patch.setattr(built_retriever, "log_retriever", locate_index)


@pytest.fixture(scope="module")
def champions(tmp_path_factory, build) -> Project:
    """A store whose champions were 1, 2 and 3, in this order."""
    project = Project(tmp_path_factory.mktemp("champions"))
    with pytest.MonkeyPatch.context() as patch:
        pass_all_versions(patch)
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("FRESHET_STATE", raising=False)
        for letter in "123":
            versions.register(project, make_variant(build, letter))
            release.promote(project, make_rules(project))
    return project


@pytest.fixture
def three_champions(champions, tmp_path, monkeypatch) -> Project:
    """A copy of the store `champions`, with a gate that passes everything.

    The store is copied because making one takes seconds.
    """
    pass_all_versions(monkeypatch)
    shutil.copytree(champions.root, tmp_path / "three")
    return Project(tmp_path / "three")


@pytest.mark.parametrize(
    "function",
    [
        "orchestration.registry.history.append",
        "mlflow.MlflowClient.set_registered_model_alias",
        "orchestration.registry.release.open_version",
    ],
)
def test_interrupted_rollback_is_completed(three_champions, monkeypatch, function):
    with monkeypatch.context() as patch:
        patch.setattr(function, kill)
        with pytest.raises(Killed):
            release.rollback(three_champions)
    champion_after_kill = champion_of(three_champions)
    result = release.rollback(three_champions)

    # A version that cannot be opened does not become champion.
    assert champion_after_kill.version == "3"
    assert result.champion.version == "2"
    # Each change is one line of the history.
    assert [line["to"] for line in history.read(three_champions)] == ["1", "2", "3", "2"]


def test_rollbacks_go_back_to_the_first_champion(three_champions):
    release.rollback(three_champions)

    result = release.rollback(three_champions)

    assert result.champion.version == "1"


def test_failed_opening_leaves_champion(three_champions, build, monkeypatch):
    def fail(project, version):
        raise FreshetError("it does not fit")

    monkeypatch.setattr(release, "open_version", fail)
    versions.register(three_champions, make_variant(build, "4"))

    with pytest.raises(FreshetError, match="does not fit"):
        release.promote(three_champions, make_rules(three_champions))

    assert champion_of(three_champions).version == "3"
    assert challenger_of(three_champions).version == "4"
    assert previous_of(three_champions).version == "2"


def test_given_version_is_judged_instead_of_challenger(three_champions, build):
    given = versions.register(three_champions, make_variant(build, "4"))
    versions.register(three_champions, make_variant(build, "5"))

    result = release.promote(three_champions, make_rules(three_champions), challenger=given)

    assert result.champion.version == "4"
    assert challenger_of(three_champions).version == "5"


def test_given_version_is_promoted_once(three_champions, build):
    given = versions.register(three_champions, make_variant(build, "4"))
    rules = make_rules(three_champions)
    release.promote(three_champions, rules, challenger=given)

    again = release.promote(three_champions, rules, challenger=given)

    assert again.champion.version == "4"


def test_version_keeps_its_snapshot(three_champions, build):
    retrained = replace(make_variant(build, "4"), snapshot=SNAPSHOT)
    first = versions.register(three_champions, retrained)

    # The documents of this build are the same.
    again = versions.register(three_champions, replace(retrained, snapshot=Position()))

    assert first.snapshot == SNAPSHOT
    assert again.snapshot == SNAPSHOT


def test_version_has_its_text_rules(three_champions, build):
    retrained = make_variant(build, "4")
    versions.register(three_champions, retrained)

    again = versions.register(three_champions, replace(retrained, text="{}"))

    assert again.text == "{}"


def test_version_without_retrain_has_no_snapshot(three_champions):
    assert champion_of(three_champions).snapshot == Position()


class PagedClient:
    """A client of MLflow whose searches return one result per page."""

    def search_logged_models(self, experiments, page_token=None):
        return self._page([SimpleNamespace(source_run_id=run) for run in "abc"], page_token)

    def search_runs(self, experiments, query, page_token=None):
        infos = [SimpleNamespace(run_id=run) for run in "abc"]
        return self._page([SimpleNamespace(info=info) for info in infos], page_token)

    def _page(self, results, page_token):
        number = int(page_token or 0)
        next_token = str(number + 1) if number + 1 < len(results) else None
        return PagedList(results[number : number + 1], next_token)


def test_searches_read_all_pages():
    experiment = SimpleNamespace(experiment_id="1", name="freshet")
    registry = versions.Registry(PagedClient(), experiment, "owner")

    models = registry.models_of_runs(["a", "c"])

    assert [model.source_run_id for model in models] == ["a", "c"]
    assert registry.find_runs("") == ["a", "b", "c"]
