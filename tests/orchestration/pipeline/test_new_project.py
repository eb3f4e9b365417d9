"""Tests of the files that `freshet init` writes.

The settings are valid, and a source inside the project has a relative path.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from model_code.errors import FreshetError
from model_code.project import Project
from orchestration import parameters
from orchestration.pipeline import dvc, stages
from orchestration.pipeline.new_project import make_project
from orchestration.pipeline.repro import PlannedBuild, plan

SHORT_PARAMS = "corpus:\n  path: notes  # mine\npseudo_queries:\nretrievers: {hce: {}}\n"


@pytest.fixture(scope="module")
def dvc_folder(tmp_path_factory):
    """The folder `.dvc` that `dvc init` makes."""
    root = tmp_path_factory.mktemp("dvc")
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    dvc.run_dvc(Project(root), "init", "-q")
    return root / ".dvc"


@pytest.fixture
def copied_dvc_folder(dvc_folder, monkeypatch):
    """Copy the folder `.dvc` instead of running `dvc init`, which takes half a second."""

    def copy_folder(project, *arguments):
        assert arguments[0] == "init"
        shutil.copytree(dvc_folder, project.root / ".dvc")

    monkeypatch.setattr(dvc, "run_dvc", copy_folder)


def write_notes(folder):
    """Write a folder `notes` of one document into a folder, and return that folder."""
    (folder / "notes").mkdir()
    (folder / "notes/a.md").write_text("# A\n\nmoss")
    return folder


@pytest.fixture
def notes(tmp_path, copied_dvc_folder):
    """A working directory with a folder `notes` of one document."""
    return write_notes(tmp_path)


def require_every_group(params):
    """Require every group that a stage reads, because DVC refuses a missing group."""
    mapping = parameters.read_mapping(params)
    settings = parameters.load(params)
    for stage in stages.expand(settings.retrievers, settings.fusions):
        for group in stage.groups:
            value = mapping
            for key in group.split("."):
                assert key in value, group
                value = value[key]


def test_source_outside_the_project_has_absolute_path(notes):
    description = make_project("search", "notes", cwd=notes)

    assert description == "source: a folder, 1 documents"
    assert parameters.load(notes / "search/params.yaml").corpus.path == str(notes / "notes")


def test_source_inside_the_project_has_relative_path(notes):
    make_project(".", "notes", cwd=notes)
    assert parameters.load(notes / "params.yaml").corpus.path == "notes"


def test_new_project_is_found(notes, monkeypatch):
    make_project("search", "notes", cwd=notes)
    assert Project.find(notes / "search").root == notes / "search"

    monkeypatch.setenv("FRESHET_PROJECT", str(notes / "search"))
    assert Project.find().root == notes / "search"


def test_new_params_have_every_group_of_a_stage(notes):
    make_project("search", cwd=notes)

    require_every_group(notes / "search/params.yaml")
    assert (notes / "search/documents").is_dir()


def test_init_leaves_present_params_as_they_are(notes):
    params = notes / "params.yaml"
    params.write_text(SHORT_PARAMS)

    make_project(".", cwd=notes)

    assert params.read_text() == SHORT_PARAMS


@pytest.fixture
def short_project(notes):
    """A project whose `params.yaml` is SHORT_PARAMS."""
    (notes / "params.yaml").write_text(SHORT_PARAMS)
    make_project(".", cwd=notes)
    return Project(notes)


def test_plan_leaves_short_params_as_they_are(short_project, capsys):
    addresses = {stage.address for stage in plan(short_project)}

    assert "corpus" in addresses
    assert short_project.params_file.read_text() == SHORT_PARAMS
    assert capsys.readouterr().err == ""


def test_plan_names_groups_that_params_lack(short_project, monkeypatch):
    def only_corpus_ran(root):
        return {"corpus"}

    monkeypatch.setattr(dvc, "stages_that_ran", only_corpus_ran)

    corpus, *_ = plan(short_project)

    assert corpus.action == "maybe"
    assert "params.yaml lacks acceptance={}" in corpus.reasons[0]


def test_first_build_completes_short_params_once(notes, capsys):
    params = notes / "params.yaml"
    params.write_text(SHORT_PARAMS)
    make_project(".", cwd=notes)
    settings = parameters.load(params)

    PlannedBuild(Project(notes))
    completed = params.read_text()
    assert "seed=0, training={}" in capsys.readouterr().err
    require_every_group(params)
    assert parameters.load(params) == settings
    assert "path: notes  # mine" in completed

    PlannedBuild(Project(notes))
    assert params.read_text() == completed
    assert capsys.readouterr().err == ""


def test_existing_params_name_the_source(notes):
    (notes / "params.yaml").write_text("{corpus: {path: notes}, retrievers: {hce: {}}}  # mine")
    with pytest.raises(FreshetError, match="params.yaml names a source already: leave out --from"):
        make_project(".", "notes", cwd=notes)

    assert make_project(".", cwd=notes) == "source: a folder, 1 documents"
    assert (notes / "params.yaml").read_text().endswith("# mine")
    assert Project.find(notes).root == notes


def test_existing_project_is_refused(notes):
    make_project(".", "notes", cwd=notes)
    with pytest.raises(FreshetError, match="is a project already: it has a dvc.yaml"):
        make_project(".", cwd=notes)


@pytest.mark.parametrize(
    "step", ["subprocess.run", "code_lock.write", "initialise", "dvc_file.write"]
)
def test_init_is_repeated_after_a_failure(notes, monkeypatch, step):
    with monkeypatch.context() as patch:
        patch.setattr(f"orchestration.pipeline.new_project.{step}", fail)
        with pytest.raises(OSError, match="the disk is full"):
            make_project("search", "notes", cwd=notes)

    with pytest.raises(FreshetError, match="not inside a Freshet project"):
        Project.find(notes / "search")
    assert make_project("search", "notes", cwd=notes) == "source: a folder, 1 documents"
    assert Project.find(notes / "search").root == notes / "search"


def fail(*arguments, **options):
    raise OSError("the disk is full")


def test_init_continues_after_interrupted_dvc_and_git(tmp_path):
    notes = write_notes(tmp_path)
    (notes / "search/.dvc/tmp").mkdir(parents=True)
    (notes / "search/.git").mkdir()

    make_project("search", "notes", cwd=notes)

    assert (notes / "search/.dvc/config").is_file()
    assert (notes / "search/.git/HEAD").is_file()


def test_missing_source_leaves_no_files(notes):
    with pytest.raises(FreshetError, match="does not exist"):
        make_project("search", "nowhere", cwd=notes)
    assert not (notes / "search").exists()


def test_missing_source_is_named_as_it_was_typed(notes):
    with pytest.raises(FreshetError) as raised:
        make_project(notes / "new", "ntoes", notes)

    assert str(raised.value) == (
        f"{notes / 'ntoes'} does not exist; --from names a folder, a file of rows, or a data set "
        "such as BeIR/nq"
    )


def test_missing_source_in_params_leaves_no_files(notes):
    (notes / "params.yaml").write_text(
        "{corpus: {source: folder, path: nowhere}, retrievers: {hce: {}}}"
    )
    before = sorted(notes.rglob("*"))

    with pytest.raises(FreshetError, match="nowhere"):
        make_project(".", cwd=notes)
    assert sorted(notes.rglob("*")) == before


def test_folder_that_is_no_utf8_is_refused(notes):
    folder = os.fsdecode(b"caf\xe9")
    with pytest.raises(FreshetError, match=r"caf\\xe9 holds bytes that are no UTF-8"):
        make_project(folder, "notes", cwd=notes)
    assert not (notes / folder).exists()
