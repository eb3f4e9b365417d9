"""Guards which definitions are public, what they are called, and that no source is ever run."""

from __future__ import annotations

import sys

import pytest

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import make_lock
from model_code.corpus.sources.installed_packages import InstalledPackagesSource, modules, read_docstrings
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
    assert [(item.name, item.kind, item.summary, item.body) for item in found] == [
        ("sea.tides", "module", "A module about tides.", "It has a body."),
        ("sea.tides.Tide", "class", "The tide of a sea.", "High or low."),
        ("sea.tides.Tide.rise", "function", "Rise.", ""),
        ("sea.tides.Tide.fall", "function", "Fall slowly.", ""),
    ]


def test_a_private_module_speaks_for_its_public_package():
    names = [item.name for item in read_docstrings(SOURCE, ("sea", "_core", "tides"))]
    assert names == ["sea.Tide", "sea.Tide.rise", "sea.Tide.fall"]
    assert read_docstrings(SOURCE, ("_sea", "tides")) == []


def test_what_does_not_parse_has_no_docstrings():
    assert read_docstrings(b"def (", ("sea",)) == read_docstrings(b"\x00\xff", ("sea",)) == []


BODY = " ".join(f"word{i}" for i in range(30))


def function(name: str, summary: str, body: str = BODY) -> str:
    return f'def {name}():\n    """{summary}\n\n    {body}\n    """\n'


@pytest.fixture
def package(tmp_path, monkeypatch):
    """An importable package that must not be imported."""
    folder = tmp_path / "site" / "tidal"
    for name in ("", "_core", "tests"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (folder / "waves.py").write_text(
        function("crest", "Return the highest point.") + function("crest", "Return another highest point.")
        + function("trough", "Return the depth between waves.") + function("short", "Two words.")
        + function("thin", "Return much too little text.", "few words")
    )  # fmt: skip
    (folder / "_core" / "impl.py").write_text(
        function("flow", "Return the current's speed.") + function("trough", "Return the depth BETWEEN waves.")
    )
    (folder / "tests" / "test_it.py").write_text(function("never", "Return what tests do."))
    monkeypatch.syspath_prepend(tmp_path / "site")
    return folder


def source(*packages: str) -> InstalledPackagesSource:
    return InstalledPackagesSource(CorpusSettings(packages=packages), root=None)


def test_documents_queries_and_qrels_of_a_package(package):
    tidal = source("tidal")
    documents = [row.values for row in tidal.rows("documents")]
    # trough is left out for its summary, which is not unique; the second crest is an overload of the first
    assert [values["id"] for values in documents] == ["tidal.waves.crest", "tidal.flow"]
    assert documents[0] == {
        "id": "tidal.waves.crest", "title": "tidal.waves.crest", "text": BODY,
        "fields": {"package": "tidal", "kind": "function"},
    }  # fmt: skip
    assert [row.values["text"] for row in tidal.rows("queries")] == [
        "Return the highest point.", "Return the current's speed."
    ]  # fmt: skip
    assert [row.values for row in tidal.rows("qrels")] == [
        {"query_id": name, "document_id": name} for name in ("tidal.waves.crest", "tidal.flow")
    ]
    assert "tidal" not in sys.modules


def test_the_lock_follows_the_sources_that_are_read(package, tmp_path):
    settings = CorpusSettings(packages=("tidal",))
    lock = make_lock(settings, tmp_path)
    (package / "tests" / "test_it.py").write_text("changed = True\n")
    assert make_lock(settings, tmp_path) == lock
    (package / "waves.py").write_text("changed = True\n")
    assert make_lock(settings, tmp_path)["content_hash"] != lock["content_hash"]
    assert str(tmp_path) not in str(lock)


def test_an_absent_package_is_named():
    for name in ("no_such_package_here", "os.path", "scikit-learn"):
        with pytest.raises(FreshetError, match=f"corpus.packages names '{name}'"):
            modules(name)


def test_the_standard_library_leaves_out_tests_and_what_others_installed():
    names = {".".join(module) for module, _ in modules("stdlib")}
    assert {"json", "json.decoder", "asyncio.tasks", "concurrent.futures._base"} <= names
    tops = {name.split(".")[0] for name in names}
    assert not tops & {"test", "site-packages", "idlelib", "_pydecimal", "numpy", "sitecustomize"}
    assert not any("tests" in name.split(".") for name in names)
