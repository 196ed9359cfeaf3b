"""Parts that several benchmarks time: a map, a Gram statistic, and plain BLAS beside them."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas

from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.gram import Gram
from streamrf.support.threads import Threads, Work, seconds_of


def fourier(D: int, inputs: int, bits: str = "8") -> FourierMap:
    kernel = make_kernel("gaussian", length_scale=5.0)
    return build_fourier("mc", kernel, D, inputs, form="phase", precision=make_precision(bits), seed=0)


def gram(X: np.ndarray, D: int, bits: str, threads: int) -> Gram:
    """The statistic of a pass, for targets between -10 and 10."""
    coding = TargetCoding.regression(np.array([-10.0]), np.array([10.0]))
    return Gram.on_this_machine(fit_scaling("standard", X), fourier(D, X.shape[1], bits), coding, threads)


def syrk(name: str, Z: np.ndarray, threads: Threads) -> Work:
    """Z'Z by BLAS, added to in place: the best that floats can do."""
    G = np.zeros((Z.shape[1], Z.shape[1]), Z.dtype, order="F")

    def work() -> None:
        with threads.blas():
            getattr(blas, name)(1.0, Z.T, beta=1.0, c=G, overwrite_c=1, lower=1)

    return work


def ssyrk_seconds(rows: int, D: int, threads: Threads, repeats: int = 12, block: int = 4096) -> float:
    """Time of float32 ssyrk on so many rows, from the best of some blocks."""
    Z = np.random.default_rng(1).standard_normal((min(block, rows), D), dtype=np.float32)
    return min(seconds_of(syrk("ssyrk", Z, threads), repeats)) * rows / len(Z)


def bare_map(X: np.ndarray, D: int, block: int, *, predict: bool = False) -> Work:
    """A loop of sgemm and cosine over rows in memory; with ``predict`` features meet their weights too."""
    rng = np.random.default_rng(0)
    W, b = rng.standard_normal((X.shape[1], D)).astype(np.float32), rng.random(D).astype(np.float32)

    def work() -> None:
        for start in range(0, len(X), block):
            Z = X[start : start + block] @ W
            Z += b
            np.cos(Z, out=Z)
            if predict:
                _ = Z @ b

    return work
