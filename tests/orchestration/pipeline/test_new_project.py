"""Guards what `freshet init` writes: settings that parse, a source as it is seen from where the
command is typed.
"""

from __future__ import annotations

import pytest

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc, stages
from orchestration.pipeline.new_project import make_project
from orchestration.pipeline.repro import PlannedBuild, plan


@pytest.fixture
def notes(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes/a.md").write_text("# A\n\nmoss")
    return tmp_path


def test_a_source_outside_is_named_in_full_and_one_inside_moves_along(notes, monkeypatch):
    assert make_project("search", "notes", cwd=notes) == "source: a folder, 1 documents"
    assert parameters.load(notes / "search/params.yaml").corpus.path == str(notes / "notes")
    make_project(".", "notes", cwd=notes)
    assert parameters.load(notes / "params.yaml").corpus.path == "notes"
    assert Project.find(notes / "search").root == notes / "search"
    monkeypatch.setenv("FRESHET_PROJECT", str(notes / "search"))
    assert Project.find().root == notes / "search"


def require_every_group(params):
    """DVC refuses a group that params.yaml lacks."""
    written, settings = parameters.read_mapping(params), parameters.load(params)
    for stage in stages.expand(settings.retrievers, settings.fusions):
        for group in stage.groups:
            value = written
            for key in group.split("."):
                assert key in value, group
                value = value[key]


def test_every_group_that_a_stage_reads_is_in_the_settings(notes):
    make_project("search", cwd=notes)
    require_every_group(notes / "search/params.yaml")
    assert (notes / "search/documents").is_dir()


def test_what_short_settings_leave_out_is_written_into_them_and_said_once_by_the_first_build(
    notes, capsys, monkeypatch
):
    short = "corpus:\n  path: notes  # mine\npseudo_queries:\nretrievers: {hce: {}}\n"
    params = notes / "params.yaml"
    params.write_text(short)
    make_project(".", cwd=notes)
    assert params.read_text() == short
    before = parameters.load(params)
    assert "corpus" in {stage.address for stage in plan(Project(notes))}
    assert (params.read_text(), capsys.readouterr().err) == (short, ""), "a plan only tells"
    with monkeypatch.context() as patch:
        patch.setattr(dvc, "stages_that_ran", lambda root: {"corpus"})
        corpus, *_ = plan(Project(notes))
    assert (corpus.action, "params.yaml lacks acceptance={}" in corpus.reasons[0]) == (
        "maybe",
        True,
    )
    PlannedBuild(Project(notes))
    assert "seed=0, training={}" in capsys.readouterr().err
    require_every_group(params)
    assert parameters.load(params) == before
    assert "path: notes  # mine" in (text := params.read_text())
    PlannedBuild(Project(notes))
    assert (params.read_text(), capsys.readouterr().err) == (text, "")


def test_settings_that_lie_there_alone_stay_and_name_the_source(notes):
    (notes / "params.yaml").write_text("{corpus: {path: notes}, retrievers: {hce: {}}}  # mine")
    with pytest.raises(FreshetError, match="params.yaml names a source already: leave out --from"):
        make_project(".", "notes", cwd=notes)
    assert make_project(".", cwd=notes) == "source: a folder, 1 documents"
    assert (notes / "params.yaml").read_text().endswith("# mine")
    assert Project.find(notes).root == notes
    with pytest.raises(FreshetError, match="dvc.yaml is there already: this folder is a project"):
        make_project(".", cwd=notes)


def test_an_absent_source_makes_and_leaves_nothing(notes):
    with pytest.raises(FreshetError, match="does not exist"):
        make_project("search", "nowhere", cwd=notes)
    assert not (notes / "search").exists()
    (notes / "params.yaml").write_text(
        "{corpus: {source: folder, path: nowhere}, retrievers: {hce: {}}}"
    )
    before = sorted(notes.rglob("*"))
    with pytest.raises(FreshetError, match="nowhere"):
        make_project(".", cwd=notes)
    assert sorted(notes.rglob("*")) == before
