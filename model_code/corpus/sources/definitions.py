"""Import packages and print the docstrings of their public names, as JSON.

`installed_packages` runs this module in a process of its own, because importing packages has side
effects. Only the modules that are listed here are imported. Their import only defines classes and
functions. An audit hook stops an import that writes a file, connects to a network or starts a
process.

The output is a list with an object for each docstring. Several names may share a docstring.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import pkgutil
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

# The modules to import, by package.
MODULES = {
    "stdlib": (
        "abc argparse array ast asyncio atexit base64 bdb binascii bisect builtins bz2 "
        "calendar cmath cmd code codecs codeop collections colorsys compileall concurrent "
        "configparser contextlib contextvars copy copyreg csv ctypes curses dataclasses "
        "datetime dbm decimal difflib dis doctest email enum errno faulthandler fcntl filecmp "
        "fileinput fnmatch fractions ftplib functools gc getopt getpass gettext glob graphlib "
        "grp gzip hashlib heapq hmac html http imaplib importlib inspect io ipaddress "
        "itertools json keyword linecache locale logging lzma mailbox marshal math mimetypes "
        "mmap modulefinder multiprocessing netrc numbers operator optparse os os.path pathlib "
        "pdb pickle pickletools pkgutil platform plistlib poplib pprint profile pstats pty "
        "pwd py_compile pyclbr pydoc queue quopri random re reprlib resource runpy sched "
        "secrets select selectors shelve shlex shutil signal smtplib socket socketserver "
        "sqlite3 ssl stat statistics string stringprep struct subprocess symtable sys "
        "sysconfig syslog tabnanny tarfile tempfile termios textwrap threading time timeit "
        "token tokenize tomllib trace traceback tracemalloc tty types typing unicodedata "
        "unittest urllib uuid venv warnings wave weakref webbrowser wsgiref xml xmlrpc zipapp "
        "zipfile zipimport zlib zoneinfo"
    ),
    "numpy": (
        "numpy numpy.ctypeslib numpy.dtypes numpy.exceptions numpy.fft numpy.lib "
        "numpy.lib.array_utils numpy.lib.format numpy.lib.introspect numpy.lib.mixins "
        "numpy.lib.npyio numpy.lib.scimath numpy.lib.stride_tricks numpy.linalg numpy.ma "
        "numpy.polynomial numpy.polynomial.chebyshev numpy.polynomial.hermite "
        "numpy.polynomial.hermite_e numpy.polynomial.laguerre numpy.polynomial.legendre "
        "numpy.polynomial.polynomial numpy.polynomial.polyutils numpy.random numpy.rec "
        "numpy.strings numpy.testing"
    ),
    "pandas": (
        "pandas pandas.api.extensions pandas.api.indexers pandas.api.interchange "
        "pandas.api.types pandas.api.typing pandas.arrays pandas.errors "
        "pandas.io.formats.style pandas.plotting pandas.testing pandas.tseries.frequencies "
        "pandas.tseries.offsets"
    ),
}

# For this key of `MODULES`, the public submodules of the listed modules are imported as well.
NESTED_PACKAGE = "stdlib"

# Submodules that are not for users, by the last part of their names.
EXCLUDED_MODULES = {
    "__main__",
    "tests",
    "test",
    "expatbuilder",
    "windows_events",
    "windows_utils",
}

# Audit events that stop an import, by the beginnings of their names; see `refuse`.
REFUSED_EVENTS = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.remove",
    "webbrowser.",
)

# Exceptions from `REFUSED_EVENTS`: events that harmless modules cause while they are imported.
ALLOWED_EVENTS = ("socket.__new__", "socket.gethostname")

# Flags of `os.open` that allow to write a file.
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT

# Largest number of further names that a row lists.
MAX_ALIASES = 12

# A package that is made unavailable. pandas imports it if it is installed, and its first import
# starts a program that lists the fonts of the system, which the audit hook refuses.
BLOCKED_PACKAGE = "matplotlib"


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Stop an import that writes, connects or starts a process. This is an audit hook.

    Args:
        event: Name of the audit event.
        arguments: Arguments of the event.

    Raises:
        RuntimeError: If the event is one of `REFUSED_EVENTS` or opens a file for writing.
    """
    is_refused = event.startswith(REFUSED_EVENTS) and event not in ALLOWED_EVENTS
    if event == "open":
        # The arguments of this event are the path, the mode and the flags of `os.open`.
        flags = arguments[2]
        is_refused = isinstance(flags, int) and bool(flags & WRITE_FLAGS)
    if is_refused:
        raise RuntimeError(f"an import wanted {event} {arguments[:1]}")


