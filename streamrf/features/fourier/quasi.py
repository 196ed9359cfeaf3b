"""Quasi-Monte Carlo frequencies (Yang et al. 2014): even points through the kernel's inverse distribution functions.

All are randomised by the seed, so each point is an exact draw and every kind is unbiased. Given a sample of rows, and
a kernel of the Euclidean distance, the coordinates are the sample's principal axes, the widest first: point sets are
most even in their first coordinates, and there the data then varies most.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.digital_net import net_points
from streamrf.features.fourier.discrepancy import gap_variances
from streamrf.features.fourier.frequencies import Draw, Frequencies, evenly
from streamrf.features.fourier.lattice import lattice_points
from streamrf.features.fourier.sequences import halton_points, sobol_points
from streamrf.features.fourier.supercube import Points

WIDEST_ROTATION = 2048  # columns; beyond, principal axes cost more than they give


def principal_axes(request: Draw) -> tuple[np.ndarray, np.ndarray] | None:
    """Variances and unit axes (columns) of the sample, the widest first; None where they are not known or not used."""
    if request.sample is None or len(request.sample) < 2 or not request.kernel.radial or request.d > WIDEST_ROTATION:
        return None
    covariance = np.cov(np.asarray(request.sample, np.float64), rowvar=False).reshape(request.d, request.d)
    variances, axes = np.linalg.eigh(covariance)
    return np.maximum(variances[::-1], 0.0), axes[:, ::-1]


def _frequencies(request: Draw, kind: str, points: Points, *, half: bool) -> Frequencies:
    axes, coordinates = principal_axes(request), request.kernel.uniforms(request.d)
    spread = gap_variances(coordinates, None if axes is None else axes[0], request.kernel.length_scale)
    # what the kernel wants beyond the columns (a norm) gets the first coordinate, the most even one
    U = np.roll(points(request.rng(), request.F, spread), request.d - coordinates, axis=1)
    if half:
        U[:, 0] = 0.5 + 0.5 * U[:, 0]  # w and -w are the same cosine: spend every point on one half space
    W = request.kernel.frequencies(U, request.d)
    return evenly(W if axes is None else W @ axes[1].T, kind)


def draw_halton(request: Draw) -> Frequencies:
    return _frequencies(request, "halton", halton_points, half=True)


def draw_sobol(request: Draw) -> Frequencies:
    return _frequencies(request, "sobol", sobol_points, half=True)


def draw_lattice(request: Draw) -> Frequencies:
    return _frequencies(request, "lattice", lattice_points, half=True)


def draw_digital_net(request: Draw) -> Frequencies:
    """The net is chosen for even functions already: halving the space as well would undo part of it."""
    return _frequencies(request, "digital-net", net_points, half=False)
