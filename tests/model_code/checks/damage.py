"""Ways to break a finished output, for the tests of its contract."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
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
    """The same stage with a copy of its output, which a test may damage."""
    return replace(context, output=shutil.copytree(context.output, folder / context.output.name))


def assert_refused(
    stage: str, context: StageContext, folder: Path, damage: Damage, message: str
) -> None:
    """The contract of the stage names the rule that damage to a copy of its output breaks."""
    broken = copied(context, folder)
    damage(broken.output)
    with pytest.raises(FreshetError, match=message):
        check_contract(stage, broken)


def json_with(name: str, **changes: Any) -> Damage:
    """Top-level keys of a JSON file set."""
    return lambda folder: write_json(folder / name, read_json(folder / name) | changes)


def json_edited(name: str, edit: Callable[[Any], Any]) -> Damage:
    """A JSON file edited in place."""

    def damage(folder: Path) -> None:
        value = read_json(folder / name)
        edit(value)
        write_json(folder / name, value)

    return damage


def text_replaced(name: str, old: str, new: str) -> Damage:
    """The first `old` of a text file replaced."""

    def damage(folder: Path) -> None:
        text = (folder / name).read_text()
        assert old in text
        (folder / name).write_text(text.replace(old, new, 1))

    return damage


def removed(name: str) -> Damage:
    """A file that is gone."""
    return lambda folder: (folder / name).unlink()


def written(name: str, text: str = "") -> Damage:
    """A file with other content."""

    def damage(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)

    return damage


def array_with(name: str, place: Any, value: float) -> Damage:
    """Elements of a .npy file set."""

    def damage(folder: Path) -> None:
        array = np.load(folder / name)
        array[place] = value
        np.save(folder / name, array)

    return damage


def array_cut(name: str) -> Damage:
    """A .npy file without its last row."""
    return lambda folder: np.save(folder / name, np.load(folder / name)[:-1])


def table_with(name: str, edit: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    """A Parquet table edited."""
    return lambda folder: edit(pd.read_parquet(folder / name)).to_parquet(
        folder / name, index=False
    )
