"""A metric for the pilot: rounds of small fits, each of which tells the next which directions of the inputs matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streamrf.features.fourier.frequencies import apply_factor
from streamrf.features.fourier.map import FourierMap
from streamrf.features.learned.metric import (
    DIAGONAL,
    FULL,
    LEAST_GAIN,
    Judged,
    Metric,
    gradient_outer_product,
    learn_metric,
)
from streamrf.recipe import AUTO, NONE
from streamrf.support.errors import InputError
from streamrf.training.pilot.choice import SMALL_D, SMALL_ROWS, Trial
from streamrf.training.pilot.fourier import Measured, PilotRun

ROWS = 24_000  # of a round's fits, judges included
GRADIENT_ROWS = 8192
MOST_OUTPUTS = 16
WIDEST = 2048  # columns of a full metric: its roots cost the cube of them
WIDTH_STEP = 2**0.5
PATIENCE = 4  # no round begins after so many times the work that the pilot has for a stage
SMOOTH = "gaussian"
SHOWN = 10


def forms_for(asked: str, columns: int) -> tuple[str, ...]:
    """The forms to try, the dearer first."""
    if asked == FULL and columns > WIDEST:
        raise InputError(
            f"`metric='full'`: the inputs have {columns:,} columns and a full metric at most {WIDEST:,}: use diagonal"
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
        return self.judged(self.base)

    def fit(self, factor: np.ndarray, near: Judged) -> Judged:
        self.number += 1
        name = f"{DIAGONAL if factor.ndim == 1 else FULL} {self.number}"
        self.run.factors[name] = factor
        ratio = self._spread(factor) / self._spread(self.run.factors.get(near.origin.metric))
        return self.judged(replace(near.origin, metric=name, length_scale=near.length_scale * ratio))

    def tuned(self, judged: Judged) -> Judged:
        """By steps of the width, for as long as it gets better."""
        best = judged
        for step in (1 / WIDTH_STEP, WIDTH_STEP):
            here = best
            while (
                other := self.judged(replace(best.origin, length_scale=best.length_scale * step))
            ).error < best.error:
                best = other
            if best is not here:
                break
        return best

    def judged(self, trial: Trial) -> Judged:
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
        map = measured.map
        assert isinstance(map, FourierMap)
        W, phases = map.waves()
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


class MetricStage:
    """A stage of the pilot: a metric is learned with the Gaussian kernel, and judged with it and with the kernel that
    is best without one.

    Gradients tell what matters only where there are gradients: the predictors of rough kernels have next to none.
    """

    def __init__(self, run: PilotRun, best: Trial) -> None:
        self.run_, self.best = run, best
        self.told: dict[str, Any] = {}

    def run(self) -> tuple[Trial, Trial]:
        """The best trial with a metric and the isotropic one it came from, or the best without one, twice."""
        plain = self._again(self.best)
        start = plain if self.best.kernel == SMOOTH else self._smooth_start()
        found, fits = self._search(start)
        candidates = self._candidates(found, fits, start, plain) if found.learned else []
        stretched, source = min(candidates, key=lambda each: each[0].error, default=(plain, plain))
        if stretched.rows > plain.rows:
            plain = self.run_.fit(replace(self.best, ridge=0.0))
        better = stretched.error <= plain.error * (1.0 - LEAST_GAIN)
        after = stretched.error if better else plain.error
        self.told = {
            "asked": self.run_.recipe.metric, "form": found.form if better else NONE,
            "holdout_error": {"before": plain.error, "after": after}, **describe(found),
        }  # fmt: skip
        return (stretched, source) if better else (self.best, self.best)

    def _again(self, trial: Trial) -> Trial:
        """On the rows of this stage, and with every lambda."""
        return self.run_.fit(replace(trial, rows=min(trial.rows, ROWS), ridge=0.0))

    def _smooth_start(self) -> Trial:
        """The Gaussian kernel at its best width, with the scaling that suits it if there is a choice."""
        run, large = self.run_, (self.best.D, min(self.best.rows, ROWS))
        run.limit = run.spent + run.budget
        scalings = [self.best.scaling]
        if run.recipe.kernel == AUTO and run.recipe.scaling == AUTO:
            scalings = list(dict.fromkeys(scaling for scaling, _ in run.pairings()))
        small = min(large[0], SMALL_D), min(large[1], SMALL_ROWS)
        found = [run.search((scaling, SMOOTH), *small, free=True) for scaling in scalings]
        first = min(found, key=lambda trial: trial.error)
        return run.refine(replace(first, ridge=0.0), *large, free=True)

    def _search(self, start: Trial) -> tuple[Metric, TrialFits]:
        run, columns = self.run_, self.run_.scaling(start.scaling).n_outputs
        forms, limit = forms_for(run.recipe.metric, columns), run.spent + PATIENCE * run.budget
        fits = TrialFits(run, start)
        return learn_metric(fits, fits.start(), columns, forms=forms, late=lambda: run.spent > limit), fits

    def _candidates(self, found: Metric, fits: TrialFits, start: Trial, plain: Trial) -> list[tuple[Trial, Trial]]:
        """With the kernel that learned it, if it may be that one, and with the best one, at widths of their own."""
        stretched: Trial = found.judged.origin
        allowed = self.run_.recipe.kernel in (AUTO, SMOOTH)
        candidates = [(self._on_all_rows(stretched), start)] if allowed else []
        if plain.kernel != SMOOTH and plain.scaling == start.scaling:
            ratio = stretched.length_scale / start.length_scale
            wide = replace(plain, metric=stretched.metric, length_scale=plain.length_scale * ratio)
            candidates.append((self._on_all_rows(fits.tuned(fits.judged(wide)).origin), plain))
        return candidates

    def _on_all_rows(self, trial: Trial) -> Trial:
        """More rows want another width."""
        if trial.rows >= self.best.rows:
            return trial
        self.run_.limit = self.run_.spent + self.run_.budget
        return self.run_.refine(trial, self.best.D, self.best.rows, free=True)


def describe(metric: Metric) -> dict[str, Any]:
    """What a training run tells of it: its rounds, and the columns that count most."""
    shares = metric.shares()
    first = np.argsort(-shares, kind="stable")[:SHOWN]
    return {
        "rounds": [step._asdict() for step in metric.history],
        "columns": [{"column": int(column), "share": float(shares[column])} for column in first],
    }
