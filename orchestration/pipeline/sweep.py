"""One setting against what it brings: the experiments of DVC that change it alone, as a table and a picture."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.errors import FreshetError
from orchestration.parameters import flatten
from orchestration.pipeline.dvc_process import dvc_command, environment
from orchestration.project import Project

if TYPE_CHECKING:
    import pandas as pd

METRICS_FILE = "artifacts/comparison/metrics.json"


def sweep(project: Project, key: str, metric: str) -> pd.DataFrame:
    """`metric` of every system by the value of the setting `key`: columns value, system, metric, in that order.

    Taken are the working tree and those experiments of its commit that differ from it in `key` alone: with anything
    else changed a difference would not be the setting's. FreshetError if there is no such experiment.
    """
    import pandas as pd

    found: dict[str, tuple[Any, Mapping[str, Any]]] = {}  # by the value as text: it may be a list
    for settings, metrics in _comparable(_experiments(project), key):
        found.setdefault(_spoken(settings[key]), (settings[key], metrics))
    if len(found) < 2:
        raise FreshetError(
            f"no experiment of this commit changes {key} alone: make some, such as "
            f"`dvc exp run --queue -S '{key}=A,B' && dvc exp run --run-all`"
        )
    rows = [
        (_spoken(value), system, cells[metric])
        for value, metrics in sorted(found.values(), key=lambda item: _place(item[0]))
        for system, cells in metrics.items()
        if metric in cells
    ]
    if not rows:
        raise FreshetError(f"{metric!r} is no metric of the comparison: see `freshet results --json`")
    return pd.DataFrame(rows, columns=["value", "system", metric])


def write_picture(table: pd.DataFrame, key: str, metric: str, folder: Path) -> Path:
    """Draw what `sweep` found as a line per system; returns the picture's path."""
    from model_code.evaluation.plots import sweep_plot

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{key}.png"
    path.write_bytes(sweep_plot(table, key, metric).png)
    return path


def _comparable(experiments: list[dict[str, Any]], key: str) -> Iterator[tuple[dict[str, Any], Mapping[str, Any]]]:
    """Settings and metrics of the first experiment, the working tree, and of those that differ in `key` alone."""
    base: dict[str, Any] | None = None
    for data in experiments:
        settings, metrics = flatten(_content(data, "params", "params.yaml")), _content(data, "metrics", METRICS_FILE)
        if base is None and key not in settings:
            raise FreshetError(f"params.yaml has no setting {key!r}, such as hierarchy.branching")
        base = base or settings
        if metrics and key in settings and {**settings, key: None} == {**base, key: None}:
            yield settings, metrics


def _experiments(project: Project) -> list[dict[str, Any]]:
    """What `dvc exp show` says of the working tree, its commit and the experiments that began there."""
    command = dvc_command("exp", "show", "--json")
    done = subprocess.run(command, cwd=project.root, env=environment(project), capture_output=True, text=True)
    if done.returncode:
        raise FreshetError(f"`dvc exp show` failed (experiments need git and a commit): {done.stderr.strip()}")
    shown = json.loads(done.stdout)
    made = [
        revision
        for commit in shown
        for experiment in commit["experiments"] or []
        for revision in experiment["revs"][:1]
    ]
    return [revision["data"] for revision in [*shown, *made] if revision.get("data")]


def _content(data: Mapping[str, Any], kind: str, path: str) -> dict[str, Any]:
    return (data[kind].get(path) or {}).get("data") or {}


def _place(value: Any) -> tuple[bool, float, str]:
    """Numbers by size after everything else, which goes by its name."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number, float(value) if is_number else 0.0, str(value)


def _spoken(value: Any) -> str:
    return "null" if value is None else value if isinstance(value, str) else json.dumps(value)
