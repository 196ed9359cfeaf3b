"""How many random features an error bound asks for (Rahimi and Recht 2007, Claim 1), and the error that is measured.

Both bounds are for independent draws, one cosine at a random phase each; pairs of a cosine and a sine count as two.
They are upper bounds and generous: measured errors are many times smaller.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

import numpy as np
import scipy.linalg as sla
from scipy.optimize import brentq

from streamrf.data.screening import draw_sample
from streamrf.data.source import Source
from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import MAX_BITS, BinningMap
from streamrf.features.fourier import KINDS, kind_of
from streamrf.features.kernels import Kernel, make_kernel
from streamrf.features.pipeline import build_fourier
from streamrf.features.precision import make_precision
from streamrf.features.scaling_fits import fit_scaling
from streamrf.recipe import AUTO, Recipe
from streamrf.support.compiled import kernel
from streamrf.support.errors import InputError
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import sample_rows
from streamrf.training.pilot.defaults import defaults

_COLUMNS = 1024  # features that are in float64 at once


def approximate_kernel(map: FeatureMap, X: np.ndarray, threads: Threads) -> np.ndarray:
    """z(x)'z(y) for all pairs of scaled rows, from the features that training would use."""
    features = feature_block(map, len(X))
    map.compute(X, features, threads)
    K = np.zeros((len(X), len(X)))
    with threads.blas():
        for first in range(0, map.n_features, _COLUMNS):
            part = slice(first, min(first + _COLUMNS, map.n_features))
            z = features[:, part] * map.amplitudes[part]
            K += z @ z.T
    return K


def feature_block(map: FeatureMap, rows: int) -> np.ndarray:
    """An uninitialised block for the features of this many rows, in a type that holds them."""
    return map.block(rows, map.precision.features)


def relative_error(map: FeatureMap, X: np.ndarray, K: np.ndarray, threads: Threads) -> float:
    """|K~ - K| / |K| in the Frobenius norm, over all pairs of scaled rows X, whose exact kernel is K."""
    return relative_gap(approximate_kernel(map, X, threads), K)


def relative_gap(approximate: np.ndarray, K: np.ndarray) -> float:
    """The same for a given approximation, which is overwritten."""
    approximate -= K
    return float(np.linalg.norm(approximate) / np.linalg.norm(K))


# -- random binning


def draw_grids(kernel: Kernel, d: int, grids: int, seed: int) -> BinningMap:
    """Grids whose cells do not collide: all bits of the hash tell them apart."""
    return BinningMap.draw(kernel, d, grids, MAX_BITS, seed)


