"""Tests of the plan that is made from the status of DVC."""

from __future__ import annotations

import pytest

from orchestration.pipeline import stages
from orchestration.pipeline.dvc import error_reason
from orchestration.pipeline.repro import PlannedStage, describe_changes, plan_stage, required_rows

RUNS = PlannedStage("before", "run", ("it never ran",))
SKIPS = PlannedStage("before", "skip", ())
EDIT = "modified setting training"
MOVED = "modified artifacts/corpus"


@pytest.mark.parametrize(
    ("changes", "before", "action", "reasons"),
    [
        ([], [SKIPS], "skip", ()),
        ([], [RUNS], "maybe", ("before may change its output",)),
        ([EDIT], [RUNS], "run", (EDIT,)),
        ([EDIT, MOVED], [SKIPS], "run", (EDIT, MOVED)),
        ([MOVED], [SKIPS], "run", (MOVED,)),
        # The stage before writes the output again anyway.
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
def test_dvc_status_becomes_lines(entry, lines):
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
def test_error_of_dvc_becomes_the_reason(stderr, reason):
    assert error_reason(stderr) == reason


def test_target_needs_only_stages_before_it():
    table = stages.expand(["contrastive", "hce"])

    needed = required_rows(table, ["train@hce"])

    assert [stage.address for stage in needed] == [
        "corpus",
        "query_generator",
        "pseudo_queries",
        "acceptance",
        "base_index",
        "hierarchy",
        "train@hce",
    ]


def test_without_target_every_stage_is_needed():
    table = stages.expand(["contrastive", "hce"])

    assert required_rows(table, []) == list(table)
