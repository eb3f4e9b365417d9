"""Compare IncDSI with other methods of adding documents, on a judged collection.

`python -m experiments.incdsi_frontier.run FOLDER` prints Markdown tables: every method after 10,
100, 1,000 and all additions, the trade-offs between old and new documents, and the requirements. In
IncDSI, the mean of its train queries represents a document; without train queries, it is the
document's encoding. Settings are chosen on the tuning split. Results are on test queries,
separately for old and new documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from benchmarks.encoding import BASE
from experiments.incdsi_frontier.ablations import measure_ablations
from experiments.incdsi_frontier.encoded import encode
from experiments.incdsi_frontier.frontier import Point
from experiments.incdsi_frontier.methods import INCDSI, METHODS, OURS, REFINED
from experiments.incdsi_frontier.pages import TUNING, Pages
from experiments.incdsi_frontier.protocol import CENTRED, PAPER, Protocol, ProtocolPlan
from experiments.incdsi_frontier.retraining import RETRAINING, TRAINING_METHODS
from experiments.incdsi_frontier.spaces import LEARNED, Space
from experiments.incdsi_frontier.tables import (
    ablation_table,
    cost_table,
    equal_loss_table,
    markdown,
    quality,
    steps_table,
)
from model_code.settings import require

ZERO_SHOT = "zero_shot"
MAX_TOKENS = 128
OURS_NAME = "ours: the best of all"
# Name of each method, by the word that names it on the command line.
KEYS = {
    "plain": "plain encoding",
    "scaled": "scaled encoding",
    "mixed": "scaled mix with the mean query",
    "paper": PAPER,
    "centred": CENTRED,
    "ours": OURS_NAME,
    "retrain": RETRAINING,
    "tune": "continual fine-tuning (as published)",
    "tune_encoded": "continual fine-tuning from the encodings",
    "tune_new": "continual fine-tuning on new queries only",
}


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line: the data, the plan, and what is printed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    _add_data_options(parser)
    _add_plan_options(parser)
    parser.add_argument(
        "--fronts",
        action="store_true",
        help="measure whole trade-offs, and ours against the paper at equal loss",
    )
    parser.add_argument(
        "--ablations",
        action="store_true",
        help="measure what the paper's own choices are worth: beta, queries",
    )
    return parser


def _add_data_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `make_space` reads."""
    parser.add_argument("folder", type=Path, help="a data set in BEIR layout")
    parser.add_argument(
        "--split",
        default="date:2025-01-01",
        help="date:DAY: documents from DAY on are new; share: 90/9/1 by hash",
    )
    parser.add_argument("--qrels", default="qrels", help="the folder of judgements")
    parser.add_argument("--documents", type=int, help="only as many, of whole titles")
    parser.add_argument(
        "--space",
        default=ZERO_SHOT,
        help=f"{ZERO_SHOT}, {', '.join(LEARNED)}, or an encoder's folder",
    )
    parser.add_argument(
        "--retrained",
        type=Path,
        help="an encoder that was trained on all documents, for a dense space",
    )
    parser.add_argument("--cache", type=Path, help="keep encoded texts in this folder")
    parser.add_argument(
        "--written", action="store_true", help="represent documents by parts of their texts"
    )


