"""A project: the paths of its files, its settings, and locks between processes.

A lock is held by an open file. The operating system therefore frees it when the process ends.
"""

from __future__ import annotations

import os
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from model_code.errors import FreshetError, SettingsError
from model_code.files import write_text

if TYPE_CHECKING:
    from model_code.settings import T

# Environment variable with the folder of the project.
PROJECT = "FRESHET_PROJECT"

# Name of the settings file in the project's root.
PARAMS = "params.yaml"

# Environment variable that tells child processes that the project's lock is held.
LOCK_HELD = "FRESHET_LOCK_HELD"
# File below the state folder which marks a project as a copy of a published collection.
FOLLOWING = "following.json"
WAITING = "waiting for the build, the retrain or another command of this project that runs now"
# Characters that the path in an SQLite URL may contain unquoted.
UNQUOTED = "/ '\"#:@"
# Seconds after which a waiting process prints the lock's owner. Usual short waits, such as for the
# creation of an MLflow store, take several seconds and print nothing.
PATIENCE = 15.0

# Seconds that a process waits for a lock by default, at most.
HOUR = 3600.0

# Seconds that a process waits for a build or a pilot, at most. They hold their locks for hours.
DAY = 24 * HOUR


def sqlite_url(file: Path) -> str:
    """Return the URL of an SQLite file, whatever characters its path has.

    >>> sqlite_url(Path("/srv/why? 'so'/x.db"))
    "sqlite:////srv/why%3F 'so'/x.db"
    """
    return f"sqlite:///{quote(str(file), safe=UNQUOTED)}"


