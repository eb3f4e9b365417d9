"""The drift measures for a reader: their names, the question of each, and how often it is tested.

The statistics are in `measures.MEASURES`. The descriptions have a module of their own, which
imports no library. The reason is speed: every command reads the settings, and the settings of drift
need the number of tests in this table.
"""

from __future__ import annotations

from dataclasses import dataclass

# Names of the two measures that tell whether searches find new documents worse than old ones. The
# first searches by pseudo-queries, which are made from the texts of documents. The second searches
# by queries that people asked or that documents arrived with.
MADE_QUERIES = "new_quality"
ASKED_QUERIES = "asked_quality"
# Names of the two measures that compare searches before and after documents were added. The first
# compares the same queries for old documents. The second compares changed documents with their
# former versions (see `measures.PairedScores`).
PROTECTED_QUERIES = "protected_old"
CHANGED_DOCUMENTS = "changed_quality"


@dataclass(frozen=True)
class MeasureDescription:
    """A drift measure in words, for the page of a report.

    Attributes:
        question: What the measure asks about the new documents, as a question.
        meaning: How to read its value.
        examples: Heading above the example documents of the measure.
        example_value: Meaning of the value of such a document. Empty if it has none.
        tests: Number of tests in a report. 2: of the newest batch and of the window of the last
            batches. 0: the measure is counted and not tested.
    """

    question: str
    meaning: str
    examples: str
    example_value: str = ""
    tests: int = 2


DESCRIPTIONS: dict[str, MeasureDescription] = {
    "domain_auc": MeasureDescription(
        question="Do new documents differ from old ones?",
        meaning="A classifier tells vectors of new documents from vectors of old ones. 0.5 means "
        "that it cannot tell them apart, 1 that it always can. A shift alone is no harm.",
        examples="New documents that differ most from old ones",
        example_value="Similarity to new documents",
    ),
    MADE_QUERIES: MeasureDescription(
        question="Are new documents found worse than old ones?",
        meaning="Mean reciprocal rank of new documents minus that of old ones, by queries "
        "generated from their texts. 0 means equally well found. A value below the threshold shows "
        "harm.",
        examples="New documents that are found worst",
        example_value="Mean reciprocal rank",
    ),
    ASKED_QUERIES: MeasureDescription(
        question="Are new documents found worse by the queries that they arrived with?",
        meaning="Mean reciprocal rank of new documents by the queries that they arrived with, "
        "minus that of old documents by judged queries. A value below the threshold shows harm.",
        examples="New documents that are found worst",
        example_value="Mean reciprocal rank",
    ),
    CHANGED_DOCUMENTS: MeasureDescription(
        question="Are changed documents found worse than their former versions?",
        meaning="Mean change of the reciprocal rank of changed documents, by queries generated "
        "from each version. The threshold allows for the loss that growth alone causes.",
        examples="Changed documents that lose most",
        example_value="Change of reciprocal rank",
    ),
    PROTECTED_QUERIES: MeasureDescription(
        question="Do additions push old documents down?",
        meaning="Mean change of the reciprocal rank of old documents, by judged dev queries. The "
        "threshold allows for the loss that growth alone causes.",
        examples="Old documents that lose most",
        example_value="Change of reciprocal rank",
        tests=1,
    ),
    "conflicts": MeasureDescription(
        question="Do refined documents break constraints?",
        meaning="Share of the documents refined by IncDSI for which not every constraint is met.",
        examples="Documents that break a constraint",
    ),
    "growth": MeasureDescription(
        question="How much has the collection changed since the training?",
        meaning="Documents added or changed since the last training, retrain or retune, as a share "
        "of the documents trained on. It is counted and not tested, so it has no p-value.",
        examples="Documents of the newest batch",
        tests=0,
    ),
}

# Largest number of tests in a report. More tests need more draws of the null distributions.
MAX_TESTS = sum(description.tests for description in DESCRIPTIONS.values())


def format_percent(share: float) -> str:
    """Return a share in percent, not rounded to whole numbers.

    >>> format_percent(0.05), format_percent(0.025)
    ('5%', '2.5%')
    """
    return f"{100 * share:.3g}%"
