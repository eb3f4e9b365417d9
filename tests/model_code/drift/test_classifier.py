"""Guards the domain classifier: out-of-fold scores and AUC of scikit-learn, one half without drift, order of no matter.

pytest tests/model_code/drift/test_classifier.py
"""

from __future__ import annotations

import numpy as np
import pytest

from model_code.drift.classifier import auc, contrasted, domain_auc, out_of_fold, penalty, stratified_folds


def normal(count: int, seed: int, shift: float = 0.0, width: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width)) + shift


def test_scores_are_those_of_ridge_regression_fitted_fold_by_fold() -> None:
    from sklearn.linear_model import Ridge
    from sklearn.model_selection import PredefinedSplit, cross_val_predict

    rows = np.concatenate([normal(70, 0), normal(30, 1, 0.5)])
    labels, folds = np.repeat([0.0, 1.0], [70, 30]), stratified_folds(70, 30, seed=3)
    expected = cross_val_predict(Ridge(alpha=penalty(rows)), rows, labels, cv=PredefinedSplit(folds))
    np.testing.assert_allclose(out_of_fold(rows, labels, folds), expected, atol=1e-10)


def test_auc_is_scikit_learns_with_ties() -> None:
    from sklearn.metrics import roc_auc_score

    scores = np.random.default_rng(0).integers(6, size=60).astype(float)
    labels = np.arange(60) % 3 == 0
    assert auc(scores[labels], scores[~labels]) == pytest.approx(roc_auc_score(labels, scores))


def test_half_without_drift_and_much_more_with_it() -> None:
    without = [domain_auc(normal(100, 2 * i), normal(50, 2 * i + 1), seed=i) for i in range(30)]
    assert abs(np.mean(without) - 0.5) < 0.03
    assert domain_auc(normal(100, 0), normal(50, 1, shift=0.6), seed=0) > 0.85


def test_the_order_of_rows_does_not_matter_and_the_seed_does() -> None:
    old, new, order = normal(60, 0), normal(30, 1), np.random.default_rng(2).permutation(30)
    assert domain_auc(old, new[order], seed=0) == domain_auc(old, new, seed=0)
    assert domain_auc(old, new, seed=1) != domain_auc(old, new, seed=0)


def test_folds_hold_an_equal_part_of_both_sides() -> None:
    folds = stratified_folds(53, 21, seed=0)
    for side in (folds[:53], folds[53:]):
        counts = np.bincount(side, minlength=5)
        assert counts.max() - counts.min() <= 1


def test_a_contrast_has_no_row_twice() -> None:
    rows = np.arange(40)[:, None]
    assert len(np.unique(contrasted(rows, 15, seed=0))) == 15
    assert contrasted(rows, 40, seed=0) is rows