def _add_plan_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that `make_plan` reads."""
    parser.add_argument("--methods", nargs="+", choices=KEYS, default=list(KEYS))
    parser.add_argument("--trials", type=int, default=50, help="settings tried for each method")
    parser.add_argument("--orders", type=int, default=10, help="orders of arrival")
    parser.add_argument(
        "--whole",
        type=int,
        help="in so many of these orders add everything, in the others 100 documents",
    )
    parser.add_argument(
        "--learned-orders", type=int, default=1, help="of these, for ways that train"
    )
    parser.add_argument(
        "--steps",
        type=int,
        nargs="*",
        default=[10, 100, 1000],
        help="numbers of additions to report, beside all",
    )
    parser.add_argument(
        "--losses",
        type=float,
        nargs="*",
        default=[],
        help="also choose for a loss of old MRR@10 of at most this",
    )


def make_space(options: argparse.Namespace) -> Space:
    """Return the collection and the vectors that the command line selects."""
    kind, _, day = options.split.partition(":")
    is_by_date = kind == "date" and bool(day)
    is_by_share = kind == "share" and not day
    require(is_by_date or is_by_share, f"--split is {options.split!r}: date:DAY or share")

    pages = Pages.read(options.folder, day or None, options.qrels, options.documents)
    if options.written:
        pages = pages.with_text_parts()
    encode_with = partial(encode, pages, max_tokens=MAX_TOKENS, cache=options.cache)
    retrained = None
    if options.retrained is not None:
        retrained = encode_with(options.retrained)

    if options.space in LEARNED:
        require(
            retrained is None,
            "--retrained is for a dense space: learned vectors are learned again from all queries",
        )
        return Space(encode_with(BASE), LEARNED[options.space])
    base = BASE if options.space == ZERO_SHOT else Path(options.space)
    return Space(encode_with(base), None, retrained)


def make_plan(options: argparse.Namespace) -> ProtocolPlan:
    """Return the plan that the command line selects."""
    names = {KEYS[key] for key in options.methods}
    return ProtocolPlan(
        methods={name: method for name, method in METHODS.items() if name in names},
        training_methods={
            name: method for name, method in TRAINING_METHODS.items() if name in names
        },
        trials=options.trials,
        orders=options.orders,
        learned_orders=options.learned_orders,
        steps=options.steps,
        losses=options.losses,
        whole=options.whole,
    )


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, measure, and print."""
    options = make_parser().parse_args(words)
    plan = make_plan(options)
    space = make_space(options)
    protocol = Protocol(space, plan)
    print_collection(protocol)

    points = protocol.points()
    print_points(protocol, points)
    learned, retrained = protocol.learned()
    print(f"\n{steps_table(learned)}\n", flush=True)
    if retrained is not None:
        print(cost_table(protocol.costs(points, retrained)), "\n", flush=True)
    if options.fronts:
        print_fronts(protocol)
    if options.ablations:
        print_ablations(protocol)


def print_collection(protocol: Protocol) -> None:
    """Print the numbers of documents and queries, and the quality before any addition."""
    pages = protocol.space.encoded.pages
    test = protocol.arrivals.evaluator.split
    print(
        f"{pages.old} old documents, {len(pages.rows(TUNING))} to tune on, "
        f"{len(test.documents)} added;"
    )
    print(
        f"test queries: {len(test.old_queries)} for old, {len(test.new_queries)} for new documents;"
    )
    print(f"before any addition: {quality(protocol.arrivals.evaluator.before)}\n", flush=True)


def print_points(protocol: Protocol, points: Sequence[Point]) -> None:
    """Print each method after each number of additions, and its settings."""
    print(steps_table(points))
    head = ["all added, against plain", "old MRR@10", "new MRR@10"]
    changes = []
    for name, (old_change, new_change) in protocol.compare_with_plain(points).items():
        changes.append([name, str(old_change), str(new_change)])
    print(f"\n{markdown(head, changes)}\n")
    distinct_settings = dict.fromkeys(point.settings for point in points)
    for settings in distinct_settings:
        print(settings, flush=True)


def print_ablations(protocol: Protocol) -> None:
    """Print the tables of single choices, as in the paper."""
    for name, method in ((PAPER, INCDSI), (CENTRED, REFINED)):
        for changed, rows in measure_ablations(protocol, method).items():
            print(f"{name}, by {changed}\n\n{ablation_table(changed, rows)}\n", flush=True)


def print_fronts(protocol: Protocol) -> None:
    """Print the trade-off of each method, and compare ours with the paper's at equal loss."""
    for name, method in protocol.plan.methods.items():
        lines = [[quality(point.old), quality(point.new)] for point in protocol.front(method)]
        print(markdown([f"{name}: old", "new"], lines), "\n", flush=True)

    for name, method in ((OURS_NAME, OURS), (CENTRED, REFINED)):
        comparisons = protocol.compare_at_equal_loss(method)
        is_met = all(comparison.met for comparison in comparisons)
        verdict = "met" if is_met else "NOT met"
        print(f"{name} at the paper's loss of old documents: {verdict}\n")
        print(equal_loss_table(comparisons), "\n", flush=True)


if __name__ == "__main__":
    main()
