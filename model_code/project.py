"""Where a project keeps its things, what its `params.yaml` says, and locks between processes: the
one that all that changes it shares, and others.

The system frees a lock when its holder dies: it is held as long as a file stays open.
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

PROJECT, PARAMS = "FRESHET_PROJECT", "params.yaml"
LOCK_HELD = "FRESHET_LOCK_HELD"
WAITING = "waiting for the build, the retrain or another command of this project that runs now"
PLAIN = "/ '\"#:@"  # what a path may hold in an SQLite URL as it is
# seconds after which who waits says for whom: making a store of MLflow takes several
PATIENCE = 15.0
HOUR = 3600.0
DAY = 24 * HOUR  # for what a build or a pilot may hold


def sqlite_url(file: Path) -> str:
    """The URL of an SQLite file, whatever signs its path has.

    >>> sqlite_url(Path("/srv/why? 'so'/x.db"))
    "sqlite:////srv/why%3F 'so'/x.db"
    """
    return f"sqlite:///{quote(str(file), safe=PLAIN)}"


@dataclass(frozen=True)
class Project:
    """A project's root folder (it holds `params.yaml` and `dvc.yaml`) and the places below it.

    home: the project that a temporary workspace belongs to; it uses that one's state and live
    collections.
    """

    root: Path
    home: Path | None = None

    @classmethod
    def find(cls, start: Path | None = None) -> Project:
        """The project around `start`, by default FRESHET_PROJECT or the working directory;
        FreshetError without one.
        """
        here = (start or Path(os.environ.get(PROJECT, "."))).resolve()
        for folder in (here, *here.parents):
            if (folder / PARAMS).is_file() and (folder / "dvc.yaml").is_file():
                return cls(folder)
        raise FreshetError(
            f"{here} is not inside a Freshet project: no params.yaml and dvc.yaml here or above. "
            "`freshet init` makes one"
        )

    @cached_property
    def params_file(self) -> Path:
        """The one file of settings."""
        return self.root / PARAMS

    def settings(self, name: str, cls: type[T]) -> T:
        """One group of the settings, parsed once for as long as the file's text stays the same.

        The others are not looked at: what is wrong with them stops nobody who needs this one alone.
        """
        return _group(read_utf8(self.params_file), name, cls)

    @property
    def corpus_lock(self) -> Path:
        """What `freshet ingest` saw: source, versions and content hash."""
        return self.root / "corpus.lock.json"

    @property
    def artifacts(self) -> Path:
        """The folder of all stage outputs, owned by DVC."""
        return self.root / "artifacts"

    @cached_property
    def live(self) -> Path:
        """The live collections, which the searcher reads."""
        return (self.home or self.root) / "live"

    @property
    def state(self) -> Path:
        """Everything that is neither input nor artifact: MLflow, Dagster, checkpoints, locks,
        history.

        A temporary workspace of `dvc exp run --temp` uses the state of the project it was made
        from.
        """
        if "FRESHET_STATE" in os.environ:
            return ((self.home or self.root) / os.environ["FRESHET_STATE"]).resolve()
        if self.home is not None:
            return Project(self.home).state
        return Path(str(self.root).partition("/.dvc/tmp/exps/")[0]) / ".freshet"

    @property
    def promotions(self) -> Path:
        """The history of promotions, which only grows."""
        return self.state / "promotions.jsonl"

    @property
    def identity(self) -> str:
        """What tells the project from others in a store of MLflow: its folder's name and eight
        signs, made once.

        It moves with the project, and a temporary workspace has its home's. Behind it stands where
        the file lies.
        """
        path = self.state / "identity"
        with file_lock(self.state / "identity.lock"):
            if not path.exists():
                name = re.sub(
                    r"\W+", "-", (self.home or self.root).resolve().name, flags=re.ASCII
                ).strip("-")
                write_text(path, f"{name}-{uuid.uuid4().hex[:8]}\n{path.resolve()}\n")
            return _lines(path)[0]

    def require_own_identity(self) -> None:
        """FreshetError if the project is a copy and the original is there still; one that was moved
        is noted.
        """
        identity, path = self.identity, self.state / "identity"
        original = Path(*_lines(path)[1:] or [path])
        if original.is_file() and _lines(original)[0] == identity and not original.samefile(path):
            raise FreshetError(
                f"this project is a copy of the one whose {original} names it in the same store of MLflow: "
                f"delete {path}, and it is another one there"
            )
        if _lines(path) != [identity, str(path.resolve())]:
            write_text(path, f"{identity}\n{path.resolve()}\n")

    @property
    def token_file(self) -> Path:
        """The file of what whoever asks a door that other machines reach has to know; made once it
        is needed.
        """
        return self.state / "token"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the project's lock: a second writer says so and waits. Child processes are told that
        it is held.
        """
        if LOCK_HELD in os.environ:
            yield
            return
        with file_lock(self.state / "project.lock", WAITING, DAY):
            os.environ[LOCK_HELD] = str(os.getpid())
            try:
                yield
            finally:
                del os.environ[LOCK_HELD]


