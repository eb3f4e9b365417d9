"""Shadow mode: the challenger answers a share of the live queries, and nobody sees its answers.

A thread takes queries that were answered already. It waits until no search runs, and searches with
champion and challenger. Only the documents that both know are compared, and known queries count
for neither. So the comparison tells how the two retrievers rank, and not which documents arrived
later. If the service is busy, queries are dropped and counted.

Texts of queries stay in memory until they are compared. Then only rankings by the hash of the query
remain in memory, for feedback that comes later. The file has counts only.

Feedback decides which of the two wins, by the rule of balanced interleaving (Joachims, 2003). If
both rankings were mixed, the one that ranks a praised document higher would get the credit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import queue
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from model_code.collection.generations.searcher import Searcher
from model_code.collection.ledger.events import Opinion
from model_code.collection.segments.documents import ENCODER, HIERARCHY, INDEX
from model_code.corpus.corpus_queries import query_hash
from model_code.errors import FreshetError
from model_code.evaluation.agreement import DEFAULT_DEPTH, overlap_at, rank_biased_overlap
from model_code.files import read_json
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.project import Project
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Search
from orchestration.registry.shadow_record import ShadowRecord, load_record, save_record

log = logging.getLogger(__name__)
# Largest number of queries and opinions that wait. Others are dropped.
MAX_WAITING = 32
# Shadow mode must not slow a search down, so its thread works only while no search runs. A query or
# opinion for which no such moment comes within this many seconds is dropped.
MAX_IDLE_WAIT_SECONDS = 2.0
# Seconds between two checks whether a search runs.
IDLE_POLL_SECONDS = 0.02
# Seconds between two checks whether there is another challenger. Each check starts a process.
CHALLENGER_SECONDS = 300.0
CHALLENGER_TIMEOUT_SECONDS = 600.0
# Seconds between two writes of the counts to the disk.
SAVE_SECONDS = 5.0
# Number of queries whose rankings are kept in memory for feedback that comes later.
MAX_REMEMBERED_QUERIES = 1000
# Number of documents in each ranking. Documents that only one retriever knows are left out later.
SEARCH_DEPTH = 50
STOP_POLL_SECONDS = 0.5
# Priority of the thread and of the process that asks MLflow; 19 is the lowest.
NICENESS = 19


@dataclass(frozen=True)
class Challenger:
    """A challenger that is open for search.

    Attributes:
        version: Number of its version.
        retriever: Name of its retriever.
        search: Function that maps texts and a depth to rankings.
        document_ids: Ids of the documents that it indexes.
    """

    version: str
    retriever: str
    search: Search
    document_ids: frozenset[str]


@dataclass
class Comparison:
    """The rankings of a query, and what feedback said about its documents.

    Attributes:
        champion: Ids of the champion's documents that both know, best first.
        challenger: Ids of the challenger's documents that both know, best first.
        outcomes: The count that each document with feedback belongs to, by document id: "wins",
            "losses" or "ties" of the challenger.
    """

    champion: Sequence[str]
    challenger: Sequence[str]
    outcomes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class ShadowJob:
    """Work of the shadow thread: a query to compare, or an opinion about one hit of a query.

    Without a `document_id`, the query is compared. With one, `verdict` is the opinion about that
    hit.
    """

    text: str
    document_id: str | None = None
    verdict: str = ""


FindChallenger = Callable[[Project, str], "dict[str, Any] | None"]


class ShadowThread:
    """Thread that compares the challenger with the champion on live queries.

    Args:
        project: The project.
        share: Share of the queries that are compared, from 0 to 1.
        searcher: Returns the searcher of the champion.
        is_busy: Returns whether a search runs or waits.
        find: Returns the challenger for the project and the version that is open; see
            `shadow_challenger.find_challenger`.
        open_files: Opens a challenger from version, retriever and folder.

    Attributes:
        record: Counts about the present challenger; None if there is none.
        dropped: Number of queries that were dropped since the start.
        failure: The reason why the last attempt to open the challenger, or to search with it,
            failed. None if it succeeded.
    """

    def __init__(
        self,
        project: Project,
        share: float,
        searcher: Callable[[], Searcher],
        is_busy: Callable[[], bool],
        find: FindChallenger | None = None,
        open_files: Callable[[str, str, Path], Challenger] | None = None,
    ) -> None:
        self.project = project
        self.share = share
        self.record: ShadowRecord | None = None
        self.dropped = 0
        self.failure: str | None = None

        self._searcher = searcher
        self._is_busy = is_busy
        self._find = find or ask_mlflow
        self._open_files = open_files or open_challenger
        self._challenger: Challenger | None = None
        self._last_look = -CHALLENGER_SECONDS
        self._last_save = 0.0
        self._is_saved = True
        self._remembered: OrderedDict[str, Comparison] = OrderedDict()
        self._jobs: queue.Queue[ShadowJob] = queue.Queue(MAX_WAITING)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="shadow", daemon=True)

    def start(self) -> None:
        """Start the thread, which compares queries until `stop` is called."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Waiting queries are forgotten."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(MAX_IDLE_WAIT_SECONDS)

    def offer(self, texts: Sequence[str]) -> None:
        """Queue a random share of the answered queries for a comparison. This never waits.

        If the queue is full, queries are dropped and counted.
        """
        for text in texts:
            if random.random() < self.share:
                self._put(ShadowJob(text))

    def offer_feedback(self, text: str, document_id: str, verdict: str) -> None:
        """Queue an opinion about a hit of a query. This never waits.

        If the queue is full, the opinion is dropped and counted.
        """
        self._put(ShadowJob(text, document_id, verdict))

    def _put(self, job: ShadowJob) -> None:
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            self._drop()

    def _drop(self) -> None:
        self.dropped += 1
        if self.record is not None:
            self.record.dropped += 1

    def _run(self) -> None:
        """Process jobs until the thread is stopped, and write the counts from time to time."""
        _lower_priority()
        while not self._stopping.is_set():
            try:
                job = self._jobs.get(timeout=STOP_POLL_SECONDS)
            except queue.Empty:
                self._save_while_idle()
                continue
            self.process(job)
        self._save()

    def process(self, job: ShadowJob) -> None:
        """Compare a query or count an opinion, at a moment when no search runs.

        If no such moment comes, the job is dropped. A failure is logged once and does not end the
        thread.
        """
        if not self._wait_until_idle():
            self._drop()
            return
        try:
            self._look_for_challenger()
            if self._challenger is not None:
                self._process(job, self._challenger)
                self.failure = None
        except Exception as error:
            # Every error is caught: shadow mode must never end the service.
            self._note_failure(error)

    def _save_while_idle(self) -> None:
        """Write the counts if it is time. A failure, such as a full disk, does not end the thread.

        The counts stay in memory, and are written after the next query.
        """
        try:
            self._save_if_due()
        except Exception as error:
            self._note_failure(error)

    def _note_failure(self, error: Exception) -> None:
        """Keep a failure for the metrics, and log it unless the last failure was the same."""
        failure = str(error) or type(error).__name__
        if failure != self.failure:
            log.error("shadow mode: %s", failure)
        self.failure = failure

    def _wait_until_idle(self) -> bool:
        """Wait until no search runs, and return whether such a moment came in time."""
        deadline = time.monotonic() + MAX_IDLE_WAIT_SECONDS
        while self._is_busy():
            if time.monotonic() > deadline or self._stopping.is_set():
                return False
            time.sleep(IDLE_POLL_SECONDS)
        return True

    def _process(self, job: ShadowJob, challenger: Challenger) -> None:
        """Add one query, or one opinion about a hit, to the counts about the challenger."""
        searcher = self._searcher()
        record = self._record_for(searcher, challenger)
        if job.document_id is None:
            self._compare(job.text, searcher, challenger, record)
        else:
            self._count_opinion(job.text, job.document_id, job.verdict, record)
        self._is_saved = False
        self._save_if_due()

    def _look_for_challenger(self) -> None:
        """Open the challenger if another version has become challenger; close it if there is none.

        The challenger is the registered retriever that asks to be promoted. MLflow is asked at most
        every `CHALLENGER_SECONDS`, because each question starts a process.
        """
        now = time.monotonic()
        if now - self._last_look < CHALLENGER_SECONDS:
            return
        self._last_look = now
        # The counts about the present challenger are written before it may be closed.
        self._save()

        open_version = "" if self._challenger is None else self._challenger.version
        found = self._find(self.project, open_version)
        self.failure = None
        if found is None:
            self._forget_challenger()
        elif found["version"] != open_version:
            self._forget_challenger()
            self._challenger = self._open_files(
                found["version"], found["retriever"], Path(found["files"])
            )

    def _forget_challenger(self) -> None:
        self._challenger = None
        self.record = None
        self._remembered.clear()

    def _record_for(self, searcher: Searcher, challenger: Challenger) -> ShadowRecord:
        """Return the counts about challenger and champion.

        They begin again after a promotion and after a retune of the champion, which chooses its
        weights again.
        """
        generation = searcher.generation
        # `tuned` is the number of the generation that a retune made, or None without a retune.
        record = self.record or load_record(self.project, challenger.version)
        is_current = (
            record is not None
            and record.is_about(generation.retriever, generation.fingerprint)
            and record.champion_tuned == generation.tuned
        )
        if record is None or not is_current:
            self._remembered.clear()
            record = ShadowRecord(
                challenger.version,
                challenger.retriever,
                generation.retriever,
                generation.fingerprint,
                generation.tuned,
            )
        self.record = record
        return record

    def _compare(
        self, text: str, searcher: Searcher, challenger: Challenger, record: ShadowRecord
    ) -> None:
        """Search with champion and challenger, and add the agreement of their hits to the record.

        The challenger asks to replace the champion. The agreement is the overlap of the first hits,
        and the rank-biased overlap. Only documents that both know are compared. The rankings are
        kept for feedback that comes later.

        Args:
            text: The query, which a person typed.
            searcher: The live index of the champion.
            challenger: The challenger.
            record: What shadow mode has found about the two so far.
        """
        (champion_ranking,) = searcher.plain_retriever.search([text], SEARCH_DEPTH)
        (challenger_ranking,) = challenger.search([text], SEARCH_DEPTH)

        # Keep the documents that both retrievers know, and leave out the others.
        champion_ids = []
        for document_id, _ in champion_ranking:
            if document_id in challenger.document_ids:
                champion_ids.append(document_id)
        challenger_ids = []
        for document_id, _ in challenger_ranking:
            # A view holds the live documents of one segment of the champion's index.
            if any(document_id in view for view in searcher.views):
                challenger_ids.append(document_id)
        comparison = Comparison(champion_ids, challenger_ids)

        champion_top = champion_ids[:DEFAULT_DEPTH]
        challenger_top = challenger_ids[:DEFAULT_DEPTH]
        if not champion_top and not challenger_top:
            return
        record.queries += 1
        record.overlap += overlap_at(champion_top, challenger_top)
        record.rbo += rank_biased_overlap(champion_top, challenger_top)

        self._remembered[query_hash(text)] = comparison
        if len(self._remembered) > MAX_REMEMBERED_QUERIES:
            self._remembered.popitem(last=False)

    def _count_opinion(
        self, text: str, document_id: str, verdict: str, record: ShadowRecord
    ) -> None:
        """Count an opinion about a hit of a compared query, in place of an earlier one.

        The record counts wins, losses and ties of the challenger. An outcome is the name of one of
        these counts.
        """
        comparison = self._remembered.get(query_hash(text))
        if comparison is None:
            return
        outcome = compare_ranks(comparison, document_id, verdict)
        if outcome is None:
            return
        earlier_outcome = comparison.outcomes.get(document_id)
        if earlier_outcome is not None:
            setattr(record, earlier_outcome, getattr(record, earlier_outcome) - 1)
        comparison.outcomes[document_id] = outcome
        setattr(record, outcome, getattr(record, outcome) + 1)

    def _save_if_due(self) -> None:
        """Write the counts if they changed, and the last write is `SAVE_SECONDS` ago."""
        is_due = time.monotonic() - self._last_save >= SAVE_SECONDS
        if is_due and not self._is_saved:
            self._save()

    def _save(self) -> None:
        self._last_save = time.monotonic()
        self._is_saved = True
        if self.record is not None:
            save_record(self.project, self.record)

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield the Prometheus metrics of shadow mode, which compares challenger and champion."""
        record = self.record
        queries = 0
        overlap = float("nan")
        if record is not None:
            queries = record.queries
            if record.mean_overlap is not None:
                overlap = record.mean_overlap
        values = {
            "queries": ("Live queries that the challenger was compared on.", queries),
            "overlap": ("Mean overlap of its first ten documents with the champion's.", overlap),
            "dropped": ("Queries not compared since the start, while busy.", self.dropped),
            "failing": ("1 if the last comparison failed.", self.failure is not None),
        }
        for name, (description, value) in values.items():
            yield GaugeMetricFamily(f"freshet_shadow_{name}", description, float(value))


def compare_ranks(comparison: Comparison, document_id: str, verdict: str) -> str | None:
    """Return the name of the count that an opinion belongs to.

    A thumb up or a click favours the retriever that ranks the document higher, a thumb down the one
    that ranks it lower.

    Args:
        comparison: The rankings.
        document_id: Id of the rated document.
        verdict: One of the values of `Opinion`.

    Returns:
        "wins", "losses" or "ties" of the challenger. None if neither ranking has the document.

    >>> compare_ranks(Comparison(["a", "b"], ["b", "a"]), "b", "up")
    'wins'
    >>> compare_ranks(Comparison(["a", "b"], ["b", "a"]), "b", "down")
    'losses'
    """
    ranks = []
    for ranking in (comparison.champion, comparison.challenger):
        if document_id in ranking:
            ranks.append(ranking.index(document_id))
        else:
            ranks.append(math.inf)
    champion_rank, challenger_rank = ranks

    if champion_rank == challenger_rank:
        is_ranked = champion_rank < math.inf
        return "ties" if is_ranked else None
    is_win = challenger_rank < champion_rank
    if verdict == Opinion.DOWN:
        is_win = not is_win
    return "wins" if is_win else "losses"


def ask_mlflow(project: Project, open_version: str) -> dict[str, Any] | None:
    """Look up the present challenger in MLflow's registry, and download its files.

    The import of MLflow takes seconds, and would slow the searches of this process. So another
    process with a low priority does the look-up; see `orchestration.registry.shadow_challenger`.

    Args:
        project: The project.
        open_version: Number of the challenger that this process has open already; "" without one.
            The files of this version are not downloaded again.

    Returns:
        A dictionary with `version`, `retriever` and `files` of the present challenger; None if
        there is no challenger. `files` is the path of the downloaded folder. It is None if the
        present challenger is `open_version`.

    Raises:
        FreshetError: If the process fails.
    """
    module = "orchestration.registry.shadow_challenger"
    completed = subprocess.run(
        [
            "nice",
            "-n",
            str(NICENESS),
            sys.executable,
            "-m",
            module,
            str(project.root),
            open_version,
        ],
        capture_output=True,
        text=True,
        timeout=CHALLENGER_TIMEOUT_SECONDS,
    )
    lines = completed.stdout.splitlines()
    if completed.returncode != 0 or not lines:
        error_lines = completed.stderr.strip().splitlines()
        reason = error_lines[-1] if error_lines else "no output"
        raise FreshetError(f"the challenger cannot be read from MLflow: {reason}")
    # The answer is the last line. Libraries may have printed lines before it.
    return json.loads(lines[-1])


def open_challenger(version: str, retriever: str, files: Path) -> Challenger:
    """Open a challenger for search.

    Args:
        version: Number of its version.
        retriever: Name of its retriever.
        files: Folder of its files; see `versions.download_files`.
    """
    opened = open_retriever(files / ENCODER, files / INDEX)
    document_ids = frozenset(read_json(files / HIERARCHY / DOCUMENT_IDS))
    return Challenger(version, retriever, opened.without_known_words().search, document_ids)


def _lower_priority() -> None:
    """Give this thread the lowest priority, so that searches come first."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
