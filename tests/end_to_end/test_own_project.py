"""Guards `freshet init`: a folder of documents becomes a project beside the code, built, followed
and moved.

The code lies outside of the project, where no clone is: the warm Python has its own copy, as a
wheel would leave it.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest

from orchestration import parameters
from tests.document_files import write_folder
from tests.end_to_end import tiny_project, warm_python
from tests.end_to_end.tiny_project import FILLERS, TOPICS, dvc, freshet, python, run

SETTINGS = (
    "encoder.base=encoder",
    "encoder.max_tokens=32",
    "training.document_max_tokens=32",
    "training.query_max_tokens=32",
    "training.frozen_layers=null",
    "pseudo_queries.inverse_cloze={per_document: 2, min_words: 3, max_words: 6}",
    "evaluation.variants=false",
    "fusions={}",
)
OTHER_SCRIPTS = {
    "排序.md": "# 排序算法\n\n快速排序是一种高效的算法。它把数组分成两部分，然后递归地排序。",
    "電車.txt": "東京の電車に乗るには、切符を買うかＩＣカードを使います。富士山は高い山です。",
    "مكتبة.md": "# المكتبة\n\nتحتوي المكتبة على آلاف الكُتُب والمخطوطات القديمة.",
    "библиотека.md": "# Библиотека\n\nВ библиотеках хранятся старые книги.",
}


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A folder with `notes`, and the project `search` made and built for them."""
    folder = tmp_path_factory.mktemp("own")
    write_folder(
        folder / "notes", 30, {topic: words.split() + FILLERS for topic, words in TOPICS.items()}
    )
    for name, text in OTHER_SCRIPTS.items():
        (folder / "notes" / name).write_text(text)
    told = freshet(folder, "init", "search", "--from", "notes").stdout
    assert told.splitlines()[0] == "source: a folder, 36 documents; passed over: 1 .png"
    tiny_project.write_encoder(folder / "search/encoder")
    parameters.write_overrides(folder / "search/params.yaml", SETTINGS)
    done = freshet(folder / "search", "demo")
    (folder / "demo.txt").write_text(done.stdout)
    (folder / "progress.txt").write_text(done.stderr)
    return folder


def test_build_reports_progress(built):
    told = (built / "progress.txt").read_text()
    answers = told.index("untrained: ")

    assert told.index("Running stage 'corpus'") < told.index("Running stage 'baselines'") < answers
    assert "is the champion" in told[answers:].splitlines()[0]


def test_folder_is_built_and_broken_files_named(built):
    told = (built / "demo.txt").read_text()
    assert "2 documents could not be read" in told
    assert "picture.png  it is a picture" in told
    assert "broken.pdf:1  unreadable file: " in told
    assert "zeros.md:1  binary file: " in told

    hits = json.loads(
        freshet(built / "search", "search", "wave tide harbour", "-k", "3", "--json").stdout
    )
    assert any(hit["document_id"].startswith("sea/") for hit in hits)


@pytest.mark.parametrize(
    ("query", "found", "marked"),
    [
        ("高效的排序", "排序.md", "排序"),
        ("山", "電車.txt", "山"),
        ("ICカードの切符", "電車.txt", "切符"),
        ("كتب", "مكتبة.md", "الكُتُب"),
        ("библиотекой", "библиотека.md", "библиотеках"),
    ],
)
def test_other_scripts_are_found_and_marked(built, query, found, marked):
    hits = json.loads(freshet(built / "search", "search", query, "-k", "3", "--json").stdout)
    (hit,) = [hit for hit in hits if hit["document_id"] == found]

    assert marked in [hit["snippet"][start:end] for start, end in hit["marks"]]


def test_moved_project_reruns_nothing(built):
    moved = shutil.copytree(built / "search", built / "elsewhere")
    (built / "search").rename(built / "away")
    try:
        (built / "notes/sea/new.md").write_text("# Lighthouse\n\nIt shines over the reef.")
        (built / "notes/space/4.md").unlink()
        outcome = json.loads(freshet(moved, "sync", "--json").stdout)
        assert outcome["added"] == ["sea/new.md"]
        assert outcome["deleted"] == ["space/4.md"]
        assert outcome["unchanged"] == 33
        assert [row["document_id"] for row in outcome["rejected"]] == ["broken.pdf", "zeros.md"]
        assert "untrained) is the champion already" in freshet(moved, "promote").stdout
        assert "is not trained: 0 training queries" in freshet(moved, "results").stdout
        assert freshet(moved, "run").stdout == "0 stages ran\n"
        assert "didn't change" in dvc(moved, "repro").stdout
    finally:
        (built / "away").rename(built / "search")


def test_changed_code_reruns_dependent_stages(built):
    project = built / "search"
    module = Path(
        run(project, "from model_code.stages import comparison; print(comparison.__file__)").strip()
    )
    before = module.read_text()
    module.write_text(before + "\n")
    try:
        command = ("-m", "orchestration.pipeline.run_stage", "comparison")
        warm = warm_python.python(hash_seed=1)
        refused = python(warm, project, *command, check=False)
        assert "code.lock.json belongs to another version" in refused.stderr
        planned = json.loads(freshet(project, "plan", "--json").stdout)
        assert {stage["address"] for stage in planned if stage["action"] == "run"} == {"comparison"}
    finally:
        module.write_text(before)


def test_init_keeps_an_existing_project(built):
    assert "is a project already" in freshet(built, "init", "search", check=False).stderr


def write_judgements(project: Path, path: Path, per_document: int) -> int:
    """A CSV with questions about each document, in words of its text, and one bad row.

    Returns:
        The number of good rows.
    """
    draw = random.Random(0)
    code = (
        "import json, pandas as pd; d = pd.read_parquet('artifacts/corpus/documents.parquet'); "
        "print(json.dumps(dict(zip(d['document_id'], d['text']))))"
    )
    texts = json.loads(run(project, code))
    lines = ["question,document"]
    for document_id, text in texts.items():
        words = [word for word in text.split() if word.isalpha()]
        if not words:
            continue
        for _ in range(per_document):
            lines.append(f"{' '.join(draw.sample(words, min(4, len(words))))},{document_id}")
    good_rows = len(lines) - 1
    lines.append("asks for nothing,nowhere.md")
    path.write_text("\n".join(lines) + "\n")
    return good_rows


def test_judgements_train_and_are_judged_by_gate(built):
    """Three commands from questions in a CSV to a verdict with numbers."""
    project = built / "search"
    few = freshet(project, "retrain", "--dry-run", check=False)
    assert few.returncode == 1
    assert "0 of about 75 judged questions; 0 train, 30 are needed" in few.stdout
    refused = freshet(project, "retrain", check=False)
    assert "no retrain is possible yet: 0 of about 75 judged questions" in refused.stderr

    rows = write_judgements(project, project / "judged.csv", per_document=3)
    judged = freshet(project, "judge", "judged.csv").stdout
    trained = freshet(project, "retrain").stdout
    results = freshet(project, "results").stdout

    assert f"judged.csv:{rows + 2}  dangling qrel: there is no document 'nowhere.md'" in judged
    assert f"judgements.jsonl: {rows} new, 0 changed, 0 unchanged" in judged
    assert "stage train@hce ran" in trained
    assert re.search(r"nDCG@10 \d\.\d+ -> \d\.\d+", trained)
    assert f"Judgements for the next training: {rows} judged questions: " in results
    assert "Last change: " in results
