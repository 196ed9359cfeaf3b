"""Fitting a scaling to a sample of rows, and to the moments of all rows where these are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from streamrf.features.scaling import BINARY_POLICIES, SCALINGS, TYPES, Scaling, unbounded
from streamrf.support import exact_sum
from streamrf.support.errors import DataError, InputError, MismatchError
from streamrf.support.quantiles import median, quantiles

KNOTS = 200
EIGENVALUE_FLOOR = 1e-3  # where their mean is 1: noise along a nearly empty axis is blown up 32-fold at most
HEAVY_KURTOSIS = 10.0  # a normal column has 3, an exponential one 9
HEAVY_SPAN = 6.0  # the 99 % range over the quartile range: 3.8 for a normal column, 4.8 for an exponential one
_SMALLEST_SPREAD = 1e-300  # below it 1 / spread is infinite
_SLAB = 4096


def distinct(kinds: Sequence[str], inputs: Callable[[str], np.ndarray]) -> list[str]:
    """Without scalings that make the same inputs as one before them: of zeros and ones alone, most do."""
    found: list[str] = []
    for kind in kinds:
        if not any(np.array_equal(inputs(kind), inputs(other)) for other in found):
            found.append(kind)
    return found


class ColumnMoments(Protocol):
    """What is known of the columns of all rows; arrays (d,)."""

    minimum: np.ndarray
    maximum: np.ndarray
    binary: np.ndarray  # nothing but 0 and 1 was seen

    @property
    def mean(self) -> np.ndarray: ...

    @property
    def std(self) -> np.ndarray: ...


class SampleMoments:
    """The moments of rows in memory, by exact sums; of rows with weights, by sums in float64."""

    def __init__(self, X: np.ndarray, weights: np.ndarray | None = None) -> None:
        self.X, self.weights = exact_sum.as_floats(X), weights
        self.minimum, self.maximum, self.binary = exact_sum.column_ranges(self.X)

    @cached_property
    def _sums(self) -> np.ndarray:
        sums = exact_sum.zero_sums(self.X.shape[1])
        exact_sum.add_columns(sums, self.X)
        return sums

    @cached_property
    def mean(self) -> np.ndarray:
        if self.weights is not None:
            return self._weighted[0]
        return exact_sum.column_means(self._sums, len(self.X))

    @cached_property
    def std(self) -> np.ndarray:
        if self.weights is not None:
            return self._weighted[1]
        squares = exact_sum.zero_squares(self.X.shape[1])
        exact_sum.add_column_squares(squares, self.X)
        return exact_sum.column_deviations(self._sums, squares, len(self.X))

    @cached_property
    def _weighted(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and deviations, of columns in units of their middle and largest distance from it, so that nothing
        overflows and equal values have no deviation."""
        assert self.weights is not None
        shares = self.weights / self.weights.sum()
        low, high = self.minimum.astype(np.float64) / 2, self.maximum.astype(np.float64) / 2
        centre, reach = low + high, high - low
        unit = np.where(reach > 0, reach, 1.0)
        Z = self.X / 2 - centre / 2
        Z /= unit / 2  # in place, as all below: a wide sample is large
        mean = shares @ Z
        Z -= mean
        Z *= Z
        return centre + reach * mean, reach * np.sqrt(shares @ Z)


def fit_scaling(
    kind: str, sample: np.ndarray, weights: np.ndarray | None = None, *, moments: ColumnMoments | None = None,
    binary: str = "keep",
) -> Scaling:  # fmt: skip
    """Fit to a sample of rows; means, deviations and ranges come from ``moments`` of all rows where these are given.
    A row of weight 2 is the row twice, and one of weight 0 is not there."""
    if kind not in SCALINGS or binary not in BINARY_POLICIES:
        raise InputError(
            f"there is no scaling {kind!r} with binary columns {binary!r}: choose one of {', '.join(SCALINGS)}, "
            f"and {' or '.join(BINARY_POLICIES)}"
        )
    sample = exact_sum.as_floats(sample)
    if weights is not None and not (weights > 0).all():
        sample, weights = sample[weights > 0], weights[weights > 0]
    if sample.ndim != 2 or len(sample) == 0:
        raise DataError(f"a scaling needs at least 1 row of a table to be fitted; the sample has shape {sample.shape}")
    moments = SampleMoments(sample, weights) if moments is None else moments
    if len(moments.minimum) != sample.shape[1]:
        raise MismatchError(f"moments of {len(moments.minimum)} columns for a sample of {sample.shape[1]}")
    return _FITS[kind](_Fit(kind, binary, sample, weights, moments))


