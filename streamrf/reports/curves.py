"""The numbers behind the pictures: plain functions of arrays, models and sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import scipy.linalg as sla

from streamrf.features.base import FeatureMap
from streamrf.features.build import build_fourier
from streamrf.features.fourier import kind_of
from streamrf.features.kernels import Kernel
from streamrf.models.model import Model
from streamrf.reports.compare.kernel_error import relative_error
from streamrf.solvers.ridge import NormalEquations
from streamrf.support.threads import Threads

MOST_EIGEN = 1200  # features whose eigenvalues are computed: about a second
CURVE_POINTS = 7
KERNEL_ROWS = 400
LARGEST_D = 4096
RELATIVE_RIDGES = tuple(10.0**e for e in range(-10, 0))


# -- spectrum


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the centred second moments of z, largest first, of ``features`` of the ``of`` there are."""

    values: np.ndarray
    features: int
    of: int

    def dimension(self, ridge: float) -> float:
        """tr(S (S + lambda)^-1): how many directions a lambda leaves in use."""
        return float((self.values / (self.values + ridge)).sum()) if ridge > 0 else float((self.values > 0).sum())


def spectrum(equations: NormalEquations, threads: Threads, most: int = MOST_EIGEN) -> Spectrum:
    """Of all features, or of evenly spread ones where there are more than ``most``: those are a smaller map."""
    chosen = spread_columns(equations.size, most)
    matrix = second_moments(equations, chosen) * (equations.size / len(chosen))
    with threads.blas():
        values = sla.eigvalsh(matrix)
    return Spectrum(np.maximum(values[::-1], 0.0), len(chosen), equations.size)


def spread_columns(count: int, most: int) -> np.ndarray:
    return np.arange(count) if count <= most else np.unique(np.linspace(0, count - 1, most).astype(int))


