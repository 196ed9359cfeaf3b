"""Hashes of rows of numbers and of texts, compiled. Loading the compiler takes memory and time: import this late."""

from __future__ import annotations

import numpy as np

from streamrf.support.compiled import inner_kernel, kernel


@kernel
def hash_bytes(starts: np.ndarray, data: np.ndarray) -> np.ndarray:
    """FNV-1a of the bytes from each start to the next, and a finaliser."""
    out = np.empty(len(starts) - 1, np.uint64)
    for i in range(len(out)):
        h = np.uint64(0xCBF29CE484222325)
        for j in range(starts[i], starts[i + 1]):
            h = (h ^ np.uint64(data[j])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        out[i] = h ^ (h >> np.uint64(31))
    return out


@kernel
def hash_values(X: np.ndarray, Y: np.ndarray, factors: np.ndarray, out: np.ndarray, plain: bool) -> None:
    """Two products of 32 bits for each value, which run in SIMD, and one finaliser of splitmix64 for each row.

    With ``plain``, zeros of both signs are one value, and so are all NaN.
    """
    d = X.shape[1]
    for i in range(X.shape[0]):
        h = np.uint64(0)
        for j in range(d):
            h += _product(_plain(X[i, j]) if plain else X[i, j], factors[0, j], factors[1, j])
        for k in range(Y.shape[1]):
            h += _product(Y[i, k], factors[0, d + k], factors[1, d + k])
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        out[i] = h ^ (h >> np.uint64(31))


@inner_kernel
def _plain(value: float) -> float:
    return value + 0.0 if value == value else np.nan


@inner_kernel
def _product(value: float, lower: np.uint32, upper: np.uint32) -> np.uint64:
    """Of the value as a float64, so that equal numbers of any type are equal."""
    bits = np.uint64(np.float64(value).view(np.int64))
    return (bits & np.uint64(0xFFFFFFFF)) * np.uint64(lower) + (bits >> np.uint64(32)) * np.uint64(upper)
