"""Guards queries that a model writes, in Dagster: a job of its own, which the full build leaves alone."""

from __future__ import annotations

from pathlib import Path

import dagster as dg

from orchestration import writing_queries
from orchestration.project import Project
from orchestration.writing_asset import WRITINGS, written_queries_asset
from orchestration.writing_queries import WritingOutcome


def test_the_asset_says_what_was_written(tmp_path, monkeypatch):
    asked = []

    def write(project, progress):
        asked.append(project.root)
        progress(1, 2, "documents")
        return WritingOutcome(2, 9, 0, 5)

    monkeypatch.setattr(writing_queries, "write_queries", write)
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(str(WRITINGS.name), ["k-1"])
        done = dg.materialize([written_queries_asset(Project(tmp_path))], partition_key="k-1", instance=instance)
    (event,) = done.asset_materializations_for_node("written_queries")
    said = {name: value.value for name, value in event.metadata.items()}
    assert said | {"what happened": "9 queries written for 2 documents (generation 5)", "queries": 9} == said
    assert asked == [tmp_path]


def test_it_is_a_job_of_its_own_and_no_part_of_the_build(monkeypatch):
    monkeypatch.chdir(root := Path(__file__).parents[2])
    from orchestration.definitions import definitions

    found = definitions(Project(root))
    asset = dg.AssetKey("written_queries")
    assert found.resolve_job_def("write_queries").asset_layer.selected_asset_keys == {asset}
    assert asset not in found.resolve_job_def("full_build").asset_layer.selected_asset_keys
