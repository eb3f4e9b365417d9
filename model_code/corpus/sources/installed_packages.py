"""The default corpus: docstrings of the standard library and of installed packages, which every
machine has at hand.

A document is what has a docstring of its own: its title the public name, its text the whole
docstring, the summary line first. Of the packages that this program itself imports, a process of
its own tells what their public modules offer, C functions and generated docstrings included; the
sources of others are parsed with `ast`, and never imported or run.

Summary lines are the queries of at most `MOST_QUERIES` documents, as `strip_query_lines` holds them out
where it is judged or trained. A query's id is the last part of the name, and there is one of each:
what has the same name elsewhere (`numpy.sort`, `numpy.ndarray.sort`) says nearly the same, and is
never in another split.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
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
    """A definition's docstring: its public `name`, its `kind` (module, class, function or
    attribute), whole text.
    """

    name: str
    kind: str
    text: str
    aliases: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """The first paragraph, in one line."""
        return " ".join(_PARAGRAPHS.split(self.text, 1)[0].split())

    @property
    def body(self) -> str:
        """All text after the first paragraph."""
        return "".join(_PARAGRAPHS.split(self.text, 1)[1:])


def read_docstrings(source: bytes, module: tuple[str, ...]) -> list[Docstring]:
    """The docstrings of a module's public classes, methods and functions, and its own; [] for what
    does not parse.

    A private module (`numpy._core.fromnumeric`) holds what its nearest public package offers, so
    its definitions are named after that package (`numpy.sort`), and its own docstring is left out.

    >>> source = b'def sort(x):\\n    "Return a sorted copy.\\\\n\\\\n    Stable."\\ndef _help(): "Private."'
    >>> read_docstrings(source, ("numpy", "_core", "fromnumeric"))
    [Docstring(name='numpy.sort', kind='function', text='Return a sorted copy.\\n\\nStable.', aliases=())]
    """
    public = public_name(module)
    tree = _parsed(source)
    if not public or tree is None:
        return []
    first = [(public, tree)] if public == ".".join(module) else []
    nodes = (
        (name, node, ast.get_docstring(node))
        for name, node in [*first, *_definitions(tree, public)]
    )
    return [
        Docstring(name, _KINDS[type(node)], summary_first(text.strip()))
        for name, node, text in nodes
        if text
    ]


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


def _definitions(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Any]]:
    for child in node.body:
        if isinstance(
            child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        ) and not child.name.startswith("_"):
            name = f"{prefix}.{child.name}"
            yield name, child
            if isinstance(child, ast.ClassDef):
                yield from _definitions(child, name)


def summary_first(text: str) -> str:
    """A docstring whose first paragraph is its signature, as of many C functions, with the second
    one before it.

    >>> summary_first("permutation(x)\\n\\nPermute a sequence.\\n\\nx: array")
    'Permute a sequence.\\n\\npermutation(x)\\n\\nx: array'
    """
    first, *others = _PARAGRAPHS.split(text, 2)
    if not others or not _SIGNATURE.fullmatch(first):
        return text
    return "\n\n".join([others[0], first, *others[1:]])


MIN_WORDS = 4  # of a docstring, and of the summary that becomes a query
MOST_SUMMARY_WORDS, MIN_BODY_WORDS = 40, 20
MOST_QUERIES = 3000
TIME_LIMIT = 300  # seconds for what takes about three
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
    """The docstrings of the packages that `corpus.packages` names; "stdlib" is the standard
    library.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.packages = settings.packages
        self._docstrings: list[tuple[str, Docstring]] | None = None

    def describe(self) -> dict[str, Any]:
        """Each package's version, and one hash of what is imported and of the modules that are
        parsed, with names.
        """
        digest = hashlib.sha256(hash_text(canonical_json(self._offered)).encode())
        for package in self._parsed:
            for module, path in modules(package):
                digest.update(f"{package}\0{'.'.join(module)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
        versions = {package: _version(package) for package in self.packages}
        return {"versions": versions, "watermark": None, "content_hash": digest.hexdigest()}

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row]:
        """Yield the documents, the summaries that are queries, or the qrels that join them."""
        if self._docstrings is None:  # parsing takes seconds, and three tables come out of it
            self._docstrings = self._all(progress)
        if table == "documents":
            for package, item in self._docstrings:
                text = item.text + (
                    f"\n\nAlso called {', '.join(item.aliases)}." if item.aliases else ""
                )
                fields = {"package": package, "kind": item.kind}
                yield Row(
                    table,
                    item.name,
                    {"id": item.name, "title": item.name, "text": text, "fields": fields},
                )
        else:
            for query, item in chosen_queries(item for _, item in self._docstrings).items():
                values = {"id": query, "text": item.summary}
                answer = {"query_id": query, "document_id": item.name}
                yield Row(table, query, values if table == "queries" else answer)

    @property
    def _parsed(self) -> list[str]:
        return [package for package in self.packages if package not in definitions.MODULES]

    @cached_property
    def _offered(self) -> list[dict[str, Any]]:
        """The rows of `definitions`, of the packages that are imported."""
        imported = [package for package in self.packages if package in definitions.MODULES]
        return read_definitions(imported) if imported else []

    def _all(self, progress: Progress) -> list[tuple[str, Docstring]]:
        """All docstrings that say something, the first one of each name and of each text.

        A name defined twice in a source is an overload or a setter.
        """
        first: dict[str, tuple[str, Docstring]] = {}
        for row in self._offered:
            item = Docstring(
                row["name"], row["kind"], summary_first(row["text"]), tuple(row["aliases"])
            )
            first.setdefault(item.name, (row["package"], item))
        files = [(package, *module) for package in self._parsed for module in modules(package)]
        for package, module, path in report_each(files, len(files), progress, "modules"):
            for item in read_docstrings(path.read_bytes(), module):
                first.setdefault(item.name, (package, item))
        return [
            (package, item)
            for package, item in first.values()
            if len(item.text.split()) >= MIN_WORDS
        ]


