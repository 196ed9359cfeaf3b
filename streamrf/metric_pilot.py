"""A metric for the pilot: which directions of the scaled inputs matter, learned on rows that do not judge it."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamrf.errors import InputError
from streamrf.kernels import Kernel
from streamrf.maps.build import default_kind
from streamrf.maps.frequencies import draw
from streamrf.maps.learned.metric import DIAGONAL, FULL, FourierFits, Metric, learn_metric
from streamrf.threads import Threads

FREQUENCIES = 256  # a cosine and a sine each: enough to tell which directions matter
ROWS = 16_000  # three quarters to fit, one to judge a round
WIDEST = 2048  # columns of a full metric: its roots cost the cube of them
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


def search_metric(
    X: np.ndarray, Y: np.ndarray, task: str, kernel: Kernel, D: int, *, asked: str, seed: int, threads: Threads
) -> Metric:
    """Learned from the first rows of scaled X and coded targets Y; the kernel's width is where the search starts."""
    X, Y = X[:ROWS], Y[:ROWS]
    cut, d = len(X) - max(1, len(X) // 4), X.shape[1]
    W0 = draw(default_kind(kernel, d), kernel, max(1, min(FREQUENCIES, D // 2)), d, seed).dense()
    fits = FourierFits(X[:cut], Y[:cut], X[cut:], Y[cut:], task, W0)
    return learn_metric(
        fits, d, forms=forms_for(asked, d), each=threads.map
    )  # one thread a form: the same bits for any


def describe(metric: Metric) -> dict[str, Any]:
    """What a training run tells of it: its rounds, and the columns that count most."""
    shares = metric.shares()
    first = np.argsort(-shares, kind="stable")[:SHOWN]
    return {
        "rounds": [step._asdict() for step in metric.history],
        "columns": [{"column": int(column), "share": float(shares[column])} for column in first],
    }
