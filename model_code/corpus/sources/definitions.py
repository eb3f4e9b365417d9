"""What imported packages offer, under its public names: a program of its own, run by
`installed_packages`.

It imports only the modules that are listed here, which do nothing but define things, and may
neither write a file, reach the network nor start a process. Printed is one JSON object per
docstring, which several names may share.
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

MODULES = {
    "stdlib": (
        "abc argparse array ast asyncio atexit base64 bdb binascii bisect builtins bz2 calendar cmath cmd code codecs "
        "codeop collections colorsys compileall concurrent configparser contextlib contextvars copy copyreg csv ctypes "
        "curses dataclasses datetime dbm decimal difflib dis doctest email enum errno faulthandler fcntl filecmp "
        "fileinput fnmatch fractions ftplib functools gc getopt getpass gettext glob graphlib grp gzip hashlib heapq "
        "hmac html http imaplib importlib inspect io ipaddress itertools json keyword linecache locale logging lzma "
        "mailbox marshal math mimetypes mmap modulefinder multiprocessing netrc numbers operator optparse os os.path "
        "pathlib pdb pickle pickletools pkgutil platform plistlib poplib pprint profile pstats pty pwd py_compile "
        "pyclbr pydoc queue quopri random re reprlib resource runpy sched secrets select selectors shelve shlex shutil "
        "signal smtplib socket socketserver sqlite3 ssl stat statistics string stringprep struct subprocess symtable "
        "sys sysconfig syslog tabnanny tarfile tempfile termios textwrap threading time timeit token tokenize tomllib "
        "trace traceback tracemalloc tty types typing unicodedata unittest urllib uuid venv warnings wave weakref "
        "webbrowser wsgiref xml xmlrpc zipapp zipfile zipimport zlib zoneinfo"
    ),
    "numpy": (
        "numpy numpy.ctypeslib numpy.dtypes numpy.exceptions numpy.fft numpy.lib numpy.lib.array_utils "
        "numpy.lib.format numpy.lib.introspect numpy.lib.mixins numpy.lib.npyio numpy.lib.scimath "
        "numpy.lib.stride_tricks numpy.linalg numpy.ma numpy.polynomial numpy.polynomial.chebyshev "
        "numpy.polynomial.hermite numpy.polynomial.hermite_e numpy.polynomial.laguerre numpy.polynomial.legendre "
        "numpy.polynomial.polynomial numpy.polynomial.polyutils numpy.random numpy.rec numpy.strings numpy.testing"
    ),
    "pandas": (
        "pandas pandas.api.extensions pandas.api.indexers pandas.api.interchange pandas.api.types pandas.api.typing "
        "pandas.arrays pandas.errors pandas.io.formats.style pandas.plotting pandas.testing pandas.tseries.frequencies "
        "pandas.tseries.offsets"
    ),
}
WHOLE = "stdlib"  # of its packages, all public modules are imported
NOT_OFFERED = {"__main__", "tests", "test", "expatbuilder", "windows_events", "windows_utils"}
REFUSED = (
    "socket.",
    "subprocess.",
    "os.system",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.remove",
    "webbrowser.",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
MOST_ALIASES = 12
# pandas imports it where it is there, and its first import asks the system for fonts
OPTIONAL = "matplotlib"


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: RuntimeError for what no import needs, as no module here may do more than
    define things.
    """
    written = event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITING
    if (
        written
        or event.startswith(REFUSED)
        and event not in ("socket.__new__", "socket.gethostname")
    ):
        raise RuntimeError(f"an import wanted {event} {arguments[:1]}")


def modules(package: str) -> Iterator[types.ModuleType]:
    """The listed modules of a package that this system has."""
    for listed in MODULES[package].split():
        yield from _imported(listed)
        if package == WHOLE:
            yield from (module for name in _inner(listed) for module in _imported(name))


def _imported(name: str) -> Iterator[types.ModuleType]:
    with suppress(ImportError):  # some are of other systems, or were built without a library
        yield importlib.import_module(name)


def _inner(name: str) -> Iterator[str]:
    """The public modules inside a package, at any depth."""
    for module in pkgutil.iter_modules(getattr(sys.modules.get(name), "__path__", []), f"{name}."):
        last = module.name.rsplit(".", 1)[-1]
        if not last.startswith("_") and last not in NOT_OFFERED:
            yield module.name
            yield from _inner(module.name)


def module_members(module: types.ModuleType, name: str) -> Iterator[tuple[str, Any]]:
    """What a module offers: the names of `__all__`, or what it defines itself, modules left out."""
    listed = getattr(module, "__all__", None)
    for key in sorted(
        vars(module) if listed is None else set(listed), key=lambda key: (len(key), key)
    ):
        value = getattr(module, key, None)
        home = getattr(value, "__module__", None) or name
        if (
            not key.startswith("_")
            and not isinstance(value, types.ModuleType)
            and (listed is not None or home == name)
        ):
            yield key, value