def second_moments(equations: NormalEquations, columns: np.ndarray) -> np.ndarray:
    """The centred second moments of some features, both triangles."""
    layout, out = equations.layout, np.zeros((len(columns), len(columns)))
    for place, column in enumerate(columns):
        panel, first = layout.panel(equations.totals, column // layout.panel_width), column // layout.panel_width
        start = layout.starts[first]
        out[place:, place] = panel[column - start, columns[place:] - start]
    mean, amplitudes = equations.mean[columns], equations.amplitudes[columns]
    out = np.tril(out / equations.rows - np.outer(mean, mean)) * np.outer(amplitudes, amplitudes)
    return out + np.tril(out, -1).T


# -- learning curve


@dataclass(frozen=True)
class LearningCurve:
    """Errors on unseen rows after so many rows, from sums that grow; ``features`` of the ``of`` there are."""

    rows: list[int]
    errors: list[float]
    features: int
    of: int


def learning_curve(
    Z: np.ndarray, targets: np.ndarray, unseen: int, judge: Callable[[np.ndarray, np.ndarray], float], of: int
) -> LearningCurve:
    """The last ``unseen`` rows judge; the sums of the others grow from one point of the curve to the next."""
    train, D = len(Z) - unseen, Z.shape[1]
    sums, marks = np.zeros((D + 1, D + 1)), np.zeros((D + 1, targets.shape[1]))
    done, errors, sizes = 0, [], curve_sizes(train)
    for size in sizes:
        part = np.column_stack([Z[done:size], np.ones(size - done)])
        sums += part.T @ part
        marks += part.T @ targets[done:size]
        done = size
        errors.append(_best_error(sums, marks, size, Z[train:], targets[train:], judge))
    return LearningCurve(sizes, errors, D, of)


def curve_sizes(rows: int, fewest: int = 50) -> list[int]:
    """Row counts in even steps of the logarithm, the last one all rows."""
    return sorted({int(size) for size in np.geomspace(min(fewest, rows), rows, CURVE_POINTS)})


def _best_error(
    sums: np.ndarray, marks: np.ndarray, rows: int, Z: np.ndarray, targets: np.ndarray,
    judge: Callable[[np.ndarray, np.ndarray], float],
) -> float:  # fmt: skip
    """Of a whole lambda path, from one eigendecomposition."""
    mean, target_mean = sums[-1, :-1] / rows, marks[-1] / rows
    S = sums[:-1, :-1] / rows - np.outer(mean, mean)
    cross = marks[:-1] / rows - np.outer(mean, target_mean)
    values, vectors = sla.eigh(S)
    rotated, inside = vectors.T @ cross, (Z - mean) @ vectors
    scores = (inside @ (rotated / (np.maximum(values, 0) + ridge)[:, None]) + target_mean for ridge in RELATIVE_RIDGES)
    return min(judge(found, targets) for found in scores)


# -- kernel error


def kernel_errors(
    kind: str, kernel: Kernel, X: np.ndarray, sizes: list[int], own: FeatureMap, seed: int, threads: Threads
) -> list[float]:
    """Relative error of maps of this kind with so many features, on scaled rows X."""
    K = kernel(X)
    return [
        relative_error(
            build_fourier(kind, kernel, D, X.shape[1], form=own.form, precision=own.precision, seed=seed),  # type: ignore[attr-defined]
            X.astype(own.precision.inputs), K, threads,
        )
        for D in sizes
    ]  # fmt: skip


def kernel_sizes(D: int, even: bool) -> list[int]:
    """Numbers of features to look at: powers of two up to the model's own, which is the last."""
    top = min(D, LARGEST_D)
    sizes = [2**e for e in range(5, 13) if 2**e < top] + [top]
    return [size - size % 2 if even else size for size in sizes]


def drawable(kind: str) -> bool:
    """Whether frequencies of this kind can be drawn without looking at data."""
    return kind_of(kind).sample != "needed"


# -- errors


def roc(scores: np.ndarray, positive: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """False and true positive rates as the threshold falls, and the area under them; ties move together."""
    order = np.argsort(-scores, kind="stable")
    last = np.r_[np.flatnonzero(np.diff(scores[order])), len(scores) - 1]
    hits, misses = np.cumsum(positive[order])[last], np.cumsum(~positive[order])[last]
    true, false = np.r_[0, hits / max(hits[-1], 1)], np.r_[0, misses / max(misses[-1], 1)]
    return false, true, float(np.trapezoid(true, false))


def reliability(chance: np.ndarray, happened: np.ndarray, bins: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean forecast, observed share and count in each bin of equal width that has rows."""
    place = np.minimum((chance * bins).astype(int), bins - 1)
    counts = np.bincount(place, minlength=bins)
    full = counts > 0
    forecast = np.bincount(place, chance, bins)[full] / counts[full]
    return forecast, np.bincount(place, happened, bins)[full] / counts[full], counts[full]


def confusion(truth: np.ndarray, predicted: np.ndarray, classes: int) -> np.ndarray:
    """Counts: rows are the truth, columns the prediction."""
    counts = np.zeros((classes, classes), np.int64)
    np.add.at(counts, (truth, predicted), 1)
    return counts


def thinned(x: np.ndarray, y: np.ndarray, most: int = 300) -> tuple[np.ndarray, np.ndarray]:
    """A curve of at most so many points; the first and the last stay."""
    if len(x) <= most:
        return x, y
    keep = np.unique(np.linspace(0, len(x) - 1, most).astype(int))
    return x[keep], y[keep]


# -- what the model looks at


def permutation_importance(
    loss: Callable[[np.ndarray], float], X: np.ndarray, columns: np.ndarray, seed: int, repeats: int = 2
) -> np.ndarray:
    """How much the loss rises when one column is shuffled, (columns, repeats)."""
    rng, base = np.random.default_rng(seed), loss(X)
    rises = np.empty((len(columns), repeats))
    for place, column in enumerate(columns):
        for repeat in range(repeats):
            shuffled = X.copy()
            shuffled[:, column] = rng.permutation(shuffled[:, column])
            rises[place, repeat] = loss(shuffled) - base
    return rises


def partial_dependence(
    respond: Callable[[np.ndarray], np.ndarray], X: np.ndarray, column: int, points: int = 20
) -> tuple[np.ndarray, np.ndarray]:
    """Mean response (points, outputs) with one column set to each of its own quantiles from 2 % to 98 %."""
    grid = np.unique(np.quantile(X[:, column], np.linspace(0.02, 0.98, points)))
    grid = np.unique(X[:, column]) if len(np.unique(X[:, column])) <= points else grid
    moved = X.copy()
    answers = []
    for value in grid:
        moved[:, column] = value
        answers.append(respond(moved).mean(axis=0))
    return grid, np.array(answers)


def affordable_rows(model: Model, evaluations: int, rows: int, products: float = 4e9) -> int:
    """How many rows can be predicted so many times with about this many multiplications."""
    width = getattr(model.map, "n_features", 1000)
    return int(np.clip(products / (max(evaluations, 1) * width * (model.n_inputs + 4)), 50, rows))
