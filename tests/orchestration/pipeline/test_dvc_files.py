"""Tests of the files that DVC reads and writes.

These are `dvc.yaml` with its plots, and a `dvc.lock` that a killed DVC cut off.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from model_code.errors import FreshetError
from model_code.evaluation.plots import systems_plot
from model_code.project import Project
from model_code.stages.corpus import STAGE as CORPUS
from orchestration.pipeline import code_lock, dvc, dvc_file
from orchestration.pipeline.dvc import command_line, initialise
from orchestration.pipeline.dvc_file import PLOTS


def test_dvc_draws_the_comparison(tmp_path):
    plot = tmp_path / "artifacts" / "comparison" / "comparison.png"
    plot.parent.mkdir(parents=True)
    results = {"bm25": {"MAP": {"value": 0.5, "low": 0.4, "high": 0.6}}}
    plot.write_bytes(systems_plot(results, ["MAP"]))
    YAML().dump({"plots": PLOTS}, tmp_path / "dvc.yaml")
    initialise(Project(tmp_path))

    command = command_line("plots", "show", "--json", "--split")
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    plots = json.loads(finished.stdout)
    assert not plots.get("errors")
    assert list(plots["data"]) == ["artifacts/comparison/comparison.png"]


LOCK = """\
schema: '2.0'
stages:
  corpus:
    cmd: python -m orchestration.pipeline.run_stage corpus
    outs:
    - path: artifacts/corpus
      md5: abc.dir
"""


def write_outdated_project(root: Path, **stages: object) -> None:
    """Write a project whose `dvc.yaml` lacks the stage `comparison` and has further stages."""
    code_lock.write(root, new=True)
    content = dvc_file.render(has_own_code=False)
    del content["stages"]["comparison"]
    content["stages"].update(stages)
    YAML().dump(content, root / "dvc.yaml")


def test_stage_of_another_version_is_added_to_dvc_yaml(tmp_path):
    write_outdated_project(tmp_path, corpus={"cmd": "old"})

    dvc_file.update(tmp_path)

    content = YAML(typ="safe").load(tmp_path / "dvc.yaml")
    assert content == dvc_file.render(has_own_code=False)


def test_users_own_stage_stays_in_dvc_yaml(tmp_path):
    write_outdated_project(tmp_path, mine={"cmd": "make mine"})

    dvc_file.update(tmp_path)

    stages = YAML(typ="safe").load(tmp_path / "dvc.yaml")["stages"]
    assert stages["mine"] == {"cmd": "make mine"}
    assert "comparison" in stages


def test_current_dvc_yaml_is_not_written_again(tmp_path):
    code_lock.write(tmp_path, new=True)
    dvc_file.write(tmp_path / "dvc.yaml", has_own_code=False)
    before = (tmp_path / "dvc.yaml").stat().st_mtime_ns

    dvc_file.update(tmp_path)

    assert (tmp_path / "dvc.yaml").stat().st_mtime_ns == before


def test_dvc_yaml_of_a_clone_is_not_changed(tmp_path):
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")

    dvc_file.update(tmp_path)

    assert (tmp_path / "dvc.yaml").read_text() == "stages: {}\n"


def test_dvc_yaml_without_stages_is_refused(tmp_path):
    write_outdated_project(tmp_path)
    (tmp_path / "dvc.yaml").write_text("")

    with pytest.raises(FreshetError, match="holds no stages; delete it and run `freshet init`"):
        dvc_file.update(tmp_path)


def test_output_version_is_hash_of_current_lock(tmp_path):
    for version in ("abc.dir", "def.dir", "abc.dir"):
        (tmp_path / "dvc.lock").write_text(LOCK.replace("abc.dir", version))
        assert dvc.output_version(tmp_path, CORPUS) == version


def test_output_version_without_lock_is_refused(tmp_path):
    with pytest.raises(FreshetError, match="run it first"):
        dvc.output_version(tmp_path, CORPUS)


@pytest.mark.parametrize("length", [0, 10, 25, 40, 80, len(LOCK) - 20])
def test_lock_cut_anywhere_is_restored(tmp_path, length):
    lock = tmp_path / "dvc.lock"
    copy = tmp_path / "copy"
    lock.write_text(LOCK)
    dvc.copy_lock(tmp_path, copy)

    lock.write_text(LOCK[:length])

    assert dvc.restore_lock(tmp_path, copy)
    assert lock.read_text() == LOCK


def test_whole_lock_is_not_restored(tmp_path):
    (tmp_path / "dvc.lock").write_text(LOCK)
    dvc.copy_lock(tmp_path, tmp_path / "copy")

    assert not dvc.restore_lock(tmp_path, tmp_path / "copy")


BROKEN = [
    LOCK[:40].encode(),
    LOCK[:23].encode(),
    b"<<<<<<< HEAD\n" + LOCK.encode(),
    b"",
    b"\xff\xfe",
]


@pytest.mark.parametrize("content", BROKEN)
def test_broken_dvc_lock_is_reported_with_remedy(tmp_path, content):
    (tmp_path / "dvc.lock").write_bytes(content)

    with pytest.raises(FreshetError, match="^dvc.lock was cut off: run `freshet run`"):
        dvc.stages_that_ran(tmp_path)


@pytest.mark.parametrize("content", BROKEN)
def test_broken_dvc_lock_without_copy_is_deleted(tmp_path, content):
    (tmp_path / "dvc.lock").write_bytes(content)

    assert dvc.restore_lock(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "dvc.lock").exists()


SOURCE = b'{"source": "files"}'
LOCK_TEXT = f"""\
schema: '2.0'
stages:
  corpus:
    deps: [{{path: corpus.lock.json, md5: {hashlib.md5(SOURCE).hexdigest()}}}]
    params: {{params.yaml: {{corpus: {{path: notes}}}}}}
    outs: [{{path: artifacts/corpus, md5: a}}]
  hierarchy:
    deps: [{{path: artifacts/corpus, md5: a}}]
    params:
      params.yaml: {{hierarchy: {{branching: 8}}, retrievers.hce: {{}}}}
      code.lock.json: {{hierarchy: a1}}
    outs: [{{path: artifacts/hierarchy, md5: b}}]
  other:
    deps: [{{path: data, md5: c}}]
    outs: [{{path: artifacts/other, md5: d}}]
