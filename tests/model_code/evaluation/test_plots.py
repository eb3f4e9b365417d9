"""Guards that plots are equal byte for byte for equal numbers, show all systems, and are left out where empty."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from model_code.evaluation import plots
from model_code.evaluation.plots import INK, level_table, look, looks, recall_table, training_table

METRICS = ("nDCG@10", "R@1", "R@10", "R@100", "hit@1", "level@1", "level@2")
SYSTEMS = {
    name: {
        metric: {"value": 0.1 * i + 0.05 * j, "low": 0.1 * i, "high": 0.1 * i + 0.1 * j, "queries": 50}
        for j, metric in enumerate(METRICS)
    }
    for i, name in enumerate(["bm25", "zero_shot", "hce"])
}
DIFFERENCES = [
    {"system": "hce", "reference": name, "family": "systems", "metric": "nDCG@10", "difference": 0.02, "low": -0.01,
     "high": 0.05, "p": p, "p_holm": 2 * p}
    for name, p in [("bm25", 0.01), ("zero_shot", 0.2)]
]  # fmt: skip
HISTORIES = {
    "hce": [{"step": 0, "nDCG@10": 0.5}, {"step": 10, "loss": 2.0, "hierarchy_1": 1.0, "nDCG@10": 0.6}],
    "contrastive": [{"step": 10, "loss": 1.0, "learning_rate": 1e-5}],
}


def all_pictures():
    return [
        plots.metrics_plot(SYSTEMS, ["nDCG@10", "hit@1", "R@100"]),
        plots.differences_plot(DIFFERENCES, "nDCG@10"),
        plots.recall_plot(SYSTEMS),
        plots.levels_plot(SYSTEMS),
        plots.training_plot(HISTORIES, list(SYSTEMS)),
    ]


def hashes(pictures):
    return [hashlib.sha256(picture.png + picture.svg.encode()).hexdigest() for picture in pictures]


@pytest.fixture(scope="module")
def pictures():
    return all_pictures()


def test_equal_numbers_give_equal_bytes_in_another_process(pictures, tmp_path):
    here = Path(__file__)
    script = f"import {here.stem} as plots; print(plots.hashes(plots.all_pictures()))"
    environment = {
        "PYTHONPATH": f"{here.parent}:{here.parents[3]}", "PYTHONHASHSEED": "7", "MPLCONFIGDIR": str(tmp_path),
    }  # fmt: skip
    output = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert output.stdout.strip() == str(hashes(pictures))


def test_no_picture_tells_when_or_by_what_it_was_made(pictures):
    for picture in pictures:
        assert not re.search(rb"tEXt|tIME|eXIf", picture.png)
        assert not re.search(r"dc:date|dc:creator|Created with|20\d\d-\d\d", picture.svg)


def test_a_drawing_leaves_the_users_matplotlib_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    plots.recall_plot(SYSTEMS)
    assert dict(matplotlib.rcParams) == before


def test_the_users_matplotlib_settings_leave_a_drawing_alone(pictures):
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red"}):
        assert plots.recall_plot(SYSTEMS).png == pictures[2].png


def test_svgs_are_well_formed_and_take_the_pages_ink(pictures):
    for picture in pictures:
        root = ElementTree.fromstring(picture.svg)
        assert root.tag.endswith("svg")
        style, drawing = picture.svg.split("</style>", 1)
        assert INK in style
        assert INK not in drawing
        assert "currentColor" in drawing


def test_what_cannot_be_drawn_is_left_out():
    few = {name: {"R@1": metrics["R@1"]} for name, metrics in SYSTEMS.items()}
    assert plots.recall_plot(few) is None
    assert plots.levels_plot(few) is None
    assert plots.differences_plot([], "nDCG@10") is None
    assert plots.training_plot({}) is None


def test_tables_behind_the_plots():
    recall = recall_table(SYSTEMS)
    assert list(recall.columns) == ["k", "bm25", "zero_shot", "hce"]
    assert recall["k"].tolist() == [1, 10, 100]
    assert recall["hce"].tolist() == pytest.approx([0.25, 0.3, 0.35])
    assert level_table(SYSTEMS)["level"].tolist() == [1, 2]
    training = training_table(HISTORIES)
    assert training["retriever"].tolist() == ["contrastive", "hce", "hce"]
    assert training["nDCG@10"].tolist()[1:] == [0.5, 0.6]
    assert training["nDCG@10"].isna().tolist() == [True, False, False]


def test_a_system_keeps_its_look_and_no_two_share_one():
    names = [f"system {i}" for i in range(24)]
    styles = looks(names)
    assert len({tuple(style.values()) for style in styles.values()}) == 24
    assert styles["system 9"] == look(9)
