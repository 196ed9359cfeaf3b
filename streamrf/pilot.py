"""The pilot: small fits on a sample of rows choose scaling, kernel, width, precision and a first lambda.

Coordinate by coordinate, cheap to dear: every pairing of scaling and kernel is tried at small D with a search over the
width; the best few are tried again at larger D on all sample rows; then precisions, from the cheapest up. Every trial is
a ridge path judged by squared error on rows it has not seen.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import scipy.linalg as sla

from streamrf.kernels import make_kernel, median_length_scale
from streamrf.maps.base import FeatureMap
from streamrf.maps.build import build_fourier, default_kind
from streamrf.precision import PRECISIONS, make_precision
from streamrf.recipe import AUTO, Recipe
from streamrf.reporting import Reporter
from streamrf.scaling import fit_scaling, heavy_tailed
from streamrf.sources.base import Block
from streamrf.targets import CLASSIFICATION, TargetCoding
from streamrf.threads import Threads

RIDGES = tuple(10.0**e for e in range(-10, 0))
KERNELS = ("gaussian", "laplacian", "matern32")
DEFAULTS = {"scaling": "standard", "kernel": "gaussian", "bits": "12", "ridge": 1e-6}  # --pilot none
TOLERANCE = 1.01  # a cheaper precision may cost one per cent of the error (as a root mean square)
VALIDATION = 0.25
BLOCK = 2048  # rows whose features are alive at once


@dataclass(frozen=True)
class Trial:
    """One setting and what it cost: ``error`` is the mean squared error on unseen rows over the targets' variance."""

    scaling: str
    kernel: str
    length_scale: float
    D: int
    bits: str
    rows: int
    ridge: float = 0.0
    error: float = np.inf
    misses: float | None = None  # share of wrong classes, for classification
    seconds: float = 0.0


@dataclass
class Pilot:
    """What was tried, and what was chosen."""

    trials: list[Trial] = field(default_factory=list)
    seconds: float = 0.0