@contextmanager
def file_lock(path: Path, waiting: str | None = None, limit: float = HOUR) -> Iterator[None]:
    """Hold an exclusive lock on the file `path`; another process or thread waits, and who holds it
    already goes on.

    waiting: what to say, at once, where the lock is not free; else who waits for longer says for
    whom. limit: seconds, after which FreshetError names the holder.
    """
    lock = FileLock(path.resolve(), is_singleton=True, fallback_to_soft=False)
    try:
        lock.acquire(timeout=PATIENCE if waiting is None else 0)
    except Timeout:
        print(
            f"{waiting or 'waiting'}: {lock_owner(path)} holds {path.name}",
            file=sys.stderr,
            flush=True,
        )
        try:
            lock.acquire(timeout=limit)
        except Timeout:
            reason = f"{lock_owner(path)} has held {path} for {limit:g} s: wait for it or end it, then try again"
            raise FreshetError(reason) from None
    try:
        if lock.lock_counter == 1:
            with suppress(OSError):  # a full disk: freeing it takes the lock, too
                path.write_text(
                    f"process {os.getpid()} ({' '.join([Path(sys.argv[0]).name, *sys.argv[1:3]])})\n"
                )
        yield
    finally:
        lock.release()


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() or [""]


def lock_owner(path: Path) -> str:
    """What the holder wrote of itself."""
    return path.read_text(errors="replace").strip() or "another process"


def lock_is_free(path: Path) -> bool:
    """Whether nobody holds the lock at this moment."""
    if not path.is_file():
        return True
    try:
        with FileLock(path, fallback_to_soft=False).acquire(blocking=False):
            return True
    except Timeout:
        return False


@lru_cache(maxsize=8)
def _group(text: str, name: str, cls: type[T]) -> T:
    # with pydantic, which a client of the service does without
    from model_code.settings import parse

    return parse(cls, parse_yaml_mapping(text).get(name), name)


def read_utf8(path: Path) -> str:
    """The text of the file `path`; `SettingsError` if it is not UTF-8."""
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
    """What the text says, as plain values."""
    return load_yaml_mapping(plain_yaml(), text)


def load_yaml_mapping(yaml: Any, text: str) -> Any:
    """What `yaml` makes of the text; `SettingsError` if that is no YAML, or no mapping."""
    groups = load_yaml(yaml, text, PARAMS)
    if not isinstance(groups, Mapping):
        raise SettingsError(f"{PARAMS} must hold groups of settings")
    return groups


def load_yaml(yaml: Any, text: str, label: str, remedy: str = "") -> Any:
    """What the YAML `text` holds; `SettingsError` with `label` and `remedy` if it is none."""
    # as a client of the service reads no settings
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = f"{error.problem}{place}"
    except (YAMLError, ValueError) as error:  # a control character; a day such as 2025-02-30
        reason = str(error).splitlines()[0]
    raise SettingsError(f"{label} is not valid YAML: {reason}{remedy}")


def plain_yaml() -> Any:
    """YAML that makes plain values."""
    from ruamel.yaml import YAML  # see `load_yaml`

    return YAML(typ="safe", pure=True)
