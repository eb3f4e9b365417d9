"""Guards the wheel: it holds every file of the packages, and makes and builds a project outside of
any clone.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from freshet import Project
from tests.document_files import SUFFIXES, write_document, write_folder

ROOT = Path(__file__).parents[1]
TOPS = ("assets", "freshet", "model_code", "orchestration")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Built of the files that git knows, in a folder of its own: an older `build` beside them would
    be packed, too.
    """
    folder = tmp_path_factory.mktemp("wheel")
    for name in tracked("pyproject.toml", "README.md", "LICENSE", *TOPS):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / "source" / name)
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    done = subprocess.run(
        [sys.executable, "-c", build], cwd=folder / "source", capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def tracked(*names: str) -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", *names], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_every_file_of_the_packages_is_in_it(wheel):
    assert set(tracked(*TOPS)) <= set(zipfile.ZipFile(wheel).namelist())


def test_it_makes_a_project_of_a_folder(wheel, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files/moss.md").write_text("# Moss\n\nIt grows on stones.")
    told = installed(wheel, tmp_path, "init", "notes", "--from", "files")

    assert told.splitlines()[0] == "source: a folder, 1 documents"
    assert {"params.yaml", "dvc.yaml", "code.lock.json", "inbox"} <= {
        path.name for path in (tmp_path / "notes").iterdir()
    }


@pytest.mark.long
def test_of_three_hundred_files_what_stands_deep_in_long_ones_is_found(wheel, tmp_path):
    """Outside of any clone, as the README says, with the encoder that comes with the installation."""
    words = WORDS.split()
    write_folder(tmp_path / "files", 280, {"garden": words[::2], "workshop": words[1::2]})
    for number, (fact, _) in enumerate(DEEP):
        write_document(
            tmp_path / f"files/long-{number}{SUFFIXES[number % 5]}",
            f"Book {number}",
            long_text(number, fact),
        )

    assert installed(wheel, tmp_path, "init", "notes", "--from", "files").startswith(
        "source: a folder, 302 documents"
    )

    told = installed(wheel, tmp_path, "demo", folder="notes")
    assert "2 documents could not be read" in told
    assert "broken.pdf:1  unreadable file: " in told
    assert "zeros.md:1  binary file: " in told

    with Project.open(tmp_path / "notes") as project:
        results = project.search_many([question for _, question in DEEP], 3)
    found = [{hit.document_id.partition(".")[0] for hit in result.hits} for result in results]

    assert sum(f"long-{number}" in ids for number, ids in enumerate(found)) >= 18, found


def installed(wheel: Path, home: Path, *arguments: str, folder: str = ".") -> str:
    """What a command prints where the wheel lies unpacked beside the environment, and no clone
    does.
    """
    if not (home / "installed").exists():
        zipfile.ZipFile(wheel).extractall(home / "installed")
    command = [sys.executable, "-m", "orchestration.cli", *arguments]
    variables = {**os.environ, "PYTHONPATH": str(home / "installed")}
    done = subprocess.run(command, cwd=home / folder, env=variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def long_text(number: int, fact: str) -> list[tuple[str, str]]:
    """Ten sections of a hundred words of all topics, and the fact in one beyond the first 600."""
    draw = random.Random(number)
    sections = [" ".join(draw.choices(WORDS.split(), k=100)) for _ in range(10)]
    place = 6 + number % 4
    sections[place] = f"{sections[place][:200]}. {fact} {sections[place][200:]}"
    return [(f"Chapter {i}", text) for i, text in enumerate(sections)]


# These words are in all sections, so they distinguish nothing.
WORDS = (
    "the a of and with under over near old new spade hammer rose chisel hedge plane seed vise "
    "pond clamp fern saw lawn "
    "rasp bulb drill compost lathe trellis file moss anvil pruner level bench orchard screw tulip "
    "bolt ivy nail gravel "
    "glue birch plank sage timber thyme varnish basil rope mulch wire pear sandpaper plum oil "
    "cherry grease apple tar"
)
# Each sentence is in one document; a question about it follows.
DEEP = [
    ("The lighthouse of Marsund burned whale oil until 1874.", "fuel of the Marsund lighthouse"),
    (
        "Doctor Ilse Brandt discovered the comet from a hayloft.",
        "who discovered a comet in a hayloft",
    ),
    (
        "Trains to Oberdorf were cancelled because of an avalanche.",
        "why was the train to Oberdorf cancelled",
    ),
    (
        "Our bakery feeds its sourdough with rye flour at noon.",
        "what flour is the sourdough fed with",
    ),
    ("The treaty of Velsen ended the herring war.", "which treaty ended the war about herring"),
    ("Patients with scurvy recovered after eating lemons.", "cure for scurvy"),
    ("The parliament lowered the voting age to sixteen.", "voting age lowered by parliament"),
    ("An octopus named Bruno escaped through a drain pipe.", "octopus escaping from an aquarium"),
    ("The password of the router is printed beneath it.", "where is the router's password"),
    ("Glaciers carved this valley in the last ice age.", "how was the valley formed by glaciers"),
    ("The violin was insured for two million crowns.", "insurance of the violin"),
    ("Penguins share their warmth by huddling in circles.", "how do penguins keep warm"),
    ("The invoice must be paid within thirty days.", "deadline for paying invoices"),
    ("Vaccination against measles began in autumn.", "when did measles vaccinations begin"),
    ("The submarine was painted yellow by its captain.", "colour of the submarine"),
    (
        "Chess clocks were introduced at the London tournament.",
        "tournament that introduced chess clocks",
    ),
    ("The volcano erupted on a Sunday morning.", "when did the volcano erupt"),
    ("Camels store fat, not water, in their humps.", "what is stored in the hump of a camel"),
    ("The library lends telescopes for two weeks.", "borrowing a telescope from the library"),
    ("Honey was found in a tomb of the pharaohs.", "food found in a pharaoh's tomb"),
]