@dataclass
class _Fit:
    """What a scaling is fitted to, and the columns it is free to change."""

    kind: str
    binary: str
    sample: np.ndarray
    weights: np.ndarray | None
    moments: ColumnMoments

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
        low, high = (end.astype(np.float64) for end in (self.moments.minimum, self.moments.maximum))
        return Scaling(self.kind, self.binary, centre, factor, low, high, **(_no_curves() | curves))


def _no_curves() -> dict[str, np.ndarray]:
    columns = ("centre", "factor", "low", "high")
    empty = {name: np.zeros(0, dtype) for name, dtype in TYPES.items() if name not in columns}
    return empty | {"rank_offsets": np.zeros(1, np.int64), "rotation": np.zeros((0, 0))}


def _fit_none(fit: _Fit) -> Scaling:
    d = fit.sample.shape[1]
    return Scaling(fit.kind, fit.binary, np.zeros(d), np.ones(d), *unbounded(d), **_no_curves())


def _fit_standard(fit: _Fit) -> Scaling:
    return fit.scaling(fit.moments.mean, fit.moments.std)


def _fit_minmax(fit: _Fit) -> Scaling:
    low, high = fit.moments.minimum / 2, fit.moments.maximum / 2  # halves first: their sum cannot overflow
    return fit.scaling(low + high, high - low)


def _fit_log(fit: _Fit) -> Scaling:
    """Mean and deviation of the logs are those of the sample: a pass over all rows sums the values as they are."""
    columns = np.flatnonzero(heavy_tailed(fit.sample, fit.weights) & fit.free)
    rates = np.array([1.0 / _magnitude(fit.sample[:, j], fit.weights) for j in columns], dtype=np.float64)
    centre, spread = fit.moments.mean.copy(), fit.moments.std.copy()
    for j, rate in zip(columns, rates, strict=True):
        logs = SampleMoments(_logs(fit.sample[:, j], rate), fit.weights)
        centre[j], spread[j] = logs.mean[0], logs.std[0]
    return fit.scaling(centre, spread, log_columns=columns, log_rates=rates)


def _logs(column: np.ndarray, rate: float) -> np.ndarray:
    """One column (n, 1) after the signed log, by the kernel that will do it to all rows."""
    curve = _no_curves() | {"log_columns": np.zeros(1, np.int64), "log_rates": np.array([rate])}
    scaling = Scaling("log", "keep", np.zeros(1), np.ones(1), *unbounded(1), **curve)
    return scaling.transform(column[:, None], np.float64)


def _fit_quantile(fit: _Fit) -> Scaling:
    columns = np.flatnonzero(fit.free)
    curves = [
        _rank_curve(fit.sample[:, j], fit.weights, fit.moments.minimum[j], fit.moments.maximum[j]) for j in columns
    ]
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
    rotation[np.ix_(free, free)] = _whitening(_covariance(standard, fit.sample, fit.weights)[np.ix_(free, free)])
    return replace(standard, rotation=rotation)


_FITS = {
    "none": _fit_none,
    "standard": _fit_standard,
    "minmax": _fit_minmax,
    "quantile": _fit_quantile,
    "log": _fit_log,
    "pca": _fit_pca,
}


