"""Guards what `freshet search` says of tokens, and that its options reach the searcher."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from model_code.collection.generations.searcher import Searcher
from model_code.collection.results import Hit
from model_code.errors import FreshetError
from model_code.retrieval.protocol import TokenMatch
from orchestration.cli import live
from orchestration.cli.live import hits_text, tokens_text

TEXT = "Split a string"
HIT = Hit(1, 0.5, "str.split", "str.split", TEXT, 0, 14, None, TEXT, ((0, 5),), {}, None, (0, 2), 7)
TOKENS = [TokenMatch("split", 1.5), TokenMatch("divide", 0.25, expanded=True)]


class FakeSearcher:
    """Remembers what it was asked."""

    def search(self, *asked):
        self.asked = asked
        return [replace(HIT, tokens=tuple(TOKENS)) if asked[3] else HIT]


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Runs the command with options; gives its output and what the searcher was asked."""
    searcher = FakeSearcher()
    (tmp_path / "params.yaml").write_text(
        "{retrievers: {hce: {}}, bm25: {k1: 1.2}, evaluation: {depth: 200}}"
    )
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Searcher, "open", lambda live, retriever: searcher)
    app = typer.Typer()
    app.command()(live.search)

    def call(*options, text="split"):
        return CliRunner().invoke(
            app, [text, *options], catch_exceptions=False
        ).output, searcher.asked

    return call


def test_a_plain_search_asks_for_nothing_more(run):
    printed, asked = run("-k", "3")
    assert asked == ("split", 3, [], False)
    assert printed.splitlines()[0] == "  1  0.500  str.split"
    assert "tokens" not in json.loads(run("--json")[0])[0]


def test_filters_reach_the_searcher(run):
    assert run("--filter", "package=numpy", "--filter", "kind=class")[1][2] == [
        "package=numpy",
        "kind=class",
    ]
    with pytest.raises(FreshetError, match="--hybrid is gone: freshet register untrained"):
        run("--hybrid")


def test_explain_shows_the_tokens_of_each_hit(run):
    assert run("--explain")[0].splitlines()[-1].strip() == "split 1.50  +divide 0.25"
    row = json.loads(run("--explain", "--json")[0])[0]
    assert row["tokens"][1] == {"token": "divide", "weight": 0.25, "expanded": True}
    assert row["path"] == [0, 2]


def test_a_search_for_nothing_is_a_usage_error(run, monkeypatch):
    for name in ("search", "search_batch"):
        monkeypatch.setattr(FakeSearcher, name, getattr(Searcher, name), raising=False)
    with pytest.raises(FreshetError, match="text is empty") as caught:
        run(text=" ")
    assert caught.value.exit_code == 2


def test_many_tokens_are_cut_and_none_is_said():
    assert tokens_text([TokenMatch("x", 1.0)] * 20).endswith("and 8 more")
    assert tokens_text([]) == "no token matched"
    assert hits_text([]) == "no documents found"
