"""Tests of the processes that search for the service."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient

from model_code.collection.generations.query_options import QueryOptions
from model_code.collection.generations.searcher import Searcher
from model_code.collection.index.live_index import LiveIndex
from model_code.errors import Damaged, FreshetError, SettingsError
from model_code.project import Project
from orchestration.service import child_process, search_worker, searchers
from orchestration.service.app import create_app
from orchestration.service.child_process import READY, ProcessEnded
from orchestration.service.errors import Busy, NotFound
from orchestration.service.search_process import SearchProcesses, TaskAnswer, TaskRequest
from orchestration.service.search_tasks import LikeSearch, RaisedCheck, SearchTask, TextSearch
from orchestration.service.search_worker import SearchWorker
from orchestration.service.searchers import Searchers
from orchestration.service.server import choose_search_processes
from tests.model_code.collection.conftest import make_build
from tests.orchestration.service.conftest import until

OPTIONS = QueryOptions(k=3)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with the live retriever "hce", whose encoder is tiny."""
    (tmp_path / "params.yaml").write_text("{retrievers: {hce: {}}}")
    (tmp_path / "dvc.yaml").touch()
    make_build(tmp_path / "build").open(tmp_path)
    return Project(tmp_path)


def add_document(project: Project, name: str) -> Searcher:
    """Make a document searchable, and return the searcher of the new generation."""
    index = LiveIndex(project)
    index.receive([{"_id": name, "title": name, "text": f"About {name}."}], "test")
    index.apply()
    return Searcher.open(project.live)


def request_for(searcher: Searcher, task: SearchTask[Any]) -> TaskRequest:
    return TaskRequest(task, "hce", searcher.generation.manifest_hash)