def import_modules(package: str) -> Iterator[types.ModuleType]:
    """Import and yield the listed modules of a package.

    A module that this system does not have is left out.

    Args:
        package: A key of `MODULES`.
    """
    for listed_name in MODULES[package].split():
        yield from _import_if_possible(listed_name)
        if package == NESTED_PACKAGE:
            for name in _nested_module_names(listed_name):
                yield from _import_if_possible(name)


def _import_if_possible(name: str) -> Iterator[types.ModuleType]:
    """Import and yield a module; yield nothing if this system does not have it."""
    # Some modules exist on other systems only, or were built without a library that they need.
    with suppress(ImportError):
        yield importlib.import_module(name)


def _nested_module_names(name: str) -> Iterator[str]:
    """Yield the names of the public modules inside an imported package, at any depth."""
    folders = getattr(sys.modules.get(name), "__path__", [])
    for module in pkgutil.iter_modules(folders, f"{name}."):
        last_part = module.name.rsplit(".", 1)[-1]
        if not last_part.startswith("_") and last_part not in EXCLUDED_MODULES:
            yield module.name
            yield from _nested_module_names(module.name)


def module_members(module: types.ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the public members of a module, shortest names first, without modules.

    Args:
        module: The module.
        name: Public name of the module.

    Yields:
        Name and value of each member: those in `__all__`, or without it those that the module
        itself defines.
    """
    listed = getattr(module, "__all__", None)
    keys = vars(module).keys() if listed is None else set(listed)
    for key in sorted(keys, key=lambda key: (len(key), key)):
        value = getattr(module, key, None)
        if key.startswith("_") or isinstance(value, types.ModuleType):
            continue
        defining_module = getattr(value, "__module__", None) or name
        if listed is not None or defining_module == name:
            yield key, value


def class_members(owner: type, classes: dict[type, str]) -> Iterator[tuple[str, Any]]:
    """Yield the public attributes of a class that it does not inherit from another public class.

    Attributes of private base classes are included, because no other class documents them.

    Args:
        owner: The class.
        classes: Names of all public classes.

    Yields:
        Name and value of each attribute.
    """
    keys: dict[str, None] = {}
    for base in owner.__mro__:
        is_documented_elsewhere = base in classes or base is object
        if base is owner or not is_documented_elsewhere:
            keys.update(dict.fromkeys(vars(base)))

    for key in keys:
        if key.startswith("_"):
            continue
        # A usual look-up would call properties, and could run any code.
        value = inspect.getattr_static(owner, key)
        # Accessors of pandas, such as `Series.str`, are descriptors that return a class.
        if type(value).__name__ in ("Accessor", "CachedAccessor"):
            value = getattr(owner, key)
        yield key, value


def underlying(value: Any) -> Any:
    """Return the object behind a bound method.

    A method may be bound to a class, or to an instance that a module holds, such as
    `random.randint`. All names of a method thereby lead to the same object.

    Args:
        value: Any object.
    """
    if isinstance(value, classmethod | staticmethod):
        value = value.__func__
    # The instance that a method is bound to. Built-in functions are "bound" to their module.
    owner = getattr(value, "__self__", None)
    name = getattr(value, "__name__", None)
    is_bound_to_instance = not isinstance(owner, type | types.ModuleType | types.NoneType)
    if isinstance(name, str) and is_bound_to_instance:
        return inspect.getattr_static(type(owner), name, value)
    return value


def kind_of(value: Any) -> str | None:
    """Return "module", "class", "function" or "attribute", or None for a constant.

    Args:
        value: Any object.
    """
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if callable(value):
        return "function"
    if inspect.isdatadescriptor(value):
        return "attribute"
    return None


def docstring(value: Any) -> str | None:
    """Return the docstring of an object; None if it only inherits the docstring of its type.

    Args:
        value: Any object.
    """
    text = getattr(value, "__doc__", None)
    if not isinstance(text, str):
        return None
    if not isinstance(value, type) and text == type(value).__doc__:
        return None
    return inspect.cleandoc(text)


class DocstringCollector:
    """Collects docstrings, each with the names of all objects that have it."""

    def __init__(self) -> None:
        """Begin without docstrings."""
        # Kind and package of the first object with a docstring, by docstring.
        self._kinds: dict[str, tuple[str, str]] = {}
        # Names of the objects with each docstring, by docstring. The value of a name is whether it
        # is the qualified name of the object itself.
        self._names: dict[str, dict[str, bool]] = {}
        # The name of each public class.
        self._classes: dict[type, str] = {}

    def add(self, package: str) -> None:
        """Collect the docstrings of a package: first of its modules, then inside of its classes.

        The names of all classes must be known before their attributes are named. An attribute that
        several classes share has one name only.

        Args:
            package: A key of `MODULES`.
        """
        new_classes: dict[type, str] = {}
        for module in import_modules(package):
            # The module `os.path` calls itself by its name on this system, such as "posixpath".
            module_name = "os.path" if module is os.path else module.__name__
            self._add_docstring(module, module_name, package)
            for key, member in module_members(module, module_name):
                name = f"{module_name}.{key}"
                value = underlying(member)
                self._add_docstring(value, name, package)
                if isinstance(value, type) and value not in self._classes:
                    new_classes[value] = _better_name(value, new_classes.get(value, name), name)
        self._classes.update(new_classes)

        # A class with more attributes comes first. An attribute that several classes share is then
        # named after this class.
        pending = sorted(new_classes, key=lambda owner: (-len(dir(owner)), new_classes[owner]))
        # The loop appends nested classes to the list that it walks.
        for owner in pending:
            pending.extend(self._add_class_members(owner, package))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield each docstring with its `name`, `aliases`, `kind`, `package` and `text`."""
        for text, names in self._names.items():
            ranked_names = sorted(names, key=lambda name: _name_rank(name, names[name]))
            kind, package = self._kinds[text]
            yield {
                "name": ranked_names[0],
                "aliases": ranked_names[1 : 1 + MAX_ALIASES],
                "kind": kind,
                "package": package,
                "text": text,
            }

    def _add_class_members(self, owner: type, package: str) -> list[type]:
        """Collect the docstrings in a class, and return the classes that are nested in it."""
        nested: list[type] = []
        for key, member in class_members(owner, self._classes):
            name = f"{self._classes[owner]}.{key}"
            value = underlying(member)
            self._add_docstring(value, name, package)
            if isinstance(value, type) and value not in self._classes:
                self._classes[value] = name
                nested.append(value)
        return nested

    def _add_docstring(self, value: Any, name: str, package: str) -> None:
        """Add a name to the docstring of an object. Objects without a docstring are ignored.

        Args:
            value: Any object.
            name: A public name of the object.
            package: Key of `MODULES` that the object belongs to.
        """
        kind = kind_of(value)
        text = docstring(value)
        if not kind or not text:
            return
        self._kinds.setdefault(text, (kind, package))
        names = self._names.setdefault(text, {})
        # Users write `len`, and not `builtins.len`.
        names.setdefault(name.removeprefix("builtins."), has_own_name(value, name))


def has_own_name(value: Any, name: str) -> bool:
    """Return whether a name is the qualified name of an object: its module and `__qualname__`.

    Args:
        value: Any object.
        name: Dotted name.
    """
    module = getattr(value, "__module__", None)
    name_in_module = getattr(value, "__qualname__", None)
    return name == f"{module}.{name_in_module}"


def _better_name(value: type, first: str, second: str) -> str:
    """Return the better one of two names of a class; the first one if they are equally good."""
    first_rank = _name_rank(first, has_own_name(value, first))
    second_rank = _name_rank(second, has_own_name(value, second))
    return second if second_rank < first_rank else first


def _name_rank(name: str, is_own_name: bool) -> tuple[int, bool]:
    """Return the sort key of a name: fewer parts come first, then the object's qualified name."""
    return name.count("."), not is_own_name


def definitions(packages: Sequence[str]) -> list[dict[str, Any]]:
    """Return the docstrings of packages, ordered by name.

    Objects with the same docstring share a row, so that a search does not return it twice.

    The name of a row is the one with the fewest parts (`json.JSONDecoder` before
    `json.decoder.JSONDecoder`). Among names with equally many parts, the qualified name of the
    object is preferred. A method that several classes share is named after the class with the most
    attributes.

    Args:
        packages: Keys of `MODULES`.

    Returns:
        Rows with `name`, `aliases`, `kind`, `package` and `text`.
    """
    collector = DocstringCollector()
    for package in packages:
        collector.add(package)
    return sorted(collector.rows(), key=lambda row: row["name"])


if __name__ == "__main__":
    # The standard output must hold nothing but JSON, so imports print to the standard error.
    output = sys.stdout
    sys.stdout = sys.stderr
    # Importing a module that is None fails, as if the package were not installed.
    sys.modules[BLOCKED_PACKAGE] = None  # type: ignore[assignment]
    sys.addaudithook(refuse)
    json.dump(definitions(sys.argv[1:]), output)
