"""The uncertainty of predictions: the posterior of Bayesian linear regression on the features, from the Gram sums.

The prior of the weights is normal with variance s^2 / (n lambda), the noise normal with variance s^2. Then the mean of
the posterior is the ridge solution, its covariance s^2 (n (S + lambda I))^-1, and the evidence, as a function of s^2
alone, is largest at ``variance of y - c'w``: the noise level comes from the same sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy

from streamrf.features.base import FeatureMap
from streamrf.features.blend import BlendMap
from streamrf.features.targets import TargetCoding
from streamrf.models.model import KIND, Model, statistics_of
from streamrf.solvers.ridge import NormalEquations
from streamrf.statistics.gram import Gram, GramState
from streamrf.support.errors import InputError, NumericalError
from streamrf.support.lapack import cholesky
from streamrf.support.storage.archive import read_archive
from streamrf.support.threads import Threads

BLOCK = 1024  # rows whose features are alive at once


@dataclass(frozen=True)
class Posterior:
    """The factor of S + lambda I, and the noise of each output."""

    factor: np.ndarray  # (D, D), lower triangle, Fortran order
    mean: np.ndarray  # (D,) mean raw feature
    noise: np.ndarray  # (k,) variance s^2
    rows: float
    evidence: np.ndarray  # (k,) log marginal likelihood at s^2 and lambda

    @classmethod
    def from_state(
        cls, state: GramState, map: FeatureMap, coding: TargetCoding, ridge: float, threads: Threads,
        *, unrounded: bool = False,
    ) -> Posterior:  # fmt: skip
        """One factorisation, in place."""
        equations = NormalEquations.from_state(state, map, coding, unrounded=unrounded)
        factor = _factored(equations, ridge, threads)
        solution, _ = scipy.linalg.lapack.dpotrs(factor, equations.cross, lower=1)
        noise = equations.target_variance - (equations.cross * solution).sum(axis=0)
        noise = np.maximum(noise, 1e-14 * np.maximum(equations.target_variance, np.finfo(np.float64).tiny))
        n, D = equations.rows, equations.size
        spread = 2 * np.log(factor.diagonal()).sum() - D * np.log(max(ridge, np.finfo(np.float64).tiny))
        evidence = -0.5 * (n * (np.log(2 * np.pi * noise) + 1) + spread)
        return cls(factor, equations.mean, noise, n, evidence)

    def deviations(
        self, map: FeatureMap, X: np.ndarray, threads: Threads, *, unrounded: bool = False
    ) -> np.ndarray:  # fmt: skip
        """(n, k): the standard deviation of a new target at each row of scaled inputs, with noise."""
        out = np.empty((len(X), len(self.noise)))
        for first in range(0, len(X), BLOCK):
            part = slice(first, first + BLOCK)
            Z = map.dense(X[part], threads, unrounded=unrounded) - self.mean * map.amplitudes
            with threads.blas_for(len(self.factor)):
                half = scipy.linalg.blas.dtrsm(1.0, self.factor, np.asfortranarray(Z.T), lower=1)
            known = ((half**2).sum(axis=0) + 1.0) / self.rows  # the intercept's own share is 1 / n
            out[part] = np.sqrt(self.noise * (1.0 + known[:, None]))
        return out


@dataclass(frozen=True)
class ByOutput:
    """Outputs that have lambdas of their own: masks of those that share one, and its posterior."""

    parts: tuple[tuple[np.ndarray, Posterior], ...]

    def deviations(
        self, map: FeatureMap, X: np.ndarray, threads: Threads, *, unrounded: bool = False
    ) -> np.ndarray:  # fmt: skip
        out = np.empty((len(X), len(self.parts[0][0])))
        for outputs, posterior in self.parts:
            out[:, outputs] = posterior.deviations(map, X, threads, unrounded=unrounded)[:, outputs]
        return out


def _factored(equations: NormalEquations, ridge: float, threads: Threads) -> np.ndarray:
    matrix = np.empty((equations.size, equations.size), order="F")
    for attempt in equations.attempts():
        equations.fill_with(matrix, ridge, attempt, threads)
        with threads.blas_for(equations.size):
            if cholesky(matrix):
                return matrix
    raise NumericalError(f"`ridge={ridge:g}` is too small for a posterior: train with a larger one, such as 1e-6")


def attach_posterior(model: Model, path: str | Path, threads: Threads) -> None:
    """Give a model that was loaded from ``path`` its posterior, from the sums that are kept beside it."""
    if model.is_classifier or model.recipe.loss != "squared":
        what = "predicts classes" if model.is_classifier else f"was fitted by the {model.recipe.loss} loss"
        raise InputError(
            f"standard deviations need a model of numbers fitted by the squared loss, but this model {what}"
        )
    if isinstance(model.map, BlendMap):
        raise InputError(
            "standard deviations need the sums of one map, which a blend does not keep: train with `map='landmarks'`,"
            " or with `D`"
        )
    if model.recipe.solver != "cholesky":
        raise InputError("standard deviations need the sums of the Cholesky solver: train with `solver='cholesky'`")
    gram = Gram.on_this_machine(model.scaling, model.map, model.coding, threads.count)
    state = gram.load(statistics_of(read_archive(path, kind=KIND)))
    ridges, unrounded = model.weights.by_output, model.pipeline.unrounded
    parts = [
        (ridges == ridge, Posterior.from_state(state, model.map, model.coding, ridge, threads, unrounded=unrounded))
        for ridge in np.unique(ridges).tolist()
    ]
    model.posterior = parts[0][1] if len(parts) == 1 else ByOutput(tuple(parts))


def best_ridge(
    state: GramState, map: FeatureMap, coding: TargetCoding, threads: Threads, *, first: float = 1e-4, steps: int = 24
) -> tuple[float, float]:
    """The lambda at which the evidence of all outputs is largest, within a factor of 1.1, and that evidence.

    Brent's method on the logarithm of lambda; each step costs one factorisation.
    """

    def loss(place: float) -> float:
        return -float(Posterior.from_state(state, map, coding, float(np.exp(place)), threads).evidence.sum())

    bounds = float(np.log(first * 1e-8)), float(np.log(first * 1e4))
    options = {"xatol": float(np.log(1.1)) / 2, "maxiter": steps}
    found = scipy.optimize.minimize_scalar(loss, bounds=bounds, method="bounded", options=options)
    return float(np.exp(found.x)), -float(found.fun)
