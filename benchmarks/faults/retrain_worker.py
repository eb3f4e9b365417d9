"""The process that is killed in a retrain: `freshet retrain --key KEY` that says which part of it has begun.

Of the stages the folder of what is in the making tells: see `retrains`.
"""

from __future__ import annotations

import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.faults.worker import Journal
from model_code.evaluation.promotion import Verdict, judge_retrain
from orchestration.freshness import retrain
from orchestration.project import Project
from orchestration.registry import gate, release

MARKED = {  # parts of a retrain outside of its stages, in order: what they are called, and the function that is it
    "plan": (retrain, "_begin"),
    "snapshot": (retrain, "_workspace"),
    "register": (release, "register"),
    "judge": (gate, "may_promote"),
    "open": (release, "open_version"),
    "champion": (release, "_make_champion"),
    "absorb": (retrain, "_record"),
}


def main(root: Path, journal: Path, key: str) -> None:
    """Retrain the project under `root`, and promote what comes of it, whatever the gate says."""
    written = Journal(journal)
    for name, (module, function) in MARKED.items():
        setattr(module, function, _marked(written, name, getattr(module, function)))
    setattr(gate, "judge_retrain", _passing(judge_retrain))  # noqa: B010 - the tiny model gains nothing
    try:
        done = retrain.retrain(Project(root), key)
        written.write(part="end", at=time.time(), version=done.challenger.version, generation=done.generation)
    except BaseException:
        written.write(error=traceback.format_exc())
        raise


def _marked(journal: Journal, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def called(*arguments: Any, **named: Any) -> Any:
        journal.write(part=name, at=time.time())
        found = function(*arguments, **named)
        journal.write(ended=name, at=time.time())
        return found

    return called


def _passing(judge: Callable[..., Verdict]) -> Callable[..., Verdict]:
    return lambda *arguments: replace(judge(*arguments), passed=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
