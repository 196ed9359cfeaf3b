"""How wide the bins of each column should be: small fits on a sample of rows, each telling which columns matter.

A fit's scores are probed by moving one column at a time. A column whose moves change them much needs narrow bins, one
that changes nothing needs none: length scales go towards the inverse of these slopes, and the fit is repeated until
rows it has not seen say that it is no better. More rows bear narrower bins; how much narrower is measured too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from streamrf.features.binning.layout import WORD_BINS
from streamrf.features.binning.map import BinningMap, GammaWidths, WidthLaw, mixed_scales
from streamrf.features.binning.normal import BinningNormal, scores
from streamrf.solvers.binning import RIDGE, default_bits
from streamrf.solvers.conjugate_gradients import ConjugateGradients, jacobi
from streamrf.support.errors import DataError
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import PILOT_GRIDS

LAW = GammaWidths(4.0)

PILOT_STEPS = 8
ROUNDS, FEWEST_ROUNDS = 10, 2
WORK = 4e9  # cells of all trials together: about two seconds of one core
CELLS_A_SECOND, TRIAL_SECONDS = 2.5e9, 0.005  # of one core; and what the smallest trial takes
PASSES_IN_COLUMNS = 50  # what the passes of a trial cost, in columns to hash
PATIENCE = 4
USUAL_TRIALS = 30
HEAT = 3  # rounds that every scaling gets
RELAXATION = 2.0  # steps towards the inverse slopes, in logarithms
PROBES = 4000
PROBE_STEP = 0.5  # of a length scale
WIDEST = 100.0  # a column's length scale is at most so many times what the most important column would have
FIRST_EXPONENT = 4.0  # the kernel of two random rows is e to the minus this, at first
FEWER = 8  # the growth of widths is measured between a sample and an eighth of it
STEEPEST = 1.0 / 3.0
MOST_OUTPUTS = 3
_TARGET_BITS = 24


@dataclass(frozen=True)
class Rows:
    """Scaled inputs (n, d) and targets (n, k), in random order. Rows that judge may count for weights (n,); rows that
    are fitted are there as often as they count."""

    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray | None = None


@dataclass(frozen=True)
class WidthTrial:
    """A fit with these length scales: ``error`` is its mean square on unseen rows over that of the mean target."""

    length_scales: np.ndarray  # (d,)
    error: float
    steps: int
    bins: float  # occupied slots a grid
    predictions: np.ndarray  # of the held-out rows, (n, k)
    map: BinningMap
    table: np.ndarray
    seconds: float


@dataclass(frozen=True)
class WidthChoice:
    """The best length scales for the pilot's rows, and how they shrink as rows grow."""

    scaling: str
    trial: WidthTrial
    rows: int
    factor: float  # best multiple of the trial's length scales at these rows
    exponent: float  # length scales go as rows to the minus this
    trials: tuple[tuple[str, WidthTrial], ...]

    def length_scales(self, rows: int) -> np.ndarray:
        """For a training run of so many rows."""
        return self.trial.length_scales * self.factor * (max(rows, self.rows) / self.rows) ** -self.exponent


