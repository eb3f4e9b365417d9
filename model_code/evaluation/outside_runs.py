"""Score outside runs: TREC runs of systems that Freshet did not build."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import pandas as pd

from model_code.corpus.tables import Corpus
from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.scores import SystemScores

# Number of fields in a line of a TREC run: query, Q0, document, rank, score and name.
RUN_FIELDS = 6

# A name has no dot, because a dot marks a variant of a system.
_SYSTEM_NAME = re.compile(r"[\w-]+")


def parse_outside_runs(arguments: Sequence[str]) -> dict[str, Path]:
    """Return the files of outside runs by the names of their systems.

    Args:
        arguments: Arguments of the form NAME=FILE.

    Raises:
        FreshetError: If an argument has another form, a name occurs twice, or there is no file.
    """
    runs: dict[str, Path] = {}
    for argument in arguments:
        name, separator, file = argument.partition("=")
        if not separator or not _SYSTEM_NAME.fullmatch(name):
            raise FreshetError(
                f"--add-run {argument!r} is not NAME=FILE; a name has letters, digits, _ and -, "
                "such as --add-run colbert=runs/colbert.trec"
            )
        if name in runs:
            raise FreshetError(f"--add-run names {name!r} twice; give each run a name of its own")
        path = Path(file).expanduser()
        if not path.is_file():
            raise FreshetError(f"--add-run {name}: {path} does not exist")
        runs[name] = path
    return runs


def refuse_taken_names(names: Iterable[str], systems: Iterable[str]) -> None:
    """Refuse outside runs that have the name of a system of the build.

    Args:
        names: Names of the outside runs.
        systems: Names of the systems of the build.

    Raises:
        FreshetError: If a system has one of the names.
    """
    taken = sorted(set(names) & set(systems))
    if taken:
        raise FreshetError(
            f"--add-run {taken[0]}: the build has a system of this name; give the run another one"
        )


def score_outside_run(
    name: str, path: Path, corpus: Corpus, build: SystemScores, depth: int
) -> tuple[Run, SystemScores]:
    """Score an outside run on the queries and metrics of a system of the build.

    Queries without a ranking score 0, as in trec_eval with `-c`. Rankings of queries without a
    judgement in the build are ignored. Rankings are cut to the depth of the build, because MAP and
    other metrics without a cutoff grow with it.

    Args:
        name: Name of the outside system.
        path: File of the TREC run.
        corpus: Corpus of the build.
        build: Scores of any system of the build, which give the split, queries and metrics.
        depth: Number of documents per query that the systems of the build rank.

    Returns:
        The cut run, and its scores.

    Raises:
        FreshetError: If the file is not a run, ranks a document twice, or shares no query or no
            document with the build.
    """
    judgements = corpus.judgements(build.split)
    query_ids = list(build.values.index)
    graded = judgements.graded()
    qrels = {query_id: graded[query_id] for query_id in query_ids}

    documents = set(corpus.documents["document_id"])
    whole_run = read_outside_run(path, documents.union(qrels))
    _require_common_ids(name, whole_run, qrels, documents)
    run = {query_id: ranking[:depth] for query_id, ranking in whole_run.items()}
    metrics = list(build.values.columns)
    scores = evaluate_run(run, qrels, metrics)
    values = pd.DataFrame({metric: pd.Series(scores[metric]) for metric in metrics})
    values = values.loc[query_ids, metrics]
    values.index.name = build.values.index.name
    return run, SystemScores(name, build.split, values, with_known=build.with_known)


def read_outside_run(path: Path, known_ids: Container[str] = ()) -> Run:
    """Read a TREC run as trec_eval does.

    The order of lines and the rank column are ignored. Fields are separated by any number of blanks
    or tabs. Rankings are ordered by descending score, and documents with equal scores by descending
    id.

    Ids are decoded as `write_run` encodes them, because a run may come from another build. An id
    that is known as it is written stays, such as an address with `%20`.

    Args:
        path: The run.
        known_ids: Ids of the queries and documents of the build.

    Raises:
        FreshetError: If a line has another number of fields, or its score is not a finite number.
    """
    run: dict[str, list[tuple[str, float]]] = {}
    try:
        # Editors of Windows begin a file with a mark, which would be a part of the first id.
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise FreshetError(f"{path} is not UTF-8; a TREC run is a text file") from None
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        if not fields:
            continue
        if len(fields) != RUN_FIELDS:
            raise FreshetError(
                f"{path}:{number} has {len(fields)} fields; a line of a TREC run has {RUN_FIELDS}: "
                "query, Q0, document, rank, score and tag"
            )
        query_id, _, document_id, _, score_text, _ = fields
        score = _read_score(score_text)
        if score is None:
            raise FreshetError(
                f"{path}:{number} has the score {score_text!r}; a score is a finite number"
            )
        ranking = run.setdefault(_read_id(query_id, known_ids), [])
        ranking.append((_read_id(document_id, known_ids), score))
    for ranking in run.values():
        ranking.sort(key=lambda hit: (hit[1], hit[0]), reverse=True)
    return run


def _read_id(text: str, known_ids: Container[str]) -> str:
    """Return an id of a run, decoded unless the encoded text is the id of the build itself."""
    return text if text in known_ids else unquote(text)


def _read_score(text: str) -> float | None:
    """Return the number that a text is, or None if it is no finite number."""
    try:
        score = float(text)
    except ValueError:
        return None
    return score if math.isfinite(score) else None


def _require_common_ids(
    name: str, run: Run, qrels: Mapping[str, Mapping[str, int]], documents: set[str]
) -> None:
    """Raise FreshetError if a run shares no query, or no document, with the build."""
    ranked = {query_id: run[query_id] for query_id in qrels if query_id in run}
    if not ranked:
        example = next(iter(run), None)
        raise FreshetError(
            f"--add-run {name}: none of its {len(run):,} queries is judged here (its first one is "
            f"{example!r}, a judged one is {next(iter(qrels))!r}); a run uses the ids of the corpus"
        )
    found = {document_id for ranking in ranked.values() for document_id, _ in ranking}
    if not found & documents:
        raise FreshetError(
            f"--add-run {name}: none of its {len(found):,} documents is in the corpus, such as "
            f"{min(found)!r}; a run uses the ids of the corpus"
        )
