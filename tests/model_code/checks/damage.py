"""Ways to break a finished output, for the tests of its contract.

Most functions return a damage: a function that breaks the output in a folder.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.stages.contract import check_contract

Damage = Callable[[Path], object]


def each(broken: Mapping[str, list[tuple[Damage, str]]]) -> pytest.MarkDecorator:
    """Parametrise a test over the damages of each output and their messages."""
    rows = []
    for name, damages in broken.items():
        for damage, message in damages:
            rows.append((name, damage, message))
    return pytest.mark.parametrize(("name", "damage", "message"), rows)


def copied(context: StageContext, folder: Path) -> StageContext:
    """Return the context with a copy of its output, which a test may damage."""
    output = shutil.copytree(context.output, folder / context.output.name)
    return replace(context, output=output)


def assert_refused(
    stage: str, context: StageContext, folder: Path, damage: Damage, message: str
) -> None:
    """Damage a copy of the output, and check that the contract of the stage names the rule."""
    broken = copied(context, folder)
    damage(broken.output)

    with pytest.raises(FreshetError, match=message):
        check_contract(stage, broken)


def json_with(name: str, **changes: Any) -> Damage:
    """Set top-level keys of a JSON file."""
    return json_item_with(name, (), **changes)


def json_item_with(name: str, path: Sequence[str | int], **changes: Any) -> Damage:
    """Set keys of an object inside a JSON file."""

    def set_keys(value: Any) -> None:
        item_at(value, path).update(changes)

    return json_edited(name, set_keys)


def json_item_removed(name: str, *path: str | int) -> Damage:
    """Remove an item inside a JSON file."""

    def remove_item(value: Any) -> None:
        *parent, key = path
        item_at(value, parent).pop(key)

    return json_edited(name, remove_item)


def json_list_reversed(name: str) -> Damage:
    """Reverse the list of a JSON file."""
    return json_edited(name, list.reverse)


def item_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the item at a path of keys and positions."""
    for key in path:
        value = value[key]
    return value


def json_edited(name: str, edit: Callable[[Any], Any]) -> Damage:
    """Edit the value of a JSON file in place."""

    def damage(folder: Path) -> None:
        value = read_json(folder / name)
        edit(value)
        write_json(folder / name, value)

    return damage


def text_replaced(name: str, old: str, new: str) -> Damage:
    """Replace the first `old` of a text file."""

    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


def removed(name: str) -> Damage:
    """Delete a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()

    return damage


def folder_removed(name: str) -> Damage:
    """Delete a folder."""

    def damage(folder: Path) -> None:
        shutil.rmtree(folder / name)

    return damage


def folder_copied(name: str, target: str) -> Damage:
    """Copy a folder to a name that the output does not have."""

    def damage(folder: Path) -> None:
        shutil.copytree(folder / name, folder / target)

    return damage


def written(name: str, text: str = "") -> Damage:
    """Replace the content of a file, or add a file."""

    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return damage


def array_with(name: str, place: Any, value: float) -> Damage:
    """Set elements of a .npy file."""

    def damage(folder: Path) -> None:
        array = np.load(folder / name)
        array[place] = value
        np.save(folder / name, array)

    return damage


def array_cut(name: str) -> Damage:
    """Remove the last row of a .npy file."""

    def damage(folder: Path) -> None:
        array = np.load(folder / name)
        np.save(folder / name, array[:-1])

    return damage


def table_with(name: str, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    """Replace a Parquet table by an edited one."""

    def damage(folder: Path) -> None:
        table = edit(pd.read_parquet(folder / name))
        table.to_parquet(folder / name, index=False)

    return damage


def column_with(name: str, column: str, value: Any) -> Damage:
    """Set the first value of a column of a Parquet table."""

    def set_first(table: pd.DataFrame) -> pd.DataFrame:
        values = [value, *table[column][1:]]
        return table.assign(**{column: values})

    return table_with(name, set_first)


def first_row_removed(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table without its first row."""
    return table[1:]


def first_row_repeated(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table that has its first row twice."""
    return pd.concat([table, table[:1]])
