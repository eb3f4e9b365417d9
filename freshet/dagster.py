"""Include a Freshet project in another Dagster project.

`FreshetProject` is a component with the project's assets, checks, jobs, sensors and schedules.
`FreshetResource` lets other assets search and change the collection. A `defs.yaml` such as this one
includes a project:

    type: freshet.dagster.FreshetProject
    attributes:
      path: ../search
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from freshet.client import Client
from model_code.project import Project
from model_code.settings import require
from orchestration.project_definitions import definitions

__all__ = ["FreshetProject", "FreshetResource"]


class FreshetResource(dg.ConfigurableResource):
    """A connection to a Freshet project, for the assets of another Dagster project.

    Attributes:
        path: Folder of a project on this machine. Encoder and index are loaded into the process of
            the asset that uses them.
        url: Address of a service, such as `http://127.0.0.1:8765`. Exactly one of `path` and `url`
            is set.
        token: Token of the service, which other machines need.
    """

    path: str | None = None
    url: str | None = None
    token: str | None = None

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Open a client, which is closed at the end of the block.

        Yields:
            A client of the service, or the opened project, which has the same methods.

        Raises:
            FreshetError: If the resource names neither or both of `path` and `url`, or the folder
                is not in a project.
        """
        names_one_place = (self.path is None) != (self.url is None)
        require(
            names_one_place,
            f"FreshetResource has path {self.path!r} and url {self.url!r}, but needs exactly one "
            "of them: set the path of a project on this machine, or the url of a service",
        )
        if self.url is not None:
            yield Client(self.url, token=self.token)
            return

        # An open project loads torch, which a client of a service does not need.
        from freshet.project import LocalProject

        opened = LocalProject.open(self.path or ".")
        try:
            yield opened
        finally:
            opened.close()


class FreshetProject(dg.Component, dg.Model, dg.Resolvable):
    """A Freshet project with its assets, checks, jobs, sensors and schedules.

    Asset keys, jobs, sensors and schedules keep their names. The definitions bring the resources
    `project` and `freshet`. A code location can therefore include one Freshet project.

    Attributes:
        path: Folder of the Freshet project, relative to the root of the Dagster project.
        sensors: Whether to include the sensors, which keep the live collection fresh.
        schedules: Whether to include the schedule `sync`, which the setting `live.sync` defines.
    """

    path: str
    sensors: bool = True
    schedules: bool = True

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the definitions of the project.

        Args:
            context: The component's place in the Dagster project.

        Raises:
            FreshetError: If the folder is not in a Freshet project, or a setting is wrong.
        """
        folder = Path(context.project_root, self.path)
        project = Project.find(folder)
        included = definitions(project)
        sensors = included.sensors if self.sensors else []
        schedules = included.schedules if self.schedules else []

        # No executor is passed, because it would replace that of the other project. Each job of
        # Freshet names its own executor.
        return dg.Definitions(
            assets=included.assets,
            jobs=included.jobs,
            sensors=sensors,
            schedules=schedules,
            resources={
                "project": project,
                "freshet": FreshetResource(path=str(project.root)),
            },
        )
