"""Guards how a plan is drawn from what DVC says."""

from __future__ import annotations

import pytest

from orchestration.pipeline import stages
from orchestration.pipeline.dvc import error_reason
from orchestration.pipeline.repro import PlannedStage, describe_changes, plan_stage, required_rows

RUNS, SKIPS = PlannedStage("before", "run", ("it never ran",)), PlannedStage("before", "skip", ())
EDIT, MOVED = "modified setting training", "modified artifacts/corpus"


@pytest.mark.parametrize(
    ("changes", "before", "action", "reasons"),
    [
        ([], [SKIPS], "skip", ()),
        ([], [RUNS], "maybe", ("before may change its output",)),
        ([EDIT], [RUNS], "run", (EDIT,)),
        ([EDIT, MOVED], [SKIPS], "run", (EDIT, MOVED)),
        ([MOVED], [SKIPS], "run", (MOVED,)),
        # the stage before writes it anew anyway
        ([MOVED], [RUNS], "maybe", ("before may change its output",)),
        ([MOVED], [], "run", (MOVED,)),
    ],
)
def test_plan_lists_certain_and_possible_stages(changes, before, action, reasons):
    assert plan_stage("this", changes, before) == PlannedStage("this", action, reasons)


@pytest.mark.parametrize(
    ("entry", "lines"),
    [
        ("always changed", ["always changed"]),
        ({"changed deps": {"artifacts/corpus": "modified"}}, ["modified artifacts/corpus"]),
        ({"changed deps": {"params.yaml": {"training": "new"}}}, ["new setting training"]),
        (
            {"changed outs": {"artifacts/train/hce": "deleted"}},
            ["deleted output artifacts/train/hce"],
        ),
    ],
)
def test_what_dvc_says_becomes_a_line(entry, lines):
    assert describe_changes([entry]) == lines


@pytest.mark.parametrize(
    ("stderr", "reason"),
    [
        (
            "ERROR: 'a: 1' is invalid.\n\nERROR: another\nHaving any troubles?\n",
            "'a: 1' is invalid.",
        ),
        ("Traceback ...\nValueError: x\n", "Traceback ...\nValueError: x"),
        ("", ""),
    ],
)
def test_what_dvc_gives_as_its_reason_is_shown(stderr, reason):
    assert error_reason(stderr) == reason


def test_target_needs_only_stages_before_it():
    table = stages.expand(["contrastive", "hce"])
    needed = [stage.address for stage in required_rows(table, ["train@hce"])]
    before = [
        "corpus",
        "query_generator",
        "pseudo_queries",
        "acceptance",
        "base_index",
        "hierarchy",
    ]
    assert needed == [*before, "train@hce"]
    assert required_rows(table, []) == list(table)
