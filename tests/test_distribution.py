"""Guards the distribution's name: nothing tells a user to install a package that is not ours.

PyPI has an unrelated package called `freshet`, and the name `freshet-search` is not registered.
Freshet is therefore installed from a clone or from a built wheel.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TEXT_SUFFIXES = {"", ".html", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"}
# What follows `pip install`, up to the end of the command.
PIP_INSTALL = re.compile(r"pip3? install ([^`\n|&;#)]*)")
EXTRA_OF_PACKAGE = re.compile(r"(?<![\w.-])freshet(?:-search)?\[", re.IGNORECASE)
OURS = ("freshet", "freshet-search")


def tracked_texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    paths = [ROOT / name for name in listed.stdout.splitlines()]
    this_file = Path(__file__)
    return [
        path
        for path in paths
        if path.suffix in TEXT_SUFFIXES and path.is_file() and path != this_file
    ]


def packages_installed_by(command: str) -> list[str]:
    """Return the names that a `pip install` command takes from a package index."""
    names = []
    for word in command.replace("'", " ").replace('"', " ").split():
        is_path = word.startswith((".", "/", "-")) or word.endswith(".whl")
        if is_path:
            continue
        try:
            names.append(canonicalize_name(Requirement(word.rstrip(".,:")).name))
        except InvalidRequirement:
            continue
    return names


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("freshet", ["freshet"]),
        ("'freshet-search[full]'", ["freshet-search"]),
        ("-e '.[full]'", []),
        ("dist/freshet_search-0.1.0-py3-none-any.whl", []),
        ("boto3 Freshet==1.0", ["boto3", "freshet"]),
    ],
)
def test_package_names_of_a_command_are_recognised(command, names):
    assert packages_installed_by(command) == names


def test_no_text_installs_a_package_of_our_name():
    offenders = []
    for path in tracked_texts():
        for command in PIP_INSTALL.findall(path.read_text(encoding="utf-8")):
            if set(packages_installed_by(command)) & set(OURS):
                offenders.append(f"{path.relative_to(ROOT)}: pip install {command}")

    assert offenders == []


def test_extras_are_named_from_the_clone():
    offenders = []
    for path in tracked_texts():
        refers_to_itself = path.name == "pyproject.toml"
        if not refers_to_itself and EXTRA_OF_PACKAGE.search(path.read_text(encoding="utf-8")):
            offenders.append(str(path.relative_to(ROOT)))

    assert offenders == []


def test_extras_refer_to_the_distribution_itself():
    requirements = []
    for extra in PROJECT["optional-dependencies"].values():
        requirements += [Requirement(text) for text in extra]

    own_names = {r.name for r in requirements if canonicalize_name(r.name) in OURS}

    assert own_names == {PROJECT["name"]}


def test_lock_file_names_no_package_of_ours():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()

    names = {canonicalize_name(line.partition("==")[0]) for line in lines}

    assert not names & set(OURS)


def test_base_installation_has_no_heavy_dependency():
    names = {canonicalize_name(Requirement(text).name) for text in PROJECT["dependencies"]}

    assert not names & {"torch", "dagster", "mlflow", "dvc", "transformers", "numpy", "pandas"}


def run_without_packages(code: str) -> subprocess.CompletedProcess[str]:
    """Run code with the project's own files and the standard library alone."""
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], capture_output=True, text=True
    )


def test_client_imports_with_the_standard_library_alone():
    allowed = [name.partition(">")[0] for name in PROJECT["dependencies"]]
    if allowed:
        pytest.skip(f"the client needs {', '.join(allowed)}")

    done = run_without_packages("from freshet import Client; Client('http://127.0.0.1:1')")

    assert done.returncode == 0, done.stderr


def test_client_imports_without_the_engine():
    code = "import freshet; freshet.Client; print(any(n.startswith('model_code') for n in sys.modules))"

    done = run_without_packages(code)

    assert done.stdout == "False\n", done.stderr


def test_command_explains_what_to_install():
    done = run_without_packages("from freshet.command import main; main()")

    assert "pip install -e '.[full]'" in done.stderr
    assert done.returncode == 2
