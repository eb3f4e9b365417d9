"""Background work after an addition: update all other retrievers, and delete old generations."""

from __future__ import annotations

import logging
from collections.abc import Callable

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.index.live_index import LiveIndex, live_retrievers
from model_code.collection.settings import LiveSettings
from model_code.errors import FreshetError
from model_code.project import Project

log = logging.getLogger(__name__)

# Number of changes that are applied to a retriever at a time. The lock is free in between, so that
# a new addition does not wait long.
CHANGES_PER_PIECE = 100

# Number of generations that must be unneeded before they are deleted, so that this is done rarely.
MIN_COLLECTED_GENERATIONS = 10


class BackgroundMaintenance:
    """Work that is due after an addition and that no search waits for.

    All retrievers of a project share one ledger of changes. An addition applies the changes only to
    the default retriever, so that it returns fast. This class applies them to the other retrievers
    later. It also deletes old generations.

    Args:
        project: The project.
        find_loaded: Function that returns the live index of a retriever if it is open already, with
            its encoder in memory, else None.

    Attributes:
        failures: Error messages of retrievers that could not apply the changes, by name.
    """

    def __init__(
        self,
        project: Project,
        find_loaded: Callable[[str], LiveIndex | None] = lambda name: None,
    ) -> None:
        self.project = project
        self.failures: dict[str, str] = {}
        self._find_loaded = find_loaded
        # Live indexes that this object has opened, by the name of the retriever.
        self._indexes: dict[str, LiveIndex] = {}
        # Retrievers that are not tried again before all other work is done.
        self._failed_since_last_idle: set[str] = set()

    def run_once(
        self, limit: int | None = CHANGES_PER_PIECE, except_retriever: str | None = None
    ) -> bool:
        """Do one piece of the work: apply some changes to one retriever, or delete generations.

        The pieces are small, so that a new addition can work in between.

        Args:
            limit: Largest number of changes to apply. None applies all.
            except_retriever: Name of a retriever that has applied all changes already.

        Returns:
            False if no work is left. Work of retrievers that failed does not count.
        """
        names = live_retrievers(self.project)
        # A retriever may have been removed since it failed.
        for removed_name in self.failures.keys() - set(names):
            del self.failures[removed_name]

        for name in names:
            if name == except_retriever or name in self._failed_since_last_idle:
                continue
            if self._try(name, lambda name=name: self._apply_pending(name, limit)):
                return True

        for name in names:
            self._try(name, lambda name=name: self._collect_garbage(name))
        # After the next addition, retrievers that failed are tried again.
        self._failed_since_last_idle.clear()
        return False

    def run_all(self, except_retriever: str | None = None) -> dict[str, str]:
        """Do all of the work, and return `failures`.

        Args:
            except_retriever: Name of a retriever that has applied all changes already.
        """
        while self.run_once(limit=None, except_retriever=except_retriever):
            pass
        return self.failures

    def _try(self, name: str, action: Callable[[], bool]) -> bool:
        """Run an action for a retriever, and record its error, so that other retrievers go on.

        Args:
            name: Name of the retriever.
            action: The action.

        Returns:
            The result of the action. False if it raised an error.
        """
        try:
            return action()
        except Exception as error:
            self.failures[name] = str(error) or type(error).__name__
            self._failed_since_last_idle.add(name)
            is_unexpected = not isinstance(error, FreshetError)
            log.error("%s: %s", name, self.failures[name], exc_info=is_unexpected)
            return False

    def _apply_pending(self, name: str, limit: int | None) -> bool:
        """Apply pending changes to a retriever, and return whether there were any."""
        applied = self._index(name).apply(limit)
        self.failures.pop(name, None)
        return applied is not None

    def _collect_garbage(self, name: str) -> bool:
        """Delete old generations of a retriever, if there are enough unneeded ones.

        Generations of registered builds are kept, because a rollback of the champion, the version
        that is searched by default, returns to them. Generations that a retrain is going to read
        are kept as well. `freshet tools gc` also deletes builds that the registry no longer needs.

        Returns:
            Whether generations were deleted.
        """
        store = GenerationStore(self.project.live, name)
        if store.next_number() < MIN_COLLECTED_GENERATIONS:
            return False

        # These imports are inside because most calls return before they are needed.
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
        """Return the live index of a retriever.

        An index that is open elsewhere is preferred, so that its encoder is not loaded twice.
        """
        loaded = self._find_loaded(name)
        if loaded is not None:
            self._indexes.pop(name, None)
            return loaded
        if name not in self._indexes:
            self._indexes[name] = LiveIndex(self.project, name)
        return self._indexes[name]
