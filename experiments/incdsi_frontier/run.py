"""Run IncDSI's protocol on a judged collection: `python -m experiments.incdsi_frontier.run FOLDER`.

It prints Markdown: every way of adding after 10, 100, 1,000 and all additions, whole trade-offs,
and the requirements. Documents are represented by the mean of their train queries, or by themselves
if they have none. Settings are chosen on the tuning split. Results are on test queries, separately
for old and new documents.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.encoding import BASE
from experiments.incdsi_frontier.ablations import ablations
from experiments.incdsi_frontier.encoded import encode
from experiments.incdsi_frontier.methods import INCDSI, METHODS, OURS, REFINED
from experiments.incdsi_frontier.pages import TUNING, Pages
from experiments.incdsi_frontier.protocol import CENTRED, PAPER, Protocol, ProtocolPlan
from experiments.incdsi_frontier.retraining import WAYS
from experiments.incdsi_frontier.spaces import LEARNED, Space
from experiments.incdsi_frontier.tables import (
    ablation_table,
    cost_table,
    markdown,
    matched_table,
    quality,
    steps_table,
)
from model_code.settings import require

ZERO_SHOT, MAX_TOKENS = "zero_shot", 128
KEYS = {
    "plain": "plain encoding",
    "scaled": "scaled encoding",
    "mixed": "scaled mix with the mean query",
    "paper": PAPER,
    "centred": CENTRED,
    "ours": "ours: the best of all",
    **dict(zip(("retrain", "tune", "tune_encoded", "tune_new"), WAYS, strict=True)),
}


def arguments() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("folder", type=Path, help="a data set in BEIR layout")
    add(
        "--split",
        default="date:2025-01-01",
        help="date:DAY: documents from DAY on are new; share: 90/9/1 by hash",
    )
    add("--qrels", default="qrels", help="the folder of judgements")
    add("--documents", type=int, help="only as many, of whole titles")
    add(
        "--space",
        default=ZERO_SHOT,
        help=f"{ZERO_SHOT}, {', '.join(LEARNED)}, or an encoder's folder",
    )
    add(
        "--retrained",
        type=Path,
        help="an encoder that was trained on all documents, for a dense space",
    )
    add("--methods", nargs="+", choices=KEYS, default=list(KEYS))
    add("--trials", type=int, default=50, help="settings tried for each method")
    add("--orders", type=int, default=10, help="orders of arrival")
    add(
        "--whole",
        type=int,
        help="in so many of these orders add everything, in the others 100 documents",
    )
    add("--learned-orders", type=int, default=1, help="of these, for ways that train")
    add(
        "--steps",
        type=int,
        nargs="*",
        default=[10, 100, 1000],
        help="numbers of additions to report, beside all",
    )
    add(
        "--losses",
        type=float,
        nargs="*",
        default=[],
        help="also choose for a loss of old MRR@10 of at most this",
    )
    add(
        "--fronts",
        action="store_true",
        help="measure whole trade-offs, and ours against the paper at equal loss",
    )
    add(
        "--ablations",
        action="store_true",
        help="measure what the paper's own choices are worth: beta, queries",
    )
    add("--cache", type=Path, help="keep encoded texts in this folder")
    add("--written", action="store_true", help="represent documents by parts of their texts")
    return parser


def make_space(given: argparse.Namespace) -> Space:
    """Return the collection and the vectors that the command line selects."""
    by, _, day = given.split.partition(":")
    require(
        (by == "date") == bool(day) and by in ("date", "share"),
        f"--split is {given.split!r}: date:DAY or share",
    )
    pages = Pages.read(given.folder, day or None, given.qrels, given.documents)
    pages = pages.with_written() if given.written else pages
    encoded = partial(encode, pages, max_tokens=MAX_TOKENS, cache=given.cache)
    retrained = None if given.retrained is None else encoded(given.retrained)
    if given.space in LEARNED:
        require(
            retrained is None,
            "--retrained is for a dense space: learned vectors are learned again from all queries",
        )
        return Space(encoded(BASE), LEARNED[given.space])
    return Space(encoded(BASE if given.space == ZERO_SHOT else Path(given.space)), None, retrained)


def main(words: Sequence[str] | None = None) -> None:
    """Read the command line, measure, and print."""
    given, say = arguments().parse_args(words), partial(print, flush=True)
    names = [KEYS[key] for key in given.methods]
    counts = (
        given.trials,
        given.orders,
        given.learned_orders,
        given.steps,
        given.losses,
        given.whole,
    )
    plan = ProtocolPlan(_of(METHODS, names), _of(WAYS, names), *counts)
    space = make_space(given)
    protocol, pages = Protocol(space, plan), space.encoded.pages
    test = protocol.arrivals.judge.split
    say(
        f"{pages.old} old documents, {len(pages.rows(TUNING))} to tune on, "
        f"{len(test.documents)} added;"
    )
    say(
        f"test queries: {len(test.old_queries)} for old, {len(test.new_queries)} for new documents;"
    )
    say(f"before any addition: {quality(protocol.arrivals.judge.before)}\n")
    points = protocol.points()
    say(steps_table(points))
    head = ["all added, against plain", "old MRR@10", "new MRR@10"]
    say(f"\n{markdown(head, _changes(protocol, points))}\n")
    for settings in dict.fromkeys(point.settings for point in points):
        say(settings)
    learned, retrained = protocol.learned()
    say(f"\n{steps_table(learned)}\n")
    if retrained is not None:
        say(cost_table(protocol.costs(points, retrained)), "\n")
    if given.fronts:
        _say_fronts(protocol, say)
    if given.ablations:
        _say_ablations(protocol, say)


def _say_ablations(protocol: Protocol, say: Any) -> None:
    for name, method in ((PAPER, INCDSI), (CENTRED, REFINED)):
        for changed, rows in ablations(protocol, method).items():
            say(f"{name}, by {changed}\n\n{ablation_table(changed, rows)}\n")


def _say_fronts(protocol: Protocol, say: Any) -> None:
    for name, method in protocol.plan.methods.items():
        found = ([quality(point.old), quality(point.new)] for point in protocol.front(method))
        say(markdown([f"{name}: old", "new"], found), "\n")
    for name, method in (("ours: the best of all", OURS), (CENTRED, REFINED)):
        found = protocol.matched(method)
        verdict = "met" if all(one.met for one in found) else "NOT met"
        say(f"{name} at the paper's loss of old documents: {verdict}\n")
        say(matched_table(found), "\n")


def _changes(protocol: Protocol, points: Sequence[Any]) -> list[list[str]]:
    return [[name, *map(str, change)] for name, change in protocol.against_plain(points).items()]


def _of(known: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: one for name, one in known.items() if name in names}


if __name__ == "__main__":
    main()
