"""Quasi-Monte Carlo frequencies (Yang et al. 2014): even points through the kernel's inverse distribution functions.

All are randomised by the seed, so each point is an exact draw and every kind is unbiased. Given a sample of rows, and
a kernel of the Euclidean distance, the coordinates are the sample's principal axes, the widest first: point sets are
most even in their first coordinates, and there the data then varies most.

Halton and Sobol sequences are known. Rank-1 lattices and digital nets are built at draw time for any number of points
in any dimension: Yang et al. used tables of nets, which end at a few dozen dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import scipy

from streamrf.features.fourier import sobol
from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind, evenly
from streamrf.features.fourier.hadamard import transform
from streamrf.support.compiled import inner_kernel, kernel

WIDEST_ROTATION = 2048  # columns; beyond, principal axes cost more than they give
_SOBOL_BITS = 30
_SOBOL_DIMENSIONS = 21_201  # as far as direction numbers have been published
CANDIDATES = 32  # for each coordinate; many more gain nothing
WORK = 2**29  # evaluations of one coordinate of one point that a construction may take: a second or two
TYPICAL_SPREAD = 2.0  # sum of g_j at which the kernel is 1/e
LARGEST_SPREAD = 4.0  # beyond it only pairs of rows that are nearly equal have a kernel value to get right
_QUADRATURE = 256
_SHIFTS = 65
_LEVELS = 7  # bits beyond which two points are as good as equal

Points = Callable[[np.random.Generator, int, np.ndarray], np.ndarray]  # stream, F, spread of each coordinate
Factors = tuple[np.ndarray, np.ndarray]  # at each difference: of v and w, and of v and -w


# -- the four kinds


def principal_axes(request: Draw) -> tuple[np.ndarray, np.ndarray] | None:
    """Variances and unit axes (columns) of the sample, the widest first; None where they are not known or not used."""
    if request.sample is None or len(request.sample) < 2 or not request.kernel.radial or request.d > WIDEST_ROTATION:
        return None
    covariance = np.cov(np.asarray(request.sample, np.float64), rowvar=False).reshape(request.d, request.d)
    variances, axes = np.linalg.eigh(covariance)
    return np.maximum(variances[::-1], 0.0), axes[:, ::-1]


def _frequencies(request: Draw, points: Points, *, half: bool = True) -> Frequencies:
    axes, coordinates = principal_axes(request), request.kernel.uniforms(request.d)
    spread = gap_variances(coordinates, None if axes is None else axes[0], request.kernel.length_scale)
    # what the kernel wants beyond the columns (a norm) gets the first coordinate, the most even one
    U = np.roll(points(request.rng(), request.F, spread), request.d - coordinates, axis=1)
    if half:
        U[:, 0] = 0.5 + 0.5 * U[:, 0]  # w and -w are the same cosine: spend every point on one half space
    W = request.kernel.frequencies(U, request.d)
    return evenly(W if axes is None else W @ axes[1].T)


@Kind("halton", "scrambled Halton sequence", sample="helps")
def draw_halton(request: Draw) -> Frequencies:
    return _frequencies(request, halton_points)


@Kind("sobol", "scrambled Sobol sequence", sample="helps")
def draw_sobol(request: Draw) -> Frequencies:
    return _frequencies(request, sobol_points)


@Kind("lattice", "shifted rank-1 lattice, built for F and d", sample="helps")
def draw_lattice(request: Draw) -> Frequencies:
    return _frequencies(request, lattice_points)


@Kind("digital-net", "shifted digital net, built for F and d", sample="helps")
def draw_digital_net(request: Draw) -> Frequencies:
    """The net is chosen for even functions already: halving the space as well would undo part of it."""
    return _frequencies(request, net_points, half=False)


# -- Latin supercube sampling (Owen 1998): more coordinates than a point set has different ones of


def supercube(points: Points, rng: np.random.Generator, F: int, spread: np.ndarray, group: int) -> np.ndarray:
    """Each group of coordinates has points of its own, in random order.

    F points allow few really different coordinates. Beyond them coordinates become near copies of each other, which is
    worse than independence.
    """
    starts = range(0, len(spread), group)
    parts = [points(rng, F, spread[start : start + group])[rng.permutation(F)] for start in starts]
    return np.concatenate(parts, axis=1)


# -- Halton and Sobol sequences, whose bits depend on our seed alone


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
    if coordinates <= sobol.COORDINATES:
        return sobol.sobol_integers(F, coordinates, _SOBOL_BITS)
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


# -- how even a point set is, for cosines: what lattices and digital nets are chosen by, one coordinate at a time
#
# Take differences x - y with independent normal coordinates of variance g_j (in length scales). Up to a constant, the
# mean squared error of the kernel is then the mean over pairs of frequencies v, w of prod_j exp(-g_j (v_j - w_j)^2 / 2)
# plus prod_j exp(-g_j (v_j + w_j)^2 / 2); the second is there because v and -v are the same cosine. A random shift (or
# digital shift) makes each factor, on average, a function of the difference between two points, so that one sum over
# points is left.


def gap_variances(coordinates: int, variances: np.ndarray | None, length_scale: float) -> np.ndarray:
    """g_j of each coordinate: from the variances of the rows, or the same for all where they are not known."""
    spread = np.full(coordinates, TYPICAL_SPREAD / coordinates)
    if variances is not None and np.any(variances):
        spread[coordinates - len(variances) :] = 2.0 * variances / length_scale**2
    return spread * min(1.0, LARGEST_SPREAD / spread.sum())


def _quantiles(count: int) -> np.ndarray:
    """Normal quantiles at the middles of equal intervals."""
    return scipy.special.ndtri((np.arange(count) + 0.5) / count)


def _both(g: float, v: np.ndarray, w: np.ndarray) -> Factors:
    return np.exp(-0.5 * g * (v - w) ** 2), np.exp(-0.5 * g * (v + w) ** 2)


@lru_cache(maxsize=32)
def shifted_factors(g: float, F: int) -> Factors:
    """Of two uniform points that differ by k/F (mod 1), for k = 0 .. F - 1; interpolated where F is large."""
    shifts = 0.5 * np.linspace(0.0, 1.0, _SHIFTS) ** 2  # they change fastest near 0, and are the same for k and F - k
    u = (np.arange(_QUADRATURE) + 0.5) / _QUADRATURE
    shifted = np.clip((u + shifts[:, None]) % 1.0, 2.0**-54, None)  # 0 has no finite quantile
    tables = (table.mean(axis=1) for table in _both(g, scipy.special.ndtri(u), scipy.special.ndtri(shifted)))
    k = np.arange(F)
    plain, mirrored = (np.interp(np.minimum(k, F - k) / F, shifts, table) for table in tables)
    return plain, mirrored


@lru_cache(maxsize=32)
def dyadic_factors(g: float, bits: int) -> Factors:
    """Of two uniform points that share exactly k leading bits, for k = 0 .. bits - 1, and that share them all."""
    middles, numbers = _quantiles(2**_LEVELS), np.arange(2**_LEVELS)
    shared = np.minimum(_LEVELS - np.frexp(numbers[:, None] ^ numbers)[1], bits).ravel()
    tables = (np.bincount(shared, table.ravel()) / np.bincount(shared) for table in _both(g, middles[:, None], middles))
    plain, mirrored = (table[np.minimum(np.arange(bits + 1), len(table) - 1)] for table in tables)
    return plain, mirrored


# -- rank-1 lattices


def candidates_within_budget(coordinates: int, points: int) -> int:
    """How many candidates to try for each coordinate, so that large constructions still take seconds."""
    return max(1, min(CANDIDATES, WORK // (coordinates * points)))


@inner_kernel
def _lattice_error(z: int, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray) -> float:
    F, k, total = len(plain), 0, 0.0
    for i in range(F):
        total += same[i] * plain[k] + opposite[i] * mirrored[k]
        k += z
        if k >= F:
            k -= F
    return total


@kernel
def _best_generator(
    candidates: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray
) -> int:
    """The candidate that adds least error; the products so far are multiplied by its factors."""
    F, best, chosen = len(plain), np.inf, candidates[0]
    for z in candidates:
        bad = _lattice_error(z, plain, mirrored, same, opposite)
        if bad < best:
            best, chosen = bad, z
    for i in range(F):
        same[i] *= plain[i * chosen % F]
        opposite[i] *= mirrored[i * chosen % F]
    return chosen


def _units(F: int) -> np.ndarray:
    """Numbers without a common factor with F: the generators that give F different values."""
    return np.flatnonzero(np.gcd(np.arange(F), F) == 1)


def _one_lattice(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points {i z / F + shift}, with z chosen component by component."""
    units, tries = _units(F), candidates_within_budget(len(spread), F)
    same, opposite, points = np.ones(F), np.ones(F), np.empty((F, len(spread)))
    for j, g in enumerate(spread):
        z = _best_generator(units[rng.integers(0, len(units), tries)], *shifted_factors(float(g), F), same, opposite)
        points[:, j] = (np.arange(F) * z % F / F + rng.random()) % 1.0
    return points


