"""Kernel least squares with calibrated probabilities as a scikit-learn classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from streamrf.api.estimators.inputs import is_stored
from streamrf.api.estimators.machine import KernelMachine
from streamrf.features.targets import CLASSIFICATION
from streamrf.support.errors import DataError


class KernelClassifier(ClassifierMixin, KernelMachine):
    """Classification into two classes or more with random features; labels are numbers or text.

    ``X`` may be an array, a sparse matrix, a pandas or Arrow table, a dask array or table, a zarr array, or the path of
    stored data (then ``y`` is the name of its target column, or left out). Settings are those of `streamrf train`; what
    is ``auto`` or None is chosen on a sample of the rows.
    """

    _task = CLASSIFICATION

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on all rows: pilot, one pass, lambda and calibration by hold-out rows."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Let rows join: their sums are added exactly. The first batch fixes settings, scaling and map.

        ``classes`` names all labels there will ever be, for a first batch that lacks some. Weights are solved when they
        are first asked for; lambda, if it is not given, is chosen by GCV.
        """
        return self._partial_fit(X, y, classes, sample_weight)

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted."""
        return np.asarray(self.model_.coding.classes)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        scores = self._scores(X)
        return self.classes_[self.model_.codes(scores)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated logits: (n,) of the second class where there are two, else (n, classes)."""
        scores = self._scores(X)
        assert self.model_.calibration is not None
        logits = self.model_.calibration.logits(scores)
        return logits[:, 1] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes)."""
        return self.model_.probabilities(self._scores(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy; beside stored data ``y`` is the name of the target column, or left out."""
        if is_stored(X) and sample_weight is None:
            return float(self._metrics(X, y)["accuracy"])
        return float(super().score(X, y, sample_weight))

    def _weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Weights of classes are weights of rows."""
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weights = by_class if weights is None else weights * by_class
        if weights is not None and len(np.unique(y[weights > 0])) < 2:
            raise DataError("one class only has rows that count: a classifier needs at least two")
        return weights

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return np.asarray(y.tolist()) if y.dtype.kind == "O" else y
