"""Threads of the service that publish the live collection, or follow a published one.

A publication is a generation in a shared place. A follower is a copy of the collection on another
machine, which is updated from publications.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily

from model_code.collection.follow.follower import Follower
from model_code.collection.follow.publish import publish
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.project import Project

log = logging.getLogger(__name__)
# Seconds between two checks of a follower for a new publication.
FOLLOW_SECONDS = 2.0
# Seconds between two checks of a writer for a new generation to publish.
PUBLISH_SECONDS = 1.0


class FollowThread:
    """Thread that keeps the copy of a follower up to date until it is stopped."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._logged: str | None = None

    def start(self) -> None:
        """Start the thread, which updates the copy again and again."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end. An update that is running is completed."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(FOLLOW_SECONDS):
            self.update_once()

    def update_once(self) -> None:
        """Bring the copy up to the newest generation that the writer has published.

        After a failure the present copy remains searchable. The same failure is logged only once.
        """
        failure = None
        try:
            self.follower.update()
        except Exception as error:
            # Every error is caught, so that the thread goes on and the next update tries again.
            failure = str(error) or type(error).__name__
        if failure is not None and failure != self._logged:
            log.error("the copy is not brought up to date: %s", failure)
        self._logged = failure

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield Prometheus metrics: how far the copy is behind, and whether updates fail."""
        lag = self.follower.lag()
        values = {
            "behind": ("Publications that are not searched yet.", lag.behind),
            "lag_seconds": ("Age of the oldest publication not searched yet.", lag.seconds),
            "unchecked_seconds": ("Time since the head was read.", lag.unchecked_seconds),
            "failing": ("1 if the last update failed.", lag.failure is not None),
        }
        for name, (description, value) in values.items():
            yield GaugeMetricFamily(f"freshet_follow_{name}", description, float(value))


class PublishThread:
    """Thread that publishes each new generation of the default retriever until it is stopped."""

    def __init__(self, project: Project, target: str, key: bytes) -> None:
        """Prepare the thread.

        Args:
            project: The writer's project.
            target: Address of the shared place, as in the setting `live.publish`.
            key: The secret key that signs publications. Followers, the copies, have the same key.
        """
        self.project = project
        self.target = target
        self.key = key
        # The reason why the last publication failed; None if it succeeded.
        self.failure: str | None = None
        self._published: tuple[str, int | None] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread, which publishes each new generation."""
        self._thread.start()

    def stop(self) -> None:
        """Tell the thread to end. A publication that is running is completed."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(PUBLISH_SECONDS):
            self.publish_once()

    def publish_once(self) -> None:
        """Publish the current generation, unless it is published already.

        A generation is a snapshot of the index. Followers, copies on other machines, fetch it from
        the shared place. The same failure is logged only once.
        """
        try:
            if not retrievers(self.project.live):
                return
            name = default_retriever(self.project.live)
            current = (name, GenerationStore(self.project.live, name).current_number())
            if current == self._published:
                return
            publish(self.project, self.target, self.key)
            self._published = current
            self.failure = None
        except Exception as error:
            # Every error is caught, so that the thread goes on and the next call tries again.
            # Meanwhile documents can still be searched and changed.
            failure = str(error) or type(error).__name__
            if failure != self.failure:
                log.error("the generation is not published: %s", failure)
            self.failure = failure

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield a Prometheus metric: whether the current generation could not be published."""
        yield GaugeMetricFamily(
            "freshet_publish_failing",
            "1 if the current generation could not be published.",
            float(self.failure is not None),
        )
