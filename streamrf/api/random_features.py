"""Random features as a scikit-learn transformer: a drop-in for RBFSampler, with more kernels and maps."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import BinningMap
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.pipeline import build_map, default_kind
from streamrf.features.precision import make_precision
from streamrf.recipe import BINNING
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads

SAMPLE_ROWS = 2000
BLOCK_ROWS = 8192  # rows that are dense in float64 at once
TABLE_BITS = 12  # each grid of random binning has 2^12 bins


class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Map rows to ``n_components`` features z(x) with ``z(x)'z(y)`` close to ``k(x, y)``.

    The width is ``gamma`` in scikit-learn's convention (a number, or ``"scale"``), or else ``length_scale``. ``map`` is
    one of streamrf's ways to draw frequencies, or ``"binning"``: then ``n_components`` grids give sparse rows of
    ``n_components`` ones, scaled, for the Laplacian kernel. Maps that depend on data use the first 2,000 rows.
    """

    def __init__(
        self,
        *,
        gamma: float | str | None = 1.0,
        n_components: int = 100,
        kernel: str = "gaussian",
        length_scale: float | None = None,
        map: str = "auto",
        form: str = "phase",
        bits: str = "auto",
        random_state: Any = None,
        threads: int | None = None,
    ) -> None:
        self.gamma = gamma
        self.n_components = n_components
        self.kernel = kernel
        self.length_scale = length_scale
        self.map = map
        self.form = form
        self.bits = bits
        self.random_state = random_state
        self.threads = threads

    def fit(self, X: Any, y: Any = None) -> Self:
        """Draw the map.

        Parameters
        ----------
        X : array or sparse matrix
            Rows (n, d): the number of columns, and a sample for maps that need one.
        y : array or None, default=None
            Targets (n,) for maps that learn from them.

        Returns
        -------
        self
            The transformer, fitted.
        """
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32])
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        kernel = self._kernel(X)
        self.map_ = self._binning(kernel, X, seed) if self.map == BINNING else self._fourier(kernel, X, y, seed)
        self._n_features_out = self.n_components << (TABLE_BITS if self.map == BINNING else 0)
        return self

    def transform(self, X: Any) -> Any:
        """Features of rows.

        Parameters
        ----------
        X : array or sparse matrix
            Rows (n, d).

        Returns
        -------
        array or sparse matrix
            Features (n, n_components) in the float type of X; a sparse matrix for random binning.
        """
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=[np.float64, np.float32], reset=False)
        with Threads(self.threads) as threads:
            if isinstance(self.map_, BinningMap):
                return _bins(self.map_, _dense(X), threads)
            out = np.empty((X.shape[0], self.n_components), X.dtype)
            for start in range(0, len(out), BLOCK_ROWS):
                rows = slice(start, start + BLOCK_ROWS)
                inputs = np.ascontiguousarray(_dense(X[rows]), self.map_.precision.inputs)
                out[rows] = self.map_.dense(inputs, threads)
        return out

    def _kernel(self, X: Any) -> Kernel:
        gamma = None if self.length_scale is not None else self.gamma
        if gamma == "scale":
            dense = _dense(X[:SAMPLE_ROWS]) if sparse.issparse(X) else X
            gamma = 1.0 / (X.shape[1] * (dense.var() or 1.0))
        if isinstance(gamma, str):
            raise InputError(f"gamma {gamma!r}: must be a number, 'scale' or None")
        return make_kernel(self.kernel, length_scale=self.length_scale, gamma=gamma)

    def _binning(self, kernel: Kernel, X: Any, seed: int) -> BinningMap:
        return BinningMap.draw(kernel, X.shape[1], self.n_components, TABLE_BITS, seed)

    def _fourier(self, kernel: Kernel, X: Any, y: Any, seed: int) -> FeatureMap:
        kind = default_kind(kernel, X.shape[1]) if self.map == "auto" else self.map
        known = kind_of(kind)
        if known.targets and y is None:
            raise InputError(f"map {kind!r} needs targets: call fit(X, y), or choose another map")
        bits = ("float32" if known.structured else "float64") if self.bits == "auto" else self.bits
        return build_map(
            kind, kernel, self.n_components, X.shape[1], form=self.form, precision=make_precision(bits), seed=seed,
            sample=_dense(X[:SAMPLE_ROWS]), targets=None if y is None else np.asarray(y)[:SAMPLE_ROWS],
        )  # fmt: skip

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if sparse.issparse(X) else X


def _bins(map: BinningMap, X: np.ndarray, threads: Threads) -> Any:
    """One entry per grid, in the bin of the row: two rows share it with a probability equal to the kernel."""
    bins = map.indices(np.ascontiguousarray(X, np.float32), threads=threads).T.astype(np.int64)
    columns = bins + np.arange(map.grids) * map.buckets
    starts = np.arange(len(X) + 1) * map.grids
    values = np.full(columns.size, 1.0 / np.sqrt(map.grids), X.dtype)
    return sparse.csr_matrix((values, columns.ravel(), starts), shape=(len(X), map.grids * map.buckets))
