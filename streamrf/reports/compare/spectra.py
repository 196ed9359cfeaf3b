"""Where the frequencies of maps are and what they weigh, in two dimensions (Figure 1 of Li et al. 2019)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from streamrf.features.fourier import kind_of
from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import fit_weights
from streamrf.features.learned.landmarks import Pairs
from streamrf.recipe import BINNING
from streamrf.support.errors import InputError

if TYPE_CHECKING:
    from streamrf.reports.compare.maps import Bench

GRID = "grid"
GRID_SIDE, GRID_ROWS = 25, 400
REACH = 0.97  # of the draws of a column lie inside the grid
SHOWN_ROWS = 1000


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Frequencies of one map along two axes, (F, 2), and their weights times their number: 1 on the average."""

    name: str
    W: np.ndarray
    weights: np.ndarray


@dataclass(frozen=True, eq=False)
class Spectra:
    """Rows and frequencies along the same two axes."""

    rows: np.ndarray  # (n, 2)
    axes: str
    spectra: list[Spectrum]
    kernel: Kernel


def spectra(bench: Bench, kinds: Sequence[str], D: int, seed: int) -> Spectra:
    """Of each map; in two columns also the weights that rows give to frequencies on a grid, as in the paper."""
    X = bench.scaling.transform(bench.fitted.X, np.float64)
    if X.shape[1] < 2:
        raise InputError("frequencies are drawn along two axes, and the inputs have one column: compare errors instead")
    plane, axes = two_axes(X)
    found = []
    for kind in kinds:
        if kind == BINNING:  # it has none
            continue
        kind_of(kind)
        drawn = bench.build(kind, D, seed).frequencies
        found.append(Spectrum(kind, drawn.dense() @ plane, drawn.weights * len(drawn)))
    if not found:
        raise InputError("random binning has no frequencies to draw: name other maps with --maps")
    if X.shape[1] == 2:
        found.append(grid_spectrum(bench.kernel, X[:GRID_ROWS], seed))
    return Spectra(X[:SHOWN_ROWS] @ plane, axes, found, bench.kernel)


def two_axes(X: np.ndarray) -> tuple[np.ndarray, str]:
    """Two orthogonal axes (columns) and what they are: the columns themselves, or the widest two directions of rows."""
    if X.shape[1] == 2:
        return np.eye(2), "columns"
    _, vectors = np.linalg.eigh(np.cov(X, rowvar=False))
    return vectors[:, :-3:-1], "principal axes"


def grid_spectrum(kernel: Kernel, X: np.ndarray, seed: int) -> Spectrum:
    """The best weights of frequencies on a grid, for the kernel between these rows."""
    draws = kernel.sample(np.random.default_rng(seed), 2000, 2)
    side = np.linspace(-1.0, 1.0, GRID_SIDE) * np.quantile(np.abs(draws), REACH)
    W = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    weights = fit_weights(Pairs.within(kernel, X), W)
    return Spectrum(GRID, W, weights * len(W))
