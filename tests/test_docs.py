"""Guards that README and pages stay true: links lead somewhere, commands exist, the site is
offline; and the lock.

Run: python -m pytest tests/test_docs.py
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.core import TyperGroup
from typer.main import get_command

from model_code.project import parse_yaml_mapping
from orchestration.cli.app import app
from orchestration.parameters import get_by_path, settings_reference
from orchestration.pipeline.new_project import PARAMS_TEMPLATE
from orchestration.pipeline.stages import TABLE
from orchestration.service.routes import router

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "experiments").rglob("*.md")]
)
# what pages show or link to
SHOWN = [f"experiments/*.{suffix}" for suffix in ("png", "json", "toml", "yaml")]
SHOWN.append("benchmarks/*.json")
# quiet would hide warnings from strict, too
BUILD = ["mkdocs", "build", "--strict", "--config-file"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_are_understood(page):
    """Each `freshet ...` in the page parses to its end: command, arguments and options; nothing is
    run.
    """
    for line in shown_commands(page.read_text()):
        words = ["20" if word == "N" else word for word in shlex.split(line, comments=True)]
        command = get_command(app)
        name = "freshet"
        while words and isinstance(command, TyperGroup) and not words[0].startswith("-"):
            name = words.pop(0)
            assert name in command.commands, (
                f"{page.name} shows `freshet {line}`, which is no command"
            )
            command = command.commands[name]
        # A command without arguments may be the subject of a sentence.
        if words:
            command.make_context(name, words)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_of_dvc_experiments_exist_in_new_project(page):
    """`dvc exp run -S KEY=VALUE` refuses a key that `params.yaml` does not have."""
    template = parse_yaml_mapping(PARAMS_TEMPLATE.read_text())

    for key in re.findall(r"dvc exp run [^\n]*?-S '?([\w.]+)=", page.read_text()):
        assert get_by_path(template, key) is not None, (
            f"{page.name} shows `-S {key}`, which the params.yaml of freshet init lacks"
        )


def test_settings_that_commands_set_are_known():
    known = {row.key for row in settings_reference()}
    for page in PAGES:
        for key in re.findall(r"--set '?([a-z_.]+)=", page.read_text()):
            group, _, name = key.rpartition(".")
            allowed = {key}
            if group.startswith("retrievers."):
                allowed.add(f"training.{name}")
            assert allowed & known, f"{page.name} sets {key}, which is no setting"


def shown_commands(text: str) -> list[str]:
    """What follows `freshet` in code of a page: between backquotes, or on lines of their own."""
    inline = re.findall(r"`freshet ([a-z][^`\n]*)`", text)
    blocks = re.findall(r"^(?: {4}|\$ )freshet ([a-z].*)$", text, flags=re.MULTILINE)
    return [re.split(r"\s(?:\||&&|>|;)\s", line)[0] for line in (*inline, *blocks)]


def test_table_of_requests_names_every_route():
    page = (ROOT / "docs" / "freshness.md").read_text()

    for route in router.routes:
        path = route.path.replace("{document_id:path}", "ID")
        for method in route.methods:
            assert re.search(rf"`{method} {re.escape(path)}[`?]", page), f"{method} {path}"


def test_table_of_stages_names_the_settings_that_each_stage_reads():
    page = (ROOT / "docs" / "architecture.md").read_text()

    for stage in TABLE:
        # For the baselines, the page sums up the keys of `known_queries`.
        if stage.name != "baselines":
            name = {"retrievers": "R", "fusions": "F"}.get(stage.expand_by, "")
            groups = ", ".join(stage.for_retriever(name).groups)
            address = f"{stage.name}@{name}" if name else stage.name
            assert re.search(rf"^\| `{address}` \|[^|]*\| {groups} \|", page, re.MULTILINE), address


def test_the_site_builds_and_names_no_foreign_address(tmp_path):
    sources = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "*.md", "docs/images", *SHOWN],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in filter(lambda name: (ROOT / name).is_file(), sources):
        target = tmp_path / ".site" / "pages" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    (tmp_path / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text())
    subprocess.run(
        [sys.executable, "-m", *BUILD, str(tmp_path / "mkdocs.yml")],
        check=True,
        capture_output=True,
    )
    pages = sorted((tmp_path / ".site" / "html").rglob("*.html"))

    assert len(pages) > 20
    for page in pages:
        assert not re.findall(r'(?:src|href|action)="(?:https?:)?//[^"]*"', page.read_text()), (
            page.name
        )


def test_every_picture_is_shown():
    pages = [*PAGES, ROOT / "benchmarks" / "README.md"]
    shown = {target for page in pages for target in find_pictures(page)}

    assert set((ROOT / "docs" / "images").iterdir()) <= shown


def find_pictures(page):
    """Return the paths of all pictures that a page shows."""
    targets = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text())
    return [(page.parent / target).resolve() for target in targets]


def test_lock_file_pins_every_dependency():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    tested_extras = [extra for name, extra in extras.items() if name not in ("gpu", "scale")]
    requirements = []
    for group in [project["dependencies"], *tested_extras]:
        requirements += [Requirement(text) for text in group]
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    locked = {}
    for line in lines:
        name, version = line.split("==")
        locked[canonicalize_name(name)] = version

    for requirement in requirements:
        refers_to_itself = requirement.name == project["name"]
        if not refers_to_itself:
            version = locked[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version, prereleases=True), requirement
