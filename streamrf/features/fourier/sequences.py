"""Randomised Halton and Sobol sequences in any dimension; the bits depend on our seed alone."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.supercube import supercube

_SOBOL_BITS = 30
_SOBOL_DIMENSIONS = 21_201  # as far as direction numbers have been published


def first_primes(count: int) -> np.ndarray:
    """The first ``count`` primes, by a sieve up to a bound that holds them (Rosser)."""
    limit = 15 if count < 6 else int(count * (np.log(count) + np.log(np.log(count)))) + 1
    sieve = np.ones(limit + 1, bool)
    sieve[:2] = False
    for p in range(2, int(limit**0.5) + 1):
        if sieve[p]:
            sieve[p * p :: p] = False
    return np.flatnonzero(sieve)[:count]


def _scrambled_inverse(rng: np.random.Generator, F: int, base: int) -> np.ndarray:
    """0 .. F - 1 with their digits in this base permuted at random and mirrored at the point, the rest random."""
    rest, value, unit = np.arange(F), np.zeros(F), 1.0
    while unit * F > 1.0:
        unit /= base
        digits = rng.choice(base, min(base, F), replace=False)  # of a random permutation, those that occur
        value += unit * digits[rest % base]
        rest //= base
    return value + unit * rng.random(F)


def halton_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """The first F points of a Halton sequence with randomly permuted digits (Owen 2017)."""
    return np.stack([_scrambled_inverse(rng, F, int(base)) for base in first_primes(len(spread))], axis=1)


def _sobol_integers(F: int, coordinates: int) -> np.ndarray:
    """The first F Sobol points as integers of 30 bits."""
    from scipy.stats import qmc  # slow to import

    points = qmc.Sobol(coordinates, scramble=False, bits=_SOBOL_BITS).random_base2((F - 1).bit_length())
    return (points[:F] * 2.0**_SOBOL_BITS).astype(np.int64)


def _scrambled(rng: np.random.Generator, points: np.ndarray) -> np.ndarray:
    """Integers to uniforms, by a random lower triangular bit matrix per coordinate (Matousek) and a digital shift."""
    scrambled = np.zeros_like(points) ^ rng.integers(0, 2**_SOBOL_BITS, points.shape[1])
    used = (len(points) - 1).bit_length()  # leading bits in which so few points differ
    for bit in range(_SOBOL_BITS - 1, _SOBOL_BITS - 1 - used, -1):
        images = (1 << bit) + rng.integers(0, 1 << bit, points.shape[1])
        scrambled ^= (points >> bit & 1) * images
    return (scrambled + rng.random(points.shape)) / 2.0**_SOBOL_BITS


def sobol_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """The first F points of a Sobol sequence, linearly scrambled and digitally shifted.

    A quarter as many coordinates as points are taken from one sequence, which also makes any dimension possible.
    """
    group = min(_SOBOL_DIMENSIONS, max(1, (1 << (F - 1).bit_length()) // 4), len(spread))
    integers = _sobol_integers(F, group)

    def scrambled(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
        return _scrambled(rng, integers[:, : len(spread)])

    return supercube(scrambled, rng, F, spread, group)
