"""Find the challenger for shadow mode, and write to MLflow what shadow mode found about it.

In shadow mode, the challenger answers a share of the live queries, and nobody sees its answers. The
service runs this module as a process, `python -m orchestration.registry.shadow_challenger ROOT
VERSION`. MLflow takes seconds to import, and would slow the answers of the service. `VERSION` is
the version that the service has open, or "". The last line of the output is JSON. It is null if
there is no challenger, and otherwise has its version, its retriever and the folder of its files.
The folder is null if the service has this version open.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from model_code.project import Project
from orchestration.registry import versions
from orchestration.registry.shadow_record import load_record
from orchestration.registry.versions import CHALLENGER, CHAMPION, SHADOW_TAG


def find_challenger(project: Project, open_version: str) -> dict[str, Any] | None:
    """Return version, retriever and files of the challenger, and record its finding in MLflow.

    The finding states how the challenger compared with the champion on live queries so far.

    Args:
        project: The project.
        open_version: Number of the version that is open; its files are not downloaded again.

    Returns:
        `version`, `retriever` and `files`. None if this project has no challenger, or if the
        challenger is also the champion.
    """
    with versions.open_registry(project) as registry:
        challenger = registry.version_with_alias(CHALLENGER)
        champion = registry.version_with_alias(CHAMPION)
        if challenger is None or challenger.is_same(champion):
            return None
        # Several projects may share the registry. Their versions have other documents.
        if challenger.is_foreign(project):
            return None
        record = load_record(project, challenger.version)
        if record is not None:
            registry.client.set_model_version_tag(
                registry.model, challenger.version, SHADOW_TAG, record.text
            )

    files = None
    if challenger.version != open_version:
        files = str(versions.download_files(project, challenger))
    return {"version": challenger.version, "retriever": challenger.retriever, "files": files}


def main(arguments: list[str]) -> None:
    """Print the challenger of the project at `arguments[0]` as JSON."""
    root, open_version = arguments
    challenger = find_challenger(Project.find(Path(root)), open_version)
    print(json.dumps(challenger))


if __name__ == "__main__":
    main(sys.argv[1:])
