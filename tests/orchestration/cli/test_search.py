"""Tests of `freshet search`: its options reach the searcher, and hits are printed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import typer
from typer.testing import CliRunner

from freshet.results import Hit, SearchResult
from model_code.collection.generations.boosts import Boost
from model_code.collection.generations.query_options import DEFAULT_WINDOW, QueryOptions
from model_code.collection.generations.searcher import Searcher
from model_code.errors import FreshetError
from model_code.retrieval.protocol import TokenMatch
from orchestration.cli.search import hits_text, search, tokens_text

TEXT = "Split a string"
HIT = Hit(
    rank=1,
    score=0.5,
    document_id="str.split",
    title="str.split",
    text=TEXT,
    start=0,
    end=14,
    section=None,
    snippet=TEXT,
    marks=((0, 5),),
    fields={},
    date=None,
    path=(0, 2),
    generation=7,
)
TOKENS = (TokenMatch("split", 1.5), TokenMatch("divide", 0.25, expanded=True))


class FakeSearcher:
    """A searcher that returns one hit and records the arguments of the last search."""

    def search_like(self, document_id, options):
        self.like = document_id
        return self.search_pages([], options)[0]

    def search_pages(self, texts, options):
        self.texts = texts
        self.options = options
        hit = replace(HIT, tokens=TOKENS) if options.explain else HIT
        facets = {name: {"numpy": 12, "scipy": 3} for name in options.facets}
        return [SearchResult("hce", 7, [hit], 34, facets)]


@pytest.fixture
def searcher(monkeypatch):
    fake = FakeSearcher()
    monkeypatch.setattr(Searcher, "open", lambda live, retriever: fake)
    return fake


@pytest.fixture
def run(monkeypatch, tmp_path, searcher):
    """Run the command in a project without a service; returns the output."""
    (tmp_path / "params.yaml").write_text("retrievers: {hce: {}}")
    (tmp_path / "dvc.yaml").touch()
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.command()(search)

    def run_command(*options, text="split"):
        arguments = options if text is None else [text, *options]
        return CliRunner().invoke(app, arguments, catch_exceptions=False).output

    return run_command


def test_plain_search_prints_rank_score_and_title(run, searcher):
    output = run("-k", "3")

    assert searcher.texts == ["split"]
    assert searcher.options == QueryOptions(k=3, filters=[], sort=[], facets=[], boost=[])
    assert output.splitlines()[0] == "  1  0.500  str.split"


def test_hits_have_title_once_without_topics():
    text = "Oak trees. They bear acorns."
    oak = replace(HIT, document_id="oak.md", title="Oak trees", snippet=text, topics=("wood",))

    assert hits_text([oak]).splitlines() == [
        "  1  0.500  Oak trees",
        "            oak.md",
        "            They bear acorns.",
    ]
    assert hits_text([HIT]).splitlines() == ["  1  0.500  str.split", f"            {TEXT}"]


def test_json_has_tokens_only_if_explained(run):
    (plain_hit,) = json.loads(run("--json"))
    (explained_hit,) = json.loads(run("--explain", "--json"))

    assert "tokens" not in plain_hit
    assert explained_hit["tokens"][1] == {
        "token": "divide",
        "weight": 0.25,
        "expanded": True,
        "known": False,
        "known_words": [],
    }
    assert explained_hit["path"] == [0, 2]


def test_filters_reach_the_searcher(run, searcher):
    run("--filter", "package=numpy", "--filter", "kind=class")

    assert searcher.options.filters == ["package=numpy", "kind=class"]


def test_order_options_reach_the_searcher(run, searcher):
    run("--sort=-date", "--sort", "year", "--group-by", "package", "--boost", "date:30d")

    assert searcher.options.sort == ["-date", "year"]
    assert searcher.options.group_by == "package"
    assert searcher.options.boosts == (Boost("date", half_life_seconds=2_592_000),)
    assert searcher.options.window == DEFAULT_WINDOW


def test_like_needs_no_query(run, searcher):
    output = run("--like", "re.split", text=None)

    assert searcher.like == "re.split"
    assert output.splitlines()[0] == "  1  0.500  str.split"


@pytest.mark.parametrize(("text", "options"), [(None, []), ("split", ["--like", "x"])])
def test_query_and_like_exclude_each_other(run, text, options):
    with pytest.raises(FreshetError, match="give either a query or --like ID"):
        run(*options, text=text)


def test_later_page_names_its_place(run, searcher):
    output = run("--offset", "20", "--window", "50")

    assert searcher.options.offset == 20
    assert searcher.options.window == 50
    assert output.splitlines()[-1] == "1 documents from 21 of 34"


def test_facets_are_printed(run):
    assert run("--facet", "package").splitlines()[-1] == "package: numpy 12, scipy 3"

    answer = json.loads(run("--facet", "package", "--json"))
    assert answer["total"] == 34
    assert answer["facets"] == {"package": {"numpy": 12, "scipy": 3}}
    assert [hit["document_id"] for hit in answer["hits"]] == ["str.split"]


def test_explain_names_words_of_known_queries(run, monkeypatch):
    match = TokenMatch("bm25_known", 2.0, known=True, known_words=("frost", "lawn"))
    monkeypatch.setattr(f"{__name__}.TOKENS", (match, TokenMatch("hce", 1.0)))

    last_line = run("--explain").splitlines()[-1]

    assert last_line.strip() == "bm25_known 2.00 (known query: frost, lawn)  hce 1.00"


def test_explain_prints_matched_tokens(run):
    last_line = run("--explain").splitlines()[-1]

    assert last_line.strip() == "split 1.50  +divide 0.25"


def test_empty_query_is_a_usage_error(run, monkeypatch):
    # The real method checks the query before it uses the searcher.
    monkeypatch.setattr(FakeSearcher, "search_pages", Searcher.search_pages)

    with pytest.raises(FreshetError, match="text is empty") as caught:
        run(text=" ")

    assert caught.value.exit_code == 2


def test_long_token_lists_are_cut():
    assert tokens_text([TokenMatch("x", 1.0)] * 20).endswith("and 8 more")


def test_missing_tokens_and_hits_are_named():
    assert tokens_text([]) == "no token matched"
    assert hits_text([]) == "no documents found"


def test_options_of_typed_queries_reach_the_searcher(run, searcher):
    run("--literal", "--prefix", "--min-score", "0.5", "--diversity", "0.3")

    assert not searcher.options.syntax
    assert not searcher.options.typos
    assert searcher.options.prefix
    assert searcher.options.min_score == 0.5
    assert searcher.options.diversity == 0.3


def test_hits_below_the_floor_are_marked():
    weak = replace(HIT, below_floor=True)

    mixed = hits_text([HIT, weak])
    only_weak = hits_text([weak])

    assert mixed.count("(weak)") == 1
    assert "nothing fits well" not in mixed
    assert only_weak.endswith("nothing fits well: these are the nearest documents")
