"""Exact kernel ridge on a few thousand rows: which kernel, which width, and which directions of the inputs matter.

An exact fit sees signals that a few thousand random features of the same rows do not. Its gradients with
exp(-|x - y| / L) make a metric (their outer product, as in ``metric``); L is searched anew for every metric.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import scipy

from streamrf.features.learned.metric import Judged, Metric, learn_metric
from streamrf.features.profiles import PROFILES, pair_sums, profile_values
from streamrf.features.scaling import apply_factor
from streamrf.support.lapack import cholesky
from streamrf.support.threads import ALONE, Threads

ROUGH = "matern12"  # exp(-|x - y| / L), whose gradients a metric is learned from
ROWS, USUAL_ROWS, FEW_ROWS, FEWEST_ROWS = 4000, 2000, 1000, 64  # fitted at most; usually; for widths; at least
MOST_JUDGES, FEW_JUDGES = 3000, 2000
SINGLE_RIDGE = 1e-2  # from which a factor in single precision is as good: noise hides its digits
ROUNDS = 4
RIDGES = (1e-6, 1e-4, 1e-2, 1e-1, 1.0)
FIRST_RIDGE = 1e-2  # of them
HOPELESS = 1.2  # times the best error: at the same ridge, another width with so much more cannot win at other ridges
LEAST_RIDGE, LARGEST_RIDGE = 1e-10, 10.0
NEAR = (1e-2, 1e-1, 1.0, 1e1)  # ridges round the best so far
CLOSE = (1e-1, 1.0, 1e1)
WIDER, NARROWER = (1e-1,), (1e1,)  # what other widths ask for beside the ridge so far
SAME = (1.0,)  # the ridge of few rows is the best of more too where the kernel is rough, on all tables looked at
FIRST_WIDTH = 4.0  # of the median distance: exact fits like wide kernels
REACH = 32.0  # widths are searched so many times as far, either way
WIDTH_STEP, LEAST_GAIN = 2.0, 0.005
FAINT, FAINT_WIDTHS, FAINT_RIDGES = 0.9, (2.0, 8.0, 16.0), (1e-3, 1e-2, 1e-1)  # error from which all rows are asked
CLEAR = 0.02  # error below which more rows tell more
SEARCHES = 4  # side by side, at most
BLOCK, SLAB = 512, 128  # rows at a time: of gradients, and of kernels
MEDIAN_ROWS = 800
LEAST_DISTANCE = 1e-6  # of the median: the kernel has no gradient at its own point
MOST_OUTPUTS, FEW_OUTPUTS = 16, 4  # whose gradients are taken: of trials, and of exact fits


@dataclass(frozen=True)
class Fit:
    """The best ridge at one width, with its error on the rows that judge, as a share of the error of the mean."""

    kernel: str
    length_scale: float
    ridge: float = 1.0
    error: float = np.inf
    coefficients: np.ndarray | None = None
    losses: np.ndarray | None = None  # of the rows that judge, whose mean by weight is the error
    tried: tuple[float, ...] = ()  # widths that were compared on the way


Keep = Callable[[str, Callable[[], Fit]], Fit]  # the finished fit of that name, or a new one


def fit_anew(name: str, fit: Callable[[], Fit]) -> Fit:
    return fit()


@dataclass(frozen=True)
class Slabs:
    """Kernel values among the rows that are fitted and from those that judge to them, a few rows at a time.

    Sums of differences are kept where several widths ask for them, and made anew where they would fill memory.
    """

    kernel: str
    fitted: np.ndarray
    judges: np.ndarray
    kept: dict[tuple[bool, int], np.ndarray] | None

    def own(self, first: int, length_scale: float) -> np.ndarray:
        """Of rows from ``first`` on with themselves and those that follow: the matrix is symmetric."""
        rows = self.fitted[first : first + SLAB]
        return self._values((True, first), rows, self.fitted[first:], length_scale)

    def across(self, first: int, length_scale: float) -> np.ndarray:
        return self._values((False, first), self.judges[first : first + SLAB], self.fitted, length_scale)

    def _values(self, key: tuple[bool, int], A: np.ndarray, B: np.ndarray, length_scale: float) -> np.ndarray:
        sums = None if self.kept is None else self.kept.get(key)
        if sums is None:
            sums = pair_sums(self.kernel, A, B)
            if self.kept is not None:
                self.kept[key] = sums
        return profile_values(self.kernel, sums, length_scale)


class KernelRidge:
    """Fits to the first rows, judged by those from ``cut`` on: X (n, d) scaled, Y (n, k), weights (n,) or none."""

    def __init__(
        self, X: np.ndarray, Y: np.ndarray, cut: int, weights: np.ndarray | None = None, threads: Threads = ALONE,
        most: int = ROWS, keep: Keep = fit_anew,
    ) -> None:  # fmt: skip
        self.threads, self.keep = threads, keep
        self.most = most  # rows that are fitted, and that judge: memory may allow fewer than usual
        shares = np.ones(len(X)) if weights is None else np.asarray(weights, np.float64)
        kept = np.flatnonzero(shares > 0)
        self.cut = int(np.searchsorted(kept, cut))
        self.X, self.shares = np.asarray(X[kept], np.float64), shares[kept] / shares[kept].mean()
        Y = np.asarray(Y, np.float64)[kept]
        Y = Y - np.average(Y, axis=0, weights=self.shares)
        spread = np.sqrt(np.average(Y**2, axis=0, weights=self.shares))
        self.Y = Y / np.where(spread > 0, spread, 1.0)
        self.hard = False  # whether few rows show next to nothing, or next to all

    @property
    def enough(self) -> bool:
        return self.cut >= FEWEST_ROWS and len(self.X) > self.cut and bool(self.Y.any())

    def median(self, kernel: str, Z: np.ndarray) -> float:
        """The width at which two rows of the middle distance have a kernel of 1 / e, about."""
        some = Z[:MEDIAN_ROWS]
        half = len(some) // 2
        typical = float(np.median(pair_sums(kernel, some[:half], some[half:])))
        profile = PROFILES[kernel]
        return max(float(np.sqrt(typical) if profile.norm == 2 else typical), 1e-30)

    def alone(self) -> KernelRidge:
        """The same in one thread, for work that runs beside other work."""
        other = copy(self)
        other.threads = ALONE
        return other

    def slabs(self, kernel: str, factor: np.ndarray, *, few: bool) -> Slabs:
        fitted, judges = (apply_factor(self.X[rows], factor) for rows in self._rows(few))
        return Slabs(kernel, fitted, judges, {} if few else None)

    def _rows(self, few: bool) -> tuple[slice, slice]:
        fit, judges = (FEW_ROWS, FEW_JUDGES) if few else (ROWS if self.hard else USUAL_ROWS, MOST_JUDGES)
        return slice(0, min(self.cut, fit, self.most)), slice(self.cut, self.cut + min(judges, self.most))

    def _kept(self, what: str, fit: Callable[[], Fit], factor: np.ndarray, *asked: object) -> Fit:
        """A fit by all that it depends on, which an interrupted run may have finished."""
        rows = len(self.X), self.cut, self.most, self.hard
        return self.keep(f"{what} {asked} of {rows} with {factor_name(factor)}", fit)

    def width(self, kernel: str, factor: np.ndarray, length_scale: float, ridges: Sequence[float], *, few: bool) -> Fit:
        """The best of these ridges at one width."""

        def fit() -> Fit:
            return self.at(self.slabs(kernel, factor, few=few), length_scale, ridges)

        return self._kept("width", fit, factor, kernel, length_scale, tuple(ridges), few)

    def at(self, slabs: Slabs, length_scale: float, ridges: Iterable[float]) -> Fit:
        """The best of these ridges; none where no matrix could be factored."""
        K = self._matrix(slabs, length_scale)
        made = self.threads.map(lambda ridge: (ridge, self._solved(K, ridge)), ridges)
        solved = [(ridge, a) for ridge, a in made if a is not None]
        if not solved:
            return Fit(slabs.kernel, length_scale)
        together = np.concatenate([a for _, a in solved], axis=1)
        starts = range(0, len(slabs.judges), SLAB)
        predicted = np.concatenate(
            list(self.threads.map(lambda first: slabs.across(first, length_scale) @ together, starts))
        )
        fits = [
            self._judged(slabs, length_scale, ridge, a, scores)
            for (ridge, a), scores in zip(solved, np.split(predicted, len(solved), axis=1), strict=True)
        ]
        return min(fits, key=lambda fit: fit.error)

    def downhill(self, slabs: Slabs, length_scale: float, ridges: Sequence[float], start: float, bar: float) -> Fit:
        """The best of some ridges in the order in which they are likely to get better, from ``start`` on, then the
        other way: errors have one valley, so what lies behind a rise is not solved for. Nothing else is where the first
        error is beyond ``bar``."""
        K, across = self._matrix(slabs, length_scale), None
        fits: dict[float, Fit] = {}

        def fit(ridge: float) -> Fit:
            nonlocal across
            if across is None:
                parts = [slabs.across(first, length_scale) for first in range(0, len(slabs.judges), SLAB)]
                across = np.concatenate(parts)
            if ridge not in fits:
                a = self._solved(K, ridge)
                nothing = Fit(slabs.kernel, length_scale)
                fits[ridge] = nothing if a is None else self._judged(slabs, length_scale, ridge, a, across @ a)
            return fits[ridge]

        at = ridges.index(start)
        best = fit(start)
        if best.error > bar:
            return best
        for way in (ridges[at + 1 :], ridges[:at][::-1]):
            here = best
            for ridge in way:
                other = fit(ridge)
                if other.error < best.error:
                    best = other
                elif other.error < np.inf:
                    break
            if best is not here:
                break
        return best

    def _matrix(self, slabs: Slabs, length_scale: float) -> np.ndarray:
        """The kernel of the rows that are fitted: its upper triangle."""
        K = np.zeros((len(slabs.fitted),) * 2)

        def fill(first: int) -> None:
            K[first : first + SLAB, first:] = slabs.own(first, length_scale)

        self.threads.each(fill, range(0, len(K), SLAB))
        return K

    def _solved(self, K: np.ndarray, ridge: float) -> np.ndarray | None:
        n = len(K)
        return _solution(K, ridge / self.shares[:n], self.Y[:n], single=ridge >= SINGLE_RIDGE)

    def _judged(
        self, slabs: Slabs, length_scale: float, ridge: float, solution: np.ndarray, predicted: np.ndarray
    ) -> Fit:
        """With its error as a share of the variance, and its losses by rows; nothing of one that overflowed."""
        judges = slice(self.cut, self.cut + len(slabs.judges))
        shares, truth = self.shares[judges], self.Y[judges]
        variance = max(float(np.average(truth**2, axis=0, weights=shares).sum()), np.finfo(np.float64).tiny)
        squares = (predicted - truth) ** 2
        error = float(np.average(squares, axis=0, weights=shares).sum() / variance)
        if not error < np.inf:
            return Fit(slabs.kernel, length_scale)
        return Fit(slabs.kernel, length_scale, ridge, error, solution, squares.sum(axis=1) / variance)

    @property
    def judging(self) -> np.ndarray:
        """What rows that judge fits to all rows count for."""
        return self.shares[self._rows(False)[1]]

    def search(self, kernel: str, factor: np.ndarray, start: float | None = None, near: float | None = None) -> Fit:
        """The best width on few rows: wider or narrower by factors of two for as long as that is better."""
        return self._kept("search", lambda: self._search(kernel, factor, start, near), factor, kernel, start, near)

    def _search(self, kernel: str, factor: np.ndarray, start: float | None, near: float | None) -> Fit:
        slabs = self.slabs(kernel, factor, few=True)
        first = start or FIRST_WIDTH * self.median(kernel, apply_factor(self.X[:MEDIAN_ROWS], factor))
        ridges = list(RIDGES) if near is None else round_about(near, NEAR)
        best = self.downhill(slabs, first, ridges, FIRST_RIDGE if near is None else near, np.inf)
        tried = [first]
        for step in (WIDTH_STEP, 1 / WIDTH_STEP):
            here = best
            while first / REACH <= best.length_scale * step <= first * REACH:
                ridges = [best.ridge, *round_about(best.ridge, WIDER if step > 1 else NARROWER)]
                other = self.downhill(slabs, best.length_scale * step, ridges, best.ridge, best.error * HOPELESS)
                tried.append(other.length_scale)
                if not other.error < best.error * (1 - LEAST_GAIN):
                    break
                best = other
            if best is not here:
                break
        return replace(best, tried=tuple(tried))

    def with_all_rows(self, found: Fit, factor: np.ndarray, steps: Sequence[float] = CLOSE) -> Fit:
        """The same kernel once more, at steps of its ridge."""
        return self.width(found.kernel, factor, found.length_scale, round_about(found.ridge, steps), few=False)

    def refined(self, found: Fit, factor: np.ndarray, steps: Sequence[float]) -> Fit:
        """The best of a fit with all rows and others at steps of its width."""
        alone = self.alone()

        def other(step: float) -> Fit:
            return alone.width(found.kernel, factor, found.length_scale * step, [found.ridge], few=False)

        fits = [found, *self.threads.map(other, steps)]
        return replace(min(fits, key=lambda fit: fit.error), tried=tuple(fit.length_scale for fit in fits))

    # -- a metric

    def metric(self, forms: tuple[str, ...], searched: Fit | None = None) -> Metric:
        """The best metric on the rows that judge, or the identity; ``searched`` is the best without one on few rows,
        where that is known. Several forms are learned side by side."""
        start = self._start(searched)
        fits = _MetricFits(self if len(forms) == 1 else self.alone())
        return learn_metric(
            fits, start, self.X.shape[1], rounds=ROUNDS, forms=forms, powers=(0.5,), threads=self.threads
        )

    def _start(self, searched: Fit | None = None) -> Judged:
        """Without a metric. Where few rows show next to nothing, all are asked: a fit that has not learned to ignore
        the other columns yet still has gradients that point the right way."""
        ones = np.ones(self.X.shape[1])
        found = searched or self.search(ROUGH, ones)
        self.hard = not CLEAR < found.error < FAINT
        if found.error < FAINT:
            return self.judged(self.with_all_rows(found, ones, SAME), ones)
        median = self.median(ROUGH, self.X)
        tried = [self.width(ROUGH, ones, width * median, FAINT_RIDGES, few=False) for width in FAINT_WIDTHS]
        return self.judged(min(tried, key=lambda fit: fit.error), ones)

    def judged(self, found: Fit, factor: np.ndarray) -> Judged:
        return Judged(found.error, found.length_scale, partial(self._outer_product, found, factor), found)

    def _outer_product(self, found: Fit, factor: np.ndarray) -> np.ndarray:
        """Mean of grad f grad f' over the rows that were fitted, for f(x) = sum_j a_j exp(-|M (x - x_j)| / L)."""
        assert found.coefficients is not None
        Z, scale = apply_factor(self.X[: len(found.coefficients)], factor), found.length_scale
        least = LEAST_DISTANCE * self.median(ROUGH, Z)
        coefficients, shares = few_outputs(found.coefficients, FEW_OUTPUTS).T, self.shares[: len(Z)]

        def products(start: int) -> list[np.ndarray]:
            here, counted = Z[start : start + BLOCK], shares[start : start + BLOCK, None]
            gaps = np.sqrt(pair_sums(ROUGH, here, Z))
            slopes = np.exp(gaps / -scale) / (np.maximum(gaps, least) * scale)
            slopes[np.arange(len(here)), start + np.arange(len(here))] = 0.0
            made = []
            for a in coefficients:
                pulled = slopes * a
                gradients = apply_factor(pulled @ Z - pulled.sum(axis=1)[:, None] * here, factor)
                made.append((gradients * counted).T @ gradients)
            return made

        total = np.zeros((Z.shape[1],) * 2)
        for made in self.threads.map(products, range(0, len(Z), BLOCK)):
            for each in made:
                total += each
        return total / shares.sum()


