"""Parts that several benchmarks time: a map, a Gram statistic, and plain BLAS beside them."""

from __future__ import annotations

import numpy as np
from scipy.linalg import blas

from streamrf.clocks import Work, seconds_of
from streamrf.kernels import make_kernel
from streamrf.maps.build import build_fourier
from streamrf.maps.fourier import FourierMap
from streamrf.precision import make_precision
from streamrf.scaling.scaling import fit_scaling
from streamrf.statistics.gram import Gram
from streamrf.targets import TargetCoding
from streamrf.threads import Threads


def fourier(D: int, inputs: int, bits: str = "8") -> FourierMap:
    kernel = make_kernel("gaussian", length_scale=5.0)
    return build_fourier("mc", kernel, D, inputs, form="phase", precision=make_precision(bits), seed=0)


def gram(X: np.ndarray, D: int, bits: str, threads: int) -> Gram:
    """The statistic of a pass, for targets between -10 and 10."""
    coding = TargetCoding.regression(np.array([-10.0]), np.array([10.0]))
    return Gram.on_this_machine(fit_scaling("standard", X), fourier(D, X.shape[1], bits), coding, threads)


def ssyrk_seconds(rows: int, D: int, threads: Threads, repeats: int = 12, block: int = 4096) -> float:
    """Time of float32 ssyrk on so many rows, from the best of some blocks."""
    block = min(block, rows)
    Z = np.random.default_rng(1).standard_normal((block, D), dtype=np.float32)
    C = np.zeros((D, D), np.float32, order="F")
    with threads.blas():
        one = min(seconds_of(lambda: blas.ssyrk(1.0, Z.T, beta=1.0, c=C, overwrite_c=1, lower=1), repeats))
    return one * rows / block


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
