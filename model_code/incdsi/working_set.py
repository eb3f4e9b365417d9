"""The exact solver: minimise over a few rows, prove that no other row matters, or take in those that do.

One pass over Z gives the scores of all rows with a reference vector u. For any other v, row j can be violated only if
z_j.u + |z_j||v - u| exceeds its limit, so later rounds test the few rows left by that bound instead of reading Z again.
"""

from __future__ import annotations

import numpy as np

from model_code.incdsi.passes import Pass, Scan
from model_code.incdsi.problem import Problem
from model_code.incdsi.row_sets import among, joined, minus
from model_code.incdsi.solution import Certificate, Solution
from model_code.incdsi.task import Task

GROWTH = 48  # rows taken in per round; more once there are more members, so that hard cases take few rounds
PASS_PAYS = 1 / 32  # a new pass is cheaper than testing more than this share of the rows one by one


def solve(
    task: Task, scan: Scan, members: np.ndarray, seen: Pass | None = None, charged: np.ndarray | None = None
) -> Solution:
    """The minimiser of `task` over all rows.

    members: rows (sorted) to begin with; none are needed, likely conflicts save rounds.
    seen: a pass over Z with some vector near the solution, if there is one; rows added since are tested one by one.
    charged: those of the members that the solution is likely to violate, if that is known.
    """
    members, passes, rounds = task.protected(members), 0, 0
    while True:
        problem = task.restricted(members)
        vector, multipliers = problem.minimise(guessed(members, charged))
        rounds += 1
        suspects = None if seen is None else task.suspects(seen, vector)
        if suspects is None or too_many(suspects, task):
            seen, passes = scan.passes(vector[None])[0], passes + 1
            suspects = task.suspects(seen, vector)
        others = minus(suspects, members)
        violated = task.violated(others, vector)
        if not len(violated):
            return _finish(task, problem, members, multipliers, others, passes, rounds)
        taken = violated[: max(GROWTH, len(members))]
        charged = np.concatenate([members[multipliers[1:] > 0], taken])
        members = joined(members, taken)


def guessed(members: np.ndarray, charged: np.ndarray | None) -> np.ndarray | None:
    """Which hinges of a problem over `members` are likely charged: its own (the first) and those of `charged`."""
    return None if charged is None else np.append(True, among(members, np.sort(charged)))


def too_many(suspects: np.ndarray, task: Task) -> bool:
    """Whether reading all of Z again is cheaper than testing `suspects` one by one."""
    return len(suspects) > 64 + PASS_PAYS * len(task.state)


def _finish(
    task: Task,
    problem: Problem,
    members: np.ndarray,
    multipliers: np.ndarray,
    others: np.ndarray,
    passes: int,
    rounds: int,
) -> Solution:
    """The solution over the members, its last digits included, and the proof."""
    vector, spread = _settled(task, problem, members, multipliers)
    active = spread[1:] > 0
    return Solution(
        vector=vector,
        objective=problem.value(vector),
        members=members,
        active=members[active],
        multipliers=np.append(spread[0], spread[1:][active]),
        passes=passes,
        rounds=rounds,
        suspects=joined(members, others),
        certificate=certify(task, problem, vector, spread, others),
    )


def _settled(
    task: Task, problem: Problem, members: np.ndarray, multipliers: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """v (H) and multipliers (m), from the active rows alone, in order: they do not depend on the path to these."""
    used = multipliers[1:] > 0
    if problem.hinge == "squared" and np.count_nonzero(used) >= len(problem.prior):
        polished = problem.polished(multipliers)
        if polished is not None:
            return polished
    vector, final = task.restricted(members[used]).minimise(np.ones(np.count_nonzero(used) + 1, bool))
    spread = np.zeros_like(multipliers)
    spread[0], spread[1:][used] = final[0], final[1:]
    if problem.program.residual(spread) > max(problem.program.residual(multipliers), task.tolerance(vector)):
        return problem.vector(multipliers), multipliers
    return vector, spread


def certify(
    task: Task, problem: Problem, vector: np.ndarray, multipliers: np.ndarray, others: np.ndarray
) -> Certificate:
    """The proof for `vector`: `problem` holds the members, `others` are the suspects beyond them."""
    objective = problem.value(vector)
    gap = max(0.0, objective - problem.lower_bound(multipliers))
    outside = task.restricted(others).excesses(vector)[1:].max(initial=0.0)
    longest = float(problem.program.lengths.max())
    return Certificate(
        residual=problem.program.residual(multipliers),
        outside=float(outside),
        gap=gap / objective if objective > 0 else 0.0,
        distance=float(np.sqrt(gap / task.lambda2)),
        scale=longest * float(np.sqrt(vector @ vector)) + float(np.abs(problem.limits).max()),
    )
