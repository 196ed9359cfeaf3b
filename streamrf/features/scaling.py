"""Scaling of columns before the feature map: fitted once, kept in the model, the same bits everywhere.

Kinds, for columns that are neither constant (they become 0) nor binary (0/1 columns are left alone by default):

- ``none``      values as they are;
- ``standard``  mean 0 and variance 1;
- ``minmax``    smallest value -1 and largest 1 (new rows may go beyond);
- ``quantile``  ranks, uniform on [-sqrt 3, sqrt 3] so that their variance is 1: piecewise linear through 200 quantiles
                of the sample, a tied value in the middle of its ranks, values beyond the range held at its ends;
- ``log``       sign(x) log(1 + |x| / s) for heavy-tailed columns, s their median magnitude; then as ``standard``;
- ``pca``       as ``standard``, then rotated to the principal axes and divided by their deviations (columns left alone
                stay outside the rotation); a kernel of one width on this is a non-isotropic kernel on the data.

A value gets the same bits in whatever block it comes, on every machine. NaN and infinities are screened out before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamrf.features.scaling_kernels import rotate_rows, shift_and_stretch, take_logs, take_ranks
from streamrf.statistics.moments import MomentsState, moments_of
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError
from streamrf.support.exact_sum import as_floats

SCALINGS = ("none", "standard", "minmax", "quantile", "log", "pca")
BINARY_POLICIES = ("keep", "scale")

KNOTS = 200
EIGENVALUE_FLOOR = 1e-3  # where their mean is 1: noise along a nearly empty axis is blown up 32-fold at most
HEAVY_KURTOSIS = 10.0  # a normal column has 3, an exponential one 9
HEAVY_SPAN = 6.0  # the 99 % range over the quartile range: 3.8 for a normal column, 4.8 for an exponential one
_SMALLEST_SPREAD = 1e-300  # below it 1 / spread is infinite
_SLAB = 4096


@dataclass(frozen=True, eq=False)
class Scaling:
    """A fitted scaling: every column goes through ``(x - centre) * factor``, some through a curve instead or before."""

    kind: str
    binary: str
    centre: np.ndarray  # (d,) float64
    factor: np.ndarray  # (d,) float64
    log_columns: np.ndarray  # int64: columns that pass through the signed log first
    log_rates: np.ndarray  # float64, 1 / s for each of these
    rank_columns: np.ndarray  # int64: columns that become ranks
    rank_offsets: np.ndarray  # int64: where the knots of each of these begin, and the end
    knots: np.ndarray  # float64, increasing within a column
    levels: np.ndarray  # float64, the scaled value at each knot
    rotation: np.ndarray  # (d, d) float64, or (0, 0) where there is none

    @property
    def n_inputs(self) -> int:
        return len(self.centre)

    @property
    def n_outputs(self) -> int:
        return len(self.centre)

    def transform(self, X: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        """The rows of X, of any numeric type and memory layout, scaled: C-contiguous float32 or float64 (n, d)."""
        X = as_floats(X)
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise MismatchError(f"the scaling was fitted on {self.n_inputs} columns, and the data has shape {X.shape}")
        rotated = len(self.rotation) > 0
        out = np.empty(X.shape, dtype=np.float64 if rotated else dtype)
        shift_and_stretch(X, self.centre, self.factor, out)
        self._take_logs(X, out)
        self._take_ranks(X, out)
        if rotated:
            rotate_rows(out, self.rotation)
        return out.astype(dtype, copy=False)

    def _take_logs(self, X: np.ndarray, out: np.ndarray) -> None:
        if len(self.log_columns):
            values = _gather(X, self.log_columns)
            take_logs(values, self.log_rates, self.centre[self.log_columns], self.factor[self.log_columns])
            out[:, self.log_columns] = values.T

    def _take_ranks(self, X: np.ndarray, out: np.ndarray) -> None:
        if len(self.rank_columns):
            values = _gather(X, self.rank_columns)
            take_ranks(values, self.rank_offsets, self.knots, self.levels)
            out[:, self.rank_columns] = values.T

    def describe(self) -> str:
        """One line for people."""
        parts = [f"{self.kind} scaling of {self.n_inputs} columns"]
        if len(self.log_columns):
            parts.append(f"signed log of {len(self.log_columns)}")
        left = int(((self.centre == 0) & (self.factor == 1)).sum()) - len(self.rank_columns)
        constant = int((self.factor == 0).sum())
        if left and self.kind != "none":
            parts.append(f"{left} left alone")
        if constant:
            parts.append(f"{constant} constant")
        return ", ".join(parts)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """JSON and arrays for a file; ``from_parts`` reads them back."""
        return {"kind": self.kind, "binary": self.binary}, {f"scaling.{name}": getattr(self, name) for name in _TYPES}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Scaling:
        """The scaling of ``to_parts``; anything that does not fit together is a FileFormatError."""
        if not isinstance(document, dict):
            raise FileFormatError(f"damaged scaling: {document!r} does not describe one")
        kind, binary = document.get("kind"), document.get("binary")
        if kind not in SCALINGS or binary not in BINARY_POLICIES:
            raise FileFormatError(f"damaged scaling: there is no scaling {kind!r} with binary columns {binary!r}")
        found = {name: _checked(arrays, name, dtype) for name, dtype in _TYPES.items()}
        scaling = cls(kind, binary, **found)
        _check_fit(scaling)
        return scaling


def _gather(X: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Copies of columns as rows (k, n) of float64: curves are compiled for this one type and layout."""
    values = np.empty((len(columns), len(X)))
    values[:] = X[:, columns].T
    return values


