"""Guards the experiments' folders: every one has a page that the index names, and settings that can
be run again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.asked import run as asked
from experiments.clicks import run as clicks
from experiments.composed import run as composed
from experiments.fused_live import run as fused_live
from experiments.late_interaction import compact
from experiments.late_interaction import run as late_interaction
from experiments.parts import run as parts
from experiments.people_ask_2 import run as people_ask_2
from model_code.files import read_json
from orchestration import parameters

FOLDER = Path(__file__).parents[2] / "experiments"


def test_the_index_names_every_page() -> None:
    index = (FOLDER / "README.md").read_text()
    pages = sorted(path.parent.name for path in FOLDER.glob("*/README.md"))
    # A folder that was removed may still hold compiled modules in `__pycache__`.
    files = [path for path in FOLDER.glob("*/*") if path.is_file() and path.suffix != ".pyc"]
    assert pages == sorted({path.parent.name for path in files})
    assert not [page for page in pages if f"({page}/README.md)" not in index]


@pytest.mark.parametrize(
    "path", sorted(FOLDER.glob("*/*.yaml")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_settings_are_still_valid(path: Path) -> None:
    assert {"contrastive", "hce"} <= set(parameters.load(path).retrievers)


MEASURED = [
    asked,
    clicks,
    composed,
    fused_live,
    late_interaction,
    parts,
    people_ask_2,
]


@pytest.mark.parametrize("experiment", MEASURED, ids=lambda module: module.HERE.name)
def test_page_tables_match_saved_results(experiment) -> None:
    folder = experiment.HERE
    assert (
        experiment.tables(read_json(folder / "result.json")) in (folder / "README.md").read_text()
    )


def test_forms_table_matches_saved_results() -> None:
    folder = late_interaction.HERE
    assert compact.table(read_json(folder / "compact.json")) in (folder / "README.md").read_text()
