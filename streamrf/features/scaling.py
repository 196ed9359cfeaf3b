"""Scaling of columns before the feature map: fitted once, kept in the model, the same bits everywhere.

Kinds, for columns that are neither constant (they become 0) nor binary (0/1 columns are left alone by default):

- ``none``      values as they are;
- ``standard``  mean 0 and variance 1;
- ``minmax``    smallest value -1 and largest 1;
- ``quantile``  ranks, uniform on [-sqrt 3, sqrt 3] so that their variance is 1: piecewise linear through 200 quantiles
                of the sample, a tied value in the middle of its ranks;
- ``log``       sign(x) log(1 + |x| / s) for heavy-tailed columns, s their median magnitude; then as ``standard``;
- ``pca``       as ``standard``, then rotated to the principal axes and divided by their deviations (columns left alone
                stay outside the rotation); a kernel of one width on this is a non-isotropic kernel on the data.

A value beyond the range of the rows that the scaling was fitted to is held at its end (all kinds but ``none``): no
feature map knows what is out there, and its guesses are worse than what it has learned at the end of the range.

A value goes through the same float64 operations in the same order whatever block it comes in and whatever the memory
layout, no library function among them, and is rounded once at the end: the same bits on every machine. NaN and
infinities are screened out before.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import DTypeLike

from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import FileFormatError, MismatchError
from streamrf.support.exact_sum import as_floats
from streamrf.support.storage.safejson import JSON

SCALINGS = ("none", "standard", "minmax", "quantile", "log", "pca")
BINARY_POLICIES = ("keep", "scale")

_ONE_BITS, _ROOT_HALF_BITS = 0x3FF0000000000000, 0x3FE6A09E667F3BCD  # 1 and the root of 1/2 as float64
_TILE = 128  # values that are bisected in step
_ROWS_AT_ONCE = 8  # share one reading of the rotation
FARTHEST = 1e30


@dataclass(frozen=True, eq=False)
class Scaling:
    """A fitted scaling: every column is held between ``low`` and ``high`` and goes through ``(x - centre) * factor``,
    some through a curve instead or before."""

    kind: str
    binary: str
    centre: np.ndarray  # (d,) float64
    factor: np.ndarray  # (d,) float64
    low: np.ndarray  # (d,) float64: the range that values are held in, before anything else is done to them
    high: np.ndarray  # (d,) float64
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

    def transform(self, X: np.ndarray, dtype: DTypeLike = np.float32) -> np.ndarray:
        """The rows of X, of any numeric type and memory layout, scaled: C-contiguous float32 or float64 (n, d)."""
        X = as_floats(X)
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise MismatchError(f"the scaling was fitted on {self.n_inputs} columns, and the data has shape {X.shape}")
        rotated = len(self.rotation) > 0
        out = np.empty(X.shape, dtype=np.float64 if rotated else dtype)
        shift_and_stretch(X, self.low, self.high, self.centre, self.factor, out)
        self._take_logs(X, out)
        self._take_ranks(X, out)
        if rotated:
            rotate_rows(out, self.rotation)
        return out.astype(dtype, copy=False)

    def _take_logs(self, X: np.ndarray, out: np.ndarray) -> None:
        if len(self.log_columns):
            values = _gather(X, self.log_columns)
            np.clip(values, self.low[self.log_columns, None], self.high[self.log_columns, None], out=values)
            take_logs(values, self.log_rates, self.centre[self.log_columns], self.factor[self.log_columns])
            out[:, self.log_columns] = values.T

    def _take_ranks(self, X: np.ndarray, out: np.ndarray) -> None:
        if len(self.rank_columns):
            values = _gather(X, self.rank_columns)
            take_ranks(values, self.rank_offsets, self.knots, self.levels, np.empty(_TILE, np.int64))
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

    def to_parts(self) -> tuple[JSON, dict[str, np.ndarray]]:
        """JSON and arrays for a file; ``from_parts`` reads them back."""
        return {"kind": self.kind, "binary": self.binary}, {f"scaling.{name}": getattr(self, name) for name in TYPES}

    @classmethod
    def from_parts(cls, document: JSON, arrays: dict[str, np.ndarray]) -> Scaling:
        """The scaling of ``to_parts``; anything that does not fit together is a FileFormatError."""
        if not isinstance(document, dict):
            raise FileFormatError(f"damaged scaling: {document!r} does not describe one")
        kind, binary = document.get("kind"), document.get("binary")
        if kind not in SCALINGS or binary not in BINARY_POLICIES:
            raise FileFormatError(f"damaged scaling: there is no scaling {kind!r} with binary columns {binary!r}")
        arrays = {**_boundless(arrays), **arrays}
        found = {name: _checked(arrays, name, dtype) for name, dtype in TYPES.items()}
        scaling = cls(kind, binary, **found)
        _check_fit(scaling)
        return scaling


def _boundless(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The ranges of a file that an older version wrote, which held no values back."""
    low, high = unbounded(len(arrays.get("scaling.centre", ())))
    return {"scaling.low": low, "scaling.high": high}


