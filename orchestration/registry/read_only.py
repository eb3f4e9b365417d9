"""Read the champion, the challenger and other roles of versions quickly, without MLflow.

MLflow takes three seconds to import and open. The project's own store is a SQLite file, so its
tables are read directly. A store on a server or in PostgreSQL is still read with MLflow.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import quote

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration.pipeline.runs import store_folder, tracking_uri
from orchestration.registry import versions
from orchestration.registry.versions import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    RECORDED_CHAMPION,
    Version,
)

DATABASE = "mlflow.db"
# MLflow does not delete the row of a deleted version, but sets its `current_stage` to this value.
DELETED_STAGE = "Deleted_Internal"
# Seconds to wait while another program writes to the file. `freshet status` should not wait longer.
LOCK_TIMEOUT_SECONDS = 2.0


def read_roles(project: Project) -> dict[str, Version | None]:
    """Return the version in each role of `versions.ROLES`, or None.

    Without a store, all roles are None, and no store is created. No lock of the registry is taken.
    If a promotion runs at the same time, the result is the state before or after it.

    Raises:
        FreshetError: If the store is damaged, or another program has locked it.
    """
    path = store_folder(project) / DATABASE
    # The address of the project's own store is a URL that ends with the path of its file.
    is_own_store = tracking_uri(project).endswith(str(path))
    if is_own_store:
        if not path.exists():
            return dict.fromkeys(versions.ROLES)
        try:
            roles = _read_own_store(path)
        except sqlite3.Error as error:
            raise FreshetError(
                f"MLflow's store {path} does not answer: {error}; end the program that uses it, "
                "then try again"
            ) from None
        if roles is not None:
            return roles

    # MLflow is on a server, or several projects share the file.
    return {role: versions.version_with_alias(project, role) for role in versions.ROLES}


def _read_own_store(path: Path) -> dict[str, Version | None] | None:
    """Return the versions that have a role such as champion, by role, from a project's own file.

    A role that no version has is None. The result is None if several projects share the file.
    """
    # The name of the file may hold characters that a URI reserves.
    address = f"file:{quote(str(path))}?mode=ro"
    with closing(sqlite3.connect(address, LOCK_TIMEOUT_SECONDS, uri=True)) as connection:
        models = connection.execute("SELECT name FROM registered_models").fetchall()
        if not models:
            return dict.fromkeys(versions.ROLES)
        if len(models) == 1:
            return _roles_of_model(connection, models[0][0])
    return None


def _roles_of_model(connection: sqlite3.Connection, model: str) -> dict[str, Version | None]:
    """Return the version in each role of `versions.ROLES`, or None, from MLflow's tables.

    Args:
        connection: Connection to MLflow's database.
        model: Name of the registered model.
    """
    numbers = dict.fromkeys(versions.ROLES)

    aliases = connection.execute(
        "SELECT alias, version FROM registered_model_aliases WHERE name = ?", (model,)
    )
    for alias, number in aliases:
        if alias in (CHAMPION, CHALLENGER):
            numbers[alias] = str(number)

    recorded = connection.execute(
        "SELECT value FROM registered_model_tags WHERE name = ? AND key = ?", (model, CHAMPION)
    ).fetchone()
    if recorded is not None:
        numbers[RECORDED_CHAMPION] = recorded[0]

    champion_number = numbers[CHAMPION]
    if champion_number is not None:
        # The tag is an empty text if the champion replaced no version.
        tags = _version_tags(connection, model, champion_number)
        numbers[PREVIOUS] = tags.get(versions.REPLACED) or None

    return {role: _read_version(connection, model, number) for role, number in numbers.items()}


def _read_version(connection: sqlite3.Connection, model: str, number: str | None) -> Version | None:
    """Return the version with a number; None if `number` is None or the version was deleted."""
    if number is None:
        return None
    row = connection.execute(
        "SELECT run_id FROM model_versions WHERE name = ? AND version = ? AND current_stage != ?",
        (model, int(number), DELETED_STAGE),
    ).fetchone()
    if row is None:
        return None
    tags = _version_tags(connection, model, number)
    # `from_registered` expects an object of MLflow, but reads only these three attributes.
    return Version.from_registered(SimpleNamespace(version=number, run_id=row[0], tags=tags))


def _version_tags(connection: sqlite3.Connection, model: str, number: str) -> dict[str, str]:
    """Return the tags of a version, by name."""
    rows = connection.execute(
        "SELECT key, value FROM model_version_tags WHERE name = ? AND version = ?",
        (model, int(number)),
    )
    return dict(rows.fetchall())