"""
CURRENT = {"corpus": {"path": "notes"}, "hierarchy": {"branching": 8}, "retrievers": {"hce": {}}}


@pytest.fixture
def locked(tmp_path):
    """A project with a lock whose stages have the settings CURRENT."""
    (tmp_path / "dvc.lock").write_text(LOCK_TEXT)
    (tmp_path / "corpus.lock.json").write_bytes(SOURCE)
    (tmp_path / "code.lock.json").write_text('{"hierarchy": "a1"}')
    return tmp_path


def test_equal_settings_change_no_stage(locked):
    assert dvc.changed_stages(locked, CURRENT) == set()


def test_changed_setting_changes_stages_behind_it(locked):
    other_path = {**CURRENT, "corpus": {"path": "others"}}
    other_tree = {**CURRENT, "hierarchy": {"branching": 9}}

    assert dvc.changed_stages(locked, other_path) == {"corpus", "hierarchy"}
    assert dvc.changed_stages(locked, other_tree) == {"hierarchy"}


def test_changed_source_changes_stages_behind_it(locked):
    (locked / "corpus.lock.json").write_bytes(b"{}")

    assert dvc.changed_stages(locked, CURRENT) == {"corpus", "hierarchy"}


def test_changed_code_changes_its_stage(locked):
    (locked / "code.lock.json").write_text('{"hierarchy": "a2"}')

    assert dvc.changed_stages(locked, CURRENT) == {"hierarchy"}


def test_changed_retriever_changes_only_stages_that_read_its_outputs(tmp_path):
    (tmp_path / "dvc.lock").write_text("""\
schema: '2.0'
stages:
  train@hce:
    params: {params.yaml: {retrievers.hce: {kind: dense}}}
    outs: [{path: artifacts/train/hce, md5: a}]
  evaluate@hce:
    deps: [{path: artifacts/train/hce, md5: a}]
    outs: [{path: artifacts/evaluate/hce, md5: b}]
  train@hce2:
    params: {params.yaml: {retrievers.hce2: {kind: dense}}}
    outs: [{path: artifacts/train/hce2, md5: c}]
  evaluate@hce2:
    deps: [{path: artifacts/train/hce2, md5: c}]
    outs: [{path: artifacts/evaluate/hce2, md5: d}]
  comparison:
    deps: [{path: artifacts/evaluate, md5: e}]
    outs: [{path: artifacts/comparison, md5: f}]
""")
    settings = {"retrievers": {"hce": {"kind": "lexical"}, "hce2": {"kind": "dense"}}}

    # The name of the other retriever begins with that of the changed one. The comparison reads the
    # folder with all evaluations.
    changed = dvc.changed_stages(tmp_path, settings)
    assert changed == {"train@hce", "evaluate@hce", "comparison"}
