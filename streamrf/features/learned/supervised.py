"""Frequencies that know the targets: Algorithm 2 of Li et al. (2019), the hybrid loss.

The loss is that of a linear machine on cos(w'x) and sin(w'x), with gamma |coefficients|^2, and eta times the loss of
the kernel approximation. Strong gamma is what makes frequencies move towards the targets instead of the coefficients
growing; the machine that is fitted in the end has a ridge of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import (
    DECAY,
    Adam,
    Pairs,
    Waves,
    ekal_gradient,
    ekal_loss,
    equal_weights,
    fit_weights,
    relative_error,
    sample_landmarks,
    typical_size,
)
from streamrf.features.learned.machine import Fit, Loss, Moments, Products, least_squares, loss_named
from streamrf.support.errors import DataError, InputError, MismatchError
from streamrf.support.storage.safejson import JSON

GAMMAS = (0.1, 0.3, 1.0)
ETAS = (0.0, 10.0)
ROUNDS, FEWEST_ROUNDS = 30, 8  # T of the paper; each fits the machine again, which is slow for many frequencies
STEPS = 2400  # T times S of the paper
MANY, MOST = 512, 5000  # frequencies: from which on fewer settings and rounds are tried, and at most
HEAT = 0.25  # of the rounds: then only the best setting continues, until a quarter of them brought nothing
BATCH = 256
STEP = 0.05  # of the typical size of a frequency's entry
LANDMARKS = 100
HELD_OUT = 0.25
MOST_HELD_OUT = 5000
MOST_ROWS = 16384  # half of it for more than 1,024 frequencies
FINAL_RIDGES = (1.0, 0.3, 0.1, 0.01, 0.001)  # times gamma: what the machine that is fitted in the end may want
FEW_RIDGES = (1.0, 0.1)  # for many frequencies, where each is a fit by products with all rows
FEWEST_ROWS = 8
JUDGES = 1000  # held-out rows between which the kernel is compared


# -- rows and targets


@dataclass(frozen=True, eq=False)
class Rows:
    """Scaled inputs (n, d) and targets (n, k) in float32."""

    X: np.ndarray
    Y: np.ndarray

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: np.ndarray | slice) -> Rows:
        return Rows(self.X[rows], self.Y[rows])


def prepared(X: np.ndarray, Y: np.ndarray, task: str) -> Rows:
    """Numbers of zero mean and unit variance, or -1 and +1 in each column of classes."""
    X, Y = np.asarray(X, np.float32), np.asarray(Y, np.float64)
    Y = Y[:, None] if Y.ndim == 1 else Y
    if len(X) != len(Y):
        raise MismatchError(f"there are {len(X)} rows and {len(Y)} targets: give one each")
    if len(X) < FEWEST_ROWS:
        raise DataError(f"learning from targets takes at least {FEWEST_ROWS} rows, and there are {len(X)}")
    if task == "classification":
        middle = (Y.min(axis=0) + Y.max(axis=0)) / 2
        return Rows(X, np.where(middle < Y, 1.0, -1.0).astype(np.float32))
    if task != "regression":
        raise InputError(f"task {task!r}: choose regression or classification")
    spread = Y.std(axis=0)
    return Rows(X, ((Y - Y.mean(axis=0)) / np.where(spread > 0, spread, 1.0)).astype(np.float32))


def mistakes(scores: np.ndarray, Y: np.ndarray, task: str) -> float:
    """The share of the variance that is not explained, or the share of wrong classes."""
    squares = float(((scores - Y) ** 2).mean())
    if task == "regression":
        return squares
    wrong = (scores > 0) != (Y > 0) if Y.shape[1] == 1 else scores.argmax(axis=1) != Y.argmax(axis=1)
    return float(wrong.mean()) + 1e-3 * squares  # the squares decide between equal shares


# -- one run


class Setting(NamedTuple):
    """What a run tries: gamma of the machine and eta of the kernel loss."""

    gamma: float
    eta: float


class Checked(NamedTuple):
    """A round, and the least error of a machine on held-out rows after it, with the ridge that gave it."""

    round: int
    error: float
    ridge: float


@dataclass(eq=False)
class Run:
    """Algorithm 2 with one setting: each round fits the machine again, then takes mini-batch steps with W."""

    rows: Rows
    held_out: Rows | None
    task: str
    loss: Loss
    kernel: Kernel
    setting: Setting
    W: np.ndarray
    rounds: int
    steps: int
    rng: np.random.Generator
    landmarks: int = LANDMARKS
    decay: float = DECAY
    fit: Fit | None = None
    history: list[Checked] = field(default_factory=list)
    best: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.W = np.array(self.W, np.float32)
        self.adam = Adam(STEP * typical_size(self.W), self.rounds * self.steps)
        self.p: np.ndarray | None = None
        self.done = 0

    @property
    def error(self) -> float:
        """The least error on held-out rows."""
        return min(check.error for check in self.history)

    @property
    def best_round(self) -> int:
        return min(self.history, key=lambda check: check.error).round

    @property
    def finished(self) -> bool:
        patience = max(2, int(self.rounds * HEAT))
        return self.done >= self.rounds or (bool(self.history) and self.done - self.best_round > patience)

    def advance(self, until: int) -> Run:
        """Go on to this round, or to where the held-out rows have seen no gain for long."""
        while self.done < until and not self.finished:
            self._round()
        self._machine()
        return self

    def _round(self) -> None:
        self._machine()
        self._weights()
        assert self.fit is not None
        for _ in range(self.steps):
            batch = self.rows.take(self.rng.integers(len(self.rows), size=min(BATCH, len(self.rows))))
            slope = prediction_slope(batch, self.W, self.fit, self.loss)
            self.W = self.adam.move(self.W, slope + self._kernel_slope() if self.setting.eta else slope)
        self.done += 1

    def _machine(self) -> None:
        """Fit the machine to the features as they are now, and judge them once a round."""
        Z = features(self.rows.X, self.W)
        equations = least_squares(Z, self.rows.Y)
        if self.loss.reweighted is None:
            self.fit = equations.ridge(self.setting.gamma, self.fit)
        else:
            self.fit = self.loss.fit(Z, self.rows.Y, self.setting.gamma, self.fit)
        if self.held_out is not None and (not self.history or self.history[-1].round < self.done):
            self._judge(equations, self.held_out)

    def _judge(self, equations: Moments | Products, held_out: Rows) -> None:
        Z = features(held_out.X, self.W)
        checks, fit = [], self.fit
        for ratio in FINAL_RIDGES if len(self.W) <= MANY else FEW_RIDGES:
            fit = equations.ridge(self.setting.gamma * ratio, fit)
            checks.append(Checked(self.done, self._mistakes(fit, Z, held_out), self.setting.gamma * ratio))
        check = min(checks, key=lambda each: each.error)
        if not self.history or check.error < self.error:
            self.best = self.W
        self.history.append(check)

    def _mistakes(self, fit: Fit, Z: np.ndarray, rows: Rows) -> float:
        return mistakes(fit.scores(Z), rows.Y, self.task)

    def _weights(self) -> None:
        """The weights of the kernel loss, from new landmarks."""
        if self.setting.eta:
            landmarks = sample_landmarks(self.rows.X, min(2 * self.landmarks, len(self.rows)), self.rng)
            self.p = fit_weights(Pairs.within(self.kernel, *landmarks), self.W, self.decay)

    def _kernel_slope(self) -> np.ndarray:
        n = min(self.landmarks, len(self.rows) // 2)
        left, right = (sample_landmarks(self.rows.X, n, self.rng) for _ in range(2))
        pairs = Pairs.between(self.kernel, left, right, np.float32)
        assert self.p is not None
        return np.float32(self.setting.eta) * ekal_gradient(pairs, self.W, self.p.astype(np.float32))[1]


def features(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Cosines, then sines, (n, 2F)."""
    return np.concatenate(Waves.of(X, W), axis=1)