_TYPES = {field.name: np.int64 if field.name.endswith(("columns", "offsets")) else np.float64
          for field in fields(Scaling) if field.name not in ("kind", "binary")}  # fmt: skip


def _checked(arrays: dict[str, np.ndarray], name: str, dtype: Any) -> np.ndarray:
    array = arrays.get(f"scaling.{name}")
    if array is None or array.dtype != dtype or array.ndim != (2 if name == "rotation" else 1):
        what = "missing" if array is None else f"{array.dtype} of shape {array.shape}"
        raise FileFormatError(f"damaged scaling: {name} is {what}")
    if not np.isfinite(array).all():
        raise FileFormatError(f"damaged scaling: {name} has values that are not finite")
    return np.ascontiguousarray(array)


def _check_fit(s: Scaling) -> None:
    """Compiled code trusts these arrays: every index must lie inside, every length must agree."""
    d = s.n_inputs
    sound = {
        "factor": len(s.factor) == d,
        "log_columns": _are_columns(s.log_columns, d) and len(s.log_rates) == len(s.log_columns),
        "rank_columns": _are_columns(s.rank_columns, d) and len(s.rank_offsets) == len(s.rank_columns) + 1,
        "rank_offsets": s.rank_offsets[:1].tolist() == [0]
        and bool((np.diff(s.rank_offsets) > 0).all())
        and s.rank_offsets[-1:].tolist() == [len(s.knots)],
        "levels": len(s.levels) == len(s.knots),
        "rotation": s.rotation.shape == ((d, d) if s.kind == "pca" else (0, 0)),
    }
    for name, fits in sound.items():
        if not fits:
            raise FileFormatError(f"damaged scaling: {name} does not fit the other arrays of {d} columns")


def _are_columns(columns: np.ndarray, d: int) -> bool:
    return bool(((columns >= 0) & (columns < d)).all() and (np.diff(columns) > 0).all())


# -- fitting


