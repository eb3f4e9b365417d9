"""The default corpus: docstrings of the standard library and of installed packages.

A document is the docstring of a module, class, function or attribute. Its title is the public name,
and its text is the whole docstring, with the summary line first.

The packages in `definitions.MODULES` are imported in another process, so that docstrings of C
functions and generated docstrings are included. The sources of other packages are parsed with
`ast`, and never imported or run.

Summary lines are the queries of at most `MAX_QUERIES` documents. `strip_query_lines` removes them
from the documents for training and evaluation. The id of a query is the last part of the name, and
each id occurs once. Definitions with the same last part, such as `numpy.sort` and
`numpy.ndarray.sort`, have nearly the same docstring. Only one of them has a query, so they are
never in different splits.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from model_code.corpus.near_duplicates import near_duplicates
from model_code.corpus.rows import Row, Table
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources import definitions
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text
from model_code.progress import Progress, no_progress, report_each
from model_code.text.phrases import documents_containing, normalize_phrase

# Least number of words of a docstring that is a document, and of a summary that is a query.
MIN_WORDS = 4

# A summary becomes a query if it has at most so many words, and at least so many words follow it.
MAX_SUMMARY_WORDS = 40
MIN_BODY_WORDS = 20

# Largest number of queries of the corpus.
MAX_QUERIES = 3000

# Importing the packages takes about three seconds. The limit leaves room for slow machines.
IMPORT_TIMEOUT_SECONDS = 300

STANDARD_LIBRARY = "stdlib"

_KINDS = {
    ast.Module: "module",
    ast.ClassDef: "class",
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "function",
}
_PARAGRAPHS = re.compile(r"\n[^\S\n]*\n\s*")
_SIGNATURE = re.compile(r"[\w.]+\(.*\)(\s*->.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Docstring:
    """The docstring of a definition.

    Attributes:
        name: Public name of the definition.
        kind: "module", "class", "function" or "attribute".
        text: The whole docstring.
        aliases: Other public names.
    """

    name: str
    kind: str
    text: str
    aliases: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first paragraph on one line."""
        return " ".join(_PARAGRAPHS.split(self.text, 1)[0].split())

    @property
    def body(self) -> str:
        """All text after the first paragraph."""
        return "".join(_PARAGRAPHS.split(self.text, 1)[1:])


@dataclass(frozen=True, slots=True)
class PackageDocstring:
    """A docstring and the package that it is from."""

    package: str
    docstring: Docstring


def read_docstrings(source: bytes, module: tuple[str, ...]) -> list[Docstring]:
    """Return the docstrings of a module, and of its public classes, methods and functions.

    A private module such as `numpy._core.fromnumeric` holds definitions of its nearest public
    package. They are named after that package (`numpy.sort`), and the docstring of the module is
    left out.

    Args:
        source: Source code of the module. Code that cannot be parsed has no docstrings.
        module: Dotted name of the module as a tuple.

    >>> source = b'def sort(x): "Return a sorted copy."\\ndef _help(): "Private."'
    >>> read_docstrings(source, ("numpy", "_core", "fromnumeric"))
    [Docstring(name='numpy.sort', kind='function', text='Return a sorted copy.', aliases=())]
    """
    prefix = public_name(module)
    tree = _parse(source)
    if not prefix or tree is None:
        return []

    nodes = list(_definitions(tree, prefix))
    is_public_module = prefix == ".".join(module)
    if is_public_module:
        nodes.insert(0, (prefix, tree))

    docstrings: list[Docstring] = []
    for name, node in nodes:
        text = ast.get_docstring(node)
        if text:
            docstrings.append(Docstring(name, _KINDS[type(node)], summary_first(text.strip())))
    return docstrings


def public_name(module: tuple[str, ...]) -> str:
    """Return the dotted name up to the first private part; empty if the first part is private.

    >>> public_name(("sklearn", "linear_model", "_logistic"))
    'sklearn.linear_model'
    """
    public_parts = itertools.takewhile(lambda part: not part.startswith("_"), module)
    return ".".join(public_parts)


def _parse(source: bytes) -> ast.Module | None:
    """Return the syntax tree of source code; None if it cannot be parsed."""
    with warnings.catch_warnings():
        # Parsing warns of invalid escapes in the strings of the packages.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError):
            return None


