"""A metric for the pilot: rounds of small fits, each of which tells the next which directions of the inputs matter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from streamrf.features.fourier.map import FourierMap
from streamrf.features.learned.kernel_ridge import KernelRidge, few_outputs
from streamrf.features.learned.metric import (
    DIAGONAL,
    FULL,
    LEAST_GAIN,
    Judged,
    Metric,
    gradient_outer_product,
    learn_metric,
)
from streamrf.features.scaling import apply_factor
from streamrf.recipe import AUTO, NONE
from streamrf.support.errors import InputError
from streamrf.training.pilot.choice import SMALL_D, SMALL_ROWS, Trial
from streamrf.training.pilot.fourier import Measured, PilotRun
from streamrf.training.pilot.trend import on_grid

ROWS = 24_000  # of a round's fits, judges included
GRADIENT_ROWS = 8192
WIDEST = 2048  # columns of a full metric: its roots cost the cube of them
WIDTH_STEP = 2**0.5
PATIENCE = 4  # no round begins after so many times the work that the pilot has for a stage
SMOOTH, ROUGH = "gaussian", "matern12"
EXACT_JUDGES = 0.25  # of the rows of exact fits
EXACT = "kernel ridge"  # the name that trials have that metric by
Offer = tuple[Trial, Trial, Metric]  # with a metric, the isotropic one that it came from, and the metric
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


class MetricStage:
    """A stage of the pilot: one metric is learned by exact kernel ridge, another by trials with the Gaussian kernel,
    and both are judged with that kernel, a rough one, and the one that is best without a metric.

    Gradients of trials tell what matters only where there are gradients: those of rough kernels have next to none.
    """

    def __init__(self, run: PilotRun, best: Trial) -> None:
        self.run_, self.best = run, best
        self.told: dict[str, Any] = {}
        self.tried: list[Metric] = []

    def run(self) -> tuple[Trial, Trial]:
        """The best trial with a metric and the isotropic one it came from, or the best without one, twice."""
        plain = self._again(self.best)
        bases = self._bases(plain)
        offers = [*self._by_kernel_ridge(plain, bases), *self._by_trials(plain, bases)]
        stretched, source, found = min(offers, key=lambda each: each[0].error, default=(plain, plain, None))
        if stretched.rows > plain.rows:
            plain = self.run_.fit(replace(self.best, ridge=0.0))
        better = found is not None and stretched.error <= plain.error * (1.0 - LEAST_GAIN)
        after = stretched.error if better else plain.error
        self.told = {
            "asked": self.run_.recipe.metric, "form": found.form if found and better else NONE,
            "holdout_error": {"before": plain.error, "after": after}, **describe(found or self.tried[0]),
        }  # fmt: skip
        return (stretched, source) if better else (self.best, self.best)

    def _by_kernel_ridge(self, plain: Trial, bases: list[Trial]) -> list[Offer]:
        """A metric from exact fits to rows that judge no trial, offered with each kernel that may be."""
        run, judge = self.run_, self.run_.judge
        rows, scaling = judge.rows.take(slice(0, run.cut(plain))), run.scaling(plain.scaling)
        cut = len(rows) - int(len(rows) * EXACT_JUDGES)
        fits = KernelRidge(scaling.transform(rows.X), judge.coding.values(rows.targets), cut, rows.weights)
        if not fits.enough:
            return []
        found = fits.metric(forms_for(run.recipe.metric, scaling.n_outputs))
        self.tried.append(found)
        if not found.learned:
            return []
        run.factors[EXACT] = found.factor
        tuner = TrialFits(run, plain)
        ratio = tuner._spread(found.factor) / tuner._spread(None)
        offers: list[Offer] = []
        for base in bases:
            if base.scaling == plain.scaling:
                rough = base.kernel == ROUGH
                width = found.judged.length_scale if rough else run.median(base.scaling, base.kernel) * ratio
                trial = replace(base, metric=EXACT, length_scale=on_grid(width), ridge=0.0)
                offers.append((self._on_all_rows(tuner.tuned(tuner.judged(trial)).origin), base, found))
        return offers

    def _bases(self, plain: Trial) -> list[Trial]:
        """Isotropic trials of the kernels that a metric may go with, the best one first."""
        run, asked, kind = self.run_, self.run_.recipe.kernel, self.run_.recipe.fourier_kind
        names = [asked] if asked != AUTO else list(dict.fromkeys([plain.kernel, SMOOTH, ROUGH]))
        bases = []
        for name in names if kind is None else kind.kernels_among(names):
            if name == plain.kernel:
                bases.append(plain)
            elif name == SMOOTH:
                bases.append(self._smooth_start())
            else:
                bases.append(replace(plain, kernel=name, length_scale=on_grid(run.median(plain.scaling, name))))
        return bases

    def _by_trials(self, plain: Trial, bases: list[Trial]) -> list[Offer]:
        """A metric from the gradients of trials with the Gaussian kernel."""
        smooth = [base for base in bases if base.kernel == SMOOTH]
        start = smooth[0] if smooth else self._smooth_start()
        found, fits = self._search(start)
        self.tried.append(found)
        if not found.learned:
            return []
        stretched: Trial = found.judged.origin
        offers: list[Offer] = [(self._on_all_rows(stretched), start, found)] if smooth else []
        ratio = stretched.length_scale / start.length_scale
        for base in bases:
            if base.kernel != SMOOTH and base.scaling == start.scaling:
                wide = replace(base, metric=stretched.metric, length_scale=base.length_scale * ratio, ridge=0.0)
                offers.append((self._on_all_rows(fits.tuned(fits.judged(wide)).origin), base, found))
        return offers

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
