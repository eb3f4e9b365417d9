"""Embedding drift by a domain classifier: can new documents be told from old ones by their vectors?

The classifier is Fisher's linear discriminant, computed as ridge regression on the labels; its AUC is out of fold.
For k folds it is fitted once: with the hat matrix H of all rows, the residuals e of a fold that was left out are
(I - H_ff)^-1 e_f (Allen's PRESS for blocks; Hastie, Tibshirani & Friedman 2009, eq. 7.64 for one row). The hundreds of
fits that a null distribution takes then cost milliseconds each; scikit-learn's Ridge, fold by fold, gives the same.
"""

from __future__ import annotations

import numpy as np

from model_code.drift.draws import canonical

FOLDS = 5
RIDGE = 0.1  # of the mean variance: vectors of like topics span fewer dimensions than they have


def domain_auc(old: np.ndarray, new: np.ndarray, seed: int) -> float:
    """Mean AUC over folds that each hold 1 / FOLDS of both sides: .5 where vectors do not tell them apart, at most 1.

    old: (n, H), new: (m, H), both at least FOLDS rows. The order of the rows does not matter.
    """
    rows = np.concatenate([old[canonical(old)], new[canonical(new)]]).astype(np.float64)
    labels = np.repeat([0.0, 1.0], [len(old), len(new)])
    folds = stratified_folds(len(old), len(new), seed)
    scores = out_of_fold(rows, labels, folds)
    return float(
        np.mean([auc(scores[(folds == f) & (labels > 0)], scores[(folds == f) & (labels == 0)]) for f in range(FOLDS)])
    )


def stratified_folds(old: int, new: int, seed: int) -> np.ndarray:
    """The fold of each row, (old + new,): on both sides all folds are of one size, give or take a row."""
    chance = np.random.default_rng([seed, old, new])
    return np.concatenate([chance.permutation(np.arange(count) % FOLDS) for count in (old, new)])


def out_of_fold(rows: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> np.ndarray:
    """What ridge regression on the other folds predicts for each row of (n, H): (n,), the intercept not shrunk."""
    centred = rows - rows.mean(axis=0)
    scatter = centred.T @ centred
    scatter[np.diag_indices_from(scatter)] += penalty(rows)
    fitted = np.linalg.solve(scatter, centred.T)  # (H, n)
    residuals = labels - labels.mean() - (labels @ centred) @ fitted
    scores = np.empty(len(rows))
    for fold in np.unique(folds):
        inside = np.flatnonzero(folds == fold)
        hat = centred[inside] @ fitted[:, inside] + 1 / len(rows)
        scores[inside] = labels[inside] - np.linalg.solve(np.eye(len(inside)) - hat, residuals[inside])
    return scores


def penalty(rows: np.ndarray) -> float:
    """The ridge for (n, H) rows: RIDGE times the mean over components of their scatter."""
    return RIDGE * float(rows.var(axis=0).mean()) * len(rows)


def auc(positive: np.ndarray, negative: np.ndarray) -> float:
    """The chance that a positive scores above a negative, ties counting half (Mann & Whitney 1947).

    >>> auc(np.array([2.0, 1.0]), np.array([1.0, 0.0]))
    0.875
    """
    difference = positive[:, None] - negative[None, :]
    return float((difference > 0).mean() + (difference == 0).mean() / 2)


def null_auc(reference: np.ndarray, members: np.ndarray, contrast: int, seed: int) -> np.ndarray:
    """AUC of each drawn batch against at most `contrast` of the rest: (B,). members: (B, n), see `draw_batches`."""
    return np.array(
        [
            domain_auc(contrasted(reference[~row], contrast, (seed, number)), reference[row], seed)
            for number, row in enumerate(members)
        ]
    )


def contrasted(reference: np.ndarray, contrast: int, seed: int | tuple[int, ...]) -> np.ndarray:
    """At most `contrast` rows of the reference, drawn without replacement."""
    if len(reference) <= contrast:
        return reference
    return reference[np.random.default_rng(seed).choice(len(reference), contrast, replace=False)]
