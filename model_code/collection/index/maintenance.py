"""Work after an addition: update the other retrievers, and delete old generations."""

from __future__ import annotations

import logging
from collections.abc import Callable

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex, live_retrievers
from model_code.collection.settings import LiveSettings
from model_code.errors import FreshetError
from model_code.project import Project

log = logging.getLogger(__name__)

# A retriever takes in so many changes at a time, so that a waiting addition does not wait long.
CHANGES_PER_PIECE = 100

# Old generations are deleted as soon as so many of them can go.
MIN_COLLECTED_GENERATIONS = 10


class BackgroundMaintenance:
    """Work that is due after an addition and that no search waits for.

    Documents arrive for all retrievers at once, in one ledger, and each live index takes them in by
    itself. The retriever that is searched by default comes first. This class updates the others,
    and deletes generations that nothing needs.

    Args:
        project: The project.
        find_loaded: Returns the live index of a retriever if it is open already, with encoder and
            index in memory.

    Attributes:
        failures: Why a retriever could not take the changes in, by its name.
    """

    def __init__(
        self,
        project: Project,
        find_loaded: Callable[[str], LiveIndex | None] = lambda name: None,
    ) -> None:
        self.project = project
        self.failures: dict[str, str] = {}
        self._find_loaded = find_loaded
        self._indexes: dict[str, LiveIndex] = {}
        self._failed_since_last_idle: set[str] = set()

    def run_once(
        self, limit: int | None = CHANGES_PER_PIECE, except_retriever: str | None = None
    ) -> bool:
        """Do one piece of the work.

        Args:
            limit: Number of changes in the piece; None for all.
            except_retriever: A retriever that has just taken in all changes.

        Returns:
            False if no work is left, except of retrievers that have failed.
        """
        names = live_retrievers(self.project)
        for removed_name in self.failures.keys() - set(names):
            del self.failures[removed_name]

        for name in names:
            if name == except_retriever or name in self._failed_since_last_idle:
                continue
            if self._try(name, lambda name=name: self._take_in(name, limit)):
                return True

        for name in names:
            self._try(name, lambda name=name: self._collect_garbage(name))
        # The next addition is another attempt for the retrievers that failed.
        self._failed_since_last_idle.clear()
        return False

    def run_all(self, except_retriever: str | None = None) -> dict[str, str]:
        """Do all of the work, and return `failures`.

        Args:
            except_retriever: A retriever that has just taken in all changes.
        """
        while self.run_once(limit=None, except_retriever=except_retriever):
            pass
        return self.failures

    def _try(self, name: str, action: Callable[[], bool]) -> bool:
        """Return the result of an action; False if it fails, so that other retrievers go on."""
        try:
            return action()
        except Exception as error:
            self.failures[name] = str(error) or type(error).__name__
            self._failed_since_last_idle.add(name)
            is_unexpected = not isinstance(error, FreshetError)
            log.error("%s: %s", name, self.failures[name], exc_info=is_unexpected)
            return False

    def _take_in(self, name: str, limit: int | None) -> bool:
        """Apply changes to a retriever, and return whether there were any."""
        applied = self._index(name).apply(limit)
        self.failures.pop(name, None)
        return applied is not None

    def _collect_garbage(self, name: str) -> bool:
        """Delete old generations if enough of them can go.

        Builds that were opened stay, because a rollback of the champion returns to them. So do the
        generations that a retrain is about to read. `freshet tools gc` asks the registry, too,
        which builds may go.
        """
        store = GenerationStore(self.project.live, name)
        if store.next_number() < MIN_COLLECTED_GENERATIONS:
            return False

        # Most additions end above, and need neither of these modules.
        from model_code.collection.index.builds import registered_builds
        from model_code.collection.index.retrain_plan import planned_generations

        keep = self.project.settings("live", LiveSettings).keep_generations
        if keep is None:
            return False

        protected = set(planned_generations(self.project, name))
        for build in registered_builds(store):
            protected.add(build.number)
        if len(store.unneeded_generations(keep, protected)) < MIN_COLLECTED_GENERATIONS:
            return False
        return bool(self._index(name).collect_garbage(keep, protected))

    def _index(self, name: str) -> LiveIndex:
        loaded = self._find_loaded(name)
        if loaded is not None:
            self._indexes.pop(name, None)
            return loaded
        if name not in self._indexes:
            self._indexes[name] = LiveIndex(self.project, name)
        return self._indexes[name]
