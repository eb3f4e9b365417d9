"""Threads of the service that follow a published collection, or publish the live one."""

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
from model_code.errors import FreshetError
from model_code.project import Project

log = logging.getLogger(__name__)
# Interval in which a follower reads the head.
FOLLOW_SECONDS = 2.0
# Interval in which a writer looks for a new generation.
PUBLISH_SECONDS = 1.0


class FollowThread:
    """Brings the copy of a follower up to date until it is stopped."""

    def __init__(self, follower: Follower) -> None:
        self.follower = follower
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="follower", daemon=True)
        self._logged: str | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the update that runs."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(FOLLOW_SECONDS):
            self.update_once()

    def update_once(self) -> None:
        """Update the copy. A failure is logged once, and what is searched stays."""
        failure = None
        try:
            self.follower.update()
        except Exception as error:
            # Whatever is wrong, the copy is searched further, and the next update tries again.
            failure = str(error) or type(error).__name__
        if failure is not None and failure != self._logged:
            log.error("the copy is not brought up to date: %s", failure)
        self._logged = failure

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metrics of the follower."""
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
    """Publishes each new generation of the default retriever until it is stopped."""

    def __init__(self, project: Project, target: str, key: bytes) -> None:
        """Prepare the thread.

        Args:
            project: The writer's project.
            target: Where to publish, as in the setting `live.publish`.
            key: The shared key.
        """
        self.project = project
        self.target = target
        self.key = key
        # Why the last publication failed; None if it did not.
        self.failure: str | None = None
        self._published: tuple[str, int | None] | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End after the publication that runs."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(PUBLISH_SECONDS):
            self.publish_once()

    def publish_once(self) -> None:
        """Publish if the current generation was not published yet. A failure is logged once."""
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
        except (FreshetError, OSError) as error:
            # The next look tries again. Documents are searched and changed meanwhile.
            failure = str(error)
            if failure != self.failure:
                log.error("the generation is not published: %s", failure)
            self.failure = failure

    def gauges(self) -> Iterator[GaugeMetricFamily]:
        """Yield the metric of the publication."""
        yield GaugeMetricFamily(
            "freshet_publish_failing",
            "1 if the current generation could not be published.",
            float(self.failure is not None),
        )