def fit_scaling(kind: str, sample: np.ndarray, *, moments: MomentsState | None = None, binary: str = "keep") -> Scaling:
    """Fit to a sample of rows; means, deviations and ranges come from ``moments`` of all rows where these are given."""
    if kind not in SCALINGS or binary not in BINARY_POLICIES:
        raise InputError(
            f"there is no scaling {kind!r} with binary columns {binary!r}: choose one of {', '.join(SCALINGS)}, "
            f"and {' or '.join(BINARY_POLICIES)}"
        )
    sample = as_floats(sample)
    if sample.ndim != 2 or len(sample) == 0:
        raise DataError(f"a scaling needs at least 1 row of a table to be fitted; the sample has shape {sample.shape}")
    moments = moments_of(sample) if moments is None else moments
    if len(moments.minimum) != sample.shape[1]:
        raise MismatchError(f"moments of {len(moments.minimum)} columns for a sample of {sample.shape[1]}")
    return _FITS[kind](_Fit(kind, binary, sample, moments))


@dataclass
class _Fit:
    """What a scaling is fitted to, and the columns it is free to change."""

    kind: str
    binary: str
    sample: np.ndarray
    moments: MomentsState

    @cached_property
    def constant(self) -> np.ndarray:
        return self.moments.std < _SMALLEST_SPREAD

    @cached_property
    def free(self) -> np.ndarray:
        """Columns that are neither constant nor binary and to be left alone."""
        kept = self.moments.binary if self.binary == "keep" else np.zeros_like(self.moments.binary)
        return ~kept & ~self.constant

    def scaling(self, centre: np.ndarray, spread: np.ndarray, **curves: np.ndarray) -> Scaling:
        """Columns to ``(x - centre) / spread``; constant ones to 0, and those left alone to themselves."""
        centre, factor = centre.copy(), np.zeros_like(spread)
        np.divide(1.0, spread, out=factor, where=spread >= _SMALLEST_SPREAD)
        left = ~self.free
        centre[left], factor[left] = 0.0, np.where(self.constant[left], 0.0, 1.0)
        return Scaling(self.kind, self.binary, centre, factor, **(_no_curves() | curves))


def _no_curves() -> dict[str, np.ndarray]:
    empty = {name: np.zeros(0, dtype) for name, dtype in _TYPES.items() if name not in ("centre", "factor")}
    return empty | {"rank_offsets": np.zeros(1, np.int64), "rotation": np.zeros((0, 0))}


def _fit_none(fit: _Fit) -> Scaling:
    d = fit.sample.shape[1]
    return Scaling(fit.kind, fit.binary, np.zeros(d), np.ones(d), **_no_curves())


def _fit_standard(fit: _Fit) -> Scaling:
    return fit.scaling(fit.moments.mean, fit.moments.std)


def _fit_minmax(fit: _Fit) -> Scaling:
    low, high = fit.moments.minimum / 2, fit.moments.maximum / 2  # halves first: their sum cannot overflow
    return fit.scaling(low + high, high - low)


def _fit_log(fit: _Fit) -> Scaling:
    """Mean and deviation of the logs are those of the sample: a pass over all rows sums the values as they are."""
    columns = np.flatnonzero(heavy_tailed(fit.sample) & fit.free)
    rates = np.array([1.0 / _magnitude(fit.sample[:, j]) for j in columns], dtype=np.float64)
    centre, spread = fit.moments.mean, fit.moments.std
    for j, rate in zip(columns, rates, strict=True):
        logs = moments_of(_logs(fit.sample[:, j], rate))
        centre[j], spread[j] = logs.mean[0], logs.std[0]
    return fit.scaling(centre, spread, log_columns=columns, log_rates=rates)


def _logs(column: np.ndarray, rate: float) -> np.ndarray:
    """One column (n, 1) after the signed log, by the kernel that will do it to all rows."""
    curve = _no_curves() | {"log_columns": np.zeros(1, np.int64), "log_rates": np.array([rate])}
    return Scaling("log", "keep", np.zeros(1), np.ones(1), **curve).transform(column[:, None], np.float64)


def _fit_quantile(fit: _Fit) -> Scaling:
    columns = np.flatnonzero(fit.free)
    curves = [_rank_curve(fit.sample[:, j], fit.moments.minimum[j], fit.moments.maximum[j]) for j in columns]
    offsets = np.cumsum([0] + [len(knots) for knots, _ in curves])
    d = fit.sample.shape[1]
    return fit.scaling(
        np.zeros(d),
        np.ones(d),
        rank_columns=columns,
        rank_offsets=offsets,
        knots=np.concatenate([np.zeros(0), *(knots for knots, _ in curves)]),
        levels=np.concatenate([np.zeros(0), *(levels for _, levels in curves)]),
    )


