"""Ridge regression from Gram totals: (S + lambda I) w = c, with S and c the centred second moments of z and y.

The intercept is not penalised: it comes from centring, with means from the same sums. One matrix is held: it is filled
from the totals for each lambda, factored in place, and filled again for the next.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy

from streamrf.data.source import Block
from streamrf.features.base import FeatureMap, Scorer
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.statistics.gram import Gram, GramState
from streamrf.statistics.gram_kernels import Layout
from streamrf.statistics.scores import Weights
from streamrf.support.compiled import kernel
from streamrf.support.errors import NumericalError
from streamrf.support.lapack import cholesky
from streamrf.support.threads import ALONE, Threads

JITTERS = tuple(10.0**e for e in (-13, -11, -9, -7, -5))  # z'z is about one, so these are shares of it
SIDE_BY_SIDE, HANDS = 1536, 4  # features up to which so many factorisations of a trial run at once
MARGIN = 4.0  # pivots below so many roundings of the diagonal are noise
ROUNDING = 1 / 12  # the variance of what rounding to a whole number adds
ENOUGH_ROWS = 40_000  # from which that variance comes off the diagonal: of fewer rows it gains nothing


@dataclass(frozen=True)
class Attempt:
    """How to make the matrix positive definite."""

    jitter: float = 0.0
    takes_off: bool = False  # the variance of rounding


def removable_rounding(rows: int, D: int) -> float:
    """Of the variance that rounding added to raw features, as much as is in every direction.

    The least eigenvalue of a sample covariance of white noise is (1 - sqrt(D / n))^2 of its variance: taking off more
    would leave a matrix that is not positive definite.
    """
    return ROUNDING * (1 - math.sqrt(D / rows)) ** 2 if rows >= max(ENOUGH_ROWS, D) else 0.0


@dataclass
class NormalEquations:
    """Centred moments of amplitude-scaled features, ready to be filled into a matrix."""

    layout: Layout
    totals: np.ndarray
    rows: float  # or their weight, where they have weights
    amplitudes: np.ndarray  # (D,)
    mean: np.ndarray  # (D,) mean raw feature
    target_mean: np.ndarray  # (k,) mean target, offset included
    cross: np.ndarray  # (D, k) = amplitude * (Z'y / n - mean z * mean y)
    target_variance: np.ndarray  # (k,)
    rounding: float = 0.0  # what may come off the diagonal of raw features: the variance that rounding has added

    @classmethod
    def from_state(
        cls, state: GramState, map: FeatureMap, coding: TargetCoding, *, fewest: int = 2, unrounded: bool = False
    ) -> NormalEquations:
        """``unrounded`` says that weights will be for unrounded features."""
        if state.rows < fewest:
            raise NumericalError(f"{state.rows} rows: at least two are needed to fit a model")
        D, precision = map.n_features, map.precision
        columns = state.layout.columns(state.totals, D, state.layout.size)
        n = float(columns[D, 0])  # the sum of ones: the rows, or their weights
        sums, products = columns[:D, 0].astype(np.float64), columns[:D, 1:]
        target_mean = coding.combine(columns[D, 1:][None], precision)[0] / n
        mean = sums / n
        cross = coding.combine(products, precision) / n - mean[:, None] * target_mean
        second = coding.combine(coding.combine(columns[D + 1 :, 1:], precision).T, precision)
        variance = np.diag(second) / n - target_mean**2
        return cls(
            state.layout, state.totals, n, map.amplitudes, mean, target_mean + coding.offset,
            cross * map.amplitudes[:, None], np.maximum(variance, 0.0),
            removable_rounding(state.rows, D) if unrounded and state.totals.dtype.kind == "i" else 0.0,
        )  # fmt: skip

    @property
    def size(self) -> int:
        return len(self.amplitudes)

    def fill(self, out: np.ndarray, threads: Threads) -> None:
        """The lower triangle of S (Fortran order), the rest left alone."""
        layout, n = self.layout, float(self.rows)

        def one(number: int) -> None:
            panel = layout.panel(self.totals, number)
            _fill_panel(panel, layout.starts[number], n, self.mean, self.amplitudes, out)

        threads.each(one, range(-(-self.size // layout.panel_width)))

    def fill_with(self, out: np.ndarray, ridge: float, attempt: Attempt, threads: Threads) -> None:
        """The lower triangle of the matrix to be factored."""
        self.fill(out, threads)
        taken = self.rounding * self.amplitudes**2 if attempt.takes_off else 0.0
        out.flat[:: self.size + 1] += ridge + attempt.jitter - taken

    def attempts(self) -> Iterator[Attempt]:
        """What to try until a factor succeeds: without the variance of rounding, with it, and with jitter."""
        if self.rounding:
            yield Attempt(takes_off=True)
        yield from (Attempt(jitter) for jitter in (0.0, *JITTERS))

    def weights(self, solution: np.ndarray, ridge: float, jitter: float, rank: float | None) -> Weights:
        """From the solution in amplitude-scaled features to weights for raw ones."""
        coefficients = solution * self.amplitudes[:, None]
        return Weights(coefficients, self.target_mean - self.mean @ coefficients, ridge, jitter, rank)


@kernel
def _fill_panel(panel: Any, j0: int, n: float, mean: Any, amplitudes: Any, out: Any) -> None:
    D = len(amplitudes)
    for j in range(j0, min(D, j0 + panel.shape[0])):
        for i in range(j, D):
            centred = float(panel[j - j0, i - j0]) / n - mean[i] * mean[j]
            out[i, j] = centred * amplitudes[i] * amplitudes[j]


class RidgeSolver:
    """Prepared once, then each lambda costs a fill and a Cholesky factorisation, in one matrix."""

    def __init__(self, equations: NormalEquations, threads: Threads) -> None:
        self.equations = equations
        self.threads = threads
        self._matrix = np.empty((equations.size, equations.size), order="F")
        self._indefinite = -math.inf  # the largest shift of the diagonal that was not enough

    def solve(self, ridge: float, *, dimension: bool = False) -> Weights:
        """Weights at this lambda, with the effective dimension where it is asked for.

        A matrix that rounding makes indefinite is solved with the least jitter that helps.
        """
        for attempt in self.equations.attempts():
            if not attempt.takes_off and ridge + attempt.jitter <= self._indefinite:
                continue  # a larger one has failed
            solution = self._cholesky(ridge, attempt)
            if solution is None and not attempt.takes_off:
                self._indefinite = ridge + attempt.jitter
            if solution is not None:
                rank = self._effective_dimension(ridge + attempt.jitter) if dimension else None
                return self.equations.weights(solution, ridge, attempt.jitter, rank)
        raise NumericalError(f"`ridge={ridge:g}` is too small to solve this problem: try 1e-6")

    def solve_each(self, ridges: np.ndarray, *, dimension: bool = False) -> Weights:
        """Weights with a lambda for each output, or one for all of them."""
        first, *others = np.unique(ridges).tolist()
        weights = self.solve(first, dimension=dimension)
        for ridge in others:
            weights = weights.with_outputs(self.solve(ridge, dimension=dimension), np.asarray(ridges) == ridge)
        return weights

    def _cholesky(self, ridge: float, attempt: Attempt) -> np.ndarray | None:
        """Fill, factor in place, solve; None where the matrix is not positive definite in floating point."""
        self.equations.fill_with(self._matrix, ridge, attempt, self.threads)
        smallest = MARGIN * np.finfo(np.float64).eps * self._matrix.diagonal().max()
        with self.threads.blas_for(self.equations.size):
            if not cholesky(self._matrix) or not (self._matrix.diagonal() ** 2 > smallest).all():
                return None
            solution, _ = scipy.linalg.lapack.dpotrs(self._matrix, self.equations.cross, lower=1)
        return solution if np.isfinite(solution).all() else None

    def _effective_dimension(self, shift: float) -> float:
        """D - lambda tr((S + lambda I)^-1): how many directions the data really uses. Spends the factor."""
        with self.threads.blas_for(self.equations.size):
            inverse, _ = scipy.linalg.lapack.dpotri(self._matrix, lower=1, overwrite_c=1)
        return float(self.equations.size - shift * inverse.diagonal().sum())

    @staticmethod
    def matrix_bytes(size: int) -> int:
        """Memory of the one matrix."""
        return 8 * size * size


@dataclass(frozen=True)
class RidgeTrial:
    """A small fit on rows in memory, for whoever tries settings: the same sums, solver and scores as a training run."""

    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    threads: Threads

    def fit(self, rows: Block, ridges: Iterable[float]) -> list[Weights]:
        """Weights at each lambda, from one sum over these rows."""
        return self.path(self.sums(rows), ridges)

    def sums(self, rows: Block) -> GramState:
        """Exact, or in float64 where rows have weights."""
        weighted = rows.weights is not None
        gram = Gram.on_this_machine(
            self.scaling, self.map, self.coding, self.threads.count, floats=weighted, rows=len(rows)
        )
        state = gram.zero()
        gram.update(state, rows, self.threads)
        return state

    def path(self, state: GramState, ridges: Iterable[float]) -> list[Weights]:
        """Weights at each lambda: small factorisations side by side, as threads would mostly wait in one of them."""
        unrounded = self.map.can_serve_unrounded
        equations, ridges = NormalEquations.from_state(state, self.map, self.coding, unrounded=unrounded), list(ridges)
        hands = _hands(equations.size)  # for any number of threads: what one of them cannot factor, none tries again
        threads = ALONE if hands > 1 else self.threads

        def some(first: int) -> list[Weights]:
            solver = RidgeSolver(equations, threads)
            return [solver.solve(ridge) for ridge in ridges[first::hands]]

        each = list(self.threads.map(some, range(hands)))
        return [each[number % hands][number // hands] for number in range(len(ridges))]

    @staticmethod
    def matrix_bytes(size: int, threads: int) -> int:
        """Memory of the matrices that are factored at once."""
        return min(threads, _hands(size)) * RidgeSolver.matrix_bytes(size)

    def by_folds(self, folds: Sequence[Block], ridges: Sequence[float]) -> tuple[list[Weights], np.ndarray]:
        """Scores of all rows at each lambda, each from sums without its fold; and the weights without the first."""
        sums = [self.sums(fold) for fold in folds]
        total = sums[0].copy()
        for each in sums[1:]:
            total += each
        paths, scores = [], []
        for fold, own in zip(folds, sums, strict=True):
            total -= own
            paths.append(self.path(total, ridges))
            total += own
            scores.append(self.scores(paths[-1], fold))
        return paths[0], np.concatenate(scores)

    def scores(self, path: list[Weights], rows: Block) -> np.ndarray:
        """(rows, lambdas, outputs): the weights of the whole path are columns of one score."""
        coefficients = np.concatenate([weights.coefficients for weights in path], axis=1)
        intercept = np.concatenate([weights.intercept for weights in path])
        X = self.scaling.transform(rows.X, self.map.precision.inputs)
        scorer = Scorer(self.map, coefficients, intercept, unrounded=self.map.can_serve_unrounded)
        return scorer.scores(X, self.threads).reshape(len(X), len(path), -1)


def _hands(size: int) -> int:
    """How many share a path of lambdas."""
    return HANDS if size < SIDE_BY_SIDE else 1
