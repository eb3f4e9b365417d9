"""Guards drift of logged queries: against the build's own queries, each counted once, in the report of its time."""

from __future__ import annotations

import time

import pytest

from model_code.live.searcher import Searcher
from orchestration import parameters
from orchestration.ledgers import existing_ledger
from orchestration.service.query_log import FOLDER, QueryLog
from orchestration.watching.batches import batches
from orchestration.watching.gathering import Gatherer
from orchestration.watching.queries import queries_of_build, some
from orchestration.watching.watch import required, watch
from tests.orchestration.watching.subjects import SEA, SPACE, add, documents, queries


def ask(project, texts, moment=None):
    log = QueryLog(project.state / FOLDER, 10**6, 10)
    for text in texts:
        log.write({"time": time.time() if moment is None else moment, "text": text})
    log.close()


def unmeasured(watched, scope="batch"):
    found = watched.report.unmeasured
    return {one.why for one in found if one.name == "query_auc" and one.scope == scope}


def test_without_a_log_the_report_says_so(project):
    add(project, documents(SEA, 24, "more", 1))
    assert unmeasured(watch(project)) == {"there is no query log; freshet serve --query-log keeps one, on this machine"}


def test_few_queries_wait_for_more(project, corpus):
    ask(project, [*queries(SEA, 5, 1), *queries(SEA, 5, 1)])
    assert unmeasured(watch(project, record=False)) == {"5 are fewer than drift.minimum_batch = 20"}


def test_without_queries_of_the_build_there_is_nothing_to_compare_with(project):
    ask(project, queries(SEA, 30, 1))
    assert unmeasured(watch(project, record=False)) == {"the reference has 0, fewer than 3 x drift.minimum_batch = 60"}


def test_queries_like_those_of_the_build_are_no_drift(project, corpus):
    ask(project, queries(SEA, 30, 1))
    assert watch(project) is None, "a report is kept of documents only"
    watched = watch(project, record=False)
    assert not (project.live / "ledger.sqlite").exists(), "looking makes no ledger"
    measures = watched.report.of("query_auc")
    assert [one.tripped for one in measures] == [False]
    assert all(one.null and one.threshold is not None for one in measures)
    assert watched.decision.reasons == ("none of 2 measures is beyond its threshold",)
    assert "drift of 0 documents and 30 logged queries" in watched.text


def test_other_queries_trip_and_call_for_nothing_by_themselves(project, corpus):
    ledger = add(project, documents(SEA, 24, "more", 1))
    ask(project, queries(SPACE, 30, 1))
    watched = watch(project)
    assert {"query_auc"} <= set(watched.tripped)
    assert watched.decision.action == "add"
    assert any(reason.startswith("query_auc") for reason in watched.decision.reasons)
    stored = ledger.last_drift(1)[0]["report"]["report"]
    assert stored["queries"] == 30
    assert "orbit" not in str(stored), "no text of the log is kept elsewhere"


def test_a_query_counts_once_and_in_the_report_of_its_time(project, corpus):
    add(project, documents(SEA, 24, "one", 5))
    ask(project, queries(SEA, 30, 1) * 3)
    assert watch(project).report.queries == 30
    ask(project, [*queries(SEA, 30, 1)[:10], *queries(SEA, 15, 2)])
    ledger, settings = existing_ledger(project, "hce"), parameters.load(project.params_file)
    spans = batches(ledger, settings.drift.window, 24)
    gatherer = Gatherer(project, Searcher.open(project.live), settings, ledger)
    assert [len(gatherer.arrivals(span).queries) for span in spans] == [20, 25], "ten were asked again"


def test_the_build_is_judged_by_queries_that_it_was_not_trained_on(project, corpus):
    generation = Searcher.open(project.live).generation
    assert sorted(queries_of_build(project, generation, 60)) == sorted(corpus[:120])
    assert sorted(queries_of_build(project, generation, 125)) == sorted(corpus)


def test_nothing_to_measure_is_an_error_for_the_command(project):
    with pytest.raises(Exception, match="logged queries also by themselves"):
        required(watch(project, record=False), record=False)


def test_a_sample_depends_on_no_order():
    texts = [str(i) for i in range(50)]
    assert some(texts, 10, 3) == some(texts[::-1] * 2, 10, 3)
    assert len(set(some(texts, 10, 3))) == 10
