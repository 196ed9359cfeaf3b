"""Kernel ridge regression as a scikit-learn regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import RegressorMixin

from streamrf.api.estimators.inputs import is_stored
from streamrf.api.estimators.machine import KernelMachine
from streamrf.features.targets import REGRESSION


class KernelRegressor(RegressorMixin, KernelMachine):
    """Kernel ridge regression with random features, of one output or several.

    ``X`` may be an array, a sparse matrix, a pandas or Arrow table, a dask array or table, a zarr array, or the path of
    stored data (then ``y`` is the name of its target column, or left out). Settings are those of `streamrf train`; what
    is ``auto`` or None is chosen on a sample of the rows. ``score`` is R², as a mean over outputs.
    """

    _task = REGRESSION

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Train on all rows: pilot, one pass, lambda by hold-out rows."""
        return self._fit(X, y, sample_weight)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Let rows join: their sums are added exactly. The first batch fixes settings, scaling and map.

        Weights are solved when they are first asked for; lambda, if it is not given, is chosen by GCV.
        """
        return self._partial_fit(X, y, None, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """(n,), or (n, outputs) where there are several."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R² of the predictions; beside stored data ``y`` is the name of the target column, or left out."""
        if is_stored(X) and sample_weight is None:
            return float(self._metrics(X, y)["r2"])
        return float(super().score(X, y, sample_weight))

    def _target_checks(self) -> dict[str, Any]:
        return {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
