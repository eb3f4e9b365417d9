"""The slow, sure half of the quadratic solver: one bound at a time, and the value never rises.

Bounded least squares in the manner of Lawson and Hanson, and of Stark and Parker: free the entry whose slope is most
wrong, go towards the minimiser over the free entries, and stop at each bound met on the way.
"""

from __future__ import annotations

import numpy as np

from model_code.incdsi.program import BOUND, FREE, ZERO, BoxProgram, solve_free


def descend(program: BoxProgram, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The minimiser (m) and its kinds (m), from any `x` (m) within the bounds.

    Where rounding hides whether an entry helps (it is freed and falls straight back), the entry is left alone until
    another one has helped; what is then missing shows in `program.residual`.
    """
    kinds = np.where(x <= 0, ZERO, np.where(x >= program.upper, BOUND, FREE))
    x, kinds = _settle(program, x, kinds)
    useless = np.zeros(len(x), bool)
    while True:
        entry = _most_wrong(program, x, kinds, useless)
        if entry is None:
            return x, kinds
        before = kinds[entry]
        kinds[entry] = FREE
        moved, moved_kinds = _settle(program, x, kinds.copy())
        if program.value(moved) < program.value(x):
            x, kinds = moved, moved_kinds
            useless[:] = False
        else:
            kinds[entry] = before
        useless[entry] = True


def _most_wrong(program: BoxProgram, x: np.ndarray, kinds: np.ndarray, useless: np.ndarray) -> int | None:
    slopes = program.slopes(x)
    gain = np.where(kinds == ZERO, -slopes, np.where(kinds == BOUND, slopes, 0.0))
    gain[useless] = 0.0
    best = int(gain.argmax()) if len(gain) else 0
    return best if len(gain) and gain[best] > program.noise(x) else None


def _settle(program: BoxProgram, x: np.ndarray, kinds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Go to the minimiser over the free entries; each entry that meets a bound on the way stays there."""
    while True:
        goal = solve_free(program, kinds)
        free = np.flatnonzero(kinds == FREE)
        outside = free[(goal[free] < 0) | (goal[free] > program.upper[free])]
        if not len(outside):
            return goal, kinds
        step = goal[outside] - x[outside]
        room = np.where(step < 0, -x[outside], program.upper[outside] - x[outside])
        shares = np.divide(room, step, out=np.zeros_like(step), where=step != 0)
        first = shares.argmin()
        hit = outside[first]
        x = x.copy()
        x[free] += max(0.0, float(shares[first])) * (goal[free] - x[free])
        down = bool(step[first] < 0)
        x[hit], kinds[hit] = (0.0, ZERO) if down else (program.upper[hit], BOUND)
        x = np.clip(x, 0.0, program.upper)
