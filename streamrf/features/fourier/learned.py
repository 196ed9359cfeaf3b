"""Frequencies that are learned from rows, and from their targets (Li et al. 2019).

The learning itself is imported when it is asked for: a map that was learned once is arrays like any other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.features.fourier.frequencies import Draw, Frequencies, uniform_weights
from streamrf.features.fourier.monte_carlo import draw_mc
from streamrf.features.fourier.orthogonal import draw_orthogonal
from streamrf.support.errors import InputError

ROWS = 21_384  # that learning may look at: what it learns from, and what it is judged by
FEWEST_ROWS = 16


def draw_ekal_sample(request: Draw) -> Frequencies:
    return _draw_ekal(request, "sample")


def draw_ekal_cluster(request: Draw) -> Frequencies:
    return _draw_ekal(request, "cluster")


def _draw_ekal(request: Draw, landmarks: str) -> Frequencies:
    """Algorithm 1: frequencies and weights that fit the kernel between rows."""
    from streamrf.features.learned.unsupervised import learn_kernel_features

    kind = f"ekal-{landmarks}"
    X, W0 = request.rows(kind)[:ROWS], start(request)
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, kind, len(X))
    told = request.learning
    found = learn_kernel_features(
        X, request.kernel, W0, landmarks=landmarks, count=told.landmarks, iterations=told.iterations,
        steps=told.steps, decay=told.decay, seed=request.seed,
    )  # fmt: skip
    return Frequencies(found.learned.W, found.learned.p, kind, report=found.report())


def draw_supervised(request: Draw) -> Frequencies:
    """Algorithm 2: frequencies that serve the targets."""
    from streamrf.features.learned.supervised import learn_supervised

    kind = "supervised"
    X, W0 = request.rows(kind)[:ROWS], start(request)
    if request.targets is None:
        raise InputError("supervised frequencies are fitted to targets and there are none: give them, or ekal-cluster")
    if len(X) < FEWEST_ROWS:
        return _unlearned(W0, kind, len(X))
    told = request.learning
    Y, task = columns_and_task(request.targets[:ROWS], told.task)
    found = learn_supervised(
        X, Y, task, request.kernel, W0, seed=request.seed, loss=told.loss or "squared",
        etas=None if told.eta is None else (told.eta,), rounds=told.iterations, steps=told.steps,
        landmarks=told.landmarks, decay=told.decay,
    )  # fmt: skip
    return Frequencies(found.W, found.p, kind, report=found.report())


def start(request: Draw) -> np.ndarray:
    """Where learning begins: orthogonal frequencies where the kernel has them, else independent ones."""
    return (draw_orthogonal if request.kernel.radial else draw_mc)(request).dense()


def columns_and_task(targets: np.ndarray, task: str | None) -> tuple[np.ndarray, str]:
    """Targets as (n, k) numbers, and what they are: classes, if text or of two values in each column."""
    if targets.dtype.kind not in "fiub":
        return (targets[:, None] == np.unique(targets)).astype(np.float64), task or "classification"
    Y = np.asarray(targets, np.float64).reshape(len(targets), -1)
    low, high = Y.min(axis=0), Y.max(axis=0)
    two_valued = (np.equal(Y, low) | np.equal(Y, high)).all()
    return Y, task or ("classification" if two_valued else "regression")


def _unlearned(W0: np.ndarray, kind: str, rows: int) -> Frequencies:
    report: dict[str, Any] = {"kept": "start", "reason": f"{rows} rows are too few to learn from"}
    return Frequencies(W0, uniform_weights(len(W0)), kind, report=report)
