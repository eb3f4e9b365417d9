"""Find the files below a folder that git ignores.

In a work tree `git check-ignore` decides, so that `.git/info/exclude`, global rules and tracked
files have the same effect as in git. Outside of a work tree, or if git is not installed, only the
`.gitignore` files decide.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from pathspec import GitIgnoreSpec

from model_code.errors import FreshetError

log = logging.getLogger(__name__)

# Environment variables that make git use another repository. Git sets them when it runs a hook.
_REPOSITORY_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
# Exit codes of `git check-ignore`: some paths are ignored, or none.
_ANSWERED = (0, 1)
_NO_REPOSITORY = b"not a git repository"


class IgnoreRules(Protocol):
    """Tells which entries of folders are ignored."""

    def find_ignored(self, entries: Sequence[os.DirEntry[str]]) -> set[str]:
        """Return the paths of the entries that are ignored.

        Args:
            entries: Entries of folders that are not ignored themselves. An entry comes after its
                folder, in this call or an earlier one.
        """


def open_ignore_rules(folder: Path) -> IgnoreRules:
    """Return the ignore rules for everything below a folder.

    Args:
        folder: The folder, without symbolic links in its path.
    """
    repository = _repository_above(folder)
    git = shutil.which("git")
    if repository is None or git is None:
        return GitignoreFileRules(folder, repository)

    rules = GitRules(folder, git)
    problem = rules.find_problem()
    if problem is None:
        if rules.ignores_folder():
            # Git ignores the whole folder, such as a data folder. The user asked for its documents,
            # so the rules of the repository around it do not count.
            return GitignoreFileRules(folder, None)
        return rules

    if _NO_REPOSITORY not in problem:
        message = " ".join(problem.decode("utf-8", "replace").split())
        log.warning(
            "git does not say which files of %s it ignores (%s); only .gitignore files count",
            folder,
            message,
        )
    return GitignoreFileRules(folder, repository)


class GitRules:
    """The rules of the repository that a folder lies in, as `git check-ignore` states them."""

    def __init__(self, folder: Path, git: str) -> None:
        self._folder = folder
        self._git = git

    def find_problem(self) -> bytes | None:
        """Return git's error message if it cannot answer for the folder; else None."""
        done = self._run(["rev-parse", "--is-inside-work-tree"])
        if done.returncode == 0 and done.stdout.strip() == b"true":
            return None
        return done.stderr or _NO_REPOSITORY

    def ignores_folder(self) -> bool:
        """Return whether git ignores the folder itself, and with it everything below."""
        return bool(self._ignored_names([b"."])) and not self._tracked

    def find_ignored(self, entries: Sequence[os.DirEntry[str]]) -> set[str]:
        """Return the paths of the entries that git ignores; see `IgnoreRules`.

        Tracked files, and folders that hold one, are never ignored.
        """
        if not entries:
            return set()
        paths: dict[bytes, str] = {}
        for entry in entries:
            # "./" keeps git from reading a leading colon as its syntax for special paths.
            name = b"./" + os.fsencode(os.path.relpath(entry.path, self._folder))
            paths[name] = entry.path

        ignored: set[str] = set()
        for name in self._ignored_names(paths):
            if name.removeprefix(b"./") not in self._tracked:
                ignored.add(paths[name])
        return ignored

    def _ignored_names(self, names: Iterable[bytes]) -> set[bytes]:
        """Return the names, relative to the folder, that rules of git match.

        Raises:
            FreshetError: If git fails.
        """
        # Without --no-index git compares each path with the whole index, which is slow. Tracked
        # files are excluded by `find_ignored` instead.
        command = ["check-ignore", "--no-index", "--stdin", "-z"]
        done = self._run(command, b"".join(name + b"\0" for name in names))
        if done.returncode not in _ANSWERED:
            reason = " ".join(done.stderr.decode("utf-8", "replace").split())
            raise FreshetError(
                f"git does not say which files of {self._folder} it ignores: {reason}; mend the "
                "repository, or follow a copy of the folder outside of it"
            )
        return {name for name in done.stdout.split(b"\0") if name}

    @cached_property
    def _tracked(self) -> set[bytes]:
        """The tracked files below the folder, and all folders that hold one."""
        tracked: set[bytes] = set()
        for name in self._run(["ls-files", "-z"]).stdout.split(b"\0"):
            # Add the file and the folders above it, up to one that is known already.
            while name and name not in tracked:
                tracked.add(name)
                name = name.rpartition(b"/")[0]
        return tracked

    def _run(
        self, arguments: Sequence[str], data: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        """Run git in the folder, with `data` as its input, and return its output and exit code."""
        environment = {
            name: value for name, value in os.environ.items() if name not in _REPOSITORY_VARIABLES
        }
        return subprocess.run(
            [self._git, *arguments],
            cwd=self._folder,
            env=environment,
            input=data,
            capture_output=True,
            check=False,
        )


@dataclass(frozen=True)
class _IgnoreFile:
    """The patterns of a `.gitignore`. They apply to everything below its folder."""

    folder: Path
    spec: GitIgnoreSpec


class GitignoreFileRules:
    """The rules of the `.gitignore` files in and above folders, read without git."""

    def __init__(self, folder: Path, repository: Path | None) -> None:
        """Read the files from the folder up to its repository.

        Args:
            folder: The folder.
            repository: The repository that it lies in; None if there is none.
        """
        # The folder and those above it up to the repository, outermost first.
        folders = [folder]
        if repository is not None:
            while folders[0] != repository:
                folders.insert(0, folders[0].parent)

        files: list[_IgnoreFile] = []
        for above in folders:
            files.extend(_read_ignore_file(above))
        # The .gitignore files that decide about the entries of each folder, outermost first.
        # Further folders are added when their entries are asked for.
        self._files: dict[str, list[_IgnoreFile]] = {str(folder): files}

    def find_ignored(self, entries: Sequence[os.DirEntry[str]]) -> set[str]:
        """Return the paths of the entries that are ignored; see `IgnoreRules`.

        The nearest `.gitignore` with a matching pattern decides.
        """
        ignored: set[str] = set()
        for entry in entries:
            files = self._files_for(os.path.dirname(entry.path))
            if files and _is_ignored(entry, files):
                ignored.add(entry.path)
        return ignored

    def _files_for(self, folder: str) -> list[_IgnoreFile]:
        """Return the .gitignore files that decide about the entries of a folder, outermost first.

        These are the files for the folder above, and the folder's own file.
        """
        if folder not in self._files:
            files = list(self._files_for(os.path.dirname(folder)))
            files.extend(_read_ignore_file(Path(folder)))
            self._files[folder] = files
        return self._files[folder]


def _repository_above(folder: Path) -> Path | None:
    """Return the nearest folder, at or above this one, that has a `.git`; None if none has."""
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return None


def _read_ignore_file(folder: Path) -> list[_IgnoreFile]:
    """Return the .gitignore of a folder; an empty list if it has none."""
    path = folder / ".gitignore"
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [_IgnoreFile(folder, GitIgnoreSpec.from_lines(lines))]


def _is_ignored(entry: os.DirEntry[str], ignore_files: Sequence[_IgnoreFile]) -> bool:
    """Return whether the last .gitignore file with a matching pattern ignores an entry.

    A pattern may also include an entry that an outer file ignores. Without a match nothing is
    ignored.

    Args:
        entry: The entry of a folder.
        ignore_files: The .gitignore files above the entry, outermost first.
    """
    for ignore_file in reversed(ignore_files):
        name = Path(entry.path).relative_to(ignore_file.folder).as_posix()
        if entry.is_dir(follow_symlinks=False):
            name += "/"
        # True if the entry is ignored, False if a pattern such as `!name` keeps it, else None.
        is_ignored = ignore_file.spec.check_file(name).include
        if is_ignored is not None:
            return is_ignored
    return False
