"""Measure headlines in the untrained fusion, with natural questions about two corpora.

A headline is a document's title in plain words with its first sentence.

`python -m experiments.people_ask_2.run dev docstrings=PROJECT tldr=PROJECT` needs projects in which
the stage `baselines` has run. Half of the questions, `dev`, were used for choices; the other half,
`final`, is for the result. The command writes its half of `result.json` and the tables of the page.
With `final people_ask=PROJECT`, it asks the fifty questions of the experiment `people_ask`.
With `--words`, only BM25 is measured, with and without known queries. A project then needs only the
stage `corpus`, and other systems keep their result.

The fusion has the default weights for a corpus without judged queries. Documents are complete, as
in the live collection. Answers are names of functions; any name of a document counts.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.people_ask.run import open_word_search
from experiments.tables import write_tables
from model_code.corpus.tables import load_corpus
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import bootstrap_interval, paired_randomisation_test
from model_code.files import read_json, write_json
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX, Retriever
from model_code.retriever_settings import BM25, BM25_KNOWN
from model_code.stages.baselines import HEADLINE, UNTRAINED
from model_code.stages.fusion import default_weights

HERE = Path(__file__).parent
RESULT = HERE / "result.json"
METRIC = "nDCG@10"
METRICS = (METRIC, "hit@1", "hit@3")
# Questions at even positions are used for choices, and the others for the result.
HALVES = {"dev": 0, "final": 1}
# Last line of a document that has other names.
ALIASES = re.compile(r"\n\nAlso called ([\w., ]+)\.\Z")
# The experiment with fifty questions about docstrings. All of them are used for the result.
FIFTY = "people_ask"
BASELINE = "fusion without headlines"
SYSTEM = "fusion with headlines"
# Pairs of systems that are compared, by their key in the result.
GAINS = {"gains": (SYSTEM, BASELINE), "gains of known queries": (BM25_KNOWN, BM25)}
# What a gain comes from, by the key in the result.
CAUSES = {"gains": "Headlines", "gains of known queries": "Known queries in BM25"}
# Systems of the table, in its order.
TABLE_ORDER = ("zero_shot", BM25, BM25_KNOWN, HEADLINE, BASELINE, SYSTEM)
BOOTSTRAP_SAMPLES = 4000
RANDOMISATIONS = 10_000


class Questions(NamedTuple):
    """Questions with the documents that answer them.

    Attributes:
        texts: Texts by question id.
        qrels: Grades of the answering documents by question id and document id.
    """

    texts: dict[str, str]
    qrels: dict[str, dict[str, int]]


def main(half: str, projects: Mapping[str, Path], only_words: bool = False) -> None:
    """Measure one half of the questions, and write the result and the page's tables.

    Args:
        half: A key of `HALVES`.
        projects: Project of each corpus.
        only_words: Measure only BM25, and keep the results of other systems.
    """
    result = read_json(RESULT) if RESULT.is_file() else {}
    for corpus, project in projects.items():
        questions = read_questions(corpus, half, document_names(project))
        by_corpus = result.setdefault(half, {})
        if only_words:
            with tempfile.TemporaryDirectory() as folder:
                systems = open_word_search(project, Path(folder))
                update_report(by_corpus[corpus], measure(systems, questions))
        else:
            by_corpus[corpus] = measure(open_systems(project), questions)
    write_json(RESULT, result)
    write_tables(HERE, tables(result))


def update_report(report: dict[str, Any], measured: Mapping[str, Any]) -> None:
    """Add systems and gains of a measurement to the report on the same questions."""
    for key in ("systems", "first three"):
        report[key].update(measured[key])
    for key in GAINS.keys() & measured.keys():
        report[key] = measured[key]


def read_questions(corpus: str, half: str, names: Mapping[str, str]) -> Questions:
    """Return the questions of one half, with the documents that answer them.

    Args:
        corpus: Name of the corpus.
        half: A key of `HALVES`.
        names: Document by each of its names.
    """
    if corpus == FIFTY:
        rows = read_json(HERE.parent / FIFTY / "questions.json")
    else:
        rows = read_json(HERE / "questions.json")[corpus]
    texts = {}
    qrels = {}
    for number, (text, answers) in enumerate(rows):
        if corpus == FIFTY or number % len(HALVES) == HALVES[half]:
            question = f"{corpus}-{number:03}"
            texts[question] = text
            qrels[question] = {names[name]: 1 for name in answers if name in names}
    return Questions(texts, qrels)


def document_names(project: Path) -> dict[str, str]:
    """Return the document by each of its names: its id, and other names that its text lists."""
    documents = load_corpus(project / "artifacts" / "corpus").documents
    names = {}
    for document_id, text in zip(documents["document_id"], documents["text"], strict=True):
        aliases = ALIASES.search(text)
        if aliases is not None:
            for alias in aliases[1].split(", "):
                names[alias] = document_id
    # An id names its own document, even if another document has it as an alias.
    for document_id in documents["document_id"]:
        names[document_id] = document_id
    return names


def open_systems(project: Path) -> dict[str, Retriever]:
    """Open the components of the untrained fusion, BM25 with known queries, and two fusions.

    One fusion has headlines, and the other one has not.
    """
    components: dict[str, Any] = {}
    for name in UNTRAINED.of:
        build = project / "artifacts" / "baselines" / name / "build"
        components[name] = open_retriever(build / "encoder", build / "index")

    all_names = [*components, f"zero_shot{LATE_SUFFIX}"]
    names_of_system = {
        BASELINE: [name for name in all_names if name != HEADLINE],
        SYSTEM: all_names,
    }
    known = project / "artifacts" / "baselines" / BM25_KNOWN / "build"
    systems: dict[str, Retriever] = dict(components)
    systems[BM25_KNOWN] = open_retriever(known / "encoder", known / "index")
    for system, names in names_of_system.items():
        normalizers = {}
        for name, component in components.items():
            # BM25 scores are normalised by their largest one.
            if name in names and name != "bm25":
                normalizers[name] = ScoreNormalizer.fit(component.index.vectors)
        weights = default_weights(names, normalizers, [HEADLINE])
        fusion = Fusion(weights, normalizers, UNTRAINED.depth, UNTRAINED.feedback)
        systems[system] = FusedSearch(components, fusion)
    return systems


def measure(systems: Mapping[str, Retriever], questions: Questions) -> dict[str, Any]:
    """Return the metrics of each system, and the gains by headlines and by known queries.

    Args:
        systems: The systems by name.
        questions: The questions.

    Returns:
        The means of each system, the first three documents of each system for each question, and
        those of `GAINS` by metric whose systems are given.
    """
    texts, qrels = questions
    # Scores (q,) of the questions, by system and metric.
    values: dict[str, dict[str, np.ndarray]] = {}
    means: dict[str, dict[str, float]] = {}
    found: dict[str, dict[str, list[str]]] = {}
    for system, retriever in systems.items():
        rankings = retriever.search(list(texts.values()), 10)
        run = dict(zip(texts, rankings, strict=True))
        scores = evaluate_run(run, qrels, METRICS)
        values[system] = {}
        means[system] = {}
        for metric in METRICS:
            metric_scores = np.array([scores[metric][question] for question in texts])
            values[system][metric] = metric_scores
            means[system][metric] = round(float(metric_scores.mean()), 4)
        found[system] = {}
        for question, text in texts.items():
            found[system][text] = [document for document, _ in run[question][:3]]

    report: dict[str, Any] = {"questions": len(texts), "systems": means, "first three": found}
    for key, (system, reference) in GAINS.items():
        if system in values:
            report[key] = {}
            for metric in METRICS:
                differences = values[system][metric] - values[reference][metric]
                report[key][metric] = describe_gain(differences)
    return report


def describe_gain(differences: np.ndarray) -> dict[str, Any]:
    """Return the mean of paired differences (q,), its 95 % interval, and p."""
    columns = differences[:, None]
    low, high = bootstrap_interval(columns, BOOTSTRAP_SAMPLES, 0.95, 0)
    (p,) = paired_randomisation_test(columns, RANDOMISATIONS, 0)
    return {
        "mean": round(float(differences.mean()), 4),
        "low": round(float(low[0]), 4),
        "high": round(float(high[0]), 4),
        "p": round(float(p), 4),
        "better": int((differences > 0).sum()),
        "worse": int((differences < 0).sum()),
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each half and corpus."""
    lines = []
    for half, corpora in sorted(result.items()):
        for corpus, report in sorted(corpora.items()):
            count = report["questions"]
            lines.append(f"**{corpus}**, half `{half}`, {count} questions")
            lines.append("")
            lines.append("| system | first | among three | nDCG@10 |")
            lines.append("|---|---|---|---|")
            for system in TABLE_ORDER:
                # BM25 with known queries is newer than the other systems.
                if system not in report["systems"]:
                    continue
                means = report["systems"][system]
                first = round(means["hit@1"] * count)
                three = round(means["hit@3"] * count)
                lines.append(f"| {system} | {first} | {three} | {means[METRIC]:.3f} |")
            lines.append("")
            for key, cause in CAUSES.items():
                if key in report:
                    lines.append(gain_text(cause, report[key]))
                    lines.append("")
    return "\n".join(lines)


def gain_text(cause: str, gains: Mapping[str, Any]) -> str:
    """Return the gains by headlines or by known queries as a sentence."""
    ndcg = gains[METRIC]
    three = gains["hit@3"]
    interval = f"[{ndcg['low']:+.3f}, {ndcg['high']:+.3f}]"
    return (
        f"{cause}: nDCG@10 {ndcg['mean']:+.3f} {interval}, p = {ndcg['p']:.3f}; among three "
        f"{three['better']} questions gained and {three['worse']} lost."
    )


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the half, the project of each corpus, and whether only BM25 is measured."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("half", choices=HALVES, help="questions to ask")
    parser.add_argument("projects", nargs="+", metavar="NAME=PROJECT", help="corpus and project")
    parser.add_argument("--words", action="store_true", help="measure only BM25")
    options = parser.parse_args(arguments)
    projects = {}
    for pair in options.projects:
        corpus, _, project = pair.partition("=")
        projects[corpus] = Path(project).resolve()
    options.projects = projects
    return options


if __name__ == "__main__":
    options = parse_arguments()
    main(options.half, options.projects, options.words)
