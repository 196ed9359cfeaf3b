"""The estimators for scikit-learn: the model of `streamrf train`, with statistics that grow by ``partial_fit``."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from streamrf.api.inputs import (
    is_stored,
    with_named_target,
)
from streamrf.api.machine import KernelMachine
from streamrf.features.targets import CLASSIFICATION, REGRESSION
from streamrf.models.model import Model
from streamrf.support.errors import DataError


class KernelRegressor(RegressorMixin, KernelMachine):
    """Kernel ridge regression with random features, of one output or several.

    ``X`` may be an array, a sparse matrix, a pandas, polars, dask or Arrow table, a DuckDB relation, a dask or zarr
    array, or the path of stored data. ``y`` is an array, or the name of the target column. Parameters and defaults are
    those of `streamrf train`: a pilot on a sample of rows chooses what is ``auto`` or None. ``score`` is R², averaged
    over outputs.
    """

    _task = REGRESSION

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows exactly. The first batch fixes settings, scaling and map.

        Weights are solved when first needed. Generalised cross-validation (GCV) chooses ``ridge`` if it is None.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows of this batch.
        y : array, str or None, default=None
            Targets, or the name of the target column.
        sample_weight : array or None, default=None
            Must be None or equal for all rows: every row counts once.
        """
        return self._partial_fit(X, y, None, sample_weight)

    @overload
    def predict(self, X: Any) -> np.ndarray: ...
    @overload
    def predict(self, X: Any, return_std: Literal[True]) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(self, X: Any, return_std: bool = ...) -> np.ndarray | tuple[np.ndarray, np.ndarray]: ...

    def predict(self, X: Any, return_std: bool = False) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Predictions of shape (n,), or (n, outputs) if there are several outputs.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows, with the columns of ``fit``.
        return_std : bool, default=False
            Also return the standard deviation of a new target at each row, noise included: the posterior of Bayesian
            linear regression on the features. Needs the sums of the Cholesky solver.
        """
        means = _single(self._scores(X))
        return (means, _single(self._deviations(X))) if return_std else means

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R².

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows.
        y : array, str or None, default=None
            Targets, or the name of the target column of stored data.
        sample_weight : array or None, default=None
            What each row counts for.
        """
        y = with_named_target(X, y)
        if is_stored(X, y) and sample_weight is None:
            return float(self._metrics(X, y)["r2"])
        return float(super().score(X, y, sample_weight))

    def _target_checks(self) -> dict[str, Any]:
        return {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class KernelClassifier(ClassifierMixin, KernelMachine):
    """Classification into two classes or more with random features; labels are numbers or text.

    ``X`` may be an array, a sparse matrix, a pandas, polars, dask or Arrow table, a DuckDB relation, a dask or zarr
    array, or the path of stored data. ``y`` is an array, or the name of the target column. Parameters and defaults are
    those of `streamrf train`: a pilot on a sample of rows chooses what is ``auto`` or None.
    """

    _task = CLASSIFICATION

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows exactly. The first batch fixes settings, scaling and map.

        Weights are solved when first needed. Generalised cross-validation (GCV) chooses ``ridge`` if it is None.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows of this batch.
        y : array, str or None, default=None
            Targets, or the name of the target column.
        classes : array or None, default=None
            All labels, for a first batch that lacks some.
        sample_weight : array or None, default=None
            Must be None or equal for all rows: every row counts once.
        """
        return self._partial_fit(X, y, classes, sample_weight)

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted."""
        return np.asarray(self.model_.coding.classes)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows, with the columns of ``fit``.
        """
        scores = self._scores(X)
        return self.classes_[self.model_.codes(scores)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated logits: (n,) of the second class if there are two classes, else (n, classes).

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows, with the columns of ``fit``.
        """
        scores = self._scores(X)
        assert self.model_.calibration is not None
        logits = self.model_.calibration.logits(scores)
        return logits[:, 1] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of shape (n, classes).

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows, with the columns of ``fit``.
        """
        return self.model_.probabilities(self._scores(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows.
        y : array, str or None, default=None
            Targets, or the name of the target column of stored data.
        sample_weight : array or None, default=None
            What each row counts for.
        """
        y = with_named_target(X, y)
        if is_stored(X, y) and sample_weight is None:
            return float(self._metrics(X, y)["accuracy"])
        return float(super().score(X, y, sample_weight))

    def _weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Row weights, multiplied by the weights of the classes."""
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weights = by_class if weights is None else weights * by_class
        if weights is not None and len(np.unique(y[weights > 0])) < 2:
            raise DataError("only one class has rows with a positive weight: a classifier needs at least two")
        return weights

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return np.asarray(y.tolist()) if y.dtype.kind == "O" else y


def load(path: str | Path, *, statistics: bool = True) -> KernelRegressor | KernelClassifier:
    """An estimator from a model file: a regressor or a classifier, as the model is.

    Parameters
    ----------
    path : str or Path
        Where the model is.
    statistics : bool, default=True
        Also read the sums, if there are any, to which rows can be added.
    """
    kind = KernelClassifier if Model.load(path).coding.task == CLASSIFICATION else KernelRegressor
    return kind.load(path, statistics=statistics)


def _single(values: np.ndarray) -> np.ndarray:
    """(n,) where there is one output."""
    return values[:, 0] if values.shape[1] == 1 else values
