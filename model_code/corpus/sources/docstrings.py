"""Public docstrings of Python source files, read with `ast`: nothing is imported or run."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

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
    own = [(public, tree)] if public == ".".join(module) else []
    return [found for name, node in [*own, *_definitions(tree, public)] if (found := _docstring(name, node))]


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