class WidthSearch:
    """Fits grids of given length scales on one sample and judges them on another."""

    def __init__(
        self,
        train: Rows,
        held_out: Rows,
        threads: Threads,
        *,
        law: WidthLaw = LAW,
        grids: int = PILOT_GRIDS,
        ridge: float = RIDGE,
        seed: int = 0,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.watch = watch  # called after each trial
        if len(train.X) == 0 or len(held_out.X) == 0:
            raise DataError(f"the pilot needs rows to fit and to judge, and has {len(train.X)} and {len(held_out.X)}")
        self.train, self.held_out, self.threads = train, held_out, threads
        self.law, self.grids, self.ridge, self.seed = law, grids, ridge, seed
        self.low, self.high = train.X.min(axis=0), train.X.max(axis=0)
        at_an_end = np.equal(train.X, self.low) | np.equal(train.X, self.high)
        self.two_valued = at_an_end.all(axis=0)
        self.spread = mean_gap(train.X)
        self.centre = train.Y.mean(axis=0)
        largest = np.maximum(np.abs(train.Y - self.centre).max(axis=0), np.finfo(np.float64).tiny)
        self.target_step = np.exp2(np.frexp(largest)[1] - float(_TARGET_BITS))
        self.deviations = held_out.Y - self.centre

    def smaller(self) -> WidthSearch:
        """The same search with an eighth of the rows to fit."""
        rows = max(1, len(self.train.X) // FEWER)
        fewer = Rows(self.train.X[:rows], self.train.Y[:rows])
        options: dict[str, Any] = {
            "law": self.law,
            "grids": self.grids,
            "ridge": self.ridge,
            "seed": self.seed,
            "watch": self.watch,
        }
        return WidthSearch(fewer, self.held_out, self.threads, **options)

    # -- one fit

    def trial(self, length_scales: np.ndarray, *, mixed: bool = False, steps: int = PILOT_STEPS) -> WidthTrial:
        """Fit, stop when the held-out rows say so, and judge."""
        begun = time.monotonic()
        d, bits = len(length_scales), default_bits(len(self.train.X))
        bounds = self.low, self.high
        metric = grid_scales(length_scales, self.spread, self.grids, self.seed, mixed=mixed)
        map = BinningMap.draw(self.law, d, self.grids, bits, self.seed, metric=metric, bounds=bounds)
        indices, unseen = (self._indices(map, rows.X) for rows in (self.train, self.held_out))
        normal = BinningNormal([indices], map.buckets, self.threads)
        ridge = self.ridge * self.grids

        def deviations(V: np.ndarray) -> np.ndarray:
            return scores(unseen, normal.occupied.expand(V, np.float32), self.threads).T

        cg = ConjugateGradients.begin(normal, self._right_hand_side(normal), ridge, jacobi(normal.diagonal, ridge))
        best = cg.run(steps, score=lambda V: self._error(deviations(V)))
        predicted = deviations(best)
        table = normal.occupied.expand(best, np.float32)
        bins = best.shape[1] / self.grids
        error = self._error(predicted)
        self.watch()
        predictions, seconds = predicted + self.centre, time.monotonic() - begun
        return WidthTrial(length_scales, error, cg.state.best_iteration, bins, predictions, map, table, seconds)

    def _indices(self, map: BinningMap, X: np.ndarray) -> np.ndarray:
        """In words of 16 bits where they fit, as in a run, whose compiled loops are then the same."""
        indices = map.indices(X, threads=self.threads)
        return indices.astype(np.uint16) if map.buckets <= WORD_BINS else indices

    def _right_hand_side(self, normal: BinningNormal) -> np.ndarray:
        units = np.rint((self.train.Y - self.centre) / self.target_step).astype(np.int64)
        return normal.targets(np.ascontiguousarray(units.T)) * self.target_step[:, None]

    def _error(self, predicted: np.ndarray) -> float:
        total = max(self._sum(self.deviations**2), np.finfo(np.float64).tiny)
        return self._sum((predicted - self.deviations) ** 2) / total

    def _sum(self, values: np.ndarray) -> float:
        """Of rows that judge, by their weights."""
        weights = self.held_out.weights
        return float(values.sum() if weights is None else (weights @ values).sum())

    # -- how narrow the bins are on the whole

    def exponent(self, length_scales: np.ndarray) -> float:
        """Minus the mean log of the Laplacian kernel of two random rows: one number for how narrow the bins are."""
        return float((self.spread / length_scales).sum())

    def normalised(self, length_scales: np.ndarray, exponent: float) -> np.ndarray:
        """The same proportions, at this exponent."""
        now = self.exponent(length_scales)
        return length_scales * (now / exponent if now > 0 else 1.0)

    def first(self) -> np.ndarray:
        """Every column counts alike; one of two values counts by its range, however rare one of them is."""
        reach = np.where(self.two_valued, self.high - self.low, self.spread)
        return self.normalised(np.where(reach > 0, reach, 1.0), FIRST_EXPONENT)

    def walk(self, start: np.ndarray, factor: float = 1.5) -> WidthTrial:
        """From a start, narrower or wider by a factor for as long as that is better."""
        best = self.trial(start)
        for step in (1.0 / factor, factor):
            here = best
            while (other := self.trial(best.length_scales * step)).error < best.error:
                best = other
            if best is not here:
                break
        return best

    # -- proportions between columns

    def slopes(self, trial: WidthTrial) -> np.ndarray:
        """Root mean square change of the scores per unit of each column, (d,)."""
        X = self.held_out.X[:PROBES]
        moves = self._moves(X, trial.length_scales)
        change = np.sqrt(trial.map.sensitivity(X, trial.table, moves))
        step = np.sqrt(((moves - X) ** 2).mean(axis=0))
        return change / np.where(step > 0, step, 1.0)

    def _moves(self, X: np.ndarray, length_scales: np.ndarray) -> np.ndarray:
        """Half a length scale up or down, within the range; a column of two values goes to the other one."""
        step = np.minimum(PROBE_STEP * length_scales, (self.high - self.low) / 2).astype(np.float32)
        up = (np.arange(len(X))[:, None] + np.arange(X.shape[1])) % 2 == 0
        up = np.where(X + step > self.high, False, np.where(X - step < self.low, True, up))
        return np.where(self.two_valued, self.low + self.high - X, np.where(up, X + step, X - step)).astype(np.float32)

    def reweighted(self, trial: WidthTrial) -> np.ndarray:
        """Length scales moved towards the inverse of the slopes, and beyond, as narrow on the whole as before."""
        slopes, now = self.slopes(trial), trial.length_scales
        if not slopes.any():
            return now
        target = self.normalised(1.0 / np.maximum(slopes, slopes.max() / WIDEST), self.exponent(now))
        moved = np.minimum(now * (target / now) ** RELAXATION, target.min() * WIDEST)
        return self.normalised(moved, self.exponent(now))

    def rounds(self, most: int = ROUNDS) -> Iterator[WidthTrial]:
        """The better of two trials a round, one of them narrower or wider; ends when rounds bring nothing any more."""
        current = best = self.walk(self.first())
        yield current
        stale = 0
        for number in range(most):
            proposal = self.reweighted(current)
            other = 0.8 if number % 2 == 0 else 1.25
            current = min(self.trial(proposal), self.trial(proposal * other), key=_error_of)
            yield current
            stale = 0 if current.error < 0.995 * best.error else stale + 1
            best = min(best, current, key=_error_of)
            if stale >= PATIENCE:
                return

    def affordable_rounds(self) -> int:
        """As many as are cheap, counted and not timed, so that a busy machine chooses what an idle one does."""
        rows, d = self.train.X.shape
        return int(np.clip(WORK / (2 * rows * self.grids * (d + PASSES_IN_COLUMNS)), FEWEST_ROUNDS, ROUNDS))

    def best_factor(self, length_scales: np.ndarray, factors: tuple[float, ...]) -> float:
        """The multiple of the length scales with the least error: the vertex of a parabola through the best three."""
        errors = [self.trial(length_scales * factor).error for factor in factors]
        at = int(np.clip(np.argmin(errors), 1, len(factors) - 2))
        logs = np.log(factors[at - 1 : at + 2])
        bend, slope, _ = np.polyfit(logs, errors[at - 1 : at + 2], 2)
        vertex = -slope / (2 * bend) if bend > 0 else logs[int(np.argmin(errors[at - 1 : at + 2]))]
        return float(np.exp(np.clip(vertex, logs[0], logs[-1])))


def grid_scales(length_scales: np.ndarray, spread: np.ndarray, grids: int, seed: int, *, mixed: bool) -> np.ndarray:
    """The length scales of each grid; a column matters by how many bins it is cut into."""
    return mixed_scales(length_scales, spread / length_scales, grids, seed) if mixed else length_scales


def few_outputs(Y: np.ndarray, most: int = MOST_OUTPUTS, seed: int = 0) -> np.ndarray:
    """Targets (n, k) as at most so many: random sums and differences of them, which need the same columns."""
    if Y.shape[1] <= most:
        return Y
    return Y @ np.random.default_rng(seed).choice([-1.0, 1.0], (Y.shape[1], most))


def choose_widths(searches: Mapping[str, WidthSearch], rounds: int | None = None) -> WidthChoice:
    """The scaling that leads after a few rounds, run to its end; ``searches`` has one for each scaling to compare."""
    running = {
        name: search.rounds(search.affordable_rounds() if rounds is None else rounds)
        for name, search in searches.items()
    }
    trials = [(name, trial) for name, rounds in running.items() for trial in islice(rounds, 1 + HEAT)]
    leader = min(trials, key=lambda each: each[1].error)[0]
    trials += [(leader, trial) for trial in running[leader]]
    best = min(trials, key=lambda each: each[1].error)[1]
    search = searches[leader]
    factor, exponent = _growth(search, best.length_scales)
    return WidthChoice(leader, best, len(search.train.X), factor, exponent, tuple(trials))


def usual_trials(searches: Mapping[str, WidthSearch]) -> int:
    """How many trials ``choose_widths`` makes, about."""
    rounds = max(search.affordable_rounds() for search in searches.values())
    return len(searches) * (3 + 2 * min(HEAT, rounds)) + 2 * max(0, rounds - HEAT) + 3 + 5


def binning_work(rows: int, columns: int) -> float:
    """Cells of a usual search."""
    a_trial = rows * PILOT_GRIDS * (columns + PASSES_IN_COLUMNS)
    return float(min(2 * WORK, USUAL_TRIALS * a_trial))


def _growth(search: WidthSearch, length_scales: np.ndarray) -> tuple[float, float]:
    """The best multiple of the length scales, and the power of the rows by which an eighth of them wants wider bins."""
    factor = search.best_factor(length_scales, (0.8, 1.0, 1.25))
    wider = search.smaller().best_factor(length_scales, (1.0, 1.25, 1.6, 2.0, 2.5))
    return factor, float(np.clip(np.log(wider / factor) / np.log(FEWER), 0.0, STEEPEST))


def _error_of(trial: WidthTrial) -> float:
    return trial.error


def mean_gap(X: np.ndarray, partners: int = 4) -> np.ndarray:
    """Mean absolute difference of two random rows, column by column, each row with a few others."""
    shifts = (len(X) * (i + 1) // (partners + 1) for i in range(partners))
    return np.mean([np.abs(X - np.roll(X, by, axis=0)).mean(axis=0, dtype=np.float64) for by in shifts], axis=0)
