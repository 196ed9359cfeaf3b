"""Exact, order-free sums of floating-point numbers and of their squares.

A sum is one very long integer in fixed point, held as int64 limbs of 32 bits: limb k weighs 2^(32 k + origin). A
float64 is a 53-bit integer times a power of two, so it touches three neighbouring limbs and nothing is ever rounded.
After each call carries are propagated: all limbs but the last lie in [0, 2^32) and the last has the sign, so that equal
sums have equal bits whichever way they were reached. Limbs add and subtract as arrays do, followed by ``carry``.

Between two carries a limb grows by less than 2^32 a deposit and takes at most 3 deposits a value, so it has room for
2^29 values; calls carry every 2^20. The last limb has room for 2^63 values of the largest magnitude.
"""

from __future__ import annotations

import math

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import DataError

SUM_ORIGIN = -1074  # the exponent of the smallest float64
SUM_LIMBS = 67  # for 2,098 bits of float64 and the bits of a count
SQUARE_ORIGIN = 2 * SUM_ORIGIN
SQUARE_LIMBS = 134

_ROWS_PER_CALL = 1 << 20


def zero_sums(columns: int) -> np.ndarray:
    """Limbs of the sum of no values, for each column."""
    return np.zeros((columns, SUM_LIMBS), dtype=np.int64)


def zero_squares(columns: int) -> np.ndarray:
    """Limbs of the sum of no squares, for each column."""
    return np.zeros((columns, SQUARE_LIMBS), dtype=np.int64)


def as_floats(X: np.ndarray) -> np.ndarray:
    """X as native float32 or float64 with equal values, without a copy if possible (int64 rounds beyond 2^53)."""
    X = np.asarray(X)
    narrow = X.dtype.itemsize <= (4 if X.dtype.kind == "f" else 2)
    return X.astype(np.float32 if narrow else np.float64, copy=False)


def add_columns(sums: np.ndarray, X: np.ndarray) -> None:
    """Add the rows of X (n, d) to the sums (d, limbs) of its columns. DataError for NaN and infinities."""
    _add_all(sums, X, squared=False)


def add_column_squares(squares: np.ndarray, X: np.ndarray) -> None:
    """Add the exact squares of the rows of X (n, d) to ``squares`` (d, limbs)."""
    _add_all(squares, X, squared=True)


def add_values(limbs: np.ndarray, values: np.ndarray) -> None:
    """Add a vector of values to one sum (limbs,)."""
    add_columns(limbs[None, :], np.asarray(values)[:, None])


def _add_all(limbs: np.ndarray, X: np.ndarray, *, squared: bool) -> None:
    total = np.zeros_like(limbs)  # a block that is refused must leave the sums as they were
    for start in range(0, len(X), _ROWS_PER_CALL):
        bad = _add_values(total, as_floats(X[start : start + _ROWS_PER_CALL]), squared)
        if bad >= 0:
            raise DataError(f"column {bad} has NaN or infinite values, which cannot be summed: drop or fix these rows")
        carry(total)
    limbs += total
    carry(limbs)


@inner_kernel
def _exponent(bits: np.int64) -> np.int64:
    return (bits >> 52) & 0x7FF


@inner_kernel
def _integer(bits: np.int64, exponent: np.int64) -> tuple[np.int64, np.int64]:
    """The value without its sign as m * 2^(position + SUM_ORIGIN), with m below 2^53."""
    normal = np.int64(exponent != 0)
    return (bits & 0xFFFFFFFFFFFFF) | (normal << 52), exponent - normal


@inner_kernel
def _deposit(limbs: np.ndarray, column: int, m: np.int64, position: np.int64, sign: np.int64) -> None:
    """Add m * 2^position, m below 2^54; or subtract it, where ``sign`` is -1 and not 0."""
    limb = position >> 5
    shift = position & 31
    low = (m & 0xFFFFFFFF) << shift
    high = (m >> 32) << shift
    middle = (low >> 32) | (high & 0xFFFFFFFF)  # the shift has emptied the bits of one where the other has its own
    limbs[column, limb] += ((low & 0xFFFFFFFF) ^ sign) - sign
    limbs[column, limb + 1] += (middle ^ sign) - sign
    limbs[column, limb + 2] += ((high >> 32) ^ sign) - sign