def prediction_slope(rows: Rows, W: np.ndarray, fit: Fit, loss: Loss) -> np.ndarray:
    """The gradient of the mean loss in W, (F, d), for coefficients as they are."""
    waves, F = Waves.of(rows.X, W), len(W)
    a = fit.coefficients.astype(rows.X.dtype)
    scores = waves.cos @ a[:F] + waves.sin @ a[F:] + fit.intercept.astype(rows.X.dtype)
    pull = loss.slope(scores, rows.Y) / len(rows)
    return (waves.cos * (pull @ a[F:].T) - waves.sin * (pull @ a[:F].T)).T @ rows.X


# -- Algorithm 2, with what it leaves open chosen on held-out rows


@dataclass(frozen=True, eq=False)
class SupervisedFeatures:
    """Frequencies (F, d), their weights (all the same), the setting that won, and what each setting reached."""

    W: np.ndarray
    p: np.ndarray
    setting: Setting
    ridge: float  # of mean squares, for cosines and sines as they are; divide by F for features that carry sqrt(p)
    start_error: float
    error: float  # on the held-out rows
    history: dict[Setting, list[Checked]]
    facts: JSON = field(default_factory=dict)  # sizes, and errors of the kernel before and after

    def report(self) -> JSON:
        """What a training run tells of it."""
        return {
            "kept": "learned" if self.error < self.start_error else "start",
            "holdout_error": {"before": self.start_error, "after": self.error},
            "gamma": self.setting.gamma,
            "eta": self.setting.eta,
            **self.facts,
            "history": [
                {"gamma": setting.gamma, "eta": setting.eta, "round": check.round, "holdout_error": check.error}
                for setting, checks in self.history.items()
                for check in checks
            ],
        }