def shared_grids(map: BinningMap, X: np.ndarray, Y: np.ndarray, threads: Threads) -> np.ndarray:
    """(n, m): the share of grids in which a row of X and one of Y fall into the same cell."""
    mine, theirs = (np.ascontiguousarray(map.keys(rows, threads).T) for rows in (X, Y))
    out = np.empty((len(X), len(Y)))
    step = max(1, -(-len(X) // (4 * threads.count)))

    def rows(first: int) -> None:
        _count(mine[first : first + step], theirs, out[first : first + step])

    threads.each(rows, range(0, len(X), step))
    return out / map.grids


@kernel
def _count(mine: np.ndarray, theirs: np.ndarray, out: np.ndarray) -> None:
    for i in range(len(mine)):
        for j in range(len(theirs)):
            same = 0
            for p in range(mine.shape[1]):
                same += mine[i, p] == theirs[j, p]
            out[i, j] = same


def dual_scores(K: np.ndarray, across: np.ndarray, y: np.ndarray, ridges: tuple[float, ...]) -> np.ndarray:
    """(unseen rows, lambdas, outputs) of ridge fits with kernel K (n, n) among the rows and ``across`` (unseen, n)."""
    n, mean = len(K), K.mean(axis=0)
    centred = K - mean - mean[:, None] + mean.mean()
    beside = across - across.mean(axis=1, keepdims=True) - mean + mean.mean()
    scores = np.empty((len(across), len(ridges), y.shape[1]))
    for number, ridge in enumerate(ridges):
        system = centred / n
        system.flat[:: n + 1] += ridge
        factor = sla.cho_factor(system, lower=True, overwrite_a=True, check_finite=False)
        scores[:, number] = y.mean(axis=0) + beside @ sla.cho_solve(factor, (y - y.mean(axis=0)) / n)
    return scores


FITTED_ROWS = 2000  # rows that a map may be fitted to, as in training
MEASURED_ROWS, FEWEST_MEASURED = 1000, 100
FEATURE_BYTES = 2**27  # at most, for the features of the rows that are measured
_POINTWISE = {"phase": 8.0, "pairs": 4.0}  # what divides D epsilon^2 in the exponent of Hoeffding's inequality
_TINIEST, _HUGEST = 1e-12, 1e12  # errors between which a bound is inverted


def _check(epsilon: float, delta: float) -> None:
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InputError(f"`epsilon` must be a positive number, not {epsilon}")
    if not 0 < delta < 1:
        raise InputError(f"`delta` must be a probability between 0 and 1, not {delta}")


def divisor_uniform(d: int, form: str) -> float:
    """What divides D epsilon^2 in the exponent of Claim 1: docs/comparing-maps.md derives it.

    Pairs are a mean of D / 2 cosines of x - y. Phases are a mean of D products in [-2, 2] that depend on x and on y, so
    the anchors must cover 2 d dimensions. The 4 (d + 2) that the paper prints is too small for either.
    """
    return 8.0 * (d + 2) if form == "pairs" else 32.0 * (d + 1)


def log_failure_uniform(D: float, epsilon: float, d: int, diameter: float, sigma: float, form: str = "phase") -> float:
    """Log of 2^8 (sigma diameter / epsilon)^2 exp(-D epsilon^2 / divisor): Claim 1; above 0 it says nothing."""
    return 8 * math.log(2) + 2 * math.log(sigma * diameter / epsilon) - D * epsilon**2 / divisor_uniform(d, form)


def features_uniform(epsilon: float, delta: float, d: int, diameter: float, sigma: float, form: str = "phase") -> int:
    """The smallest D for which sup |z(x)'z(y) - k(x, y)| over a set of this diameter is below epsilon, but for delta.

    ``sigma`` is the root of the spectral measure's second moment E[w'w].
    """
    _check(epsilon, delta)
    if not math.isfinite(sigma):
        raise InputError("Claim 1 needs a finite second moment of the spectral measure: use features_pointwise")
    if sigma * diameter == 0:
        return 1
    excess = log_failure_uniform(0, epsilon, d, diameter, sigma) - math.log(delta)
    return max(1, math.ceil(excess * divisor_uniform(d, form) / epsilon**2))


def epsilon_uniform(D: int, delta: float, d: int, diameter: float, sigma: float, form: str = "phase") -> float:
    """The error that Claim 1 allows at D features: the inverse of ``features_uniform``."""
    _check(1.0, delta)
    if not math.isfinite(sigma):
        raise InputError("Claim 1 needs a finite second moment of the spectral measure: use epsilon_pointwise")
    if sigma * diameter == 0:
        return 0.0

    def excess(log_epsilon: float) -> float:
        return log_failure_uniform(D, math.exp(log_epsilon), d, diameter, sigma, form) - math.log(delta)

    return math.exp(brentq(excess, math.log(_TINIEST), math.log(_HUGEST), xtol=1e-14))


def features_pointwise(epsilon: float, delta: float, form: str = "phase") -> int:
    """The smallest D for which the error at one pair of points is below epsilon, but for delta (Hoeffding).

    The exponent is D epsilon^2 / 8 for phases, whose products are in [-2, 2], and D epsilon^2 / 4 for pairs.
    """
    _check(epsilon, delta)
    return max(1, math.ceil(_POINTWISE[form] * math.log(2.0 / delta) / epsilon**2))


def epsilon_pointwise(D: int, delta: float, form: str = "phase") -> float:
    """The error that Hoeffding's inequality allows at one pair of points: the inverse of ``features_pointwise``."""
    _check(1.0, delta)
    return math.sqrt(_POINTWISE[form] * math.log(2.0 / delta) / D)


# -- theory and measurement side by side


@dataclass(frozen=True)
class Promise:
    """The D that a theorem asks for, and the error it allows at the D of the recipe; or why it says nothing."""

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
    diameter: float  # of a ball around the mean that holds the scaled sample
    claim_1: Promise
    hoeffding: Promise
    measured: Measured

    def to_json(self) -> JSON:
        return asdict(self)


def assess(source: Source, recipe: Recipe, epsilon: float, delta: float, threads: Threads) -> Assessment:
    """Read a sample of rows, resolve the recipe as ``pilot="none"`` does, evaluate the bounds and measure."""
    _check_map(recipe.map)
    form = recipe.settled_form
    hoeffding = Promise(features_pointwise(epsilon, delta, form), epsilon_pointwise(recipe.D, delta, form))
    rows = sample_rows(source.n_rows, source.n_features * source.x_dtype.itemsize, recipe)
    sample = draw_sample(source, rows, recipe.seed, recipe.nan)
    recipe = defaults(recipe, sample.X)
    X = fit_scaling(recipe.scaling, sample.X).transform(sample.X, np.float64)
    kernel = make_kernel(recipe.kernel, length_scale=recipe.length_scale)
    return Assessment(
        epsilon, delta, recipe.D, recipe.map, recipe.form, kernel.label, kernel.length_scale, recipe.scaling, len(X),
        diameter := ball_diameter(X), claim_1(kernel, recipe.D, X.shape[1], diameter, epsilon, delta, form), hoeffding,
        _measure(recipe, kernel, X, epsilon, threads),
    )  # fmt: skip


def _check_map(kind: str) -> None:
    fine = [name for name in KINDS if not (kind_of(name).targets or kind_of(name).whole)]
    if kind not in (AUTO, *fine):
        raise InputError(
            f"the {kind} map does not draw from the kernel's spectral measure, which `epsilon` is about: choose "
            + ", ".join(fine)
        )


def ball_diameter(X: np.ndarray) -> float:
    """Twice the largest distance of a row from the mean: no two rows are further apart."""
    return 2.0 * float(np.linalg.norm(X - X.mean(axis=0), axis=1).max())


def claim_1(
    kernel: Kernel, D: int, d: int, diameter: float, epsilon: float, delta: float, form: str = "phase"
) -> Promise:
    """Rahimi and Recht: the error of all pairs of points at once."""
    sigma = math.sqrt(kernel.second_moment(d))
    if not math.isfinite(sigma):
        return Promise(None, None, f"the spectral measure of the {kernel.label} kernel has no second moment")
    wanted = features_uniform(epsilon, delta, d, diameter, sigma, form)
    return Promise(wanted, epsilon_uniform(D, delta, d, diameter, sigma, form))


def _measure(recipe: Recipe, kernel: Kernel, X: np.ndarray, epsilon: float, threads: Threads) -> Measured:
    """On rows that the map was not fitted to, if there are enough of them."""
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
