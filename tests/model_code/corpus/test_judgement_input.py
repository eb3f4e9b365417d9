"""Guards that judgements of people are read from every format, and that no bad row is lost."""

from __future__ import annotations

import gzip
import json

import pytest

from model_code.corpus.judgement_file import JudgedPair
from model_code.corpus.judgement_input import JudgementColumns, read_judgement_input
from model_code.errors import FreshetError

DOCUMENTS = {"tea.md", "notes/oven.md", "a file with blanks.txt"}


def read(path, text=None, **options):
    if text is not None:
        path.write_text(text)
    return read_judgement_input(path, DOCUMENTS, 100, **options)


def reasons(judged):
    return [row.message for row in judged.refused]


def test_csv_with_question_and_document_is_read(tmp_path):
    judged = read(tmp_path / "j.csv", "question,document\nHow hot?,tea.md\n")

    assert judged.pairs == (JudgedPair("How hot?", "tea.md"),)


def test_grade_and_split_are_read(tmp_path):
    text = "Question,Document,Grade,Split\nHow hot?,tea.md,2,test\nHow hot?,notes/oven.md,0,\n"

    judged = read(tmp_path / "j.csv", text)

    assert judged.pairs == (
        JudgedPair("How hot?", "tea.md", 2, "test"),
        JudgedPair("How hot?", "notes/oven.md", 0),
    )


def test_grade_that_the_first_row_lacks_is_read(tmp_path):
    rows = [
        {"question": "How hot?", "document": "tea.md"},
        {"question": "How hot?", "document": "notes/oven.md", "grade": 0},
    ]

    judged = read(tmp_path / "j.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))

    assert judged.pairs == (
        JudgedPair("How hot?", "tea.md"),
        JudgedPair("How hot?", "notes/oven.md", 0),
    )


def test_unnamed_index_column_is_no_grade(tmp_path):
    judged = read(tmp_path / "j.csv", ",question,document\n0,How hot?,tea.md\n")

    assert judged.pairs == (JudgedPair("How hot?", "tea.md"),)


def test_columns_can_be_named(tmp_path):
    columns = JudgementColumns(question="frage", document="datei", grade="note")

    judged = read(tmp_path / "j.csv", "frage,datei,note\nWie heiss?,tea.md,3\n", columns=columns)

    assert judged.pairs == (JudgedPair("Wie heiss?", "tea.md", 3),)


def test_missing_column_is_named_with_the_existing_ones(tmp_path):
    with pytest.raises(FreshetError, match=r"j.csv has no column 'document'; it has: question, x"):
        read(tmp_path / "j.csv", "question,x\nHow hot?,tea.md\n")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (",tea.md,1", "empty text: the question is empty"),
        ("How hot?,coffee.md,1", "dangling qrel: there is no document 'coffee.md'"),
        ("How hot?,oven.md,1", "is it 'notes/oven.md'?"),
        ("How hot?,tea.md,much", "bad relevance: relevance is 'much'"),
        ("How hot?,,1", "missing id: document_id is ''"),
        ("x" * 101 + ",tea.md,1", "huge text: the question has 101 characters"),
        ("How hot?,tea.md", "bad line: 2 cells under 3 columns"),
    ],
)
def test_bad_row_is_refused_with_reason(tmp_path, row, reason):
    judged = read(tmp_path / "j.csv", f"question,document,grade\n{row}\nHot?,tea.md,1\n")

    assert judged.pairs == (JudgedPair("Hot?", "tea.md"),)
    assert reason in reasons(judged)[0]


def test_trec_qrels_are_read_with_queries(tmp_path):
    (tmp_path / "topics.tsv").write_text("q1\thow hot\nq2\twhich oven\n")

    judged = read(
        tmp_path / "qrels.txt",
        "q1 0 tea.md 1\nq2 Q0 a file with blanks.txt 2\nq3 0 tea.md 1\nnonsense\n",
        queries=tmp_path / "topics.tsv",
    )

    assert judged.pairs == (
        JudgedPair("how hot", "tea.md"),
        JudgedPair("which oven", "a file with blanks.txt", 2),
    )
    assert reasons(judged) == [
        "dangling qrel: topics.tsv has no query 'q3'",
        "bad line: not the four columns of TREC: query, iteration, document, grade",
    ]


def test_queries_of_qrels_may_be_trec_topics(tmp_path):
    (tmp_path / "topics.xml").write_text(
        "<top>\n<num> Number: q1\n<title> how hot\n<desc> Description:\nmore\n</top>\n"
    )

    judged = read(tmp_path / "qrels.txt", "q1 0 tea.md 1\n", queries=tmp_path / "topics.xml")

    assert judged.pairs == (JudgedPair("how hot", "tea.md"),)


def test_line_that_is_no_query_is_named(tmp_path):
    (tmp_path / "topics.tsv").write_text("q1 without a tab\n")

    with pytest.raises(FreshetError, match=r"topics.tsv:1 is no query .*lines ID<tab>TEXT"):
        read(tmp_path / "qrels.txt", "q1 0 tea.md 1\n", queries=tmp_path / "topics.tsv")


def test_queries_of_qrels_may_be_a_table(tmp_path):
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q1", "text": "how hot"}) + "\n")

    judged = read(
        tmp_path / "qrels.tsv",
        "query-id\tcorpus-id\tscore\nq1\ttea.md\t1\n",
        queries=tmp_path / "queries.jsonl",
    )

    assert judged.pairs == (JudgedPair("how hot", "tea.md"),)


def test_beir_folder_is_read_with_its_splits(tmp_path):
    (tmp_path / "qrels").mkdir()
    with gzip.open(tmp_path / "queries.jsonl.gz", "wt") as stream:
        stream.write(json.dumps({"_id": "q1", "text": "how hot"}) + "\n")
    with gzip.open(tmp_path / "qrels/test.tsv.gz", "wt") as stream:
        stream.write("query-id\tcorpus-id\tscore\nq1\ttea.md\t1\n")

    assert read(tmp_path).pairs == (JudgedPair("how hot", "tea.md", 1, "test"),)


def test_folder_without_judgements_is_refused(tmp_path):
    with pytest.raises(FreshetError, match="is no BEIR folder with judgements"):
        read(tmp_path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(FreshetError, match="nowhere.csv is not a file or a folder"):
        read(tmp_path / "nowhere.csv")


@pytest.mark.parametrize("name", ["notes.md", "notes.xyz"])
def test_file_that_is_no_table_names_what_is_read(tmp_path, name):
    path = tmp_path / name
    path.write_text("How hot is tea?\n")

    with pytest.raises(FreshetError, match=r"is no table of judgements; .*TREC qrels") as raised:
        read(path)

    assert ".md" not in str(raised.value).replace(name, "")