def heavy_tailed(sample: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
    """Which columns a signed log would tame: kurtosis above 10, or a 99 % range above 6 quartile ranges."""
    return np.array([_is_heavy(column.astype(np.float64), weights) for column in np.asarray(sample).T], dtype=bool)


def _is_heavy(column: np.ndarray, weights: np.ndarray | None) -> bool:
    if ((column == 0) | (column == 1)).all():
        return False
    low, first, third, high = quantiles(column, [0.005, 0.25, 0.75, 0.995], weights)
    return bool(high - low > HEAVY_SPAN * (third - first)) or _kurtosis(column, weights) > HEAVY_KURTOSIS


def _kurtosis(column: np.ndarray, weights: np.ndarray | None) -> float:
    centred = column - np.average(column, weights=weights)
    largest = np.abs(centred).max()
    if largest == 0.0:
        return 0.0
    squares = (centred / largest) ** 2  # fourth powers of the values themselves may overflow
    return float(np.average(squares * squares, weights=weights) / np.average(squares, weights=weights) ** 2)


def _magnitude(column: np.ndarray, weights: np.ndarray | None) -> float:
    """The median size of the values that are not 0."""
    present = column != 0
    sizes = np.abs(column[present].astype(np.float64))
    return max(float(median(sizes[:, None], None if weights is None else weights[present])[0]), _SMALLEST_SPREAD)


def _rank_curve(
    column: np.ndarray, weights: np.ndarray | None, minimum: float, maximum: float
) -> tuple[np.ndarray, np.ndarray]:
    """Knots of one column and the scaled rank at each; the ends reach to the range of all rows where that is wider."""
    order = np.argsort(column, kind="stable")
    ordered = column[order].astype(np.float64)
    reached = np.arange(len(order) + 1.0) if weights is None else np.r_[0.0, np.cumsum(weights[order])]
    knots = np.unique(ordered)
    if len(knots) > KNOTS:
        knots = np.unique(ordered[_even_places(reached)])
    edges = (reached[np.searchsorted(ordered, knots, side)] for side in ("left", "right"))
    ranks = sum(edges) / (2 * reached[-1])
    if minimum < knots[0]:
        knots, ranks = np.r_[minimum, knots], np.r_[0.0, ranks]
    if maximum > knots[-1]:
        knots, ranks = np.r_[knots, maximum], np.r_[ranks, 1.0]
    return knots, (ranks - 0.5) * np.sqrt(12.0)


def _even_places(reached: np.ndarray) -> np.ndarray:
    """Positions in sorted rows at equal steps of weight, the first and the last among them."""
    last = len(reached) - 2
    if reached[-1] == last + 1:  # rows that count for one each
        return np.linspace(0, last, KNOTS).round().astype(np.int64)
    return np.clip(np.searchsorted(reached, np.linspace(0, reached[-1], KNOTS), "right") - 1, 0, last)


def _covariance(scaling: Scaling, sample: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Of the scaled sample, in slabs: the sample may be as large as memory allows."""
    d = scaling.n_inputs
    weights = np.ones(len(sample)) if weights is None else weights
    total, products = np.zeros(d), np.zeros((d, d))
    for start in range(0, len(sample), _SLAB):
        Z, w = scaling.transform(sample[start : start + _SLAB], np.float64), weights[start : start + _SLAB, None]
        total += (w * Z).sum(axis=0)
        products += Z.T @ (w * Z)
    mean = total / weights.sum()
    return products / weights.sum() - np.outer(mean, mean)


def _whitening(covariance: np.ndarray) -> np.ndarray:
    """Axes in columns, widest first, each divided by its deviation, of one sign whichever LAPACK found them."""
    if len(covariance) == 0:
        return covariance
    values, axes = np.linalg.eigh(covariance)
    values, axes = values[::-1], axes[:, ::-1]
    largest = np.argmax(np.abs(axes), axis=0)
    axes = axes * np.sign(axes[largest, np.arange(len(values))])
    return axes / np.sqrt(np.maximum(values, EIGENVALUE_FLOOR))
