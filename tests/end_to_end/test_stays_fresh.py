"""Guards the life of a live collection with the real tools: documents arrive, are found, move it,
and it is retrained.

Run: python -m pytest tests/end_to_end/test_stays_fresh.py
"""

from __future__ import annotations

import json
import random
import shutil

import pytest

from orchestration import parameters
from tests.end_to_end.tiny_project import freshet, output_hashes, run

DESERT = "dune cactus sand mirage oasis camel scorpion heat dust nomad"

TICK = """
import dagster as dg
from pathlib import Path
from orchestration.instance import open_instance
from orchestration.project_definitions import definitions
from orchestration.sensors import receive_inbox_and_request_tasks
from model_code.project import Project

project = Project(Path.cwd())
repository = definitions(project).get_repository_def()
with open_instance(project) as instance:
    given = {"project": project}
    context = dg.build_sensor_context(instance_ref=instance.get_ref(), repository_def=repository, resources=given)
    found = repository.get_sensor_def("freshness").evaluate_tick(context)
    for request in found.dynamic_partitions_requests or []:
        instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
    for request in found.run_requests or []:
        job = repository.get_job(request.job_name)
        done = job.execute_in_process(instance=instance, partition_key=request.partition_key, raise_on_error=False)
        print(request.job_name, request.run_key, done.success)
"""

MOVED = """
from pathlib import Path
from model_code.project import Project
from orchestration.registry import release, versions

project = Project(Path.cwd())
wanted = release.register(project, "hce")
with versions.open_registry(project) as registry:
    registry.client.set_registered_model_alias(registry.model, versions.CHAMPION, wanted.version)
"""

RETRAIN = """
from pathlib import Path
from model_code.evaluation.promotion import Verdict
from model_code.collection.index.live_index import LiveIndex
from model_code.project import Project
from orchestration.freshness import retrain
from orchestration.registry import gate as gates

judged = {}
def gate(challenger, champion, settings, new, seed):
    judged["new"] = sorted(new)
    latecomer = {"id": "late", "title": "late", "text": "mirage nomad heat"}
    LiveIndex(Project(Path.cwd())).receive([latecomer], "while it was trained")
    return Verdict(True, ("as the test wants it",), challenger.queries, ())

gates.judge_retrain = gate
done = retrain.retrain(Project(Path.cwd()), "first", lambda text: None)
print(done.promoted, done.generation, len(judged["new"]), done.plan.documents)
"""


@pytest.fixture(scope="module")
def live(built_by_dagster, tmp_path_factory):
    """A copy of the build, whose trained retriever a person made champion."""
    folder = shutil.copytree(built_by_dagster, tmp_path_factory.mktemp("fresh") / "project")
    run(folder, MOVED)
    freshet(folder, "promote")
    return folder


def documents(count):
    draw = random.Random(3)
    for number in range(count):
        words = draw.sample(DESERT.split(), 6)
        yield {
            "id": f"desert-{number}",
            "title": f"desert {words[0]}",
            "text": " ".join(words),
            "queries": [words[1]],
        }


def found(folder, text):
    return [
        hit["document_id"]
        for hit in json.loads(freshet(folder, "search", text, "-k", "3", "--json").stdout)
    ]


def test_inbox_file_is_searchable_after_one_tick(live):
    before = found(live, "wave tide harbour")
    (live / "inbox").mkdir()
    lines = [json.dumps(row) for row in documents(12)]
    (live / "inbox" / "desert.jsonl").write_text("\n".join([*lines, "no JSON"]) + "\n")
    job, key, success = run(live, TICK).split()

    assert job == "add_documents"
    assert key.startswith("add-")
    assert key.endswith("-1")
    assert success == "True"
    assert any(name.startswith("desert") for name in found(live, "dune camel oasis"))

    old = [name for name in found(live, "wave tide harbour") if not name.startswith("desert")]
    # Old documents are found in their old order.
    assert old
    assert old == before[: len(old)]

    status = json.loads(freshet(live, "status", "--json").stdout)
    assert status["live"][0]["documents"] == 72

    newest = status["live"][0]["freshness"]["newest"]
    assert newest["document"] == "desert-0"
    assert newest["lag"] > 0
    # Nothing waits any more.
    assert run(live, TICK) == ""


def test_same_file_again_changes_nothing(live):
    file = live / "again.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in documents(12)) + "\n")

    assert "12 unchanged" in freshet(live, "add", str(file)).stdout

    freshet(live, "delete", "desert-3")
    assert "desert-3" not in found(
        live, next(row["text"] for row in documents(12) if row["id"] == "desert-3")
    )


@pytest.fixture(scope="module")
def fused(live, tmp_path_factory):
    """A copy in which a person made a fusion champion, after documents were added."""
    folder = shutil.copytree(live, tmp_path_factory.mktemp("fusion") / "project")
    parameters.write_overrides(folder / "params.yaml", ["fusions={fused: {of: [hce, bm25]}}"])
    for command in (["run", "fuse@fused"], ["register", "fused"], ["promote", "--by-hand"]):
        said = freshet(folder, *command).stdout
    assert "(fused) is the champion, moved by hand" in said
    return folder


SHARES = (
    "corpus.splits.test_share=0.0",
    "corpus.splits.gate_share=0.8",
    "drift.minimum_batch=10",
    "acceptance.min_documents=60",
)


@pytest.mark.full
def test_pilot_of_a_fusion_changes_nothing(fused):
    before = json.loads(freshet(fused, "status", "--json").stdout)
    parameters.write_overrides(fused / "params.yaml", SHARES)
    said = freshet(fused, "retrain", "--pilot", "40").stdout

    assert "pilot on 40 of 71 documents, 11 of them new" in said
    assert "stage train@hce ran" in said
    assert "stage fuse@fused ran" in said
    # Only the stages of what is searched run.
    assert "stage train@contrastive ran" not in said

    answer = said.splitlines()[-1]
    assert "new documents: " in answer
    assert "old documents: nDCG@10" in answer

    after = json.loads(freshet(fused, "status", "--json").stdout)
    assert after["champion"] == before["champion"]
    assert after["live"][0]["generation"] == before["live"][0]["generation"]
    assert answer in freshet(fused, "status").stdout
    assert not (fused / ".freshet" / "pilot").exists()


def test_retrain_includes_documents_added_meanwhile(live):
    parameters.write_overrides(live / "params.yaml", SHARES)
    champion = json.loads(freshet(live, "status", "--json").stdout)["champion"]["version"]
    outputs_before = output_hashes(live)
    params_before = (live / "params.yaml").read_text()
    promoted, generation, new_queries, trained_on = run(live, RETRAIN).split()[-4:]

    assert promoted == "True"
    assert trained_on == "71"
    # Queries that arrived with documents are judged.
    assert int(new_queries) > 0
    # The user's build stays as it was.
    assert output_hashes(live) == outputs_before
    assert (live / "params.yaml").read_text() == params_before
    assert "late" in found(live, "mirage nomad heat")

    status = json.loads(freshet(live, "status", "--json").stdout)
    assert status["live"][0]["documents"] == 72
    assert int(status["champion"]["version"]) > int(champion)
    assert status["live"][0]["generation"] == int(generation)
