"""One second of measuring: how fast this machine maps, multiplies and factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

from streamrf.features.fourier.landmarks import LandmarkMap
from streamrf.features.fourier.map import PackedCosines
from streamrf.features.precision import LIMITS, make_precision
from streamrf.statistics.gram_kernels import Layout, choose_product
from streamrf.support.threads import Threads, seconds_of

READ_RATE = 300e6  # bytes a second, assumed: planning reads no rows


@dataclass(frozen=True)
class Rates:
    """Work done in a second."""

    projection: float  # products of an input with a frequency
    cosines: float  # features, the projection apart
    gram: float  # products counted in the full square: rows * D^2
    factor: float  # floating-point operations of a Cholesky factorisation, counted as D^3 / 3
    read: float = READ_RATE

    def features(self, d: int) -> float:
        """Features a second from d inputs."""
        return 1.0 / (1.0 / self.cosines + d / self.projection)


def measure_rates(bits: str, threads: Threads) -> Rates:
    """Short runs of the real kernels; the compilers' time is left out."""
    narrow, wide = _map_seconds(4, threads), _map_seconds(132, threads)
    values = 1024 * 960
    projection = 128 * values / max(wide - narrow, 1e-9)
    cosines = values / max(narrow - 4 * values / projection, 1e-9)
    return Rates(projection, cosines, _gram_rate(bits, threads), _factor_rate(threads))


def _best(work: Callable[[], object], repeats: int = 3) -> float:
    return min(seconds_of(work, repeats))


def _map_seconds(d: int, threads: Threads) -> float:
    rng = np.random.default_rng(0)
    packed = PackedCosines.pack(rng.standard_normal((960, d)), np.zeros(960), np.float32)
    X, out = rng.standard_normal((1024, d)).astype(np.float32), np.empty((1024, packed.padded), np.int16)
    return _best(lambda: packed.compute(X, 127, out, threads))


@lru_cache(maxsize=4)
def landmarks_a_second(bits: str, threads: int, d: int) -> float:
    """Values of a kernel at landmarks, of rows of d inputs: an exponential each, some of them in double precision."""
    precision, rng = make_precision("12" if bits == "auto" else bits), np.random.default_rng(0)
    map = LandmarkMap("gaussian", rng.standard_normal((960, d)), np.ones(d), precision)
    X, out = rng.standard_normal((1024, d)), map.block(1024, precision.features)
    with Threads(threads) as pool:
        return 1024 * 960 / _best(lambda: map.compute(X, out, pool))


def _gram_rate(bits: str, threads: Threads) -> float:
    precision: int | str = int(bits) if bits.isdigit() else bits
    product = choose_product(precision, threads.count)
    layout = Layout(1536)
    limit = LIMITS.get(precision, 1) if isinstance(precision, int) else 1
    Z = np.random.default_rng(0).integers(-limit, limit + 1, (2048, layout.size)).astype(product.dtype)
    totals = np.zeros(layout.length, np.int64 if isinstance(precision, int) else np.float64)
    return len(Z) * layout.size**2 / _best(lambda: product.add(Z, layout, totals, threads), 2)


def _factor_rate(threads: Threads) -> float:
    n = 1200
    A = np.asfortranarray(np.eye(n) + 1.0 / n)
    with threads.blas():
        seconds = _best(lambda: scipy.linalg.lapack.dpotrf(A, lower=1, overwrite_a=0))
    return n**3 / 3.0 / seconds


@lru_cache(maxsize=4)
def rates_of_this_machine(bits: str, threads: int) -> Rates:
    """Measured once, in about a second; twelve bits stand for a precision that is not chosen yet."""
    with Threads(threads) as pool:
        return measure_rates("12" if bits == "auto" else bits, pool)
