"""Checks the time machine: reading of releases, the streams, the replay and its summary."""

from __future__ import annotations

import gzip
import json
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.time_machine.changelogs import (
    Entry,
    NameIndex,
    notes_file,
    read_entries,
    section_of,
)
from experiments.time_machine.docstrings import ReleaseContents, assemble
from experiments.time_machine.longeval import make_longeval_stream
from experiments.time_machine.picture import draw
from experiments.time_machine.sdist_backend import mesonpy
from experiments.time_machine.stream import (
    KNOWN,
    TESTED,
    Batch,
    StreamQuery,
    Text,
    group_by_period,
    make_batch,
)
from experiments.time_machine.summary import result_tables, summarize
from experiments.time_machine.tldr import make_tldr_stream
from experiments.time_machine.wheels import (
    Release,
    read_notes,
    read_releases,
    read_texts,
    read_wheel,
)
from model_code.errors import FreshetError
from model_code.files import canonical_json

BODY = "It takes a list and gives back another one, in the order that the second argument asks for."
SETTINGS = {
    "start_date": "2020-01-31",
    "step_months": 12,
    "share": 1.0,
    "tested_summaries": 0.5,
    "tested_entries": 0.5,
}


def write_wheel(path, modules):
    with zipfile.ZipFile(path, "w") as wheel:
        for name, source in modules.items():
            wheel.writestr(name, source)
    return path


def function(name, summary, body=BODY):
    return f'def {name}(x):\n    """{summary}\n\n    {body}\n    """\n'


def release(package, version, date, **summaries):
    """A release in which each definition has a summary line and the same kind of body."""
    texts = {}
    for name in summaries:
        texts[f"{package}.{name}"] = Text(f"{package}.{name}", f"{BODY} {name} {version[0]}")
    lines = {f"{package}.{name}": summary for name, summary in summaries.items()}
    return ReleaseContents(Release(package, version, date, "3.9"), texts, lines)


# Wheels and source distributions


def test_names_survive_a_move_to_another_file(tmp_path):
    before = write_wheel(
        tmp_path / "before.whl",
        {"pack/core/numeric.py": function("sort", "Return a sorted copy of a list.")},
    )
    after = write_wheel(
        tmp_path / "after.whl",
        {"pack/_core/impl.py": function("sort", "Return a sorted copy of a list.")},
    )

    assert read_wheel(before).keys() == {"pack.sort"}
    assert read_wheel(after).keys() == {"pack.sort"}


def test_tests_and_private_modules_are_skipped(tmp_path):
    wheel = write_wheel(
        tmp_path / "a.whl",
        {
            "pack/tests/test_sort.py": function("helper", "Help the tests of this package."),
            "_pack/sort.py": function("hidden", "Hide from everybody who reads this."),
            "pack/broken.py": "def (",
            "pack/data.txt": "no code",
        },
    )

    assert read_wheel(wheel) == {}


def test_summary_lines_are_in_no_text(tmp_path):
    wheel = write_wheel(
        tmp_path / "a.whl",
        {
            "pack/a.py": function("sort", "Return a sorted copy of a list.")
            + function("short", "Return nothing at all here.", "Too short.")
        },
    )

    texts, summaries = read_texts(read_wheel(wheel), min_body_words=15)

    assert texts == {"pack.sort": Text("pack.sort", BODY)}
    assert summaries == {"pack.sort": "Return a sorted copy of a list."}


def test_releases_are_sorted_by_date():
    rows = {"b": [["2.0", "2021-05-01", "3.9"]], "a": [["1.0", "2020-05-01", "3.8"]]}

    names = [read.name for read in read_releases({"releases": rows})]

    assert names == ["a 1.0", "b 2.0"]


def test_notes_are_read_from_one_folder(tmp_path):
    root = tmp_path / "pack-1.0"
    (root / "doc/notes/old").mkdir(parents=True)
    (root / "doc/notes/1.0.rst").write_text("- new")
    (root / "doc/notes/old/0.1.rst").write_text("- old")
    (root / "doc/notes/index.txt").write_text("index")
    with tarfile.open(tmp_path / "pack.tar.gz", "w:gz") as archive:
        archive.add(root, "pack-1.0")

    assert read_notes(tmp_path / "pack.tar.gz", "doc/notes") == {"1.0.rst": "- new"}


