"""What is due after an addition: the other retrievers, and generations that nobody needs."""

from __future__ import annotations

import logging
from collections.abc import Callable

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex, live_retrievers
from model_code.collection.settings import LiveSettings
from model_code.errors import FreshetError
from model_code.project import Project

log = logging.getLogger(__name__)
PIECE = 100  # changes that a retriever takes in at a time
COLLECTED = 10  # as soon as so many old generations can go, they do


class BackgroundMaintenance:
    """What is due after an addition and no search waits for: the other live retrievers, and
    generations nobody needs.

    Documents arrive for every retriever at once, in one ledger, and each live collection takes them
    in by itself. The one that is searched by default comes first; this is the rest, in pieces that
    a waiting addition is not kept long by. `failures`: why a retriever could not take in what
    arrived, by its name.
    """

    def __init__(
        self, project: Project, loaded: Callable[[str], LiveIndex | None] = lambda name: None
    ) -> None:
        """loaded: a retriever's collection if it is open already, with encoder and index in memory."""
        self.project, self._loaded = project, loaded
        self.failures: dict[str, str] = {}
        self._collections: dict[str, LiveIndex] = {}
        self._failed_now: set[str] = set()

    def run_once(self, limit: int | None = PIECE, except_retriever: str | None = None) -> bool:
        """Do one piece, of at most `limit` changes; False if none is left but that of retrievers
        that failed.

        except_retriever: a retriever that has just taken in what there was.
        """
        names = live_retrievers(self.project)
        for gone in self.failures.keys() - set(names):
            del self.failures[gone]
        waiting = (
            name for name in names if name != except_retriever and name not in self._failed_now
        )
        if any(self._try(name, self._take_in, limit) for name in waiting):
            return True
        for name in names:
            self._try(name, self._collect)
        self._failed_now.clear()  # the next addition is another attempt
        return False

    def run_all(self, except_retriever: str | None = None) -> dict[str, str]:
        """Do all of it; the `failures`. except_retriever: see `run_once`."""
        while self.run_once(limit=None, except_retriever=except_retriever):
            pass
        return self.failures

    def _try(self, name: str, action: Callable[..., bool], *arguments: int | None) -> bool:
        """Whether there was something to do, and it was done."""
        try:
            return action(name, *arguments)
        except Exception as error:  # the other retrievers do not suffer from it
            self.failures[name] = str(error) or type(error).__name__
            self._failed_now.add(name)
            log.error(
                "%s: %s", name, self.failures[name], exc_info=not isinstance(error, FreshetError)
            )
            return False

    def _take_in(self, name: str, limit: int | None) -> bool:
        applied = self._collection(name).apply(limit)
        self.failures.pop(name, None)
        return applied is not None

    def _collect(self, name: str) -> bool:
        """Delete old generations, if enough can go.

        The builds that were opened stay, as a rollback of the champion returns to them, and so does
        what a retrain that has just begun reads. `freshet tools gc` asks the registry, too, which
        builds may go.
        """
        collection = GenerationStore(self.project.live, name)
        if collection.next_number() < COLLECTED:
            return False
        from model_code.collection.index.builds import registered_builds
        from model_code.collection.index.retrain_plan import planned_generations

        if (keep := self.project.settings("live", LiveSettings).keep_generations) is None:
            return False

        protected = {build.number for build in registered_builds(collection)} | planned_generations(
            self.project, name
        )
        if len(collection.unneeded_generations(keep, protected)) < COLLECTED:
            return False
        return bool(self._collection(name).collect_garbage(keep, protected))

    def _collection(self, name: str) -> LiveIndex:
        if (loaded := self._loaded(name)) is not None:
            self._collections.pop(name, None)
            return loaded
        if name not in self._collections:
            self._collections[name] = LiveIndex(self.project, name)
        return self._collections[name]
