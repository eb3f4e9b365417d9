"""The file `params.yaml`: its text, what YAML says in it, and single groups of it, for those who need no others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from model_code import settings
from model_code.errors import SettingsError

NAME = "params.yaml"


@lru_cache(maxsize=8)
def _group(text: str, name: str, cls: type[settings.T]) -> settings.T:
    return settings.parse(cls, mapping_of(text).get(name), name)


def group(path: Path, name: str, cls: type[settings.T]) -> settings.T:
    """One group of the file `path`, parsed once for as long as its text stays the same.

    The others are not looked at: what is wrong with them stops nobody who needs this one alone.
    """
    return _group(text_of(path), name, cls)


def text_of(path: Path) -> str:
    """The text of the file `path`; `SettingsError` if it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"{content[error.start]:#04x}"
        raise SettingsError(f"{NAME} is not UTF-8 (byte {byte} in line {line}): save it as UTF-8") from None


@lru_cache(maxsize=4)
def mapping_of(text: str) -> dict[str, Any]:
    """What the text says, as plain values."""
    return mapping_in(plain_yaml(), text)


def mapping_in(yaml: Any, text: str) -> Any:
    """What `yaml` makes of the text; `SettingsError` if that is no YAML, or no mapping."""
    groups = load_yaml(yaml, text, NAME)
    settings.require(isinstance(groups, Mapping), f"{NAME} must hold groups of settings")
    return groups


def load_yaml(yaml: Any, text: str, what: str, remedy: str = "") -> Any:
    """What the YAML `text` holds; `SettingsError` with `what` and `remedy` if it is none."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = f"{error.problem}{place}"
    except (YAMLError, ValueError) as error:  # a control character; a day such as 2025-02-30
        reason = str(error).splitlines()[0]
    raise SettingsError(f"{what} is not valid YAML: {reason}{remedy}")


def plain_yaml() -> Any:
    """YAML that makes plain values."""
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True)