def lattice_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """F points of a shifted lattice; of several in random order where the coordinates outnumber its generators."""
    return supercube(_one_lattice, rng, F, spread, max(1, len(_units(F)) // 4))


# -- digital nets in base 2: each coordinate's generator matrix is the best of a few random ones


@inner_kernel
def _full_rank(columns: np.ndarray) -> bool:
    """Whether the matrix of these bit columns is invertible, which makes its coordinate evenly stratified."""
    left = columns.copy()
    for i in range(len(left)):
        if left[i] == 0:
            return False
        lowest = left[i] & -left[i]
        for j in range(i + 1, len(left)):
            if left[j] & lowest:
                left[j] ^= left[i]
    return True


@kernel
def _keep_full_rank(columns: np.ndarray, out: np.ndarray) -> int:
    kept = 0
    for i in range(len(columns)):
        if kept < len(out) and _full_rank(columns[i]):
            out[kept] = columns[i]
            kept += 1
    return kept


def _random_generators(rng: np.random.Generator, count: int, bits: int) -> np.ndarray:
    """``count`` uniform invertible bit matrices, as columns; three in ten uniform matrices are."""
    out, kept = np.empty((count, bits), np.int64), 0
    while kept < count:
        kept += _keep_full_rank(rng.integers(1, 2**bits, (4 * (count - kept), bits)), out[kept:])
    return out


@inner_kernel
def _fill_coordinate(columns: np.ndarray, x: np.ndarray) -> None:
    """Coordinate of every point: the generator matrix times the bits of its number."""
    x[0] = 0
    for bit in range(len(columns)):
        size = 1 << bit
        for i in range(size):
            x[size + i] = x[i] ^ columns[bit]


@inner_kernel
def _net_error(x: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray) -> float:
    total = 0.0
    for i in range(len(x)):
        total += same[i] * plain[x[i]] + opposite[i] * mirrored[x[i]]
    return total


@kernel
def _best_net_generator(
    candidates: np.ndarray, plain: np.ndarray, mirrored: np.ndarray, same: np.ndarray, opposite: np.ndarray
) -> np.ndarray:
    """The coordinate that the best candidate gives; the products so far are multiplied by its factors."""
    best, chosen = np.inf, np.zeros(len(plain), np.int64)
    x = np.empty_like(chosen)
    for columns in candidates:
        _fill_coordinate(columns, x)
        bad = _net_error(x, plain, mirrored, same, opposite)
        if bad < best:
            best, chosen[:] = bad, x
    for i in range(len(chosen)):
        same[i] *= plain[chosen[i]]
        opposite[i] *= mirrored[chosen[i]]
    return chosen


def _pairs_at_each_difference(F: int, size: int) -> np.ndarray:
    """How many pairs of the first F points differ, as bits, by each number."""
    taken = (np.arange(size) < F).astype(np.float64)
    squared = transform(taken, np.empty(size))[0] ** 2
    return transform(squared, np.empty(size))[0] / size


def net_points(rng: np.random.Generator, F: int, spread: np.ndarray) -> np.ndarray:
    """The first F points of a net of the next power of two, chosen for those F."""
    bits, coordinates = max(1, (F - 1).bit_length()), len(spread)
    size = 2**bits
    leading_zeros = bits - np.frexp(np.arange(size))[1]
    tries = candidates_within_budget(coordinates, size)
    same, opposite = _pairs_at_each_difference(F, size), _pairs_at_each_difference(F, size)
    points = np.empty((F, coordinates))
    for j, g in enumerate(spread):
        plain, mirrored = (table[leading_zeros] for table in dyadic_factors(float(g), bits))
        x = _best_net_generator(_random_generators(rng, tries, bits), plain, mirrored, same, opposite)[:F]
        points[:, j] = ((x ^ rng.integers(0, size)) + rng.random(F)) / size
    return points
