"""Guards the history of promotions: lines are only ever added, and one that a crash cut off does no
harm.
"""

from __future__ import annotations

from model_code.project import Project
from orchestration.registry import history


def test_lines_are_added_and_read_in_order(tmp_path):
    project = Project(tmp_path)
    assert history.read(project) == []
    history.append(project, "promote", None, "1", {"passed": True})
    first = project.promotions.read_bytes()
    history.append(project, "rollback", "1", "2", None)
    assert project.promotions.read_bytes().startswith(first)
    moves = [
        (line["action"], line["from"], line["to"], line["verdict"])
        for line in history.read(project)
    ]
    assert moves == [("promote", None, "1", {"passed": True}), ("rollback", "1", "2", None)]


def test_after_a_cut_off_line_the_history_goes_on(tmp_path):
    project = Project(tmp_path)
    history.append(project, "promote", None, "1", None)
    with project.promotions.open("a") as stream:
        stream.write('{"action": "pro')
    assert len(history.read(project)) == 1
    history.append(project, "promote", "1", "2", None)
    assert [line["to"] for line in history.read(project)] == ["1", "2"]