class TestWorker:
    """The worker runs in a thread here, which is faster than a process."""

    @pytest.fixture
    def worker(self, project: Project) -> SearchWorker:
        """Return a worker that does not run. Its answers are asked for directly."""
        connection, _ = Pipe()
        return SearchWorker(project, connection)

    @pytest.fixture
    def service_end(self, project: Project) -> Iterator[Connection]:
        """Start a worker, and return the service's end of its pipe after it is ready."""
        service_end, worker_end = Pipe()
        thread = threading.Thread(target=SearchWorker(project, worker_end).run)
        thread.start()
        assert service_end.recv() == READY
        yield service_end
        service_end.close()
        thread.join(30)
        # The worker ends when the service has closed its end of the pipe.
        assert not thread.is_alive()

    def test_answer_equals_search_in_the_service(
        self, project: Project, service_end: Connection
    ) -> None:
        searcher = Searcher.open(project.live)
        task = TextSearch(["bread", "a car"], OPTIONS)

        service_end.send(request_for(searcher, task))
        answer = service_end.recv()

        assert answer.result == task.run(searcher)
        assert answer.manifest_hash == searcher.generation.manifest_hash

    def test_feedback_check_is_answered(self, project: Project, service_end: Connection) -> None:
        searcher = Searcher.open(project.live)
        document_id = searcher.search("bread", 1)[0].document_id

        service_end.send(request_for(searcher, RaisedCheck("bread", document_id)))

        assert service_end.recv().result is False

    def test_new_generation_is_opened_by_the_request(
        self, project: Project, worker: SearchWorker
    ) -> None:
        first = Searcher.open(project.live)
        worker.answer(request_for(first, TextSearch(["bread"], OPTIONS)))
        second = add_document(project, "new")

        answer = worker.answer(request_for(second, LikeSearch("new", OPTIONS)))

        assert answer.result.generation == second.generation.number

    def test_generation_that_the_service_has_not_opened_is_reported(
        self, project: Project, worker: SearchWorker
    ) -> None:
        first = Searcher.open(project.live)
        second = add_document(project, "new")

        answer = worker.answer(request_for(first, TextSearch(["bread"], OPTIONS)))

        assert answer.manifest_hash == second.generation.manifest_hash

    def test_generation_that_cannot_be_opened_is_not_searched(
        self, project: Project, worker: SearchWorker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = Searcher.open(project.live)
        worker.answer(request_for(first, TextSearch(["bread"], OPTIONS)))
        second = add_document(project, "new")

        def fail(searcher: Searcher) -> Searcher:
            raise OSError("too many open files")

        monkeypatch.setattr(Searcher, "renewed", fail)
        answer = worker.answer(request_for(second, TextSearch(["bread"], OPTIONS)))

        assert answer == TaskAnswer(is_behind=True)

    def test_deleted_retriever_is_left_to_the_service(
        self, project: Project, worker: SearchWorker
    ) -> None:
        request = TaskRequest(TextSearch(["bread"], OPTIONS), "deleted", "")

        assert worker.answer(request) == TaskAnswer(is_behind=True)

    def test_idle_worker_closes_old_generations(
        self, project: Project, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened: list[int] = []

        class RecordingSearchers(Searchers):
            def refresh(self) -> None:
                super().refresh()
                opened.append(self.current().generation.number)

        monkeypatch.setattr(search_worker, "Searchers", RecordingSearchers)
        monkeypatch.setattr(searchers, "POLL_SECONDS", 0.02)
        service_end, worker_end = Pipe()
        thread = threading.Thread(target=SearchWorker(project, worker_end).run)
        thread.start()

        number = add_document(project, "new").generation.number

        assert until(lambda: number in opened)
        service_end.close()
        thread.join(30)

    def test_error_of_a_search_keeps_its_class(
        self, project: Project, service_end: Connection
    ) -> None:
        searcher = Searcher.open(project.live)

        service_end.send(request_for(searcher, LikeSearch("unknown", OPTIONS)))
        not_found = service_end.recv().error
        service_end.send(request_for(searcher, TextSearch([""], OPTIONS)))
        invalid = service_end.recv().error

        assert type(not_found) is NotFound
        assert str(not_found) == "there is no document 'unknown'"
        assert type(invalid) is SettingsError

    def test_error_that_cannot_be_restored_keeps_its_message(
        self, project: Project, service_end: Connection
    ) -> None:
        searcher = Searcher.open(project.live)

        service_end.send(request_for(searcher, FailingTask()))
        error = service_end.recv().error

        assert type(error) is FreshetError
        assert str(error) == "index.bin is torn; mend it"


class FailingTask(SearchTask[bool]):
    def run(self, searcher: Searcher) -> bool:
        raise Damaged("index.bin is torn", "mend it")


class OwnTask(SearchTask[str]):
    """A task that tells that the service itself has run it."""

    def run(self, searcher: Searcher) -> str:
        return f"searched here in generation {searcher.generation.number}"


class FakeChild:
    """A child process that gives one answer, or ends instead if there is none."""

    def __init__(self, answer: TaskAnswer | None) -> None:
        self.answer = answer
        self.starts = 0
        self.stops = 0

    def check_ready(self) -> bool:
        return True

    def start(self) -> None:
        self.starts += 1

    def stop(self) -> None:
        self.stops += 1

    def send(self, request: TaskRequest) -> None:
        self.request = request

    def receive(self) -> TaskAnswer:
        if self.answer is None:
            raise ProcessEnded
        return self.answer


class FakeSearchers:
    """Open searchers. `refresh` opens the next generation."""

    def __init__(self) -> None:
        self.number = 0

    def current(self, retriever: str | None) -> Any:
        generation = SimpleNamespace(
            number=self.number, retriever="hce", manifest_hash=str(self.number)
        )
        return SimpleNamespace(generation=generation)

    def refresh(self) -> None:
        self.number += 1


class TestProcesses:
    @pytest.fixture
    def open_searchers(self) -> FakeSearchers:
        return FakeSearchers()

    @pytest.fixture
    def processes_of(
        self, project: Project, open_searchers: FakeSearchers, monkeypatch: pytest.MonkeyPatch
    ) -> Any:
        """Return a function that makes `SearchProcesses` with one fake child."""

        def make(child: FakeChild) -> SearchProcesses:
            monkeypatch.setattr(
                "orchestration.service.search_process.ChildProcess", lambda *arguments: child
            )
            return SearchProcesses(project, 1, open_searchers)

        return make

    def test_answer_of_the_process_is_returned(self, processes_of: Any) -> None:
        child = FakeChild(TaskAnswer("searched there", manifest_hash="0"))

        assert processes_of(child).run(OwnTask(), None) == "searched there"
        assert child.request.manifest_hash == "0"

    def test_service_searches_if_the_process_ends(self, processes_of: Any) -> None:
        processes = processes_of(FakeChild(None))

        assert processes.run(OwnTask(), None) == "searched here in generation 0"

    def test_service_searches_if_the_process_is_behind(self, processes_of: Any) -> None:
        processes = processes_of(FakeChild(TaskAnswer(is_behind=True)))

        assert processes.run(OwnTask(), None) == "searched here in generation 0"

    def test_service_opens_a_newer_generation_before_it_answers(
        self, processes_of: Any, open_searchers: FakeSearchers
    ) -> None:
        processes = processes_of(FakeChild(TaskAnswer("newer", manifest_hash="1")))

        assert processes.run(OwnTask(), None) == "newer"
        assert open_searchers.number == 1

    def test_service_searches_if_the_process_is_busy(self, processes_of: Any) -> None:
        class BusyChild(FakeChild):
            def receive(self) -> TaskAnswer:
                self.nested = processes.run(OwnTask(), None)
                return TaskAnswer("searched there", manifest_hash="0")

        child = BusyChild(None)
        processes = processes_of(child)

        assert processes.run(OwnTask(), None) == "searched there"
        assert child.nested == "searched here in generation 0"

    def test_error_of_the_process_is_raised(self, processes_of: Any) -> None:
        processes = processes_of(FakeChild(TaskAnswer(error=NotFound("no such document"))))

        with pytest.raises(NotFound, match="no such document"):
            processes.run(OwnTask(), None)

    def test_search_fails_while_the_service_stops(self, processes_of: Any) -> None:
        child = FakeChild(None)
        processes = processes_of(child)

        processes.stop()
        processes.start()

        with pytest.raises(Busy, match="the service is stopping"):
            processes.run(OwnTask(), None)
        assert child.starts == 0
        assert child.stops == 1


class TestSetting:
    def test_threads_search_by_default(self, project: Project) -> None:
        assert choose_search_processes(project, None) == 0

    def test_setting_and_option_choose_the_number(self, project: Project) -> None:
        project.params_file.write_text("{retrievers: {hce: {}}, live: {search_processes: 3}}")

        assert choose_search_processes(project, None) == 3
        assert choose_search_processes(project, 1) == 1

    def test_too_many_processes_are_refused(self, project: Project) -> None:
        with pytest.raises(SettingsError, match="--search-processes is 65, .* at most 64"):
            choose_search_processes(project, 65)


def test_searches_survive_kills_and_switches(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child_process, "RESTART_SECONDS", 0.0)
    app = create_app(project, search_processes=2)
    processes = app.state.service.search_processes
    search_here = TextSearch.run
    searched_here: list[int] = []

    def record_search(task: TextSearch, searcher: Searcher) -> Any:
        searched_here.append(searcher.generation.number)
        return search_here(task, searcher)

    # Search processes import the class again, so this counts the searches of the service itself.
    monkeypatch.setattr(TextSearch, "run", record_search)
    # Number of documents that were acknowledged as searchable, and the generation of the last one.
    acknowledged = {"documents": 0, "generation": 0}
    failures: list[str] = []
    answers: list[int] = []
    is_done = threading.Event()
    batch = {"texts": ["bread", "new", "a car"], "filters": {"kind": ["new", "x"]}}

    def search() -> None:
        while not is_done.is_set():
            expected = dict(acknowledged)
            answer = client.post("/search/batch", json=batch)
            if answer.status_code != 200:
                failures.append(answer.text)
                return
            results = answer.json()["results"]
            answers.append(answer.status_code)
            generations = {result["generation"] for result in results}
            totals = {result["total"] for result in results}
            if len(generations) > 1 or len(totals) > 1:
                failures.append(f"mixed: {generations} {totals}")
            if min(generations) < expected["generation"]:
                failures.append(f"generation {generations} is older than {expected}")
            if min(totals) < expected["documents"]:
                failures.append(f"{totals} documents are fewer than {expected}")

    with TestClient(app) as client:
        assert until(lambda: processes.ready_count == 2, 60)
        first_pids = processes.pids
        add = {"documents": [{"_id": "new.0", "title": "new", "text": "new", "kind": "new"}]}
        assert client.post("/documents", json=add).status_code == 200
        threads = [threading.Thread(target=search) for _ in range(3)]
        for thread in threads:
            thread.start()

        for number in range(1, 7):
            add["documents"][0]["_id"] = f"new.{number}"
            answer = client.post("/documents", json=add).json()
            assert answer["searchable"]
            acknowledged.update(documents=number + 1, generation=answer["generation"])
            if number in (2, 4):
                os.kill(processes.pids[0], signal.SIGKILL)
        assert until(lambda: processes.ready_count == 2, 60)
        is_done.set()
        for thread in threads:
            thread.join(30)
        last_pids = processes.pids

    assert failures == []
    assert len(searched_here) < len(answers)
    assert last_pids != first_pids
    assert processes.pids == []
