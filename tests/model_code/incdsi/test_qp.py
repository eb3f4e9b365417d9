"""Guards the tiny quadratic programs: optimal by scipy's solvers, also where rows repeat, vanish or are too many."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import lsq_linear

from model_code.incdsi.descent import descend
from model_code.incdsi.program import BOUND, FREE, ZERO, BoxProgram
from model_code.incdsi.qp import minimise


def random_program(seed: int) -> BoxProgram:
    """Few or many rows, some of them equal or zero, with or without diagonal and bounds."""
    random = np.random.default_rng(seed)
    count, width = int(random.integers(1, 25)), int(random.integers(1, 8))
    rows = random.normal(size=(count, width))
    rows[random.random(count) < 0.2] = rows[0]
    diagonal = np.full(count, 0.0 if seed % 2 else 10.0 ** random.uniform(-6, 0))
    rows[random.random(count) < 0.1] = 0 if seed % 2 == 0 else rows[0]
    upper = np.full(count, np.inf) if seed % 3 and diagonal[0] else random.uniform(0.1, 2, count)
    return BoxProgram.of(rows, diagonal, random.normal(size=count), upper)


def peer(program: BoxProgram) -> np.ndarray:
    """The same as bounded least squares |Cx - d|^2 with C'C = A A' + D and C'd = -b, which bvls solves exactly."""
    matrix = program.rows @ program.rows.T + np.diag(program.diagonal)
    values, axes = np.linalg.eigh(matrix)
    values = np.maximum(values, 1e-13)
    root = np.sqrt(values)[:, None] * axes.T
    return lsq_linear(root, -(axes.T @ program.linear) / np.sqrt(values), (0, program.upper), method="bvls").x


@pytest.mark.parametrize("seed", range(60))
def test_never_above_scipys_bounded_least_squares(seed: int) -> None:
    program = random_program(seed)
    x = minimise(program)
    assert ((x >= 0) & (x <= program.upper)).all()
    theirs = np.clip(peer(program), 0, program.upper)
    assert program.value(x) <= program.value(theirs) + 1e-9 * (1 + abs(program.value(theirs)))
    assert program.residual(x) <= 1e-7


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_the_slow_half_alone_finds_the_same(seed: int) -> None:
    program = random_program(seed)
    x, kinds = descend(program, np.clip(np.ones(len(program.linear)), 0, program.upper))
    assert program.value(x) == pytest.approx(program.value(minimise(program)), rel=1e-9, abs=1e-9)
    assert ((kinds == ZERO) == (x == 0)).all() or ((x == 0) & (kinds == FREE)).sum() <= 1
    assert (x[kinds == BOUND] == program.upper[kinds == BOUND]).all()


def test_a_wrong_first_guess_costs_time_only() -> None:
    for seed in range(20):
        program = random_program(seed)
        guessed = minimise(program, np.full(len(program.linear), FREE))
        assert program.value(guessed) == pytest.approx(program.value(minimise(program)), rel=1e-9, abs=1e-9)