def unbounded(columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Ranges that every number lies in."""
    largest = np.finfo(np.float64).max
    return np.full(columns, -largest), np.full(columns, largest)


def _gather(X: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Copies of columns as rows (k, n) of float64: curves are compiled for this one type and layout."""
    values = np.empty((len(columns), len(X)))
    values[:] = X[:, columns].T
    return values


TYPES = {field.name: np.int64 if field.name.endswith(("columns", "offsets")) else np.float64
          for field in fields(Scaling) if field.name not in ("kind", "binary")}  # fmt: skip


def _checked(arrays: dict[str, np.ndarray], name: str, dtype: DTypeLike) -> np.ndarray:
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
        "low": len(s.low) == d,
        "high": len(s.high) == len(s.low) and bool((s.low <= s.high).all()),
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


def apply_factor(X: np.ndarray, factor: np.ndarray) -> np.ndarray:
    """Inputs, or frequencies, times a symmetric factor: (d, d), or (d,) if it is diagonal."""
    return X * factor if factor.ndim == 1 else X @ factor


# -- compiled loops


@kernel
def _log1p(v: float) -> float:
    """log(1 + v) for v >= 0 to 1e-15, by plain arithmetic: a library's logarithm differs between machines."""
    v = min(v, 1e300)
    y = 1.0 + v
    bits = np.float64(y).view(np.int64) + (_ONE_BITS - _ROOT_HALF_BITS)
    power = (bits >> 52) - 1023  # y is 2^power times m, and m lies between the roots of 1/2 and of 2
    m = np.int64((bits & 0xFFFFFFFFFFFFF) + _ROOT_HALF_BITS).view(np.float64)
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = 1.0 / 17.0
    series = series * z + 1.0 / 15.0
    series = series * z + 1.0 / 13.0
    series = series * z + 1.0 / 11.0
    series = series * z + 1.0 / 9.0
    series = series * z + 1.0 / 7.0
    series = series * z + 1.0 / 5.0
    series = series * z + 1.0 / 3.0
    series = series * z + 1.0
    lost = v - (y - 1.0)  # what 1 + v rounded away
    return power * 0.6931471805599453 + (2.0 * s * series + lost / y)


@inner_kernel
def _signed_log(x: float, rate: float) -> float:
    size = _log1p(abs(x) * rate)
    return -size if x < 0.0 else size


@kernel
def shift_and_stretch(
    X: np.ndarray, low: np.ndarray, high: np.ndarray, centre: np.ndarray, factor: np.ndarray, out: np.ndarray
) -> None:
    """``(X - centre) * factor`` of values held in a range, column by column; small, as it is compiled for every type
    and layout of X.

    What is farther out than FARTHEST is there: beyond what a float32 holds no map knows what to do.
    """
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            value = (min(max(np.float64(X[i, j]), low[j]), high[j]) - centre[j]) * factor[j]
            out[i, j] = min(max(value, -FARTHEST), FARTHEST)


@kernel
def take_logs(columns: np.ndarray, rates: np.ndarray, centre: np.ndarray, factor: np.ndarray) -> None:
    """Signed logs of columns (k, n), shifted and stretched, in place."""
    for k in range(len(rates)):
        for i in range(columns.shape[1]):
            columns[k, i] = (_signed_log(columns[k, i], rates[k]) - centre[k]) * factor[k]


@kernel
def take_ranks(
    columns: np.ndarray, offsets: np.ndarray, knots: np.ndarray, levels: np.ndarray, places: np.ndarray
) -> None:
    """Levels of columns (k, n) on their curves, in place; the knots of column k are offsets[k]..offsets[k + 1].

    A tile of values finds, in ``places``, the last knot but one, or an earlier one, that is not above each (the first
    where all are). Then it is the level on the line to the next knot, held at both ends.
    """
    for k in range(columns.shape[0]):
        own_knots, own_levels = knots[offsets[k] : offsets[k + 1]], levels[offsets[k] : offsets[k + 1]]
        for start in range(0, columns.shape[1], len(places)):
            tile = columns[k, start : start + len(places)]
            for r in range(len(tile)):
                places[r] = 0
            left = len(own_knots) - 1
            while left > 1:  # bisection of all values in step: it runs in SIMD, and has no branch to guess wrong
                half = left >> 1
                for r in range(len(tile)):
                    place = places[r]
                    places[r] = place + half if own_knots[np.uint64(place + half)] <= tile[r] else place
                left -= half
            for r in range(len(tile)):
                place, after = places[r], min(places[r] + 1, len(own_knots) - 1)
                gap = own_knots[after] - own_knots[place]
                share = (tile[r] - own_knots[place]) / (gap if gap > 0.0 else 1.0)
                tile[r] = own_levels[place] + min(max(share, 0.0), 1.0) * (own_levels[after] - own_levels[place])


@kernel
def rotate_rows(Z: np.ndarray, rotation: np.ndarray) -> None:
    """Z @ rotation in place, with every sum in the order of the columns of Z."""
    d = Z.shape[1]
    sums = np.empty((_ROWS_AT_ONCE, d))
    for start in range(0, Z.shape[0], _ROWS_AT_ONCE):
        rows = min(_ROWS_AT_ONCE, Z.shape[0] - start)
        sums.fill(0.0)
        for j in range(d):
            for r in range(rows):
                z = Z[start + r, j]
                for k in range(d):
                    sums[r, k] += z * rotation[j, k]
        for r in range(rows):
            for k in range(d):
                Z[start + r, k] = sums[r, k]
