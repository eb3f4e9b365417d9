"""Download pinned releases through pip, and read docstrings from wheels without importing them."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.time_machine.stream import Text
from model_code.corpus.cleaning import clean_line, clean_text
from model_code.corpus.sources.installed_packages import Docstring, public_name, read_docstrings
from model_code.errors import FreshetError

# Platform tags of the wheels that are downloaded, oldest first. Only text is read from the wheels.
PLATFORMS = (
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux_2_24_x86_64",
    "manylinux_2_28_x86_64",
)
# Parts of module names that hold no documentation for users.
SKIPPED_PARTS = {
    "_build_utils",
    "_distutils",
    "_libs",
    "conftest",
    "distutils",
    "_externals",
    "externals",
    "f2py",
    "setup",
    "test",
    "tests",
}
# Folders that are left out of the public name of a definition.
INTERNAL_FOLDERS = {"core"}
# A folder with a build backend that runs no code of the package; see its docstring.
BACKEND = Path(__file__).parent / "sdist_backend"


@dataclass(frozen=True)
class Release:
    """A pinned release.

    Attributes:
        package: Name of the package on the package index.
        version: Version of the package.
        date: ISO date on which the release was uploaded.
        python: Version of Python whose wheel is downloaded, such as "3.9".
    """

    package: str
    version: str
    date: str
    python: str

    @property
    def name(self) -> str:
        """Package and version."""
        return f"{self.package} {self.version}"


def read_releases(settings: Mapping[str, Any]) -> list[Release]:
    """Return the releases of the settings, oldest first."""
    releases: list[Release] = []
    for package, rows in settings["releases"].items():
        for version, date, python in rows:
            releases.append(Release(package, version, date, python))
    return sorted(releases, key=lambda release: (release.date, release.package))


def download_wheel(release: Release, cache: Path) -> Path:
    """Download the wheel of a release, unless the cache holds it.

    Args:
        release: The release.
        cache: Folder of downloaded files.

    Returns:
        The wheel.
    """
    options = ["--only-binary=:all:", "--implementation", "cp", "--python-version", release.python]
    for platform in PLATFORMS:
        options.extend(["--platform", platform])
    return _download(release.package, release.version, "whl", options, cache / "wheels")


def download_sdist(package: str, version: str, cache: Path) -> Path:
    """Download the source distribution of a release, unless the cache holds it.

    pip asks the package's build backend for metadata. A backend of ours answers, so that no code of
    the package runs and no compiler is needed.
    """
    options = ["--no-binary=:all:", "--no-build-isolation", "--ignore-requires-python"]
    return _download(package, version, "tar.gz", options, cache / "sdists")


def _download(
    package: str, version: str, suffix: str, options: Sequence[str], folder: Path
) -> Path:
    """Download a file of a release through pip, unless the folder holds it.

    Args:
        package: Name of the package.
        version: Version of the package.
        suffix: Ending of the file's name.
        options: Options of pip that select the file.
        folder: Folder of downloaded files.

    Raises:
        FreshetError: If pip cannot download the file.
    """

    def find_file() -> Path | None:
        pattern = f"{package.replace('-', '_')}-{version}[-.]*"
        for path in folder.glob(pattern):
            if path.name.endswith(suffix):
                return path
        return None

    cached_file = find_file()
    if cached_file is not None:
        return cached_file

    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *options]
    command.extend(["--dest", str(folder), f"{package}=={version}"])
    # The build backend of this folder answers pip in place of the package's own one.
    environment = {**os.environ, "PYTHONPATH": str(BACKEND)}
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    downloaded_file = find_file()
    if completed.returncode or downloaded_file is None:
        # The last line of pip's output has the reason.
        reason = completed.stderr.strip().rpartition("\n")[2]
        raise FreshetError(f"pip cannot download {package} {version}: {reason}")
    return downloaded_file


def read_wheel(path: Path) -> dict[str, Docstring]:
    """Return the docstrings of a wheel by stable name.

    The stable name of a definition consists of the packages around its module and the definition's
    own name. It leaves out the module itself and internal folders. The name therefore stays the
    same if a release moves the definition to another file of the same package. For example,
    `numpy/core/fromnumeric.py` and `numpy/_core/fromnumeric.py` both define `numpy.sort`.

    If several definitions have the same name, the first one is taken. Public modules come first.
    """
    docstrings: dict[str, Docstring] = {}
    with zipfile.ZipFile(path) as wheel:
        for member, module in _modules(wheel.namelist()):
            for docstring in read_docstrings(wheel.read(member), module):
                name = stable_name(module, docstring.name)
                docstrings.setdefault(name, docstring)
    return docstrings


def _modules(members: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the members of a wheel that are modules with a public name, public modules first."""
    ranked: list[tuple[bool, tuple[str, ...], str]] = []
    for member in members:
        if not member.endswith(".py"):
            continue
        module = tuple(member.removesuffix(".py").split("/"))
        if module[-1] == "__init__":
            module = module[:-1]
        if not public_name(module) or SKIPPED_PARTS.intersection(module):
            continue
        is_private = public_name(module) != ".".join(module)
        ranked.append((is_private, module, member))
    for _, module, member in sorted(ranked):
        yield member, module


def stable_name(module: tuple[str, ...], name: str) -> str:
    """Return the name of a definition, independent of the file that contains the definition.

    Args:
        module: The module that was read.
        name: Name of the definition as `read_docstrings` gives it.

    >>> stable_name(("scipy", "optimize", "minpack"), "scipy.optimize.minpack.fsolve")
    'scipy.optimize.fsolve'
    >>> stable_name(("pandas", "core", "frame"), "pandas.core.frame.DataFrame.pivot")
    'pandas.DataFrame.pivot'
    >>> stable_name(("numpy", "_core", "numeric"), "numpy.ones_like")
    'numpy.ones_like'
    """
    prefix = public_name(module)
    parts = prefix.split(".")
    definition = name.removeprefix(prefix).strip(".")
    # A public name leaves out private parts. If nothing is left out, its last part is the module,
    # which the stable name leaves out.
    ends_with_file = len(parts) == len(module) and len(parts) > 1
    folders = parts[:-1] if ends_with_file else parts
    kept = [part for part in folders if part not in INTERNAL_FOLDERS]
    if definition:
        kept.append(definition)
    return ".".join(kept)


def read_texts(
    docstrings: Mapping[str, Docstring], min_body_words: int
) -> tuple[dict[str, Text], dict[str, str]]:
    """Return the documents of a release without their summary lines, and the summary lines.

    Args:
        docstrings: Docstrings by stable name.
        min_body_words: Docstrings with fewer words after their summary line are left out.
    """
    texts: dict[str, Text] = {}
    summaries: dict[str, str] = {}
    for name, docstring in docstrings.items():
        # Freshet cleans texts in the same way. Otherwise they could not be compared with the texts
        # of live documents.
        body = clean_text(docstring.body)
        if len(body.split()) < min_body_words:
            continue
        texts[name] = Text(name, body)
        summaries[name] = clean_line(docstring.summary)
    return texts, summaries


def read_notes(path: Path, folder: str) -> dict[str, str]:
    """Return the files of release notes in a source distribution, by their names.

    Args:
        path: The source distribution.
        folder: Folder of the notes inside it, such as "doc/source/release".
    """
    notes: dict[str, str] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            _, _, inside = member.name.partition("/")
            parent, _, name = inside.rpartition("/")
            if parent != folder or not name.endswith(".rst"):
                continue
            stream = archive.extractfile(member)
            if stream is not None:
                notes[name] = stream.read().decode("utf-8")
    return notes
