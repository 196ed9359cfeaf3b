"""Orthogonal random features (Yu et al. 2016): blocks of d orthogonal directions, norms of the kernel's radial law."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, evenly, need_radial


def random_frame(rng: np.random.Generator, d: int, count: int) -> np.ndarray:
    """``count`` <= d uniform orthonormal rows: QR of a Gaussian matrix, with the signs that make it unique."""
    Q, R = np.linalg.qr(rng.standard_normal((d, count)))
    return (Q * np.where(np.diag(R) < 0, -1.0, 1.0)).T


def directions(rng: np.random.Generator, F: int, d: int) -> np.ndarray:
    """F uniform unit vectors, orthogonal within each block of d."""
    return np.concatenate([random_frame(rng, d, min(d, F - start)) for start in range(0, F, d)])


def draw_orthogonal(request: Draw) -> Frequencies:
    need_radial("orthogonal", request.kernel)
    rng = request.rng()
    radii = request.kernel.radii(rng.random(request.F), request.d)
    return evenly(directions(rng, request.F, request.d) * radii[:, None], "orthogonal")
