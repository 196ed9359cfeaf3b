"""Frequencies that are learned from rows, and from their targets (Li et al. 2019).

The learning itself is imported when it is asked for: a map that was learned once is arrays like any other.
"""

from __future__ import annotations

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, Kind, uniform_weights
from streamrf.features.fourier.monte_carlo import orthogonal_or_independent

ROWS = 21_384  # of the sample: what learning uses, and what it is judged by
FEWEST_ROWS = 16


@Kind("ekal-sample", "frequencies and weights learned from random rows", sample="needed", rows=ROWS, learned=True)
def draw_ekal_sample(request: Draw) -> Frequencies:
    return _draw_ekal(request, "sample")


@Kind("ekal-cluster", "frequencies and weights learned from rows of clusters", sample="needed", rows=ROWS, learned=True)
def draw_ekal_cluster(request: Draw) -> Frequencies:
    return _draw_ekal(request, "cluster")


def _draw_ekal(request: Draw, landmarks: str) -> Frequencies:
    """Algorithm 1: frequencies and weights that fit the kernel between rows."""
    from streamrf.features.learned.unsupervised import learn_kernel_features

    X, W0, told = request.rows()[:ROWS], orthogonal_or_independent(request), request.learning
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, len(X))
    found = learn_kernel_features(
        X, request.kernel, W0, landmarks=landmarks, count=told.landmarks, iterations=told.iterations,
        steps=told.steps, decay=told.decay, seed=request.seed,
    )  # fmt: skip
    return Frequencies(found.learned.W, found.learned.p, report=found.report())


@Kind("supervised", "frequencies learned from rows and targets", sample="needed", targets=True, rows=ROWS, learned=True)
def draw_supervised(request: Draw) -> Frequencies:
    """Algorithm 2: frequencies that serve the targets."""
    from streamrf.features.learned.supervised import learn_supervised

    X, W0, told = request.rows()[:ROWS], orthogonal_or_independent(request), request.learning
    targets = request.labels()[:ROWS]
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, len(X))
    Y, task = columns_and_task(targets, told.task)
    found = learn_supervised(
        X, Y, task, request.kernel, W0, seed=request.seed, loss=told.loss or "squared",
        etas=None if told.eta is None else (told.eta,), rounds=told.iterations, steps=told.steps,
        landmarks=told.landmarks, decay=told.decay,
    )  # fmt: skip
    return Frequencies(found.W, found.p, report=found.report())


def columns_and_task(targets: np.ndarray, task: str | None) -> tuple[np.ndarray, str]:
    """Targets as (n, k) numbers, and what they are: classes, if text or of two values in each column."""
    if targets.dtype.kind not in "fiub":
        return (targets[:, None] == np.unique(targets)).astype(np.float64), task or "classification"
    Y = np.asarray(targets, np.float64).reshape(len(targets), -1)
    low, high = Y.min(axis=0), Y.max(axis=0)
    two_valued = (np.equal(Y, low) | np.equal(Y, high)).all()
    return Y, task or ("classification" if two_valued else "regression")


def _unlearned(W0: np.ndarray, rows: int) -> Frequencies:
    report = {"kept": "start", "reason": f"{rows} rows are too few to learn from"}
    return Frequencies(W0, uniform_weights(len(W0)), report=dict(report))
