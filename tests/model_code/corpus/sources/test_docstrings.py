"""Guards which definitions are public, what they are called, and that no source is ever run."""

from __future__ import annotations

from model_code.corpus.sources.docstrings import read_docstrings

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