@kernel
def _add_values(limbs: np.ndarray, X: np.ndarray, squared: bool) -> int:
    """Returns the column of the first value that is not finite, or -1.

    Squares are added in up to three products; integers and float32 have short mantissas and need one.
    """
    plus = np.int64(0)  # a variable: a plain 0 would have ``_deposit`` compiled once more
    for i in range(X.shape[0]):
        for j in range(X.shape[1]):
            bits = np.float64(X[i, j]).view(np.int64)
            exponent = _exponent(bits)
            if exponent == 0x7FF:
                return j
            m, position = _integer(bits, exponent)
            if not squared:
                _deposit(limbs, j, m, position, bits >> 63)
                continue
            high = m >> 26
            low = m & 0x3FFFFFF
            _deposit(limbs, j, high * high, 2 * position + 52, plus)
            if low != 0:
                _deposit(limbs, j, 2 * high * low, 2 * position + 26, plus)
                _deposit(limbs, j, low * low, 2 * position, plus)
    return -1


def carry(limbs: np.ndarray) -> None:
    """Bring each row of limbs (d, L) to its normal form; needed after adding or subtracting limbs."""
    places = np.ascontiguousarray(limbs.T)
    for k in range(len(places) - 1):
        places[k + 1] += places[k] >> 32
        places[k] &= 0xFFFFFFFF
    limbs[:] = places.T


def to_integer(limbs: np.ndarray) -> int:
    """One sum (limbs,) as a Python integer, in units of 2^origin."""
    return sum(limb << (32 * k) for k, limb in enumerate(limbs.tolist()) if limb)


def to_float(limbs: np.ndarray) -> float:
    """One sum of values (limbs,), correctly rounded; infinite beyond the range of float64."""
    return divide(to_integer(limbs), 1 << -SUM_ORIGIN)


def divide(numerator: int, denominator: int) -> float:
    """The float64 nearest to a quotient of integers, infinite beyond its range."""
    try:
        return numerator / denominator  # Python rounds quotients of any two integers correctly
    except OverflowError:
        return float("inf") if numerator > 0 else float("-inf")


# -- moments and ranges of columns


def column_means(sums: np.ndarray, rows: int) -> np.ndarray:
    """Means (d,) of so many rows, correctly rounded."""
    return np.array([divide(to_integer(total), rows << -SUM_ORIGIN) for total in sums])


def column_variances(sums: np.ndarray, squares: np.ndarray, rows: int) -> np.ndarray:
    """Mean squared deviations (d,), correctly rounded; 0 exactly where all values are equal."""
    return np.array([divide(spread, rows**2 << -SQUARE_ORIGIN) for spread in _spreads(sums, squares, rows)])


def column_deviations(sums: np.ndarray, squares: np.ndarray, rows: int) -> np.ndarray:
    """Roots of the variances (d,), by integer square roots with 64 bits to spare: tiny and huge columns keep them."""
    roots = (math.isqrt(spread << 128) for spread in _spreads(sums, squares, rows))
    return np.array([divide(root, rows << (64 - SUM_ORIGIN)) for root in roots])


def _spreads(sums: np.ndarray, squares: np.ndarray, rows: int) -> list[int]:
    """n sum(x^2) - sum(x)^2 of each column, exactly: no cancellation, and 0 for a constant column."""
    pairs = zip(sums, squares, strict=True)
    return [rows * to_integer(square) - to_integer(total) ** 2 for total, square in pairs]


def column_ranges(X: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Smallest and largest value of each column of at least one row, and whether it has zeros and ones alone."""
    minimum, maximum = (end.astype(np.float64) + 0.0 for end in (X.min(axis=0), X.max(axis=0)))  # -0.0 becomes 0.0
    binary = np.isin(minimum, (0.0, 1.0)) & np.isin(maximum, (0.0, 1.0))
    for j in np.flatnonzero(binary):
        binary[j] = bool(((X[:, j] == 0) | (X[:, j] == 1)).all())
    return minimum, maximum, binary
