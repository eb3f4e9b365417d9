"""The separate process that makes recorded changes searchable; see `apply_process`.

It is started with the number of a file descriptor, which is its end of the pipe to the service, and
the folder of the project.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue

from model_code.collection.index.live_index import LiveIndex
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.documents import Document
from orchestration.service.apply_process import ApplyAnswer, ApplyRequest, EncodeRequest
from orchestration.service.child_process import READY, connect_to_service
from orchestration.service.encode_queue import EncodeQueue

log = logging.getLogger(__name__)
# Is encoded once, so that the encoder is loaded before the first request.
SAMPLE_DOCUMENT = Document("sample", "Sample", "A document that is never indexed.")


class ApplyWorker:
    """Answers the requests of one service.

    One thread receives requests, one applies changes, and one encodes the documents of the next
    batch meanwhile.

    Args:
        project: The project.
        connection: End of the pipe to the service.
    """

    def __init__(self, project: Project, connection: Connection) -> None:
        self._project = project
        self._connection = connection
        self._index: LiveIndex | None = None
        self._index_lock = threading.Lock()
        self._requests: SimpleQueue[ApplyRequest] = SimpleQueue()
        # Name of the retriever that the last request named, for which documents are encoded.
        self._retriever = ""
        self._encode_queue = EncodeQueue(self._encode_ahead)

    def run(self) -> None:
        """Answer requests until the service closes its end of the pipe."""
        threading.Thread(target=self._apply_requests, name="applier", daemon=True).start()
        threading.Thread(target=self._encode_queue.run, name="encoder", daemon=True).start()
        while True:
            try:
                request = self._connection.recv()
            except (EOFError, OSError):
                return
            if isinstance(request, EncodeRequest):
                self._retriever = request.retriever
                self._encode_queue.put(request.documents)
            else:
                self._requests.put(request)

    def _apply_requests(self) -> None:
        """Load the index, and then apply changes whenever a request asks for it."""
        self._load()
        self._send(READY)
        while True:
            request = self._requests.get()
            # The batch encodes all its documents, so none of them is encoded ahead any more.
            self._encode_queue.clear()
            self._send(self._apply(request))

    def _load(self) -> None:
        """Load the index and the encoder. End this process if this fails unexpectedly."""
        try:
            index = self._open_index(None)
            index.warm()
            # The first document is slow, because PyTorch is imported for it.
            index.encode_ahead([SAMPLE_DOCUMENT])
        except FreshetError:
            # Nothing may be live before the first build. A request reports this.
            return
        except Exception:
            log.exception("the index cannot be loaded")
            os._exit(1)

    def _send(self, message: str | ApplyAnswer) -> None:
        # The service may have ended meanwhile. Then this process is about to end as well.
        with suppress(OSError):
            self._connection.send(message)

    def _apply(self, request: ApplyRequest) -> ApplyAnswer:
        try:
            self._open_index(request.retriever).apply()
        except FreshetError as error:
            return ApplyAnswer(str(error))
        except Exception as error:
            log.exception("changes could not be applied")
            return ApplyAnswer(str(error) or type(error).__name__)
        return ApplyAnswer()

    def _encode_ahead(self, documents: Sequence[Document]) -> None:
        self._open_index(self._retriever).encode_ahead(documents)

    def _open_index(self, retriever: str | None) -> LiveIndex:
        """Return the live index of a retriever; None means the default retriever."""
        with self._index_lock:
            if self._index is None or retriever not in (None, self._index.retriever):
                self._index = LiveIndex(self._project, retriever)
            return self._index


def main(descriptor: int, root: Path) -> None:
    """Answer the requests of the service at the other end of a pipe, and end with it.

    Args:
        descriptor: Number of the file descriptor of this end of the pipe.
        root: Folder of the project.
    """
    ApplyWorker(Project(root), connect_to_service(descriptor)).run()
    # A batch may still be applied. The next service applies its changes again.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
