"""Guards which definitions are public, what they are called, which queries ask for them, and what
is never imported.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources import definitions, installed_packages
from model_code.corpus.sources.base import make_source_lock
from model_code.corpus.sources.installed_packages import (
    Docstring,
    InstalledPackagesSource,
    choose_queries,
    list_modules,
    read_docstrings,
)
from model_code.errors import FreshetError

SOURCE = b'''"""A module about tides.

It has a body.
"""
raise SystemExit("this must never run")

class Tide:
    """The tide
    of a sea.

    High or low.
    """
    def rise(self):
        """Rise."""
        def inner():
            """Not public: inside a function."""
    def _help(self): "Private."
    async def fall(self): "Fall slowly."

class _Moon:
    """Private."""
    def wane(self): "Inside a private class."

def undocumented(): pass
def blank(): "  "
'''


def test_public_definitions_with_summary_and_body():
    found = read_docstrings(SOURCE, ("sea", "tides"))

    assert [(item.name, item.kind, item.summary, item.text) for item in found] == [
        ("sea.tides", "module", "A module about tides.", "A module about tides.\n\nIt has a body."),
        ("sea.tides.Tide", "class", "The tide of a sea.", "The tide\nof a sea.\n\nHigh or low."),
        ("sea.tides.Tide.rise", "function", "Rise.", "Rise."),
        ("sea.tides.Tide.fall", "function", "Fall slowly.", "Fall slowly."),
    ]


def test_a_private_module_speaks_for_its_public_package():
    names = [item.name for item in read_docstrings(SOURCE, ("sea", "_core", "tides"))]

    assert names == ["sea.Tide", "sea.Tide.rise", "sea.Tide.fall"]
    assert read_docstrings(SOURCE, ("_sea", "tides")) == []


def test_what_does_not_parse_has_no_docstrings():
    assert read_docstrings(b"def (", ("sea",)) == []
    assert read_docstrings(b"\x00\xff", ("sea",)) == []


def body_of(subject: str) -> str:
    """Thirty words that no other subject has."""
    return " ".join(f"{subject}{i}" for i in range(30))


def function(name: str, summary: str, body: str | None = None) -> str:
    body = body_of(name) if body is None else body
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that must not be imported."""
    folder = tmp_path / "site" / "tidal"
    for name in ("", "_core", "tests"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "waves.py").write_text(
        function("crest", "Return the highest point.")
        + function("crest", "Return another highest point.")
        + function("trough", "Return the depth between waves.")
        + function("short", "Two words.", "")
        + function("thin", "Return much too little text.", "few words")
    )
    (folder / "_core" / "impl.py").write_text(
        function("flow", "Return the current's speed.")
        + function("trough", "Return the depth BETWEEN waves.")
    )
    (folder / "tests" / "test_it.py").write_text(function("never", "Return what tests do."))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def source(*packages: str) -> InstalledPackagesSource:
    return InstalledPackagesSource(CorpusSettings(packages=packages), root=None)


def test_documents_queries_and_qrels_of_a_package(package):
    tidal = source("tidal")
    documents = {row.values["id"]: row.values for row in tidal.rows("documents")}

    # the second crest is an overload of the first; "short" says next to nothing
    assert sorted(documents) == [
        "tidal.flow",
        "tidal.trough",
        "tidal.waves.crest",
        "tidal.waves.thin",
        "tidal.waves.trough",
    ]
    assert documents["tidal.waves.crest"] == {
        "id": "tidal.waves.crest",
        "title": "tidal.waves.crest",
        "text": f"Return the highest point.\n\n{body_of('crest')}",
        "fields": {"package": "tidal", "kind": "function"},
    }
    # the summaries of both troughs are not unique, and little follows that of thin
    assert [row.values for row in tidal.rows("queries")] == [
        {"id": "crest", "text": "Return the highest point."},
        {"id": "flow", "text": "Return the current's speed."},
    ]
    assert [row.values for row in tidal.rows("qrels")] == [
        {"query_id": "crest", "document_id": "tidal.waves.crest"},
        {"query_id": "flow", "document_id": "tidal.flow"},
    ]
    assert "tidal" not in sys.modules


def docstring(name: str, summary: str, body: str | None = None) -> Docstring:
    text = body_of(name) if body is None else body
    return Docstring(name, "function", f"{summary}\n\n{text}")


def queried_names(docstrings: list[Docstring]) -> dict[str, str]:
    return {query: item.name for query, item in choose_queries(docstrings).items()}


def test_each_last_name_has_one_query():
    docstrings = [
        docstring("a.b.Sort", "Sort a copy of it."),
        docstring("a.sort", "Sort this very one."),
        docstring("a.find", "Find where it is."),
    ]

    assert queried_names(docstrings) == {"find": "a.find", "sort": "a.sort"}


def test_queries_are_limited_by_hash(monkeypatch):
    docstrings = [
        docstring("a.sort", "Sort this very one."),
        docstring("a.find", "Find where it is."),
    ]
    monkeypatch.setattr(installed_packages, "MAX_QUERIES", 1)

    (kept,) = choose_queries(docstrings)

    assert list(choose_queries(docstrings[::-1])) == [kept]