@dataclass(frozen=True)
class Project:
    """A project's folder, which holds `params.yaml` and `dvc.yaml`, and the places below it.

    Attributes:
        root: The folder.
        home: The project that a temporary workspace belongs to; None for other projects. A
            workspace uses the state and the live collections of its home.
    """

    root: Path
    home: Path | None = None

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """Return the project around a folder.

        Args:
            start: The folder. None: FRESHET_PROJECT, or else the working directory.

        Raises:
            FreshetError: If neither the folder nor one above it is a project.
        """
        if start is None:
            start = Path(os.environ.get(PROJECT, "."))
        folder = start.resolve()
        for candidate in (folder, *folder.parents):
            if (candidate / PARAMS).is_file() and (candidate / "dvc.yaml").is_file():
                return cls(candidate)
        raise FreshetError(
            f"{folder} is not inside a Freshet project: no params.yaml and dvc.yaml here or above. "
            "`freshet init` makes one"
        )

    @cached_property
    def params_file(self) -> Path:
        """The file of settings."""
        return self.root / PARAMS

    def settings(self, name: str, cls: type[T]) -> T:
        """Return one group of the settings, which is parsed once per text of the file.

        Other groups are not checked, so that an error in them does not stop a command that only
        needs this group.
        """
        return _parse_group(read_utf8(self.params_file), name, cls)

    @property
    def corpus_lock(self) -> Path:
        """The file in which `freshet ingest` records source, versions and content hash."""
        return self.root / "corpus.lock.json"

    @property
    def judgements(self) -> Path:
        """The file of the project's own judgements, which `freshet judge` writes."""
        return self.root / "judgements.jsonl"

    @property
    def sources(self) -> Path:
        """The file with the paths of the named sources, which `freshet sync --source` writes."""
        return (self.home or self.root) / "sources.json"

    @property
    def artifacts(self) -> Path:
        """The folder of all stage outputs, which DVC owns."""
        return self.root / "artifacts"

    @cached_property
    def live(self) -> Path:
        """The folder of the live collections."""
        return (self.home or self.root) / "live"

    @property
    def state(self) -> Path:
        """The folder of everything that is neither input nor artifact.

        It holds MLflow, Dagster, checkpoints, locks and the history. A temporary workspace of
        `dvc exp run --temp` uses the state of the project that it was made from.
        """
        if "FRESHET_STATE" in os.environ:
            # The variable may hold a path relative to the project.
            project_root = self.home or self.root
            return (project_root / os.environ["FRESHET_STATE"]).resolve()
        if self.home is not None:
            return Project(self.home).state
        # DVC makes its temporary workspaces below this folder of the project.
        original_root, _, _ = str(self.root).partition("/.dvc/tmp/exps/")
        return Path(original_root) / ".freshet"

    @property
    def is_follower(self) -> bool:
        """Whether the project is a copy of a published collection, so that it only follows."""
        return (self.state / FOLLOWING).is_file()

    @property
    def is_read_only(self) -> bool:
        """Whether this process lacks write permission for the live, state or root folder."""
        follows_effective_user = os.access in os.supports_effective_ids
        for folder in (self.live, self.state, self.root):
            if folder.is_dir():
                may_write = os.access(folder, os.W_OK, effective_ids=follows_effective_user)
                if not may_write:
                    return True
        return False

    @property
    def promotions(self) -> Path:
        """The file with the history of promotions, to which lines are only appended."""
        return self.state / "promotions.jsonl"

    @property
    def audit(self) -> Path:
        """The file of the audit log, to which lines are only appended."""
        return self.state / "audit.jsonl"

    @property
    def identity(self) -> str:
        """The name of the project in a store of MLflow.

        It consists of the folder's name and eight random characters, and is created once. A moved
        project keeps it, and a temporary workspace uses the identity of its home. The second line
        of the identity file is the path of the file itself. It shows whether a project was copied.
        """
        path = self.state / "identity"
        with file_lock(self.state / "identity.lock"):
            if not path.exists():
                folder_name = (self.home or self.root).resolve().name
                name = re.sub(r"\W+", "-", folder_name, flags=re.ASCII).strip("-")
                write_text(path, f"{name}-{uuid.uuid4().hex[:8]}\n{path.resolve()}\n")
            return _lines(path)[0]

    def require_own_identity(self) -> None:
        """Check that the project is not a copy of an existing project, and record a move.

        Raises:
            FreshetError: If the project is a copy, and the original exists.
        """
        identity = self.identity
        path = self.state / "identity"
        lines = _lines(path)
        # The second line is the path of the file when it was written.
        original = Path(lines[1]) if len(lines) > 1 else path

        exists_elsewhere = original.is_file() and not original.samefile(path)
        if exists_elsewhere and _lines(original)[0] == identity:
            raise FreshetError(
                f"this project is a copy of the one whose {original} names it in the same store "
                f"of MLflow: delete {path}, and it is another one there"
            )
        was_moved = lines != [identity, str(path.resolve())]
        if was_moved:
            write_text(path, f"{identity}\n{path.resolve()}\n")

    @property
    def token_file(self) -> Path:
        """The file with the token that other machines need; it is made on first use."""
        return self.state / "token"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the project's lock. A second writer prints a message and waits.

        Child processes learn from the environment that the lock is held. Other threads of the same
        process wait like other processes.
        """
        own_id = str(os.getpid())
        holder = os.environ.get(LOCK_HELD, own_id)
        if holder != own_id:
            yield
            return
        with file_lock(self.state / "project.lock", WAITING, DAY):
            is_outermost = LOCK_HELD not in os.environ
            os.environ[LOCK_HELD] = own_id
            try:
                yield
            finally:
                if is_outermost:
                    del os.environ[LOCK_HELD]


@contextmanager
def file_lock(path: Path, waiting: str | None = None, limit: float = HOUR) -> Iterator[None]:
    """Hold an exclusive lock on a file. Another process or thread waits.

    A process that holds the lock may acquire it again.

    Args:
        path: The lock file.
        waiting: Text that is printed at once, with the owner, if the lock is not free. None: the
            owner is printed after `PATIENCE` seconds.
        limit: Seconds to wait after the message, at most.

    Raises:
        FreshetError: If the lock is not free in time. The message names its owner.
    """
    lock = FileLock(path.resolve(), is_singleton=True, fallback_to_soft=False)
    patience = PATIENCE if waiting is None else 0
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        message = f"{waiting or 'waiting'}: {lock_owner(path)} holds {path.name}"
        print(message, file=sys.stderr, flush=True)
        _acquire_within(lock, path, limit)

    try:
        # A process that acquires its lock again has written its description before.
        is_first_acquisition = lock.lock_counter == 1
        if is_first_acquisition:
            # A full disk must not stop commands that free space, so a failed write is ignored. The
            # owner then stays unknown.
            with suppress(OSError):
                # Arguments may hold bytes that are not UTF-8.
                path.write_text(_own_description(), encoding="utf-8", errors="backslashreplace")
        yield
    finally:
        lock.release()


def _acquire_within(lock: FileLock, path: Path, limit: float) -> None:
    """Acquire a lock, or raise an error that names its owner after `limit` seconds."""
    try:
        lock.acquire(timeout=limit)
    except Timeout:
        raise FreshetError(
            f"{lock_owner(path)} has held {path} for {limit:g} s: wait for it or end it, then try "
            "again"
        ) from None


def _own_description() -> str:
    """Return the line that names this process in a lock file."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:3]])
    return f"process {os.getpid()} ({command})\n"


