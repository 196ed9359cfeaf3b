"""What D an error of epsilon asks for by theory, beside the error that is measured on a sample of rows."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from streamrf.data.sampling import draw_sample
from streamrf.data.source import Source
from streamrf.features.base import FeatureMap
from streamrf.features.build import build_fourier
from streamrf.features.fourier import KINDS, kind_of
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.recipe import AUTO, Recipe
from streamrf.reports.compare import bounds
from streamrf.reports.compare.kernel_error import approximate_kernel
from streamrf.support.errors import InputError
from streamrf.support.threads import Threads
from streamrf.training.pilot.fourier import defaults, sample_rows

FITTED_ROWS = 2000  # rows that a map may look at, as in training
MEASURED_ROWS, FEWEST_MEASURED = 1000, 100
FEATURE_BYTES = 2**27  # of the rows that are measured on, at most


@dataclass(frozen=True)
class Promise:
    """What a theorem asks of D, and what error it allows at the D of the recipe; or why it says nothing."""

    D: int | None
    epsilon_at_D: float | None
    reason: str | None = None


@dataclass(frozen=True)
class Measured:
    """Errors of one draw of the map, over all pairs of some rows."""

    rows: int
    relative: float  # |K~ - K| / |K| in the Frobenius norm
    largest: float  # of one pair
    share_above_epsilon: float  # of pairs


@dataclass(frozen=True)
class Assessment:
    """Theory and measurement side by side, for one recipe."""

    epsilon: float
    delta: float
    D: int
    map: str
    form: str
    kernel: str
    length_scale: float
    scaling: str
    sample_rows: int
    diameter: float  # of the ball around the sample's mean that holds the sample, as it is scaled
    claim_1: Promise
    hoeffding: Promise
    measured: Measured

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def assess(source: Source, recipe: Recipe, epsilon: float, delta: float, threads: Threads) -> Assessment:
    """Read a sample of rows, settle what the recipe leaves open as ``--pilot none`` does, ask and measure."""
    _check_map(recipe.map)
    hoeffding = Promise(bounds.features_pointwise(epsilon, delta), bounds.epsilon_pointwise(recipe.D, delta))
    rows = sample_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, recipe)
    sample = draw_sample(source, rows, recipe.seed, recipe.nan)
    recipe = defaults(recipe, sample.X)
    X = fit_scaling(recipe.scaling, sample.X).transform(sample.X, np.float64)
    kernel = make_kernel(recipe.kernel, length_scale=recipe.length_scale)
    return Assessment(
        epsilon, delta, recipe.D, recipe.map, recipe.form, kernel.label, kernel.length_scale, recipe.scaling, len(X),
        diameter := ball_diameter(X), claim_1(kernel, recipe.D, X.shape[1], diameter, epsilon, delta), hoeffding,
        _measure(recipe, kernel, X, epsilon, threads),
    )  # fmt: skip


def _check_map(kind: str) -> None:
    if kind != AUTO and (kind not in KINDS or kind_of(kind).targets):
        fine = ", ".join(name for name in KINDS if not kind_of(name).targets)
        raise InputError(f"--epsilon: the {kind} map does not draw from the kernel's spectral measure: choose {fine}")


def ball_diameter(X: np.ndarray) -> float:
    """Twice the largest distance of a row from the mean: no two rows are further apart."""
    return 2.0 * float(np.linalg.norm(X - X.mean(axis=0), axis=1).max())


def claim_1(kernel: Kernel, D: int, d: int, diameter: float, epsilon: float, delta: float) -> Promise:
    """Rahimi and Recht: the error of all pairs of points at once."""
    sigma = math.sqrt(kernel.second_moment(d))
    if not math.isfinite(sigma):
        return Promise(None, None, f"the spectral measure of the {kernel.label} kernel has no second moment")
    wanted = bounds.features_uniform(epsilon, delta, d, diameter, sigma)
    return Promise(wanted, bounds.epsilon_uniform(D, delta, d, diameter, sigma))


def _measure(recipe: Recipe, kernel: Kernel, X: np.ndarray, epsilon: float, threads: Threads) -> Measured:
    """On rows that a map which looks at rows has not seen, where there are enough of them."""
    count = int(np.clip(FEATURE_BYTES // (2 * recipe.D), FEWEST_MEASURED, MEASURED_ROWS))
    unseen = X[-min(count, max(2, len(X) // 2)) :]
    map = _build(recipe, kernel, X[: max(2, min(FITTED_ROWS, len(X) - len(unseen)))])
    K = kernel(unseen)
    gap = np.abs(approximate_kernel(map, unseen.astype(map.precision.inputs), threads) - K)
    relative = float(np.linalg.norm(gap) / np.linalg.norm(K))
    return Measured(len(unseen), relative, float(gap.max()), float((gap > epsilon).mean()))


def _build(recipe: Recipe, kernel: Kernel, sample: np.ndarray) -> FeatureMap:
    return build_fourier(
        recipe.map, kernel, recipe.D, sample.shape[1], form=recipe.form, precision=make_precision(recipe.bits),
        seed=recipe.seed, sample=sample,
    )  # fmt: skip
