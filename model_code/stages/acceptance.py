"""Stage `acceptance`: decide whether a finished corpus, as a whole, is fit to train and judge on.

The contract of the stage `corpus` checks each row. The expectations of this stage concern the whole
data set: how many documents and judged queries it has, and how many of them are repeated or have no
words. If an expectation fails, nothing is trained.
"""

from __future__ import annotations

from typing import Any

from model_code.context import StageContext
from model_code.stages.stage import Stage, artifact_paths, code_paths

STAGE = Stage(
    name="acceptance",
    description="Great Expectations' verdict on the corpus; no "
    "retriever is trained on data that fails it.",
    groups=("acceptance",),
    inputs=artifact_paths("corpus"),
    output="artifacts/acceptance",
    code=code_paths("corpus", "stages/expectations.py", "text"),
)
DATA_DOCS = ".freshet/data_docs"


def run(context: StageContext) -> dict[str, Any]:
    """Validate the corpus and write `verdict.json`.

    The verdict holds `passed` and a row for each expectation: its table, its bounds, whether it
    passed, and the observed value or the percentage of rows that break it. Queries are validated
    only if there are judged queries.

    Data Docs, a report in HTML, and a copy of the verdict are written to `.freshet/data_docs` of
    the project. The copy exists even if the stage fails. The HTML is not an output of the stage
    because it contains the time, and equal inputs must give equal outputs.

    Raises:
        FreshetError: If an expectation fails. The message names all failed expectations.
    """
    from model_code.corpus.tables import load_corpus
    from model_code.errors import FreshetError
    from model_code.files import write_json
    from model_code.stages.expectations import describe_failure, validate_corpus

    corpus = load_corpus(context.inputs["corpus"])
    data_docs = context.root / DATA_DOCS
    results = validate_corpus(corpus, context.settings["acceptance"], data_docs)

    failed = [result for result in results if not result["passed"]]
    verdict = {"passed": not failed, "expectations": results}
    write_json(context.output / "verdict.json", verdict)
    write_json(data_docs / "verdict.json", verdict)
    if failed:
        failures = "; ".join(describe_failure(result) for result in failed)
        raise FreshetError(
            f"the corpus is not accepted: {failures}. Correct the source, or change the bounds "
            f"under `acceptance` in params.yaml; {DATA_DOCS}/verdict.json has all results."
        )
    return {"passed": True, "expectations": len(results)}


def check(context: StageContext) -> None:
    """Require a verdict with at least one expectation, all of which passed."""
    from model_code.checks.rules import require, require_files
    from model_code.files import read_json

    require_files(context.output, ["verdict.json"])
    verdict = read_json(context.output / "verdict.json")
    expectations = verdict["expectations"]
    all_passed = verdict["passed"] and all(result["passed"] for result in expectations)
    require(
        bool(expectations) and all_passed,
        "verdict.json must hold at least one expectation, and all of them must have passed",
    )