def learn_supervised(
    X: np.ndarray, Y: np.ndarray, task: str, kernel: Kernel, W0: np.ndarray, *, seed: int = 0, loss: str = "squared",
    gammas: tuple[float, ...] | None = None, etas: tuple[float, ...] | None = None, rounds: int | None = None,
    steps: int | None = None, landmarks: int | None = None, decay: float | None = None, refit: bool | None = None,
) -> SupervisedFeatures:  # fmt: skip
    """Algorithm 2 from W0 on rows in memory: X scaled, Y as numbers or as columns of classes.

    A quarter of the rows is held out to choose gamma, eta and the round to stop at; then, with ``refit``, all rows are
    learned from with these choices. W0 comes back where nothing is better on the held-out rows. Each of the ``rounds``
    takes so many ``steps`` of descent.
    """
    many = len(W0) > MANY
    if len(W0) > MOST:
        raise InputError(f"learning from targets is for at most {MOST:,} frequencies, not {len(W0):,}: take fewer")
    if loss != "squared" and task == "regression":
        raise InputError(f"a {loss} loss is for classes and the targets are numbers: use the squared loss")
    rng, rounds = np.random.default_rng(seed), rounds or default_rounds(len(W0))
    rows = prepared(X, Y, task)
    order = rng.permutation(len(rows))
    held = min(MOST_HELD_OUT, max(2, int(len(order) * HELD_OUT)))
    order = order[: held + (MOST_ROWS if len(W0) <= 2 * MANY else MOST_ROWS // 2)]
    gammas, etas = gammas or (GAMMAS[1:2] if many else GAMMAS), etas or (ETAS[:1] if many else ETAS)
    first = Run(
        rows.take(order[held:]), rows.take(order[:held]), task, loss_named(loss), kernel, Setting(gammas[0], etas[0]),
        W0, rounds, steps or max(1, (STEPS // 2 if many else STEPS) // rounds), np.random.default_rng(seed),
        landmarks or LANDMARKS, DECAY if decay is None else decay,
    )  # fmt: skip
    runs = _race(first, gammas, etas, seed)
    winner = min(runs, key=lambda run: run.error).advance(rounds)
    refit = not many if refit is None else refit
    return _outcome(winner, runs, rows.take(order) if refit else None, np.asarray(W0, np.float64), seed)


def default_rounds(F: int) -> int:
    """30, and fewer where a round is dear: a fit costs the square of the number of frequencies."""
    return int(np.clip(ROUNDS * (MANY / F) ** 2, FEWEST_ROUNDS, ROUNDS))


def _race(first: Run, gammas: tuple[float, ...], etas: tuple[float, ...], seed: int) -> list[Run]:
    """A quarter of the rounds for every gamma, then for the best of them with every other eta."""
    heat = max(1, int(first.rounds * HEAT))

    def entered(setting: Setting) -> Run:
        return replace(first, setting=setting, rng=np.random.default_rng(seed), fit=None, history=[]).advance(heat)

    runs = [entered(Setting(gamma, etas[0])) for gamma in gammas]
    gamma = min(runs, key=lambda run: run.error).setting.gamma
    return runs + [entered(Setting(gamma, eta)) for eta in etas[1:]]


def _outcome(winner: Run, runs: list[Run], everything: Rows | None, W0: np.ndarray, seed: int) -> SupervisedFeatures:
    start = min((run.history[0] for run in runs), key=lambda check: check.error)
    W, best = winner.best, min(winner.history, key=lambda check: check.error)
    if best.error >= start.error or W is None:
        W, best = W0, start
    elif everything is not None:
        again = replace(
            winner, rows=everything, held_out=None, W=W0, rng=np.random.default_rng(seed), fit=None, history=[]
        )
        W = again.advance(winner.best_round).W
    W, history = W.astype(np.float64), {run.setting: run.history for run in runs}
    return SupervisedFeatures(
        W, equal_weights(W), winner.setting, best.ridge, start.error, best.error, history, _facts(winner, W0, W)
    )


def _facts(run: Run, W0: np.ndarray, W: np.ndarray) -> JSON:
    """How far the kernel of the features moved: on landmarks, and on held-out rows."""
    assert run.held_out is not None
    rng, p = np.random.default_rng(0), equal_weights(W)
    landmarks = sample_landmarks(run.rows.X, min(run.landmarks, len(run.rows)), rng)
    some, unseen = Pairs.within(run.kernel, *landmarks), Pairs.within(run.kernel, run.held_out.X[:JUDGES])
    return {
        "loss": run.loss.name, "landmarks": len(some.left), "iterations": run.rounds, "steps": run.steps,
        "landmark_loss": {"before": ekal_loss(some, W0, p), "after": ekal_loss(some, W, p)},
        "kernel_error": {"before": relative_error(unseen, W0, p), "after": relative_error(unseen, W, p)},
    }  # fmt: skip