def _definitions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield the public definitions below a node with their names."""
    for child in node.body:
        if not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        if child.name.startswith("_"):
            continue
        name = f"{prefix}.{child.name}"
        yield name, child
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, name)


def summary_first(text: str) -> str:
    """Move the summary before the signature. Docstrings of many C functions begin with it.

    >>> summary_first("permutation(x)\\n\\nPermute a sequence.\\n\\nx: array")
    'Permute a sequence.\\n\\npermutation(x)\\n\\nx: array'
    """
    paragraphs = _PARAGRAPHS.split(text, 2)
    if len(paragraphs) == 1 or not _SIGNATURE.fullmatch(paragraphs[0]):
        return text
    signature, summary, *rest = paragraphs
    return "\n\n".join([summary, signature, *rest])


# Modules and folders that hold no definitions for users.
_SKIPPED = {
    "tests",
    "test",
    "conftest",
    "site-packages",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
}


class InstalledPackagesSource:
    """The docstrings of the packages that `corpus.packages` names."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Set the packages. They are read when rows are first asked for.

        Args:
            settings: Settings of the corpus, of which `packages` is read.
            root: Not used, because packages are found where Python finds them.
            locked: Not used, because one version of a package is installed.
        """
        self.packages = settings.packages
        self._docstrings: list[PackageDocstring] | None = None

    def describe(self) -> dict[str, Any]:
        """Return the version of each package, and a hash of everything that is read.

        The hash covers the docstrings of imported packages, and the files of the other ones.
        """
        digest = hashlib.sha256(hash_text(canonical_json(self._imported_definitions)).encode())
        for package in self._parsed_packages():
            for module, path in list_modules(package):
                digest.update(f"{package}\0{'.'.join(module)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        versions = {package: _package_version(package) for package in self.packages}
        return {"versions": versions, "watermark": None, "content_hash": digest.hexdigest()}

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row]:
        """Yield the documents, the summaries that are queries, or the judgements that join them."""
        if self._docstrings is None:
            # Parsing takes seconds, and all three tables need the result.
            self._docstrings = self._read_all(progress)

        if table == "documents":
            for item in self._docstrings:
                yield _document_row(item)
            return

        for query_id, docstring in self._queries.items():
            if table == "queries":
                values = {"id": query_id, "text": docstring.summary}
            else:
                values = {"query_id": query_id, "document_id": docstring.name}
            yield Row(table, query_id, values)

    @cached_property
    def _queries(self) -> dict[str, Docstring]:
        """The docstrings whose summaries are queries, by query id. They are chosen only once."""
        assert self._docstrings is not None
        return choose_queries(item.docstring for item in self._docstrings)

    def _parsed_packages(self) -> list[str]:
        """Return the packages whose source code is parsed, because they are not imported."""
        return [package for package in self.packages if package not in definitions.MODULES]

    @cached_property
    def _imported_definitions(self) -> list[dict[str, Any]]:
        """The definitions of the packages that are imported, in another process."""
        packages = [package for package in self.packages if package in definitions.MODULES]
        return read_definitions(packages) if packages else []

    def _read_all(self, progress: Progress) -> list[PackageDocstring]:
        """Return all docstrings of at least `MIN_WORDS` words, the first one of each name.

        Later definitions of a name are overloads or setters, so their docstrings are left out.
        """
        by_name: dict[str, PackageDocstring] = {}
        for row in self._imported_definitions:
            text = summary_first(row["text"])
            docstring = Docstring(row["name"], row["kind"], text, tuple(row["aliases"]))
            by_name.setdefault(docstring.name, PackageDocstring(row["package"], docstring))

        # The package, the dotted name as a tuple, and the path of each module to parse.
        modules: list[tuple[str, tuple[str, ...], Path]] = []
        for package in self._parsed_packages():
            for module, path in list_modules(package):
                modules.append((package, module, path))
        for package, module, path in report_each(modules, len(modules), progress, "modules"):
            for docstring in read_docstrings(path.read_bytes(), module):
                by_name.setdefault(docstring.name, PackageDocstring(package, docstring))

        return [item for item in by_name.values() if _count_words(item.docstring.text) >= MIN_WORDS]


def _document_row(item: PackageDocstring) -> Row:
    """Return the row of a docstring's document. Further names are added at the end of its text."""
    docstring = item.docstring
    text = docstring.text
    if docstring.aliases:
        text += f"\n\nAlso called {', '.join(docstring.aliases)}."
    values = {
        "id": docstring.name,
        "title": docstring.name,
        "text": text,
        "fields": {"package": item.package, "kind": docstring.kind},
    }
    return Row("documents", docstring.name, values)


def _count_words(text: str) -> int:
    return len(text.split())


