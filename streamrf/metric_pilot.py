"""A metric for the pilot: rounds of small fits, each of which tells the next which directions of the inputs matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.errors import InputError
from streamrf.maps.frequencies.base import apply_factor
from streamrf.maps.learned.metric import DIAGONAL, FULL, Judged, Metric, gradient_outer_product, learn_metric

if TYPE_CHECKING:
    from streamrf.pilot import Measured, PilotRun, Trial

ROWS = 24_000  # of a round's fits, judges included
GRADIENT_ROWS = 8192
MOST_OUTPUTS = 16
WIDEST = 2048  # columns of a full metric: its roots cost the cube of them
WIDTH_STEP = 2**0.5
PATIENCE = 2
SHOWN = 10


def forms_for(asked: str, columns: int) -> tuple[str, ...]:
    """The forms to try, the dearer first."""
    if asked == FULL and columns > WIDEST:
        raise InputError(
            f"--metric full: the inputs have {columns:,} columns and a full metric at most {WIDEST:,}: use diagonal"
        )
    if asked == "learned":
        return (FULL, DIAGONAL) if columns <= WIDEST else (DIAGONAL,)
    return (asked,)


@dataclass
class TrialFits:
    """Fits of a metric search are trials of the pilot; the factors are left with it, by name."""

    run: PilotRun
    base: Trial  # isotropic

    def __post_init__(self) -> None:
        self.X = self.run.scaling(self.base.scaling).transform(self.run.sample.X[: self.base.rows])
        self.number = 0

    def start(self) -> Judged:
        return self._judged(self.base)

    def fit(self, factor: np.ndarray, near: Judged) -> Judged:
        self.number += 1
        name = f"{DIAGONAL if factor.ndim == 1 else FULL} {self.number}"
        self.run.factors[name] = factor
        ratio = self._spread(factor) / self._spread(self.run.factors.get(near.origin.metric))
        return self._judged(replace(near.origin, metric=name, length_scale=near.length_scale * ratio))

    def tuned(self, judged: Judged) -> Judged:
        """By steps of the width, for as long as it gets better."""
        best = judged
        for step in (1 / WIDTH_STEP, WIDTH_STEP):
            here = best
            while (
                other := self._judged(replace(best.origin, length_scale=best.length_scale * step))
            ).error < best.error:
                best = other
            if best is not here:
                break
        return best

    def _judged(self, trial: Trial) -> Judged:
        """The origin of what is judged is its trial."""
        measured = self.run.measure(trial)
        done = measured.trial
        return Judged(done.error, done.length_scale, partial(self._outer_product, measured), done)

    def _spread(self, factor: np.ndarray | None) -> float:
        """How far the inputs are spread, as a root mean square."""
        X = self.X if factor is None else apply_factor(self.X, factor)
        return max(float(np.sqrt(X.var(axis=0, dtype=np.float64).sum())), 1e-30)

    def _outer_product(self, measured: Measured) -> np.ndarray:
        """Of the predictor that was measured, at rows it was fitted to."""
        (W, phases), map = measured.map.waves(), measured.map
        a = few_outputs(measured.weights.coefficients * map.precision.scale)
        rows = self.X[: min(GRADIENT_ROWS, self.run.cut(self.base))]
        return gradient_outer_product(rows, W.astype(np.float32), phases.astype(np.float32), a)


def few_outputs(coefficients: np.ndarray) -> np.ndarray:
    """Of many outputs random sums and differences, whose gradients have the outer product of all, on the average."""
    k = coefficients.shape[1]
    if k <= MOST_OUTPUTS:
        return coefficients
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (k, MOST_OUTPUTS))
    return coefficients @ signs / np.sqrt(MOST_OUTPUTS)


def search_metric(run: PilotRun, best: Trial) -> Metric:
    """From the best isotropic trial; no round begins after twice the work that the pilot has for a stage."""
    columns, limit = run.scaling(best.scaling).n_outputs, run.spent + PATIENCE * run.budget
    forms = forms_for(run.recipe.metric, columns)
    fits = TrialFits(run, replace(best, rows=min(best.rows, ROWS), ridge=0.0))
    return learn_metric(fits, fits.start(), columns, forms=forms, late=lambda: run.spent > limit)


def describe(metric: Metric) -> dict[str, Any]:
    """What a training run tells of it: its rounds, and the columns that count most."""
    shares = metric.shares()
    first = np.argsort(-shares, kind="stable")[:SHOWN]
    return {
        "rounds": [step._asdict() for step in metric.history],
        "columns": [{"column": int(column), "share": float(shares[column])} for column in first],
    }
