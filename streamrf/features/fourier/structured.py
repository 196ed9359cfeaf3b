"""Fastfood (Le, Sarlos and Smola 2013) and structured orthogonal features (Yu et al. 2016)."""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, need_radial, uniform_weights
from streamrf.features.fourier.hadamard import padded_length
from streamrf.features.fourier.projection import StructuredProjection

SHORTEST = 64  # below it three rounds of signs reach too few directions, and sorf is biased


def _signs(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return (1 - 2 * rng.integers(0, 2, shape)).astype(np.float32)


def _structured(request: Draw, kind: str, factors: StructuredProjection) -> Frequencies:
    return Frequencies(None, uniform_weights(request.F), kind, factors)


def draw_fastfood(request: Draw) -> Frequencies:
    """S H G P H B: random signs, a permutation, a Gaussian diagonal, and norms that follow the kernel's radial law.

    Each row is in a uniform direction, so each is an exact draw; rows of one block depend on each other.
    """
    need_radial("fastfood", request.kernel)
    n, rng = padded_length(request.d), request.rng()
    blocks = -(-request.F // n)
    signs, gauss = _signs(rng, (blocks, n)), rng.standard_normal((blocks, n)).astype(np.float32)
    permutations = np.stack([rng.permutation(n) for _ in range(blocks)]).astype(np.int32)
    radii = request.kernel.radii(rng.random(request.F), n)
    norms = np.sqrt(n * (gauss.astype(np.float64) ** 2).sum(axis=1))  # of every row of its block
    scale = radii / np.repeat(norms, n)[: request.F]
    factors = StructuredProjection(request.d, np.stack([signs, gauss], axis=1), permutations, scale)
    return _structured(request, "fastfood", factors)


def draw_sorf(request: Draw) -> Frequencies:
    """H D1 H D2 H D3 with random signs: orthogonal rows of nearly uniform direction, and norms of the radial law."""
    need_radial("sorf", request.kernel)
    n, rng = max(SHORTEST, padded_length(request.d)), request.rng()
    blocks = -(-request.F // n)
    signs = _signs(rng, (blocks, 3, n))
    scale = request.kernel.radii(rng.random(request.F), n) / float(n) ** 1.5
    factors = StructuredProjection(request.d, signs, np.zeros((blocks, 0), np.int32), scale)
    return _structured(request, "sorf", factors)
