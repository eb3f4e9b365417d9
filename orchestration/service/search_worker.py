"""A separate process that searches for the service; see `search_process`.

It is started with the number of a file descriptor, which is its end of the pipe to the service, and
the folder of the project.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path

from model_code.collection.generations.searcher import Searcher
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.retrieval.reranker import Reranker, RerankSettings
from orchestration.service import searchers
from orchestration.service.child_process import READY, connect_to_service
from orchestration.service.search_process import TaskAnswer, TaskRequest
from orchestration.service.searchers import Searchers

log = logging.getLogger(__name__)


class SearchWorker:
    """Answers the requests of one service, one after the other.

    Args:
        project: The project.
        connection: End of the pipe to the service.
    """

    def __init__(self, project: Project, connection: Connection) -> None:
        self._project = project
        self._connection = connection
        self._searchers = Searchers(project.live, self._load_reranker)
        self._refresh_time = 0.0
        # The error of the last look for new generations; None if it succeeded.
        self._refresh_failure: str | None = None

    def run(self) -> None:
        """Answer requests until the service closes its end of the pipe."""
        # Nothing may be live before the first build, which a request reports.
        with suppress(FreshetError):
            # The first search of a process is slow.
            self._searchers.current().search("warm", 1)
        try:
            self._connection.send(READY)
            while True:
                if self._connection.poll(searchers.POLL_SECONDS):
                    request = self._connection.recv()
                    self._connection.send(self.answer(request))
                self._refresh_if_due()
        except (EOFError, OSError):
            # The service has ended.
            return

    def answer(self, request: TaskRequest) -> TaskAnswer:
        """Run the task of a request. Errors are part of the answer."""
        searcher = self._find_searcher(request)
        if searcher is None:
            return TaskAnswer(is_behind=True)
        try:
            result = request.task.run(searcher)
        except FreshetError as error:
            return TaskAnswer(error=_make_picklable(error))
        except Exception as error:
            log.exception("a search failed")
            return TaskAnswer(error=_make_picklable(error))
        return TaskAnswer(result, manifest_hash=searcher.generation.manifest_hash)

    def _find_searcher(self, request: TaskRequest) -> Searcher | None:
        """Return the searcher of the generation that the service has open, or of a newer one.

        None if the current generation cannot be opened. Then the service searches itself, because
        it may have the files of a deleted retriever still open.
        """
        try:
            searcher = self._searchers.current(request.retriever)
            if searcher.generation.manifest_hash == request.manifest_hash:
                return searcher
            # The service has opened its generation when it was current. So the one that is current
            # now is the same or a newer one.
            searcher = self._searchers.newest_of(request.retriever)
        except Exception as error:
            log.warning("a search process cannot open the index: %s", error)
            return None
        # After a failure, the open generation may be older.
        return searcher if self._searchers.failure is None else None

    def _refresh_if_due(self) -> None:
        """Open new generations and close old ones, so that files of old ones can be deleted."""
        if time.monotonic() - self._refresh_time < searchers.POLL_SECONDS:
            return
        self._refresh_time = time.monotonic()
        failure = None
        try:
            self._searchers.refresh()
        except Exception as error:
            # Every error is caught, because the process can still search what it has open.
            failure = str(error) or type(error).__name__
            if failure != self._refresh_failure:
                log.error("new generations cannot be looked for: %s", failure)
        self._refresh_failure = failure

    def _load_reranker(self) -> Reranker | None:
        return Reranker.load(self._project.settings("rerank", RerankSettings))


def _make_picklable(error: Exception) -> Exception:
    """Return an error that can be sent to the service, with the same message.

    Python restores an exception by a call of its class with the arguments of `Exception`. This
    fails if the class takes other arguments.
    """
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        if isinstance(error, FreshetError):
            return FreshetError(str(error))
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def main(descriptor: int, root: Path) -> None:
    """Answer the requests of the service at the other end of a pipe, and end with it.

    Args:
        descriptor: Number of the file descriptor of this end of the pipe.
        root: Folder of the project.
    """
    SearchWorker(Project(root), connect_to_service(descriptor)).run()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
