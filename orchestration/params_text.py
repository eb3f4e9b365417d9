"""The text of `params.yaml`: read with one line for whatever is wrong with it, edited without losing its comments."""

from __future__ import annotations

import datetime
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from model_code.errors import SettingsError
from model_code.settings import require

NAME = "params.yaml"


def read(path: Path) -> str:
    """The text of the file `path`; `SettingsError` if it is not UTF-8."""
    content = path.read_bytes()
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"{content[error.start]:#04x}"
        raise SettingsError(f"{NAME} is not UTF-8 (byte {byte} in line {line}): save it as UTF-8") from None


def mapping(text: str) -> dict[str, Any]:
    """What the text says, as plain values; `SettingsError` if it is no YAML, or no mapping."""
    found = _load(_plain(), text, NAME)
    require(isinstance(found, dict), f"{NAME} must hold groups of settings")
    return found


def assigned(text: str, assignments: Sequence[str]) -> str:
    """The text with each `group.key=value` written into it, whatever that means; comments are kept."""
    if not assignments:
        return text
    yaml = _editor()
    document = _load(yaml, text, NAME)
    require(isinstance(document, Mapping), f"{NAME} must hold groups of settings")
    for assignment in assignments:
        _assign(document, assignment)
    stream = io.StringIO()
    yaml.dump(document, stream)
    return stream.getvalue()


def _assign(document: Any, assignment: str) -> None:
    key, separator, value = assignment.partition("=")
    require(bool(separator and key), f"--set {assignment}: write it as group.key=value")
    *parents, last = key.split(".")
    group = document
    for parent in parents:
        if group.get(parent) is None:
            group[parent] = {}
        group = group[parent]
        require(isinstance(group, Mapping), f"--set {assignment}: {parent} is a value, not a group")
    quoted = f"""text goes between quotes, --set '{key}="..."'"""
    group[last] = _load(_plain(), value, f"--set {assignment}: the value", remedy=f"; {quoted}")


def _load(yaml: Any, text: str, what: str, remedy: str = "") -> Any:
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


def _plain() -> Any:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True)


def _editor() -> Any:
    """YAML that keeps comments and quotes, spells None as null, and quotes dates: DVC takes no unquoted ones."""
    from ruamel.yaml import YAML

    yaml, tag = YAML(), "tag:yaml.org,2002:"
    yaml.preserve_quotes, yaml.width = True, 120
    add = yaml.representer.add_representer
    add(type(None), lambda out, none: out.represent_scalar(f"{tag}null", "null"))
    for kind in (datetime.date, datetime.datetime):
        add(kind, lambda out, instant: out.represent_scalar(f"{tag}str", instant.isoformat(), style="'"))
    return yaml