def members(owner: type, classes: dict[type, str]) -> Iterator[tuple[str, Any]]:
    """The public attributes of a class that no other public class defines."""
    bases = [
        base
        for base in owner.__mro__
        if base is owner or (base not in classes and base is not object)
    ]
    for key in dict.fromkeys(
        key for base in bases for key in vars(base) if not key.startswith("_")
    ):
        static = inspect.getattr_static(owner, key)
        # pandas: Series.str is a class
        accessor = type(static).__name__ in ("Accessor", "CachedAccessor")
        yield key, getattr(owner, key) if accessor else static


def underlying(value: Any) -> Any:
    """The one object behind methods that are bound, to a class or to a module's own instance
    (`random.randint`).
    """
    value = value.__func__ if isinstance(value, classmethod | staticmethod) else value
    owner, name = getattr(value, "__self__", None), getattr(value, "__name__", None)
    if isinstance(name, str) and not isinstance(owner, type | types.ModuleType | types.NoneType):
        return inspect.getattr_static(type(owner), name, value)
    return value


def kind_of(value: Any) -> str | None:
    """What a definition is; None for a constant."""
    if isinstance(value, types.ModuleType):
        return "module"
    if isinstance(value, type):
        return "class"
    if callable(value):
        return "function"
    return "attribute" if inspect.isdatadescriptor(value) else None


def docstring(value: Any) -> str | None:
    """The object's own docstring, not its type's."""
    text = getattr(value, "__doc__", None)
    inherited = not isinstance(value, type) and text == type(value).__doc__
    return inspect.cleandoc(text) if isinstance(text, str) and not inherited else None


class Names:
    """Docstrings with all names of the objects that have them."""

    def __init__(self) -> None:
        self.kinds: dict[str, tuple[str, str]] = {}  # by docstring: kind and package
        # and its names, each with whether an object calls itself so
        self.names: dict[str, dict[str, bool]] = {}
        self.classes: dict[type, str] = {}

    def add(self, package: str) -> None:
        """Read what the modules of a package offer, and then what their classes do."""
        classes: dict[type, str] = {}
        for module in modules(package):
            name = "os.path" if module is os.path else module.__name__
            self._note(module, name, package)
            for key, value in module_members(module, name):
                called, value = f"{name}.{key}", underlying(value)
                self._note(value, called, package)
                if isinstance(value, type) and value not in self.classes:
                    classes[value] = min(
                        classes.get(value, called),
                        called,
                        key=lambda it, of=value: _rank(it, calls_itself(of, it)),
                    )
        self.classes |= classes
        pending = sorted(classes, key=lambda owner: (-len(dir(owner)), classes[owner]))
        for owner in pending:  # which grows by the classes inside
            pending += self._add_members(owner, package)

    def _add_members(self, owner: type, package: str) -> list[type]:
        """Note what a class offers; returns the classes inside."""
        inside = []
        for key, value in members(owner, self.classes):
            name, value = f"{self.classes[owner]}.{key}", underlying(value)
            self._note(value, name, package)
            if isinstance(value, type) and value not in self.classes:
                self.classes[value] = name
                inside.append(value)
        return inside

    def _note(self, value: Any, name: str, package: str) -> None:
        kind, text = kind_of(value), docstring(value)
        if kind and text:
            self.kinds.setdefault(text, (kind, package))
            self.names.setdefault(text, {}).setdefault(
                name.removeprefix("builtins."), calls_itself(value, name)
            )

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each docstring with its `name`, `aliases`, `kind`, `package` and `text`."""
        for text, called in self.names.items():
            first, *aliases = sorted(called, key=lambda name: _rank(name, called[name]))
            kind, package = self.kinds[text]
            yield {
                "name": first,
                "aliases": aliases[:MOST_ALIASES],
                "kind": kind,
                "package": package,
                "text": text,
            }


def calls_itself(value: Any, name: str) -> bool:
    """Whether an object gives itself this name."""
    return name == f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', None)}"


def _rank(name: str, canonical: bool) -> tuple[int, bool]:
    return name.count("."), not canonical


def definitions(packages: Sequence[str]) -> list[dict[str, Any]]:
    """All docstrings of packages, in the order of names.

    Objects that share a docstring are one: to say the same thing twice helps nobody who searches.
    Of their names the one of fewest parts comes first (`json.JSONDecoder` before
    `json.decoder.JSONDecoder`), of several the one that the object gives itself, and of a method
    that classes inherit the one of the class that offers most.
    """
    names = Names()
    for package in packages:
        names.add(package)
    return sorted(names.rows(), key=lambda row: row["name"])


if __name__ == "__main__":
    out, sys.stdout = sys.stdout, sys.stderr  # what an import prints is no definition
    sys.modules[OPTIONAL] = None  # type: ignore[assignment]  # as if it were not installed
    sys.addaudithook(refuse)
    json.dump(definitions(sys.argv[1:]), out)
