"""The default corpus: docstrings of the standard library and of installed packages, which every machine has at hand.

A document is a public definition: its title the qualified name, its text the docstring's body. The summary line is held
out as the query that the document answers. Kept are those with a unique summary of at least 4 words and a body of at
least 30. Sources are parsed with `ast`, never imported or run.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model_code.corpus.rows import Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.progress import Progress, silent, tracked

_KINDS = {ast.Module: "module", ast.ClassDef: "class", ast.FunctionDef: "function", ast.AsyncFunctionDef: "function"}


@dataclass(frozen=True, slots=True)
class Docstring:
    """A definition's docstring: its qualified `name`, `kind` (module, class or function), summary and body."""

    name: str
    kind: str
    summary: str
    body: str


def read_docstrings(source: bytes, module: tuple[str, ...]) -> list[Docstring]:
    """The docstrings of a module's public classes, methods and functions, and its own; [] for what does not parse.

    A private module (`numpy._core.fromnumeric`) holds what its nearest public package offers, so its definitions are
    named after that package (`numpy.sort`), and its own docstring is left out.

    >>> source = b'def sort(x):\\n    "Return a sorted copy.\\\\n\\\\n    Stable."\\ndef _help(): "Private."'
    >>> read_docstrings(source, ("numpy", "_core", "fromnumeric"))
    [Docstring(name='numpy.sort', kind='function', summary='Return a sorted copy.', body='Stable.')]
    """
    public = public_name(module)
    tree = _parsed(source)
    if not public or tree is None:
        return []
    first = [(public, tree)] if public == ".".join(module) else []
    return [docstring for name, node in [*first, *_definitions(tree, public)] if (docstring := _docstring(name, node))]


def public_name(module: tuple[str, ...]) -> str:
    """The dotted name up to the first private part; empty if that is the first.

    >>> public_name(("sklearn", "linear_model", "_logistic"))
    'sklearn.linear_model'
    """
    private = [i for i, part in enumerate(module) if part.startswith("_")]
    return ".".join(module[: private[0]] if private else module)


def _parsed(source: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None


def _definitions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    for child in node.body:
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not child.name.startswith("_"):
            name = f"{prefix}.{child.name}"
            yield name, child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, name)


def _docstring(name: str, node: ast.AST) -> Docstring | None:
    text = ast.get_docstring(node)  # type: ignore[arg-type]
    if not text or not text.strip():
        return None
    summary, _, body = text.strip().partition("\n\n")
    return Docstring(name, _KINDS[type(node)], " ".join(summary.split()), body.strip())


MIN_SUMMARY_WORDS, MIN_BODY_WORDS = 4, 30
_SKIPPED = {"tests", "test", "conftest", "site-packages", "idlelib", "lib2to3", "turtledemo", "ensurepip"}


class InstalledPackagesSource:
    """Reads the packages that `corpus.packages` names; "stdlib" is the standard library."""

    def __init__(self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None) -> None:
        self.packages = settings.packages
        self._found: list[tuple[str, Docstring]] | None = None

    def describe(self) -> dict[str, Any]:
        """Each package's version, and one hash of the modules that are read, names included."""
        digest = hashlib.sha256()
        for package in self.packages:
            for module, path in modules(package):
                digest.update(f"{package}\0{'.'.join(module)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        versions = {package: _version(package) for package in self.packages}
        return {"versions": versions, "watermark": None, "content_hash": digest.hexdigest()}

    def rows(self, table: Table, progress: Progress = silent) -> Iterator[Row]:
        """Yield the documents, their summaries as queries, or the qrels that join them; both go by the same id."""
        if self._found is None:  # parsing takes seconds, and three tables come out of it
            self._found = self._kept(progress)
        for package, item in self._found:
            yield Row(table, item.name, _values(table, package, item))

    def _kept(self, progress: Progress) -> list[tuple[str, Docstring]]:
        docstrings = self._all(progress)
        times = Counter(item.summary.casefold() for _, item in docstrings)
        return [
            (package, item)
            for package, item in docstrings
            if times[item.summary.casefold()] == 1
            and len(item.summary.split()) >= MIN_SUMMARY_WORDS
            and len(item.body.split()) >= MIN_BODY_WORDS
        ]

    def _all(self, progress: Progress) -> list[tuple[str, Docstring]]:
        """All public docstrings, the first one of each name: a name defined twice is an overload or a setter."""
        files = [(package, *module) for package in self.packages for module in modules(package)]
        first: dict[str, tuple[str, Docstring]] = {}
        for package, module, path in tracked(files, len(files), progress, "modules"):
            for item in read_docstrings(path.read_bytes(), module):
                first.setdefault(item.name, (package, item))
        return list(first.values())


def _values(table: Table, package: str, item: Docstring) -> dict[str, Any]:
    if table == "documents":
        fields = {"package": package, "kind": item.kind}
        return {"id": item.name, "title": item.name, "text": item.body, "fields": fields}
    if table == "queries":
        return {"id": item.name, "text": item.summary}
    return {"query_id": item.name, "document_id": item.name}


def modules(package: str) -> list[tuple[tuple[str, ...], Path]]:
    """The dotted name (as a tuple) and file of each module that has a public name; sorted, public modules first."""
    if package == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        candidates = [item for item in _below(root, ()) if item[0][:1] and item[0][0] in sys.stdlib_module_names]
    else:
        candidates = [item for place in _places(package) for item in _below(place, (package,))]
    return sorted(
        (item for item in candidates if public_name(item[0])), key=lambda item: (_is_private(item[0]), item[0])
    )


def _is_private(module: tuple[str, ...]) -> bool:
    return public_name(module) != ".".join(module)


def _places(package: str) -> list[Path]:
    """The folders (or the single file) of an installed package, found without importing it."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None:
        raise FreshetError(
            f"corpus.packages names {package!r}, which is not an importable top-level package here. "
            f"Install it, or take it off the list ('stdlib' is the standard library)."
        )
    if spec.submodule_search_locations:
        return sorted(map(Path, spec.submodule_search_locations))
    return [Path(spec.origin)] if spec.origin and spec.origin.endswith(".py") else []


def _below(place: Path, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    if place.is_file():
        yield prefix, place
        return
    for folder, subfolders, names in os.walk(place):
        subfolders[:] = sorted(set(subfolders) - _SKIPPED)
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix == ".py" and stem not in _SKIPPED:
                parts = (*Path(folder).relative_to(place).parts, *([] if stem == "__init__" else [stem]))
                yield prefix + parts, Path(folder, name)


def _version(package: str) -> str:
    if package == "stdlib":
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(names[0]) if names else "unknown"