def _fit_pca(fit: _Fit) -> Scaling:
    standard = _fit_standard(fit)
    free = np.flatnonzero(fit.free)
    rotation = np.diag((standard.factor != 0).astype(np.float64))
    rotation[np.ix_(free, free)] = _whitening(_covariance(standard, fit.sample)[np.ix_(free, free)])
    return replace(standard, rotation=rotation)


_FITS = {
    "none": _fit_none,
    "standard": _fit_standard,
    "minmax": _fit_minmax,
    "quantile": _fit_quantile,
    "log": _fit_log,
    "pca": _fit_pca,
}


def heavy_tailed(sample: np.ndarray) -> np.ndarray:
    """Which columns a signed log would tame: kurtosis above 10, or a 99 % range above 6 quartile ranges."""
    return np.array([_is_heavy(column.astype(np.float64)) for column in np.asarray(sample).T], dtype=bool)


def _is_heavy(column: np.ndarray) -> bool:
    low, first, third, high = np.quantile(column, [0.005, 0.25, 0.75, 0.995])
    if ((column == 0) | (column == 1)).all():
        return False
    return bool(high - low > HEAVY_SPAN * (third - first)) or _kurtosis(column) > HEAVY_KURTOSIS


def _kurtosis(column: np.ndarray) -> float:
    centred = column - column.mean()
    largest = np.abs(centred).max()
    if largest == 0.0:
        return 0.0
    squares = (centred / largest) ** 2  # fourth powers of the values themselves may overflow
    return float((squares * squares).mean() / squares.mean() ** 2)


def _magnitude(column: np.ndarray) -> float:
    """The median size of the values that are not 0."""
    sizes = np.abs(column[column != 0].astype(np.float64))
    return max(float(np.median(sizes)), _SMALLEST_SPREAD)


def _rank_curve(column: np.ndarray, minimum: float, maximum: float) -> tuple[np.ndarray, np.ndarray]:
    """Knots of one column and the scaled rank at each; the ends reach to the range of all rows where that is wider."""
    ordered = np.sort(column.astype(np.float64))
    knots = np.unique(ordered)
    if len(knots) > KNOTS:
        knots = np.unique(ordered[np.linspace(0, len(ordered) - 1, KNOTS).round().astype(np.int64)])
    ranks = (np.searchsorted(ordered, knots, "left") + np.searchsorted(ordered, knots, "right")) / (2 * len(ordered))
    if minimum < knots[0]:
        knots, ranks = np.r_[minimum, knots], np.r_[0.0, ranks]
    if maximum > knots[-1]:
        knots, ranks = np.r_[knots, maximum], np.r_[ranks, 1.0]
    return knots, (ranks - 0.5) * np.sqrt(12.0)


def _covariance(scaling: Scaling, sample: np.ndarray) -> np.ndarray:
    """Of the scaled sample, in slabs: the sample may be as large as memory allows."""
    d = scaling.n_inputs
    total, products = np.zeros(d), np.zeros((d, d))
    for start in range(0, len(sample), _SLAB):
        Z = scaling.transform(sample[start : start + _SLAB], np.float64)
        total += Z.sum(axis=0)
        products += Z.T @ Z
    mean = total / len(sample)
    return products / len(sample) - np.outer(mean, mean)


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Axes in columns, widest first, each divided by its deviation, of one sign whichever LAPACK found them."""
    if len(covariance) == 0:
        return covariance
    values, axes = np.linalg.eigh(covariance)
    values, axes = values[::-1], axes[:, ::-1]
    largest = np.argmax(np.abs(axes), axis=0)
    axes = axes * np.sign(axes[largest, np.arange(len(values))])
    return axes / np.sqrt(np.maximum(values, EIGENVALUE_FLOOR))
