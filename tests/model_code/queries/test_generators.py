"""Guards the registry of query generators: every registered kind is made by its own settings, unknown ones refused."""

from __future__ import annotations

import pytest

from model_code.errors import SettingsError
from model_code.queries.generators import GENERATORS, make_generator
from model_code.queries.pseudo_queries import seed_of
from model_code.queries.settings import ClozeSettings, PseudoQuerySettings


@pytest.mark.parametrize("kind", ["inverse_cloze", "short_cloze"])
def test_a_cloze_kind_uses_the_settings_group_of_its_name(kind):
    generator = make_generator(kind, PseudoQuerySettings(**{kind: ClozeSettings(per_document=9)}))
    assert generator.kind == kind
    assert generator.settings.per_document == 9


def test_every_kind_has_a_settings_group():
    for kind in GENERATORS:
        assert hasattr(PseudoQuerySettings(), kind)


def test_an_unknown_kind_is_refused_with_the_known_ones():
    with pytest.raises(SettingsError, match="'cloze'.*Known: inverse_cloze, .*sequence_to_sequence"):
        make_generator("cloze", PseudoQuerySettings())


def test_seeds_of_different_purposes_differ_and_fit_63_bits():
    seeds = [seed_of(seed, *parts) for seed in (0, 1) for parts in (("a",), ("b",), ("a", 0), ("a", 1), ("ab",))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
