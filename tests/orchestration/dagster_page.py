"""Dagster at work for a project: its sensors look, its daemon judges the policies, at whatever time
it is.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange
from dagster._core.definitions.freshness_evaluator import FRESHNESS_EVALUATORS_BY_POLICY_TYPE
from dagster._core.test_utils import freeze_time

from assets.live import MEASURED, SEARCHABLE, SYNCED
from orchestration import parameters
from orchestration.project_definitions import definitions


class Page:
    """Definitions of a project, whose settings are changed first, in an instance."""

    def __init__(self, project, instance, *settings):
        parameters.write_overrides(project.params_file, settings)
        self.repository = definitions(project).get_repository_def()
        self.instance = instance
        self.cursor = None
        self.given = {"project": project}

    def look(self):
        """A tick of `freshness`; what it asks for."""
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, resources=self.given)
        found = self.repository.get_sensor_def("freshness")(context)
        self.cursor = found.cursor
        for event in found.asset_events:
            self.instance.report_runless_asset_event(event)
        for asked in found.dynamic_partitions_requests:
            self.instance.add_dynamic_partitions(asked.partitions_def_name, asked.partition_keys)
        return found

    def run(self, job, partition=None, **tags):
        """A run of a job, which may fail."""
        given = {"partition_key": partition, "tags": tags, "raise_on_error": False}
        return self.repository.get_job(job).execute_in_process(instance=self.instance, **given)

    def told(self):
        """What `notices` says at its next look, once the daemon has judged every policy."""
        for key in (SEARCHABLE, MEASURED, SYNCED):
            if self.repository.asset_graph.get(key).freshness_policy:
                self.state(key)
        context = dg.build_sensor_context(self.instance, resources=self.given)
        return self.repository.get_sensor_def("notices")(context).skip_message

    def state(self, key):
        """What the daemon finds the policy of an asset to be, kept as it keeps it."""
        node = self.repository.asset_graph.get(key)
        judge = FRESHNESS_EVALUATORS_BY_POLICY_TYPE[type(node.freshness_policy)]()
        context = SimpleNamespace(instance=self.instance)
        record = self.instance.get_latest_materialization_event(key)
        asset = SimpleNamespace(asset_entry=SimpleNamespace(last_materialization=record))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                "dagster._core.definitions.freshness_evaluator.AssetRecord.gen",
                lambda *_: asyncio.sleep(0, asset),
            )
            state = asyncio.run(judge.evaluate_freshness(context, node))
        change = FreshnessStateChange(
            key=key,
            new_state=state,
            previous_state=FreshnessState.UNKNOWN,
            state_change_timestamp=time.time(),
        )
        self.instance._report_runless_asset_event(change)
        return state.value


@contextmanager
def at(moment):
    """Dagster's clock and ours at a moment."""
    with freeze_time(moment), pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", moment.timestamp)
        yield