def _lines(path: Path) -> list[str]:
    """Return the lines of a file, at least one: an empty file has one empty line."""
    return path.read_text(encoding="utf-8").splitlines() or [""]


def lock_owner(path: Path) -> str:
    """Return a description of the process that holds a lock, which it wrote into the lock file."""
    return path.read_text(errors="replace").strip() or "another process"


def lock_is_free(path: Path) -> bool:
    """Return whether no process holds the lock at this moment."""
    if not path.is_file():
        return True
    try:
        with FileLock(path, fallback_to_soft=False).acquire(blocking=False):
            return True
    except Timeout:
        return False


@lru_cache(maxsize=8)
def _parse_group(text: str, name: str, cls: type[T]) -> T:
    """Parse one group of settings from the text of `params.yaml`, once per text."""
    # This imports pydantic, which a client of the service does not need.
    from model_code.settings import parse

    return parse(cls, parse_yaml_mapping(text).get(name), name)


def read_utf8(path: Path) -> str:
    """Return the text of a file.

    Raises:
        SettingsError: If the file is not UTF-8.
    """
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"{content[error.start]:#04x}"
        raise SettingsError(
            f"{PARAMS} is not UTF-8 (byte {byte} in line {line}): save it as UTF-8"
        ) from None


@lru_cache(maxsize=4)
def parse_yaml_mapping(text: str) -> dict[str, Any]:
    """Return the content of `params.yaml` as plain values."""
    return load_yaml_mapping(plain_yaml(), text)


def load_yaml_mapping(yaml: Any, text: str) -> Any:
    """Load the text of `params.yaml` with a ruamel.yaml loader.

    Raises:
        SettingsError: If the text is not YAML, or not a mapping.
    """
    groups = load_yaml(yaml, text, PARAMS)
    if not isinstance(groups, Mapping):
        raise SettingsError(f"{PARAMS} must hold groups of settings")
    return groups


def load_yaml(yaml: Any, text: str, label: str, remedy: str = "") -> Any:
    """Load YAML with a ruamel.yaml loader.

    Args:
        yaml: The loader.
        text: The YAML.
        label: Name of the text, which the error message begins with.
        remedy: The end of the error message.

    Raises:
        SettingsError: If the text is not YAML.
    """
    # A client of the service reads no settings, so it does not need this import.
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = f"{error.problem}{place}"
    except (YAMLError, ValueError) as error:
        # For example a control character, or a day such as 2025-02-30.
        reason = str(error).splitlines()[0]
    raise SettingsError(f"{label} is not valid YAML: {reason}{remedy}")


def plain_yaml() -> Any:
    """Return a YAML loader that makes plain values."""
    # See `load_yaml` for the reason of this import.
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True)
