"""Kernels by their profile: functions of a sum of squares, or of absolute differences, for landmarks and exact fits.

Here are small matrices in float64, for fits to a sample; ``fourier/landmarks`` has the compiled loops of a run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamrf.support.compiled import kernel


@dataclass(frozen=True)
class Profile:
    """(1 + a s + b s^2) exp(-s), where s is a factor times the sum of |x - c|, or of (x - c)^2, or the root of that."""

    factor: float
    a: float = 0.0
    b: float = 0.0
    norm: int = 2
    root: bool = True


PROFILES = {
    "gaussian": Profile(0.5, root=False),
    "laplacian": Profile(1.0, norm=1, root=False),
    "matern12": Profile(1.0),
    "matern32": Profile(3.0, 1.0),
    "matern52": Profile(5.0, 1.0, 1 / 3),
}


def pair_sums(kernel: str, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """(n, m): sums of squares of a - b, or of absolute values where the kernel has that norm; for small fits."""
    if PROFILES[kernel].norm == 1:
        sums = np.zeros((len(A), len(B)))
        _add_absolute(np.ascontiguousarray(A), np.ascontiguousarray(B.T), sums)
        return sums
    squares = (A * A).sum(axis=1)[:, None] + (B * B).sum(axis=1) - 2.0 * (A @ B.T)
    return np.maximum(squares, 0.0, out=squares)


@kernel
def _add_absolute(A: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Of rows A (n, d) and columns (d, m); arrays are made outside, which takes the compiler a quarter of the time."""
    for i in range(len(A)):
        line = out[i]
        for k in range(A.shape[1]):
            a, column = A[i, k], columns[k]
            for j in range(len(line)):
                line[j] += abs(a - column[j])


def profile_values(kernel: str, sums: np.ndarray, length_scale: float) -> np.ndarray:
    """The kernel of such sums."""
    profile = PROFILES[kernel]
    s = sums * (profile.factor / length_scale**profile.norm)
    if profile.root:
        np.sqrt(s, out=s)
    values = np.exp(-s)
    if profile.a or profile.b:
        values *= 1 + s * (profile.a + s * profile.b)
    return values
