"""Test that the page has words for the names of components that are not trained.

Run: python -m pytest tests/orchestration/service/test_page_labels.py
"""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.stages.baselines import UNTRAINED

PAGE = Path(__file__).parents[3] / "orchestration" / "service" / "page.html"
LABELS = PAGE.read_text().partition("const COMPONENT_LABELS = {")[2].partition("}")[0]
COMPONENTS = sorted({*UNTRAINED.of, *UNTRAINED.with_known_queries().of})


@pytest.mark.parametrize("name", COMPONENTS)
def test_component_of_the_untrained_fusion_has_a_label(name):
    assert f'\n  {name}: "' in LABELS