def test_near_duplicates_have_one_query():
    body = body_of("maximum")
    docstrings = [
        docstring("a.argmin", "Return where it is lowest.", f"{body} lowest"),
        docstring("a.argmax", "Return where it is highest.", f"{body} highest"),
        docstring("a.find", "Find where it is."),
    ]

    assert queried_names(docstrings) == {"argmax": "a.argmax", "find": "a.find"}
    assert queried_names(docstrings[::-1]) == queried_names(docstrings)


def test_a_summary_in_another_docstring_is_no_query():
    docstrings = [
        docstring("a.absolute", "Return the absolute value."),
        docstring(
            "a.abs",
            "Return what is above.",
            f"See also: return the ABSOLUTE value. {body_of('see')}",
        ),
    ]

    assert queried_names(docstrings) == {"abs": "a.abs"}


@pytest.fixture(scope="module")
def offered():
    """The documents of the default packages, by id."""
    return {
        row.values["id"]: row.values
        for row in source("stdlib", "numpy", "pandas").rows("documents")
    }


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("pandas.read_csv", "comma-separated"),
        ("pandas.DataFrame.merge", "database-style join"),
        ("pandas.DataFrame.groupby", "Group DataFrame"),
        ("numpy.random.permutation", "Randomly permute"),
        ("os.path.join", "Join two or more pathname components"),
        ("dict.update", "Update D from"),
        ("str.split", "substrings"),
        ("pandas.DataFrame.head", "Also called pandas.Series.head."),
        ("random.randint", "Return random integer"),
        ("pandas.Series.str.split", "separator"),
    ],
)
def test_popular_definitions_have_their_public_names(offered, name, said):
    assert said in offered[name]["text"]


def test_only_public_documented_definitions_are_read(offered):
    assert 6000 < len(offered) < 10_000
    assert not [name for name in offered if any(part.startswith("_") for part in name.split("."))]

    tops = {name.split(".")[0] for name in offered}
    assert not tops & {"antigravity", "this", "idlelib", "turtle", "tkinter", "test"}
    assert not {"math.pi", "os.sep", "posixpath.join"} & set(offered)


@pytest.mark.parametrize(
    "code",
    [
        "import socket; socket.create_connection(('localhost', 1))",
        "import subprocess; subprocess.run(['true'])",
        "open('written', 'w')",
        "import os; os.system('true')",
    ],
)
def test_an_import_cannot_write_connect_or_start_anything(code, tmp_path):
    child = f"import sys; sys.argv = ['x']; sys.path.insert(0, {str(tmp_path)!r})\nimport sneaky"
    (tmp_path / "sneaky.py").write_text(code)
    guarded = f"import runpy, sys; guard = runpy.run_path({definitions.__file__!r}); sys.addaudithook(guard['refuse'])"
    command = [sys.executable, "-B", "-c", f"{guarded}\n{child}"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    assert "an import wanted" in done.stderr
    assert not (tmp_path / "written").exists()


def test_definitions_are_read_without_matplotlib_cache(monkeypatch, tmp_path):
    """Matplotlib's first import starts a program that lists fonts, and pandas imports it where it
    is installed.
    """
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))

    assert len(installed_packages.read_definitions(["pandas"])) > 1000


def test_what_cannot_be_imported_is_said(monkeypatch, tmp_path):
    broken = tmp_path / "definitions.py"
    broken.write_text("raise RuntimeError('an import wanted socket.connect')")
    monkeypatch.setattr(definitions, "__file__", str(broken))

    with pytest.raises(
        FreshetError, match="docstrings of stdlib cannot be read: RuntimeError: an import wanted"
    ):
        installed_packages.read_definitions(["stdlib"])


def test_the_lock_follows_the_sources_that_are_read(package, tmp_path):
    settings = CorpusSettings(packages=("tidal",))
    lock = make_source_lock(settings, tmp_path)
    (package / "tests" / "test_it.py").write_text("changed = True\n")

    assert make_source_lock(settings, tmp_path) == lock

    (package / "waves.py").write_text("changed = True\n")
    assert make_source_lock(settings, tmp_path)["content_hash"] != lock["content_hash"]
    assert str(tmp_path) not in str(lock)


def test_an_absent_package_is_named():
    for name in ("no_such_package_here", "os.path", "scikit-learn"):
        with pytest.raises(FreshetError, match=f"corpus.packages names '{name}'"):
            list_modules(name)


def test_standard_library_excludes_tests_and_site_packages():
    names = {".".join(module) for module, _ in list_modules("stdlib")}
    assert {"json", "json.decoder", "asyncio.tasks", "concurrent.futures._base"} <= names

    tops = {name.split(".")[0] for name in names}
    assert not tops & {"test", "site-packages", "idlelib", "_pydecimal", "numpy", "sitecustomize"}
    assert not any("tests" in name.split(".") for name in names)