@dataclass
class _MetricFits:
    """What ``learn_metric`` asks for."""

    rows: KernelRidge

    def fit(self, factor: np.ndarray, near: Judged) -> Judged:
        """At the best width: a metric has its own. No penalty is carried over that had hidden all signal."""
        found = self.rows.search(ROUGH, factor, near=min(near.origin.ridge, RIDGES[-2]))
        return self.rows.judged(self.rows.with_all_rows(found, factor, SAME), factor)

    def tuned(self, judged: Judged) -> Judged:
        return judged


def _solution(K: np.ndarray, penalties: np.ndarray, Y: np.ndarray, *, single: bool) -> np.ndarray | None:
    """Of (K + diag(penalties)) a = Y; None where the matrix cannot be factored."""
    A = K.astype(np.float32) if single else K.copy()
    A.flat[:: len(A) + 1] += penalties
    factor, lapack = A.T, scipy.linalg.lapack  # symmetric
    if not cholesky(factor):
        return None
    solve = lapack.spotrs if single else lapack.dpotrs
    return np.asarray(solve(factor, Y, lower=1)[0], np.float64)


def factor_name(factor: np.ndarray) -> str:
    """The same for the same bits."""
    return hashlib.sha256(np.ascontiguousarray(factor).tobytes()).hexdigest()[:16]


def round_about(ridge: float, steps: Sequence[float]) -> list[float]:
    """Ridges near one, within limits."""
    return sorted({min(max(ridge * step, LEAST_RIDGE), LARGEST_RIDGE) for step in steps})


def kernel_ridge_bytes(rows: int, columns: int, most: int = ROWS, *, alone: bool = False) -> int:
    """Two fits to all rows side by side, or several to few of them (one, where nothing runs beside it); and the inputs
    in two metrics."""
    few, all = min(rows, FEW_ROWS, most), min(rows, most)
    searches = (1 if alone else SEARCHES) * few * (5 * few // 2 + 2 * min(rows, FEW_JUDGES, most))
    return 8 * max(searches, (2 if alone else 4) * all * all) + 4 * 8 * rows * columns


def few_outputs(coefficients: np.ndarray, most: int = MOST_OUTPUTS) -> np.ndarray:
    """Of many outputs random sums and differences, whose gradients have the outer product of all, on the average."""
    k = coefficients.shape[1]
    if k <= most:
        return coefficients
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, most))
    return coefficients @ signs / np.sqrt(most)
