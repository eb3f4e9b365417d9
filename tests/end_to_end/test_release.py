"""Guards what a user does with a build: results, search, promotion, rollback, status, garbage
collection.

Run: python -m pytest tests/end_to_end/test_release.py
"""

from __future__ import annotations

import json

import pytest

from tests.end_to_end.tiny_project import freshet


@pytest.fixture(scope="module")
def demo_output(built_by_dagster):
    return (built_by_dagster / ".freshet" / "demo.txt").read_text()


def test_demo_shows_results_and_searches(demo_output):
    # There are three examples, and the hint.
    assert demo_output.count('freshet search "') == 4
    for system in ("bm25", "zero_shot", "contrastive", "hce"):
        assert system in demo_output
    assert "freshet ui" in demo_output
    assert "judged test queries." in demo_output


def test_results_are_one_object_per_system_with_intervals(built_by_dagster):
    results = json.loads(freshet(built_by_dagster, "results", "--json").stdout)

    assert {"bm25", "zero_shot", "contrastive", "hce"} <= set(results)

    for metrics in results.values():
        cell = metrics["nDCG@10"]
        assert 0 <= cell["low"] <= cell["value"] <= cell["high"] <= 1
        assert cell["queries"] == metrics["hit@1"]["queries"] > 0


def test_status_names_champion_and_live_generation(built_by_dagster):
    status = json.loads(freshet(built_by_dagster, "status", "--json").stdout)
    untrained = ("bm25", "untrained")

    # Queries are words of their documents, so training adds nothing.
    assert status["champion"]["retriever"] in untrained
    assert status["live"][0]["documents"] == 60
    assert status["live"][0]["retriever"] == status["champion"]["retriever"]


def test_refused_challenger_is_refused_again(built_by_dagster):
    champion = json.loads(freshet(built_by_dagster, "status", "--json").stdout)["champion"]
    freshet(built_by_dagster, "register", "contrastive")
    refused = freshet(built_by_dagster, "promote", check=False)

    assert refused.returncode == 1
    assert json.loads(freshet(built_by_dagster, "status", "--json").stdout)["champion"] == champion

    history = (built_by_dagster / ".freshet" / "promotions.jsonl").read_text().splitlines()
    assert [json.loads(line)["action"] for line in history] == ["promote", "refuse", "refuse"]
    assert not json.loads(history[-1])["verdict"]["passed"]


def test_search_works_after_garbage_collection(built_by_dagster):
    (built_by_dagster / ".freshet" / "checkpoints" / "abandoned").mkdir(parents=True)
    (built_by_dagster / ".freshet" / "checkpoints" / "abandoned" / "step.safetensors").write_bytes(
        b"0" * 200_000
    )

    assert "0.2 MB" in freshet(built_by_dagster, "tools", "gc").stdout

    freshet(built_by_dagster, "tools", "gc", "--delete")
    assert not (built_by_dagster / ".freshet" / "checkpoints" / "abandoned").exists()
    assert json.loads(freshet(built_by_dagster, "search", "violin melody", "--json").stdout)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["run", "trian"], 1, "'trian' is not a stage"),
        (["run", "--set", "training.temprature=1"], 2, "did you mean 'temperature'"),
        (["bench", "speed"], 1, "benchmarks run from a clone of the repository"),
        (["search", "x", "--retriever", "splade"], 1, "splade"),
        (["register", "splade"], 1, "'splade' is not a key under `retrievers:`"),
    ],
)
def test_error_has_one_line_and_exit_code(built_by_dagster, arguments, code, message):
    failed = freshet(built_by_dagster, *arguments, check=False, cold=arguments[0] == "run")

    assert failed.returncode == code
    assert message in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1
    assert "Traceback" in freshet(built_by_dagster, *arguments, "--debug", check=False).stderr
