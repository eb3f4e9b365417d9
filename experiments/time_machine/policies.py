"""Policies: ways to keep an index fresh while documents arrive, change and are removed.

They call Freshet's own functions.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.time_machine import live_project
from experiments.time_machine.encodings import EncodingCache, Meter
from experiments.time_machine.live_project import FUSION
from experiments.time_machine.stream import Batch, Stream, StreamQuery, Text
from model_code.collection.index.live_index import LiveIndex
from model_code.files import canonical_json, hash_text, read_json, write_json
from model_code.project import Project
from orchestration import parameters
from orchestration.freshness.drift import check_drift
from orchestration.freshness.policy import Action


@dataclass(frozen=True)
class PolicySettings:
    """Definition of a policy.

    Attributes:
        name: Name of the policy.
        label: Name of the policy in the picture.
        adds: Whether new, changed and removed documents are applied to the live index.
        tells_queries: Whether documents are added with their known queries.
        checks_drift: Whether drift is checked after each batch. The retunes, pilots and retrains
            that the check requests are run.
        retrains: Whether everything is built again at the end of each step.
        overrides: Assignments of settings for this policy's project, such as "seed=1".
    """

    name: str
    label: str
    adds: bool = False
    tells_queries: bool = False
    checks_drift: bool = False
    retrains: bool = False
    overrides: Sequence[str] = ()


@dataclass
class StepWork:
    """Work that a policy did in a step.

    Attributes:
        seconds: Processor seconds of all work.
        lag_seconds: Processor seconds from the arrival of each new or changed document until it
            is searchable, summed over the documents.
        documents: Number of new and changed documents.
        events: Descriptions of events, such as a retrain.
    """

    seconds: float = 0.0
    lag_seconds: float = 0.0
    documents: int = 0
    events: list[str] = field(default_factory=list)


class Policy:
    """A policy that is replayed in a live project."""

    def __init__(
        self,
        settings: PolicySettings,
        stream: Stream,
        built: BuiltProject,
        folder: Path,
        cache: EncodingCache,
        builds: BuildCache,
    ) -> None:
        """Create the project as a copy of the first day's build.

        Args:
            settings: Definition of the policy.
            stream: The stream.
            built: The build of the first day, which all policies share.
            folder: Folder for the policy's projects.
            cache: Encodings that all policies share.
            builds: Builds that all policies share.
        """
        self.settings = settings
        self.stream = stream
        self.folder = folder
        self.cache = cache
        self.builds = builds
        self.told = {query.query_id for query in stream.known(0)}
        self.project = Project(folder / "project")
        shutil.copytree(built.project.root, self.project.root)
        if settings.overrides:
            parameters.write_overrides(self.project.params_file, settings.overrides)
        live_project.open_live(self.project, self.project)
        # The index stays open between batches, as in a running service.
        self.index = LiveIndex(self.project, FUSION)

    def advance(self, number: int, documents: Mapping[str, Text]) -> StepWork:
        """Do the work of one step.

        Args:
            number: Number of the step.
            documents: Documents that exist at the end of the step.
        """
        work = StepWork()
        step = self.stream.steps[number - 1]
        work.documents = sum(len(batch.puts) for batch in step.batches)
        if self.settings.adds:
            for batch in step.batches:
                self._apply(batch, number, work)
        if self.settings.retrains:
            self._rebuild(number, documents, work)
        return work

    def _apply(self, batch: Batch, number: int, work: StepWork) -> None:
        """Apply one batch to the live index, and check drift."""
        rows = self._rows(batch, number)
        meter = Meter(self.cache)
        with meter.running():
            self.index.receive(rows, batch.name)
            if batch.removals:
                self.index.remove(batch.removals, batch.name)
            self.index.apply()
        work.lag_seconds += meter.seconds * len(batch.puts)
        if self.settings.checks_drift:
            with meter.running():
                work.events.extend(self._follow_drift(batch.name))
        work.seconds += meter.seconds

    def _rows(self, batch: Batch, number: int) -> list[dict[str, Any]]:
        """Return the rows of documents that the policy sends for a batch.

        With `tells_queries`, rows contain known queries. If a new known query asks for an unchanged
        document, the row of that document is sent again with the last batch of the step.

        Args:
            batch: The batch.
            number: Number of the step.
        """
        if not self.settings.tells_queries:
            return live_project.document_rows(batch.puts, ())

        known = self.stream.known(number)
        documents = dict(batch.puts)
        is_last_batch = batch == self.stream.steps[number - 1].batches[-1]
        if is_last_batch:
            new_queries = [query for query in known if query.query_id not in self.told]
            live = live_project.live_texts(self.project)
            for query in new_queries:
                for document_id in query.answers & live.keys():
                    if document_id not in batch.removals:
                        documents.setdefault(document_id, live[document_id])
            self.told.update(query.query_id for query in new_queries)
        return live_project.document_rows(documents, _asked_for(known, documents))

    def _follow_drift(self, name: str) -> list[str]:
        """Check drift, and run the pilot or retrain that the check requests."""
        check = check_drift(self.project)
        if check is None:
            return []
        action = check.decision.action
        if action == Action.NO_ACTION:
            return []

        events = [f"{name}: {action}: {'; '.join(check.decision.reasons)}"]
        if action == Action.RETUNE:
            return [*events, f"retune: {live_project.retune(self.project)}"]
        if action == Action.PILOT:
            verdict = live_project.run_pilot(self.project, self.folder / "pilot")
            live_project.close_pilot(self.project, verdict)
            if verdict is None:
                return [*events, "no pilot: too few new documents have judged queries"]
            events.append(f"pilot: {'; '.join(verdict.reasons)}")
            if not verdict.passed:
                return events

        number = len(list(self.folder.glob("retrain-*")))
        verdict = live_project.retrain(self.project, self.folder / f"retrain-{number}")
        outcome = "promoted" if verdict.passed else "refused"
        return [*events, f"retrain {outcome}: {'; '.join(verdict.reasons)}"]

    def _rebuild(self, number: int, documents: Mapping[str, Text], work: StepWork) -> None:
        """Build everything again from the documents and known queries of this step."""
        known = _asked_for(self.stream.known(number), documents)
        rows = live_project.document_rows(documents, known)
        built = self.builds.get(self.settings.overrides, rows)
        folder = self.folder / f"step-{number:02d}"
        project = Project(folder)
        meter = Meter(self.cache)
        with meter.running():
            shutil.copytree(built.project.root, folder)
            live_project.open_live(project, project)
        previous = self.project.root
        self.project = project
        shutil.rmtree(previous)
        work.seconds += meter.seconds + built.seconds
        # Every document of the step becomes searchable only when the build is done.
        work.lag_seconds += work.seconds * work.documents
        work.events.append("retrain: every step")


def _asked_for(queries: Sequence[StreamQuery], documents: Mapping[str, Text]) -> list[StreamQuery]:
    """Return the queries that at least one of the documents answers."""
    return [query for query in queries if query.answers & documents.keys()]


@dataclass(frozen=True)
class BuiltProject:
    """A project that was built, and the processor seconds that its build took."""

    project: Project
    seconds: float


class BuildCache:
    """Builds on the disk, which are found by their documents, queries and settings.

    The code is not part of the key. After a change of the code, delete the folder.
    """

    def __init__(self, folder: Path, overrides: Sequence[str], encodings: EncodingCache) -> None:
        """Open a folder of builds.

        Args:
            folder: The folder.
            overrides: Assignments of settings for all builds.
            encodings: Encodings that builds share.
        """
        self.folder = folder
        self.overrides = list(overrides)
        self.encodings = encodings

    def get(self, overrides: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> BuiltProject:
        """Return the build of the given documents. It is created if it does not exist.

        Args:
            overrides: Further assignments of settings.
            rows: Documents with their known queries.
        """
        all_overrides = [*self.overrides, *overrides]
        key = hash_text(canonical_json({"rows": list(rows), "settings": all_overrides}))[:20]
        root = self.folder / key
        seconds_file = self.folder / f"{key}.json"
        if not seconds_file.is_file():
            shutil.rmtree(root, ignore_errors=True)
            meter = Meter(self.encodings)
            with meter.running():
                project = live_project.create_project(root, all_overrides, rows)
                live_project.build(project)
            write_json(seconds_file, {"seconds": round(meter.seconds, 2)})
        return BuiltProject(Project(root), read_json(seconds_file)["seconds"])