def test_build_backend_copies_metadata(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metadata = "Metadata-Version: 2.1\nName: a-b\nVersion: 1.0\n\nName: other\n"
    (tmp_path / "PKG-INFO").write_text(metadata)
    (tmp_path / "out").mkdir()

    name = mesonpy.prepare_metadata_for_build_wheel(str(tmp_path / "out"))

    assert name == "a_b-1.0.dist-info"
    assert (tmp_path / "out" / name / "METADATA").read_text() == metadata


# Changelogs

NAMES = NameIndex(["pack.Frame", "pack.Frame.explode", "pack.io.read", "pack.sort", "other.sort"])


@pytest.mark.parametrize(
    ("item", "entry"),
    [
        (
            "- |Feature| Added :meth:`~pack.Frame.explode` to turn\n  lists into rows. :pr:`77` by\n"
            "  :user:`A B <ab>`.",
            Entry("Added to turn lists into rows", "pack.Frame.explode"),
        ),
        (
            "* `pack.io.read` accepts a ``columns`` argument and skips the others (gh-12)",
            Entry("accepts a columns argument and skips the others", "pack.io.read"),
        ),
        ("- Fixed :func:`sort`, which two packages define, for empty lists and sets", None),
        ("- :meth:`Frame.explode` and :func:`io.read` now release the global lock early", None),
        ("- Faster :meth:`Frame.explode`", None),
        ("- BUG: pack: :meth:`Frame.explode` fails for lists that hold other lists", None),
    ],
)
def test_entries_name_one_definition_and_lose_its_name(item, entry):
    expected = [entry] if entry else []

    assert read_entries(item, NAMES) == expected


def test_section_of_one_version():
    notes = "Version 1.0\n===========\n\nVersion 1.0.1\n=============\n- late\n\n"
    notes += "Version 1.0.0\n=============\n- early\n"

    assert section_of(notes, "1.0.0").strip() == "- early"
    assert section_of("- all", "1.0.0") == "- all"


def test_name_of_the_file_of_notes():
    assert notes_file("v{minor}.rst", "1.2.0") == "v1.2.rst"


# Streams


def test_batches_hold_what_differs():
    before = {"a": Text("a", "1"), "b": Text("b", "1"), "c": Text("c", "1")}
    after = {"a": Text("a", "1"), "b": Text("b", "2"), "d": Text("d", "1")}

    batch = make_batch("pack 2", "2021-01-01", before, after)

    assert batch.puts == {"b": Text("b", "2"), "d": Text("d", "1")}
    assert batch.removals == ["c"]


def test_steps_by_half_year():
    batches = [Batch(day, day, {}, ()) for day in ("2020-02-01", "2020-06-30", "2020-07-01")]

    steps = group_by_period(batches, 6)

    assert [(step.name, len(step.batches)) for step in steps] == [("2020 H1", 2), ("2020 H2", 1)]


@pytest.fixture
def stream():
    first = release("pack", "1.0", "2020-01-01", sort="Return a sorted copy of a list.")
    first.entries.append(Entry("sorts without a copy of the list it gets", "pack.sort"))
    second = release(
        "pack",
        "2.0",
        "2021-01-01",
        sort="Return a sorted copy of a list.",
        split="Split a text at every blank in it.",
    )
    third = release("pack", "3.0", "2022-01-01", split="Split a text at every blank in it.")
    return assemble([first, second, third], SETTINGS)


def test_stream_replays_to_the_last_release(stream):
    states = list(stream.states())

    assert [sorted(state) for state in states] == [
        ["pack.sort"],
        ["pack.sort", "pack.split"],
        ["pack.split"],
    ]
    assert states[-1]["pack.split"].text.endswith("split 3")


def test_queries_are_asked_with_their_release(stream):
    steps = {query.text: query.step for query in stream.queries}

    assert steps["Return a sorted copy of a list."] == 0
    assert steps["sorts without a copy of the list it gets"] == 0
    assert steps["Split a text at every blank in it."] == 1


def test_no_tested_query_is_known(stream):
    stream = replace(
        stream,
        queries=[
            StreamQuery("1", "known", frozenset(["pack.sort"]), 0, KNOWN, "summary"),
            StreamQuery("2", "tested", frozenset(["pack.sort"]), 0, TESTED, "summary"),
            StreamQuery("3", "late", frozenset(["pack.split"]), 1, TESTED, "summary"),
        ],
    )
    first, _, last = stream.states()

    assert [query.query_id for query in stream.known(2)] == ["1"]
    assert [query.query_id for query in stream.tested(0, first)] == ["2"]
    # The answer of the second query is gone.
    assert [query.query_id for query in stream.tested(2, last)] == ["3"]


def test_repeated_words_identify_no_definition():
    summary = "Return a sorted copy of a list."
    contents = release("pack", "1.0", "2020-01-01", sort=summary, order=summary)
    for name in ("sort", "order"):
        entry = Entry("supports lists that hold other lists", f"pack.{name}")
        contents.entries.append(entry)

    assert assemble([contents], SETTINGS).queries == []


def test_tldr_pages_arrive_by_month(tmp_path):
    pages = [("ls", "2018-05-01"), ("cp", "2019-02-03"), ("mv", "2019-02-20"), ("rm", "2020-01-01")]
    rows = [
        {"_id": name, "title": name, "text": f"{name} files", "date": f"{date}T00:00:00Z"}
        for name, date in pages
    ]
    write_jsonl(tmp_path / "corpus.jsonl.gz", rows)
    queries = [{"_id": f"{name}#1", "text": f"How to {name}?"} for name, _ in pages]
    write_jsonl(tmp_path / "queries.jsonl.gz", queries)
    (tmp_path / "qrels").mkdir()
    for split, name in (("train", "cp"), ("test", "rm"), ("dev", "mv")):
        text = f"query-id\tcorpus-id\tscore\n{name}#1\t{name}\t1\n"
        (tmp_path / "qrels" / f"{split}.tsv").write_text(text)
    settings = {"start_date": "2018-12-31", "step_months": 12, "share": 1.0, "known_share": 1.0}

    stream = make_tldr_stream(tmp_path, settings)

    assert list(stream.start) == ["ls"]
    arrivals = []
    for step in stream.steps:
        arrivals += [list(batch.puts) for batch in step.batches]
    assert arrivals == [["cp", "mv"], ["rm"]]
    assert {(query.text, query.step, query.role) for query in stream.queries} == {
        ("How to cp?", 1, KNOWN),
        ("How to rm?", 2, TESTED),
    }


def write_jsonl(path, rows):
    with gzip.open(path, "wt") as stream:
        for row in rows:
            stream.write(json.dumps(row) + "\n")


@pytest.fixture
def longeval_folder(tmp_path):
    """Two snapshots: one in TREC's format and one in JSON."""
    (tmp_path / "Trec/2022-06_fr").mkdir(parents=True)
    (tmp_path / "Json/2022-09_fr").mkdir(parents=True)
    documents = "".join(
        f"<DOC><DOCNO>{name}</DOCNO><TEXT>{text}</TEXT></DOC>"
        for name, text in (("d1", "pommes"), ("d2", "poires"), ("d3", "prunes"))
    )
    (tmp_path / "Trec/2022-06_fr/part1.txt").write_text(documents)
    rows = [{"id": "d1", "contents": "pommes rouges"}, {"id": "d4", "contents": "figues"}]
    (tmp_path / "Json/2022-09_fr/part1.json").write_text(json.dumps(rows))
    (tmp_path / "queries.txt").write_text("q1\tdes pommes\nq2\tdes figues\n")
    for month, text in (("2022-06", "q1 0 d1 1\nq1 0 d2 0\n"), ("2022-09", "q2 0 d4 2\n")):
        folder = tmp_path / "qrels" / f"{month}_fr"
        folder.mkdir(parents=True)
        (folder / "qrels_processed.txt").write_text(text)
    return tmp_path


def test_longeval_snapshots_become_steps(longeval_folder):
    settings = {"tested_share": 1.0, "max_documents": 0}

    stream = make_longeval_stream(longeval_folder, settings)

    assert sorted(stream.start) == ["d1", "d2", "d3"]
    (batch,) = stream.steps[0].batches
    assert batch.puts == {"d1": Text("", "pommes rouges"), "d4": Text("", "figues")}
    assert batch.removals == ["d2", "d3"]
    asked = [(query.text, query.answers, query.step) for query in stream.queries]
    assert asked == [("des pommes", {"d1"}, 0), ("des figues", {"d4"}, 1)]


def test_longeval_limit_keeps_clicked_documents(longeval_folder):
    settings = {"tested_share": 1.0, "max_documents": 1}

    assert list(make_longeval_stream(longeval_folder, settings).start) == ["d1"]


def test_longeval_needs_two_snapshots(tmp_path):
    with pytest.raises(FreshetError, match="has 0 snapshots"):
        make_longeval_stream(tmp_path, {"tested_share": 1.0, "max_documents": 0})


# Summary and picture


def measured_rows(values, seconds=1.0, stale=0):
    rows = []
    lag = None if stale else 0.5
    for number, value in enumerate(values):
        # No document has arrived on the first day.
        arrived = value if number > 0 else None
        rows.append(
            {
                "step": str(2019 + number),
                "everything": value,
                "arrived": arrived,
                "just_arrived": None,
                "changelog": value,
                "stale_hits": stale,
                "missing": stale,
                "seconds": seconds,
                "lag_seconds": lag,
            }
        )
    return rows


def measured(seeds):
    random = np.random.default_rng(0)
    rows = {}
    for seed in range(seeds):
        base = random.uniform(0.5, 0.6, 4)
        rows[str(seed)] = {
            "frozen": measured_rows(base / 2, 0.0, stale=3),
            "plain": measured_rows(base - 0.02, 1.0),
            "retrain": measured_rows(base, 10.0),
        }
    return rows


LABELS = {"frozen": "frozen index", "plain": "plain additions", "retrain": "retraining"}


def test_summary_of_one_training_has_an_interval_over_steps(stream):
    rows = measured(1)
    rows["0"]["plain"][1]["everything"] += 0.03

    plain = summarize(stream, rows, LABELS)["summary"]["plain"]

    differences = np.array([0.01, -0.02, -0.02])
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / 3**0.5
    comparison = plain["less retrain"]["everything"]
    assert comparison["difference"] == pytest.approx(-0.01)
    assert comparison["interval"][0] == pytest.approx(-0.01 - half, abs=1e-4)
    assert comparison["over"] == "3 steps, one training"
    assert plain["share of its seconds"] == pytest.approx(0.1)


def test_summary_of_three_trainings_says_so(stream):
    plain = summarize(stream, measured(3), LABELS)["summary"]["plain"]

    assert plain["less retrain"]["everything"]["over"] == "3 steps and 3 trainings"
    assert plain["less retrain"]["everything"]["difference"] == pytest.approx(-0.02)


def test_interval_over_steps_is_that_of_the_mean_of_trainings(stream):
    rows = measured(3)
    rows["0"]["plain"][1]["everything"] += 0.09

    comparison = summarize(stream, rows, LABELS)["summary"]["plain"]["less retrain"]["everything"]

    differences = np.array([0.01, -0.02, -0.02])
    half = stats.t.ppf(0.975, 2) * differences.std(ddof=1) / 3**0.5
    assert comparison["interval over steps"] == pytest.approx(
        [-0.01 - half, -0.01 + half], abs=1e-4
    )
    assert comparison["interval"][0] < comparison["interval over steps"][0]


def test_policies_are_compared_on_common_seeds(stream):
    rows = measured(2)
    del rows["1"]["plain"]

    summary = summarize(stream, rows, LABELS)["summary"]

    assert summary["plain"]["less retrain"]["everything"]["over"] == "3 steps, one training"
    assert summary["frozen"]["trainings"] == 2
    assert "less retrain" not in summary["retrain"]


def test_steps_that_not_all_have_reached_are_left_out(stream):
    rows = measured(1)
    rows["0"]["retrain"] = rows["0"]["retrain"][:3]

    result = summarize(stream, rows, LABELS)

    assert result["steps"] == 2
    assert result["summary"]["plain"]["seconds"] == 2.0
    assert len(result["seeds"]["0"]["plain"]) == 4


def test_a_single_step_has_no_interval(stream):
    rows = {"0": {name: row[:2] for name, row in measured(1)["0"].items()}}

    result = summarize(stream, rows, LABELS)

    assert result["summary"]["plain"]["less retrain"]["everything"]["interval"] is None
    assert "| -0.020 |" in result_tables({"docstrings": result})
    assert canonical_json(result)


def test_tables_and_picture(stream, tmp_path):
    rows = {"0": {name: row[:3] for name, row in measured(1)["0"].items()}}
    result = summarize(stream, rows, LABELS)

    table = result_tables({"docstrings": result})
    draw(result, tmp_path / "picture.png")

    assert "| frozen index | 1 | 0.2" in table
    assert "| never |" in table
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