def read_definitions(packages: list[str]) -> list[dict[str, Any]]:
    """What `definitions` prints of packages, in a process of its own; FreshetError if that fails or
    takes too long.
    """
    command = [sys.executable, "-P", "-B", definitions.__file__, *packages]
    environment = os.environ | {"PYTHONHASHSEED": "0", "PYTHONWARNINGS": "ignore"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, timeout=TIME_LIMIT, check=True
        )
    except subprocess.TimeoutExpired as error:
        raise FreshetError(
            f"importing {', '.join(packages)} took more than {TIME_LIMIT} seconds"
        ) from error
    except subprocess.CalledProcessError as error:
        last = error.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise FreshetError(
            f"the docstrings of {', '.join(packages)} cannot be read: {last}"
        ) from error
    return json.loads(done.stdout)


def chosen_queries(docstrings: Iterable[Docstring]) -> dict[str, Docstring]:
    """Return the documents that their summary line asks for, by query id.

    A summary is a query if enough text follows it and no other docstring contains it word for word.
    Only one of the definitions with the same last name, and of docstrings that are near-duplicates
    without their summaries, has a query: the one with the shortest name. So no test query asks for a
    near-duplicate of a document that a training query asks for, and no unjudged document repeats one.
    Of more than `MOST_QUERIES` queries those with the smallest hashes stay, so that documents that
    come or go change few.
    """
    items = sorted(docstrings, key=lambda item: (item.name.count("."), item.name))
    candidates: dict[str, Docstring] = {}
    for item in _uniquely_summarized(items):
        candidates.setdefault(item.name.rpartition(".")[2].casefold(), item)

    queries = _without_near_duplicates(candidates)
    chosen = sorted(queries, key=hash_text)[:MOST_QUERIES]
    return {query: queries[query] for query in sorted(chosen)}


def _uniquely_summarized(items: Sequence[Docstring]) -> list[Docstring]:
    """Return the docstrings whose summary can be a query and is found in no other docstring."""
    phrases = {item.name: normalize_phrase(item.summary) for item in items}
    texts = {item.name: normalize_phrase(item.text) for item in items}
    containing = documents_containing(phrases.values(), texts)

    unique = []
    for item in items:
        summary_words = len(item.summary.split())
        body_words = len(item.text.split()) - summary_words
        if not MIN_WORDS <= summary_words <= MOST_SUMMARY_WORDS or body_words < MIN_BODY_WORDS:
            continue
        if containing[phrases[item.name]] == {item.name}:
            unique.append(item)
    return unique


def _without_near_duplicates(candidates: Mapping[str, Docstring]) -> dict[str, Docstring]:
    """Keep the first of the docstrings whose bodies are near-duplicates of each other."""
    bodies = {query: item.body for query, item in candidates.items()}
    duplicates = near_duplicates(bodies, list(bodies))
    kept: dict[str, Docstring] = {}
    for query, item in candidates.items():
        if duplicates.get(query, set()).isdisjoint(kept):
            kept[query] = item
    return kept


def modules(package: str) -> list[tuple[tuple[str, ...], Path]]:
    """The dotted name (as a tuple) and file of each module that has a public name; sorted, public
    modules first.
    """
    if package == "stdlib":
        root = Path(sysconfig.get_paths()["stdlib"])
        candidates = [
            item
            for item in _below(root, ())
            if item[0][:1] and item[0][0] in sys.stdlib_module_names
        ]
    else:
        candidates = [item for place in _places(package) for item in _below(place, (package,))]
    named = [(public_name(module) != ".".join(module), module, path) for module, path in candidates]
    return [
        (module, path)
        for _, module, path in sorted(named, key=lambda item: item[:2])
        if public_name(module)
    ]


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
                parts = (
                    *Path(folder).relative_to(place).parts,
                    *([] if stem == "__init__" else [stem]),
                )
                yield prefix + parts, Path(folder, name)


def _version(package: str) -> str:
    if package == "stdlib":
        return platform.python_version()
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        names = importlib.metadata.packages_distributions().get(package, [])
        return importlib.metadata.version(names[0]) if names else "unknown"
