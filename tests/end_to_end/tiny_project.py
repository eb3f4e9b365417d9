"""A whole project in a temporary folder: this code, a corpus of 60 made-up documents and a tiny
real encoder.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

from orchestration import parameters
from tests.end_to_end import warm_python

ROOT = Path(__file__).parents[2]
COLD = Path(sys.executable)
Done = subprocess.CompletedProcess[str]
TOPICS = {
    "sea": "wave tide harbour sail anchor gull reef current deck mast",
    "forest": "oak moss fern trail owl bark root canopy acorn stream",
    "kitchen": "knife oven flour butter whisk pan spice dough bowl simmer",
    "music": "chord tempo violin drum melody rhythm chorus note bass tune",
    "space": "orbit comet lunar rocket galaxy probe star crater solar nebula",
}
FILLERS = [
    "the",
    "a",
    "of",
    "and",
    "with",
    "under",
    "over",
    "near",
    "old",
    "new",
    "bright",
    "quiet",
    "small",
    "great",
]
SETTINGS = (
    "corpus.source=files",
    "corpus.path=data/documents.jsonl",
    "corpus.files={queries: data/queries.jsonl, qrels: data/qrels.tsv}",
    # So few queries judge and report at once.
    "corpus.splits.gate_share=0.0",
    "encoder.base=base_encoder",
    "encoder.max_tokens=32",
    "acceptance.max_repeated_query_share=1.0",
    "pseudo_queries.inverse_cloze={per_document: 2, min_words: 3, max_words: 6}",
    "training.min_judged_queries=0",
    "training.steps=16",
    "training.learning_rate=0.003",
    "training.batch_size=8",
    "training.frozen_layers=null",
    "training.checkpoint_every=2",
    "training.evaluate_every=8",
    "fusions={}",
)


def make_project(folder: Path) -> Path:
    """Everything that a fresh clone with its own corpus and settings would hold, under git."""
    copy_code(folder)
    write_corpus(folder / "data")
    write_encoder(folder / "base_encoder")
    parameters.write_overrides(folder / "params.yaml", SETTINGS)
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "start"]):
        git(folder, *command)
    return folder


def copy_code(folder: Path) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in listed:
        if (
            name.startswith(("freshet/", "model_code/", "orchestration/", "assets/", ".dvc"))
            or "/" not in name
        ):
            if name in ("dvc.lock", "corpus.lock.json") or not (ROOT / name).is_file():
                continue
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def write_corpus(folder: Path) -> None:
    """Write topics of twelve documents, each with a query.

    The splits are written, so that no draw changes what the tests expect.
    """
    from model_code.corpus.splits import position

    folder.mkdir(parents=True)
    draw = random.Random(0)
    documents = []
    queries = []
    qrels = ["query-id\tcorpus-id\tscore\tsplit"]
    for topic, words in TOPICS.items():
        for number in range(12):
            own = draw.sample(words.split(), 6)
            parts = []
            for word, filler in zip(own, draw.choices(FILLERS, k=6), strict=True):
                parts += [word, filler]
            text = " ".join(parts)
            documents.append(
                {
                    "_id": f"{topic}-{number}",
                    "title": f"{topic} {own[0]}",
                    "text": f"{text} {topic}",
                }
            )
            queries.append({"_id": f"q-{topic}-{number}", "text": f"{own[1]} {own[3]} {own[5]}"})
            place = position(f"q-{topic}-{number}", 0, "queries")
            split = "train"
            if place < 0.5:
                split = "test"
            elif place < 0.6:
                split = "dev"
            qrels.append(f"q-{topic}-{number}\t{topic}-{number}\t1\t{split}")
    documents.append(
        {"_id": "sea-0", "title": "a second document of this id", "text": "quarantined"}
    )
    (folder / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n")


def write_encoder(folder: Path) -> None:
    from tests.tiny_encoder import make_tiny_encoder

    make_tiny_encoder(folder, sorted({*" ".join(TOPICS.values()).split(), *FILLERS, *TOPICS}))


def environment(program: Path = COLD, **extra: str) -> dict[str, str]:
    """What a command finds: this process's variables without the project's own, and `program` as
    its Python.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FRESHET_", "DAGSTER_", "MLFLOW_"))
    }
    path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
    if program != COLD:
        # This one has imported more than a build's own warm Python.
        extra = {"FRESHET_WARM_PYTHON": "off", **extra}
    return {**inherited, "PATH": path, "OMP_NUM_THREADS": "1", "DVC_NO_ANALYTICS": "1", **extra}


def python(program: Path, folder: Path, *arguments: str, check: bool = True, **extra: str) -> Done:
    variables = environment(program, **extra)
    done = subprocess.run(
        [program, *arguments], cwd=folder, env=variables, capture_output=True, text=True
    )
    assert not check or done.returncode == 0, (
        f"{' '.join(arguments)}:\n{done.stdout}\n{done.stderr}"
    )
    return done


def freshet(folder: Path, *arguments: str, check: bool = True, cold: bool = False) -> Done:
    """Run the command line. cold: in a process that starts from nothing, as a user's does."""
    program = COLD if cold else warm_python.python(hash_seed=1)
    return python(program, folder, "-m", "orchestration.cli", *arguments, check=check)


def dvc(folder: Path, *arguments: str, cold: bool = False) -> Done:
    """Run bare DVC, where sets have another order than in `freshet`, as they have in any two
    processes of a user.
    """
    program = COLD if cold else warm_python.python(hash_seed=2)
    return python(program, folder, "-m", "dvc", *arguments, FRESHET_TRACKING="off")


def git(folder: Path, *arguments: str) -> None:
    """Run git in a folder, as somebody."""
    who = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=environment(), check=True, capture_output=True
    )


def run(folder: Path, code: str, *arguments: str) -> str:
    """Run Python code in a project; returns what it prints."""
    return python(warm_python.python(hash_seed=1), folder, "-c", code, *arguments).stdout


def output_hashes(folder: Path) -> dict[str, str]:
    """Return the hash of each stage output in `dvc.lock`."""
    from ruamel.yaml import YAML

    lock = YAML(typ="safe", pure=True).load((folder / "dvc.lock").read_text())
    hashes = {}
    for stage in lock["stages"].values():
        for output in stage["outs"]:
            hashes[output["path"]] = output["md5"]
    return hashes
