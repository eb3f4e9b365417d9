"""Guards what the settings make of values: what YAML reads as another type than meant, what is
refused, and how.
"""

from __future__ import annotations

import pickle
import re
from typing import Any, Literal

import pytest
from ruamel.yaml import YAML

from model_code.errors import SettingsError
from model_code.settings import (
    Field,
    Settings,
    constant_field,
    describe_settings,
    parse,
    require,
)


class Inner(Settings):
    share: float = Field(0.5, gt=0, le=1, description="of the rows")
    kind: Literal["none", "some"] = "none"


class Parts(Settings):
    by: str = "none"
    new_from: str | None = None
    share: float = 0.1
    count: int = Field(3, ge=1)
    limit: int | None = Field(None, ge=1)
    names: tuple[str, ...] = ("a",)
    shuffled: bool = False
    inner: Inner = Field(default_factory=lambda: Inner(share=1.0))

    def check(self) -> None:
        """Refuse thirteen."""
        require(self.count != 13, "count is 13, which is unlucky")


class Needing(Settings):
    needed: int


def parsed(text: str, cls: type[Settings] = Parts) -> Any:
    return parse(cls, YAML(typ="safe", pure=True).load(text), "parts")


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("{new_from: '2025-01-01'}", "new_from", "2025-01-01"),
        ("{share: '1e-5'}", "share", 1e-5),
        ("{share: 2}", "share", 2.0),
        ("{limit: null}", "limit", None),
        ("{names: [x, y]}", "names", ("x", "y")),
        ("{names: []}", "names", ()),
        ("{inner: {share: '1e-1'}}", "inner", Inner(share=0.1)),
    ],
)
def test_what_yaml_means_is_understood(text: str, name: str, value: Any) -> None:
    found = getattr(parsed(text), name)

    assert found == value
    assert type(found) is type(value)


REFUSED = {
    "{new_from: 2025-01-01}": (
        "parts.new_from must be text, and YAML reads a date here; put quotes around it: "
        "'2025-01-01'"
    ),
    "{share: 2025-01-01}": "parts.share must be a number, not datetime.date(2025, 1, 1)",
    "{by: 2025}": "parts.by must be of type str, not 2025",
    "{share: much}": "parts.share must be a number, not 'much'",
    "{share: true}": "parts.share must be a number, not True",
    "{share: .inf}": "parts.share is inf, but must be a finite number",
    "{share: .nan}": "parts.share is nan, but must be a finite number",
    "{share: 'inf'}": "parts.share is inf, but must be a finite number",
    "{count: true}": "parts.count must be of type int, not True",
    "{count: 2.0}": "parts.count must be of type int, not 2.0",
    "{count: many}": "parts.count must be of type int, not 'many'",
    "{count: 0}": "parts.count is 0, but must be at least 1",
    "{limit: 0}": "parts.limit is 0, but must be at least 1, or null",
    "{count: 13}": "parts: count is 13, which is unlucky",
    "{shuffled: 1}": "parts.shuffled must be of type bool, not 1",
    "{names: a}": "parts.names must be a list, not 'a'",
    "{names: [a, 1]}": "parts.names[1] must be of type str, not 1",
    "{inner: 3}": "parts.inner must be a group of settings, not 3",
    "{inner: {share: 0}}": "parts.inner.share is 0, but must be above 0, at most 1: of the rows",
    "{inner: {kind: all}}": "parts.inner.kind is 'all', but must be one of 'none', 'some'",
    "{inner: {kinds: some}}": "parts.inner.kinds is not a setting; did you mean 'kind'? Known: "
    "share, kind",
    "{count: 0, byy: 1}": "parts.byy is not a setting; did you mean 'by'? Known: by, new_from, "
    "share, count",
    "{1: 2}": "parts.1 is not a setting",
    "[1]": "parts must be a group of settings, not [1]",
}


@pytest.mark.parametrize("text", REFUSED)
def test_invalid_setting_is_refused_with_its_path(text: str) -> None:
    with pytest.raises(SettingsError, match="^" + re.escape(REFUSED[text])) as raised:
        parsed(text)
    assert "\n" not in str(raised.value)


def test_a_key_without_default_is_required() -> None:
    with pytest.raises(SettingsError, match=r"^parts\.needed is required and missing$"):
        parsed("{}", Needing)


def test_constructing_and_replacing_check_alike() -> None:
    for make in (Parts, Parts().replace):
        with pytest.raises(SettingsError, match="^count is 0, but must be at least 1$"):
            make(count=0)
        with pytest.raises(SettingsError, match="^count is 13, which is unlucky$"):
            make(count=13)
        with pytest.raises(SettingsError, match="^size is not a setting"):
            make(size=1)
    assert Parts(count=2).replace(by="date") == Parts(count=2, by="date")


def test_equal_settings_are_one_key() -> None:
    assert {Parts(count=2): 1}[Parts(count=2)] == 1


def test_settings_can_be_pickled() -> None:
    settings = Parts(count=2)

    assert pickle.loads(pickle.dumps(settings)) == settings


def test_settings_cannot_be_changed() -> None:
    settings = Parts(count=2)

    with pytest.raises(Exception, match="frozen"):
        settings.count = 3  # type: ignore[misc]


def test_every_setting_is_described_with_its_default() -> None:
    rows = {row.key: row for row in describe_settings(Parts, "parts")}
    assert list(rows)[-2:] == ["parts.inner.share", "parts.inner.kind"]

    share = rows["parts.inner.share"]
    assert share.type == "float"
    assert share.default == "1"
    assert share.description == "of the rows"
    assert share.bounds == "above 0, at most 1"
    assert rows["parts.limit"].type == "int | null"
    assert rows["parts.limit"].default == "null"
    assert rows["parts.names"].type == "list of text"
    assert rows["parts.names"].default == "[a]"


class Drawing(Settings):
    draws: int = constant_field(999, ge=9, description="how often")
    inner: Inner = constant_field(Inner())
    alpha: float = 0.05


class Outer(Settings):
    drawing: Drawing = Field(default_factory=Drawing)


def test_only_code_changes_a_constant() -> None:
    assert Drawing(draws=9).draws == 9


def test_reference_does_not_list_constants() -> None:
    rows = describe_settings(Outer, "drift")

    assert [row.key for row in rows] == ["drift.drawing.alpha"]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"draws": 9}, r"^drift\.drawing\.draws is no setting, but always 999; delete the key$"),
        ({"inner": {"share": 0.1}}, r"^drift\.drawing\.inner is no setting, but always "),
    ],
)
def test_another_value_of_a_constant_is_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(Outer, {"drawing": values}, "drift")


def test_the_value_of_a_constant_is_accepted() -> None:
    assert parse(Outer, {"drawing": {"draws": 999}}, "drift") == Outer()


def test_constants_are_no_known_keys() -> None:
    with pytest.raises(SettingsError, match=r"Known: alpha$"):
        parse(Drawing, {"beta": 1}, "drift")
