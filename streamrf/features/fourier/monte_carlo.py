"""Random draws of the spectral measure: independent, in orthogonal blocks, and by fast structured factors.

Independent draws are those of Rahimi and Recht (2007). Orthogonal features (Yu et al. 2016) have blocks of d orthogonal
directions, and norms of the kernel's radial law. Their structured form and Fastfood (Le, Sarlos and Smola 2013) replace
the matrix of directions by signs and Hadamard transforms.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind, evenly, uniform_weights
from streamrf.features.fourier.hadamard import StructuredProjection, padded_length

SHORTEST = 64  # below it three rounds of signs reach too few directions, and sorf is biased


@Kind("mc", "independent draws of the spectral measure (Rahimi and Recht)")
def draw_mc(request: Draw) -> Frequencies:
    return evenly(request.kernel.sample(request.rng(), request.F, request.d))


def random_frame(rng: np.random.Generator, d: int, count: int) -> np.ndarray:
    """``count`` <= d uniform orthonormal rows: QR of a Gaussian matrix, with the signs that make it unique."""
    Q, R = np.linalg.qr(rng.standard_normal((d, count)))
    return (Q * np.where(np.diag(R) < 0, -1.0, 1.0)).T


def directions(rng: np.random.Generator, F: int, d: int) -> np.ndarray:
    """F uniform unit vectors, orthogonal within each block of d."""
    return np.concatenate([random_frame(rng, d, min(d, F - start)) for start in range(0, F, d)])


@Kind("orthogonal", "blocks of orthogonal directions", radial=True)
def draw_orthogonal(request: Draw) -> Frequencies:
    rng = request.rng()
    radii = request.kernel.radii(rng.random(request.F), request.d)
    return evenly(directions(rng, request.F, request.d) * radii[:, None])


def orthogonal_or_independent(request: Draw) -> np.ndarray:
    """What a fit begins with, (F, d): orthogonal frequencies where the kernel has them, else independent ones."""
    return (draw_orthogonal if request.kernel.radial else draw_mc)(request).dense()


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (1 - 2 * rng.integers(0, 2, shape)).astype(np.float32)


@Kind("sorf", "orthogonal by Hadamard transforms and signs, fast", radial=True, structured=True)
def draw_sorf(request: Draw) -> Frequencies:
    """H D1 H D2 H D3 with random signs: orthogonal rows of nearly uniform direction, and norms of the radial law."""
    n, rng = max(SHORTEST, padded_length(request.d)), request.rng()
    blocks = -(-request.F // n)
    signs = _signs(rng, (blocks, 3, n))
    scale = request.kernel.radii(rng.random(request.F), n) / float(n) ** 1.5
    factors = StructuredProjection(request.d, signs, np.zeros((blocks, 0), np.int32), scale)
    return Frequencies(None, uniform_weights(request.F), factors)


@Kind("fastfood", "Hadamard transforms and a Gaussian diagonal, fast", radial=True, structured=True)
def draw_fastfood(request: Draw) -> Frequencies:
    """S H G P H B: random signs, a permutation, a Gaussian diagonal, and norms that follow the kernel's radial law.

    Each row is in a uniform direction, so each is an exact draw; rows of one block depend on each other.
    """
    n, rng = padded_length(request.d), request.rng()
    blocks = -(-request.F // n)
    signs, gauss = _signs(rng, (blocks, n)), rng.standard_normal((blocks, n)).astype(np.float32)
    permutations = np.stack([rng.permutation(n) for _ in range(blocks)]).astype(np.int32)
    radii = request.kernel.radii(rng.random(request.F), n)
    norms = np.sqrt(n * (gauss.astype(np.float64) ** 2).sum(axis=1))  # of every row of its block
    scale = radii / np.repeat(norms, n)[: request.F]
    factors = StructuredProjection(request.d, np.stack([signs, gauss], axis=1), permutations, scale)
    return Frequencies(None, uniform_weights(request.F), factors)
