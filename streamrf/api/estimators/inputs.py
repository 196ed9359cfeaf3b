"""From what scikit-learn users hand over to a source: arrays, tables and sparse matrices, stored data by its path."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamrf.data.columns import Handling, known_choice
from streamrf.data.open import open_source
from streamrf.data.readers.memory import ArraySource, SlicedSource, is_sliced, plain_array
from streamrf.data.source import Source
from streamrf.data.wrappers import Weighted
from streamrf.models.model import Model
from streamrf.support.errors import InputError


def is_stored(X: Any) -> bool:
    """Whether X is read in parts rather than checked as an array: a path, a source, a list of these, dask or zarr."""
    if sparse.issparse(X):  # some of them are mappings too
        return False
    if isinstance(X, str | os.PathLike | Source | Mapping):
        return True
    if isinstance(X, list | tuple) and len(X) and isinstance(X[0], str | os.PathLike | Source):
        return True
    return is_sliced(X)


def stored_source(X: Any, y: Any, *, known: Model | None = None, need_targets: bool = True) -> Source:
    """Stored data as a source; beside a path, ``y`` is the name of the target column, or nothing.

    Columns that are not numbers are coded: as ``known`` codes them, or else as is learned from the data.
    """
    if is_sliced(X):
        return sliced_source(X, y, need_targets=need_targets)
    if not (y is None or isinstance(y, str) or all(isinstance(name, str) for name in y)):
        raise InputError("beside a path, y is the name of the target column (parquet) or None (zarr, npy), not data")
    choice: dict[str, Any] = known_choice(known) if known else {"columns": Handling()}
    if y is not None:
        choice["target"] = y
    source = open_source(X, need_targets=need_targets, **choice)
    array = source.first_array()
    if y is not None and array is not None:
        place = getattr(array, "location", "the data")
        raise InputError(
            f"y={y!r} names a column of parquet, and {place} is not parquet: leave it out, or let X be"
            " open_source(path, y=NAME), which names an array"
        )
    return source


def sliced_source(X: Any, y: Any, *, need_targets: bool) -> Source:
    X, names = plain_array(X)
    if y is None and need_targets:
        raise InputError("there is no y: give the targets beside X, as an array with as many rows")
    targets = plain_array(y)[0] if is_sliced(y) else None if y is None else np.asarray(y)
    return SlicedSource(X, targets, feature_names=names)


def array_source(X: Any, y: np.ndarray | None, names: Sequence[str] | None) -> Source:
    """Arrays that scikit-learn has checked, dense or sparse."""
    if sparse.issparse(X):
        return SlicedSource(X, y, feature_names=names)
    return ArraySource(X, y, feature_names=names)


def weighted(table: Source, weights: np.ndarray | None) -> Source:
    """The table, with the weights of its rows where they do not all count the same."""
    if weights is None:
        return table
    return Weighted(table, ArraySource(np.zeros((len(weights), 1), np.float32), weights), "sample_weight")


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Weights of rows as scikit-learn checks them; equal weights are none at all."""
    if sample_weight is None:
        return None
    stand_in = np.empty((rows, 1), np.float32)  # only its length is looked at
    weights = _check_sample_weight(sample_weight, stand_in, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError(f"all {rows:,} rows have the sample_weight 0, and nothing can be learned from them")
    return None if (weights == weights[0]).all() else weights


def checked_rows(estimator: Any, X: Any, **checks: Any) -> Any:
    """X as scikit-learn checks it, against what the estimator was fitted on."""
    return validate_data(estimator, X, accept_sparse="csr", dtype="numeric", reset=False, **checks)


def remember_columns(estimator: Any, source: Source) -> None:
    """What ``validate_data`` notes of an array, for a source."""
    estimator.n_features_in_ = source.n_features
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_