class PilotRun:
    """Holds the sample, scaled once per scaling, and spends at most a budget of seconds."""

    def __init__(
        self, sample: Block, coding: TargetCoding, recipe: Recipe, threads: Threads, budget: float, reporter: Reporter
    ) -> None:
        self.recipe, self.coding, self.threads, self.reporter = recipe, coding, threads, reporter
        self.X, self.Y = sample.X, coding.values(sample.y)  # type: ignore[arg-type]
        self.deadline = time.monotonic() + budget
        self.pilot = Pilot()
        self._scaled: dict[str, np.ndarray] = {}
        self._medians: dict[tuple[str, str], float] = {}

    def settle(self) -> Recipe:
        """The recipe with every ``auto`` replaced."""
        start = time.monotonic()
        rows = len(self.X)
        first = [self.search(pair, min(self.recipe.D, 512), min(rows, 8000)) for pair in self.pairings()]
        finalists = sorted(first, key=lambda trial: trial.error)[:3]
        if self.recipe.D > 512 or rows > 8000:
            finalists = [self.refine(trial, min(self.recipe.D, 2048), min(rows, 24000)) for trial in finalists]
        best = min(finalists, key=lambda trial: trial.error)
        bits = self.recipe.bits if self.recipe.bits != AUTO else self.cheapest_precision(best)
        self.pilot.seconds = time.monotonic() - start
        kernel = make_kernel(best.kernel, length_scale=best.length_scale)
        return replace(
            self.recipe, scaling=best.scaling, kernel=best.kernel, length_scale=best.length_scale, bits=bits,
            ridge=best.ridge if self.recipe.ridge is None else self.recipe.ridge,
            map=default_kind(kernel) if self.recipe.map == AUTO else self.recipe.map,
        )  # fmt: skip

    def pairings(self) -> Iterator[tuple[str, str]]:
        """Scalings and kernels to try: what the recipe fixes, or the candidates."""
        scalings = [self.recipe.scaling] if self.recipe.scaling != AUTO else self._scalings()
        kernels = [self.recipe.kernel] if self.recipe.kernel != AUTO else list(KERNELS)
        return ((scaling, kernel) for kernel in kernels for scaling in scalings)

    def _scalings(self) -> list[str]:
        scalings = ["standard", "quantile"]
        return [*scalings, "log"] if heavy_tailed(self.X).any() else scalings

    def search(self, pair: tuple[str, str], D: int, rows: int) -> Trial:
        """From the median heuristic outward by factors of two, as long as it gets better."""
        scaling, kernel = pair
        start = self.recipe.length_scale or self.median(scaling, kernel)
        here = Trial(scaling, kernel, start, D, "float32", rows)
        return self.descend(here, 2.0)

    def refine(self, trial: Trial, D: int, rows: int) -> Trial:
        return self.descend(replace(trial, D=D, rows=rows), 2**0.5)

    def descend(self, trial: Trial, factor: float) -> Trial:
        """A line search over the width in steps of ``factor``."""
        best = self.fit(trial)
        if self.recipe.length_scale is not None:
            return best
        for step in (1 / factor, factor):
            moved = False
            while time.monotonic() < self.deadline:
                there = self.fit(replace(trial, length_scale=best.length_scale * step))
                if there.error >= best.error:
                    break
                best, moved = there, True
            if moved:
                break
        return best

    def cheapest_precision(self, best: Trial) -> str:
        """The first of 8, 12, float32 that is as good as float64."""
        reference = self.fit(replace(best, bits="float64"))
        for bits in PRECISIONS[:-1]:
            if self.fit(replace(best, bits=bits)).error <= reference.error * TOLERANCE**2:
                return bits
        return "float64"

    def median(self, scaling: str, kernel: str) -> float:
        key = (scaling, kernel)
        if key not in self._medians:
            rng = np.random.default_rng(self.recipe.seed)
            self._medians[key] = median_length_scale(self.scaled(scaling), kernel, rng)
        return self._medians[key]

    def scaled(self, kind: str) -> np.ndarray:
        if kind not in self._scaled:
            self._scaled[kind] = fit_scaling(kind, self.X).transform(self.X)
        return self._scaled[kind]

    def fit(self, trial: Trial) -> Trial:
        """The trial with its error and its best lambda."""
        start = time.monotonic()
        X, Y = self.scaled(trial.scaling)[: trial.rows], self.Y[: trial.rows]
        kernel = make_kernel(trial.kernel, length_scale=trial.length_scale)
        kind = default_kind(kernel) if self.recipe.map in (AUTO, "weighted", "aligned") else self.recipe.map
        D = trial.D - trial.D % 2 if self.recipe.form == "pairs" else trial.D
        map = build_fourier(
            kind, kernel, D, X.shape[1], form=self.recipe.form, precision=make_precision(trial.bits),
            seed=self.recipe.seed,
        )  # fmt: skip
        ridge, error, scores, truth = self.ridge_path(map, X, Y)
        done = replace(
            trial, ridge=ridge, error=error, misses=self._misses(scores, truth), seconds=time.monotonic() - start
        )
        self.pilot.trials.append(done)
        self.reporter.tried(done)
        return done

    def ridge_path(self, map: FeatureMap, X: np.ndarray, Y: np.ndarray) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Best lambda on the last quarter of the rows, its relative squared error, its scores and their truth."""
        cut = len(X) - max(1, int(len(X) * VALIDATION))
        S, c, mean, target_mean = self._moments(map, X[:cut], Y[:cut])
        ridges = RIDGES if self.recipe.ridge is None else (self.recipe.ridge,)
        with self.threads.blas():
            W = np.stack([_solve(S, c, ridge) for ridge in ridges], axis=1)  # (D, ridges, outputs)
            flat = W.reshape(len(W), -1)
            shift = np.tile(target_mean, len(ridges)) - mean @ flat
            scores = np.concatenate([Z @ flat.astype(Z.dtype) + shift for Z in self._blocks(map, X[cut:])])
        scores = scores.reshape(len(scores), len(ridges), -1)
        truth = Y[cut:]
        scale = np.maximum(truth.var(axis=0), np.finfo(float).tiny)
        errors = ((scores - truth[:, None]) ** 2).mean(axis=0) / scale
        best = int(np.argmin(errors.mean(axis=1)))
        return ridges[best], float(errors[best].mean()), scores[:, best], truth

    def _moments(self, map: FeatureMap, X: np.ndarray, Y: np.ndarray) -> tuple[np.ndarray, ...]:
        """Centred second moments of features and targets, a block of rows at a time."""
        D, n = map.n_features, len(X)
        S, c, sums = np.zeros((D, D)), np.zeros((D, Y.shape[1])), np.zeros(D)
        target_mean = Y.mean(axis=0)
        with self.threads.blas():
            for start, Z in zip(range(0, n, BLOCK), self._blocks(map, X), strict=True):
                S += Z.T @ Z
                c += Z.T @ (Y[start : start + BLOCK] - target_mean).astype(Z.dtype)
                sums += Z.sum(axis=0, dtype=np.float64)
        mean = sums / n
        return S / n - np.outer(mean, mean), c / n, mean, target_mean

    def _blocks(self, map: FeatureMap, X: np.ndarray) -> Iterator[np.ndarray]:
        dtype = np.float32 if map.precision.name == "float32" else np.float64
        for start in range(0, len(X), BLOCK):
            yield map.dense(X[start : start + BLOCK], self.threads).astype(dtype, copy=False)

    def _misses(self, scores: np.ndarray, truth: np.ndarray) -> float | None:
        if self.coding.task != CLASSIFICATION:
            return None
        if scores.shape[1] == 1:
            return float(((scores > 0) != (truth > 0)).mean())
        return float((scores.argmax(axis=1) != truth.argmax(axis=1)).mean())


def _solve(S: np.ndarray, c: np.ndarray, ridge: float) -> np.ndarray:
    A = S.copy()
    A.flat[:: len(A) + 1] += ridge
    try:
        return sla.cho_solve(sla.cho_factor(A, lower=True, overwrite_a=True, check_finite=False), c, check_finite=False)
    except sla.LinAlgError:
        return np.zeros_like(c)


def defaults(recipe: Recipe, sample: np.ndarray) -> Recipe:
    """The documented defaults of ``--pilot none``; the width is the median heuristic."""
    settled: dict[str, Any] = {}
    for name, value in DEFAULTS.items():
        if getattr(recipe, name) in (AUTO, None):
            settled[name] = value
    recipe = replace(recipe, **settled)
    if recipe.length_scale is None:
        scaled = fit_scaling(recipe.scaling, sample).transform(sample)
        rng = np.random.default_rng(recipe.seed)
        recipe = replace(recipe, length_scale=median_length_scale(scaled, recipe.kernel, rng))
    kernel = make_kernel(recipe.kernel, length_scale=recipe.length_scale)
    return replace(recipe, map=default_kind(kernel)) if recipe.map == AUTO else recipe