def read_definitions(packages: list[str]) -> list[dict[str, Any]]:
    """Run `definitions` in another process, and return the docstrings that it prints.

    Raises:
        FreshetError: If the process fails or takes too long.
    """
    command = [sys.executable, "-P", "-B", definitions.__file__, *packages]
    environment = dict(os.environ)
    # The order of sets depends on the hash seed. A fixed seed makes the output reproducible.
    environment["PYTHONHASHSEED"] = "0"
    environment["PYTHONWARNINGS"] = "ignore"
    names = ", ".join(packages)
    try:
        done = subprocess.run(
            command,
            env=environment,
            capture_output=True,
            timeout=IMPORT_TIMEOUT_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise FreshetError(
            f"importing {names} took more than {IMPORT_TIMEOUT_SECONDS} seconds"
        ) from error
    except subprocess.CalledProcessError as error:
        last_line = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise FreshetError(f"the docstrings of {names} cannot be read: {last_line}") from error
    return json.loads(done.stdout)


def choose_queries(docstrings: Iterable[Docstring]) -> dict[str, Docstring]:
    """Choose the documents whose summaries become queries.

    A summary can be a query if enough text follows it, and no other docstring contains it word for
    word. If the names of several definitions end with the same part, only the one with the shortest
    name has a query. Of docstrings that are near-duplicates apart from their summaries, only one
    has a query, too. A test query therefore never asks for a near-duplicate of a document of a
    training query.

    If there are more than `MAX_QUERIES` queries, those whose ids have the smallest hashes stay. A
    changed corpus then changes few queries.

    Returns:
        Docstring by query id, in ascending order of ids.
    """
    by_length_of_name = sorted(docstrings, key=lambda item: (item.name.count("."), item.name))
    candidates: dict[str, Docstring] = {}
    for docstring in _uniquely_summarized(by_length_of_name):
        query_id = docstring.name.rpartition(".")[2].casefold()
        candidates.setdefault(query_id, docstring)

    queries = _without_near_duplicates(candidates)
    chosen_ids = sorted(queries, key=hash_text)[:MAX_QUERIES]
    return {query_id: queries[query_id] for query_id in sorted(chosen_ids)}


def _uniquely_summarized(docstrings: Sequence[Docstring]) -> list[Docstring]:
    """Return the docstrings whose summary can be a query and is in no other docstring."""
    summaries = {item.name: normalize_phrase(item.summary) for item in docstrings}
    texts = {item.name: normalize_phrase(item.text) for item in docstrings}
    # Names of the docstrings that contain each summary word for word, by summary.
    containing = documents_containing(summaries.values(), texts)

    unique: list[Docstring] = []
    for docstring in docstrings:
        summary_words = _count_words(docstring.summary)
        body_words = _count_words(docstring.text) - summary_words
        has_query_length = MIN_WORDS <= summary_words <= MAX_SUMMARY_WORDS
        if not has_query_length or body_words < MIN_BODY_WORDS:
            continue
        summary = summaries[docstring.name]
        if containing[summary] == {docstring.name}:
            unique.append(docstring)
    return unique


def _without_near_duplicates(candidates: Mapping[str, Docstring]) -> dict[str, Docstring]:
    """Keep the first of the docstrings whose bodies are near-duplicates of each other."""
    bodies = {query_id: docstring.body for query_id, docstring in candidates.items()}
    duplicates = near_duplicates(bodies, list(bodies))
    kept: dict[str, Docstring] = {}
    for query_id, docstring in candidates.items():
        if duplicates.get(query_id, set()).isdisjoint(kept):
            kept[query_id] = docstring
    return kept


def list_modules(package: str) -> list[tuple[tuple[str, ...], Path]]:
    """List the modules of a package that have a public name.

    Returns:
        The dotted name of each module as a tuple, and its file. Public modules come first.
    """
    candidates: list[tuple[tuple[str, ...], Path]] = []
    if package == STANDARD_LIBRARY:
        root = Path(sysconfig.get_paths()["stdlib"])
        for module, path in _modules_below(root, ()):
            # The folder may hold other files as well, such as those of installed packages.
            if module and module[0] in sys.stdlib_module_names:
                candidates.append((module, path))
    else:
        for place in _package_places(package):
            candidates.extend(_modules_below(place, (package,)))

    def rank(candidate: tuple[tuple[str, ...], Path]) -> tuple[bool, tuple[str, ...]]:
        module = candidate[0]
        is_private = public_name(module) != ".".join(module)
        return is_private, module

    ranked = sorted(candidates, key=rank)
    return [(module, path) for module, path in ranked if public_name(module)]


def _package_places(package: str) -> list[Path]:
    """Return the folders of an installed package, or its single file, without importing it.

    Raises:
        FreshetError: If there is no such package.
    """
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None:
        raise FreshetError(
            f"corpus.packages names {package!r}, which is not an importable top-level package "
            f"here. Install it, or take it off the list ('{STANDARD_LIBRARY}' is the standard "
            "library)."
        )
    if spec.submodule_search_locations:
        return sorted(map(Path, spec.submodule_search_locations))
    if spec.origin and spec.origin.endswith(".py"):
        return [Path(spec.origin)]
    return []


def _modules_below(place: Path, prefix: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Path]]:
    """Yield the dotted name of each module in a folder, as a tuple, and its file.

    Args:
        place: A folder, or the single file of a package.
        prefix: Dotted name of the package in the folder; empty for the standard library.
    """
    if place.is_file():
        yield prefix, place
        return
    for folder, subfolders, names in os.walk(place):
        # `os.walk` continues with the folders that are left in this list.
        subfolders[:] = sorted(set(subfolders) - _SKIPPED)
        parents = Path(folder).relative_to(place).parts
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix != ".py" or stem in _SKIPPED:
                continue
            module = (*prefix, *parents)
            if stem != "__init__":
                module = (*module, stem)
            yield module, Path(folder, name)


def _package_version(package: str) -> str:
    """Return the installed version of a package; "unknown" if no distribution provides it.

    The name of a package may differ from that of its distribution, as `yaml` and `PyYAML` do.
    """
    if package == STANDARD_LIBRARY:
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        distributions = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(distributions[0]) if distributions else "unknown"
