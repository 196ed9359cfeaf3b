"""The precision of features, by arithmetic: what rounding adds to the diagonal is a ridge, and the path of lambdas of a
trial has shown how large a ridge may be before it costs anything.

A feature that is rounded has 1/12 of a step squared more variance, so S has as much more on its diagonal. Served
unrounded, weights from such sums are those of a ridge that is larger by that much (docs/decisions/
exact-integer-features.md has the measurements).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from streamrf.features.base import FeatureMap
from streamrf.features.precision import LIMITS, make_precision
from streamrf.solvers.ridge import ROUNDING, RidgeTrial, removable_rounding
from streamrf.training.pilot.choice import Trial
from streamrf.training.pilot.judging import Judge, Verdict

WORTH = 1.01**2  # a cheaper precision may cost one per cent of the error (as a root mean square)
FALL = 1.5  # the ridge that costs nothing falls with rows to this power: from 0.8 to 5 on tables of all kinds
SHARE = 0.1  # of it, that rounding may be: few rows judge, and rounding is somewhat worse than a ridge
TIMES_BEST = 3.0  # the best lambda, where the path does not tell what can be borne
BEYOND = 10.0  # times the last lambda: so far a path is taken to go on as its last three lambdas do
STRIDE = 4  # of the lambdas that are tried first
NOISE_AS_WELL = 0.25  # where rounding is noise in predictions too


def bearable_ridge(ridges: Sequence[float], errors: np.ndarray) -> float:
    """The largest lambda whose squared error is within two per cent of the best. Between those that were tried, errors
    change evenly with the logarithm; beyond the last, as a parabola."""
    order = np.argsort(ridges)
    tried, found = np.asarray(ridges, np.float64)[order], np.asarray(errors)[order]
    limit = WORTH * found.min()
    last = int(np.flatnonzero(found <= limit)[-1])
    if last + 1 == len(tried):
        return float(tried[last] * _beyond(np.log(tried[-3:] / tried[-1]), found[-3:] - limit))
    if not np.isfinite(found[last + 1]):
        return float(tried[last])
    share = (limit - found[last]) / (found[last + 1] - found[last])
    return float(tried[last] * (tried[last + 1] / tried[last]) ** share)


def _beyond(places: np.ndarray, heights: np.ndarray) -> float:
    """The factor, BEYOND at most, at which a parabola through these points goes through zero, behind the last one."""
    if len(places) < 3 or not np.isfinite(heights).all():
        return 1.0
    later = [root.real for root in np.roots(np.polyfit(places, heights, 2)) if root.imag == 0 and root.real >= 0]
    return float(np.exp(min(later, default=np.inf))) if later and min(later) < np.log(BEYOND) else BEYOND


def in_valley(count: int, errors: Callable[[list[int]], Sequence[float]]) -> dict[int, float]:
    """Errors at some of so many places, the least of them among these where errors have one valley: every fourth place
    is asked for, then those half as far from the best, then its neighbours."""
    known: dict[int, float] = {}
    places, step = list(range(STRIDE - 1, count, STRIDE)), STRIDE
    while step:
        if places:
            known |= dict(zip(places, errors(places), strict=True))
        step //= 2
        best = min(known, key=lambda place: known[place])
        places = [place for place in (best - step, best + step) if 0 <= place < count and place not in known]
    return known


def along_path(
    trial: RidgeTrial, judge: Judge, fitted: slice, judges: slice, ridges: Sequence[float]
) -> tuple[float, float, Verdict]:
    """The best of rising lambdas, the largest that costs next to nothing, and what judges say of the best."""
    state, unseen, verdicts = trial.sums(judge.rows.take(fitted)), judge.rows.take(judges), {}

    def errors(places: list[int]) -> Sequence[float]:
        path = trial.path(state, [ridges[place] for place in places])
        verdict = judge.verdict(trial.scores(path, unseen), judges)
        verdicts[places[verdict.best]] = verdict
        return verdict.path.tolist()

    found = in_valley(len(ridges), errors)
    best = min(found, key=lambda place: found[place])
    tried = [ridges[place] for place in found]
    return ridges[best], bearable_ridge(tried, np.array(list(found.values()))), verdicts[best]


@dataclass(frozen=True)
class Rounding:
    """What rounding adds to the diagonal of a run: D features of such a map, and so many rows whose sums are solved (0
    where gradients are)."""

    map: FeatureMap
    D: int
    rows: int

    def ridge(self, bits: int) -> float:
        """As it stays, after the solver has taken off what it can."""
        map = self.map
        squares = float(np.mean((map.amplitudes * map.precision.scale) ** 2)) * map.n_features / self.D
        left = ROUNDING - removable_rounding(self.rows, self.D) if map.can_serve_unrounded else ROUNDING / NOISE_AS_WELL
        return squares * left / LIMITS[bits] ** 2

    def cheapest(self, bearable: float, *, structured: bool = False) -> str:
        """The fewest bits whose rounding can be borne, and whose sums hold all rows. 20 bits have sums in one pass
        only: gradients take float64 then, whose sums are not exact. Structured maps have neither."""
        most = max(LIMITS) if self.rows and not structured else 12
        able = [bits for bits in sorted(LIMITS) if bits <= most and self.rows <= make_precision(bits).most_rows]
        for bits in able:
            if self.ridge(bits) <= SHARE * bearable:
                return str(bits)
        floats = not self.rows and not structured and self.ridge(able[-1]) > bearable
        return "float64" if floats else str(able[-1])


def bearable_in_run(trial: Trial, fitted: int, rows: int, *, classes: bool, given: bool) -> float:
    """The ridge that costs nothing in a run of so many rows, from the best trial, which was fitted to fewer.

    A path of classes ends above lambdas that would suit them (see LEAST_RIDGE), and what costs one per cent is measured
    from its end: so its best lambda counts. So does one that was asked for.
    """
    if given:
        return TIMES_BEST * trial.ridge
    here = TIMES_BEST * trial.ridge if classes or not trial.bearable else trial.bearable
    return here * (fitted / max(rows, fitted)) ** FALL
