"""Kernel methods of scikit-learn: Nystroem features with Ridge, and the exact machines. And the search for widths."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from benchlib.peers.common import Cosines, Job, Scaling, Sums, Tries, decide, linear, loss, search, targets

WIDTHS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)
RIDGES = tuple(10.0**e for e in range(-9, 0))
SCALINGS = ("standard", "log", "none")


def some(job: Job, choices: tuple) -> tuple:
    """All choices, or the first and the last where sizes are toys."""
    return (choices[0], choices[-1]) if job.settings.get("toy") else choices


def median_distance(X: np.ndarray) -> float:
    few = X[:1000].astype(np.float64)
    squares = (few**2).sum(axis=1)
    distances = squares[:, None] + squares - 2 * few @ few.T
    return float(np.sqrt(np.median(distances[np.triu_indices(len(few), 1)]).clip(1e-12)))


@search
def tune_fourier(job: Job) -> Tries:
    """Scaling, width and penalty by a hold-out of the sample, with at most 1,000 features."""
    (X, y), D = job.sample(), min(1000, job.settings["D"])
    for kind in some(job, SCALINGS):
        V = Scaling.fit(kind, X)(X)
        middle = median_distance(V)
        for width in some(job, WIDTHS):
            Z = Cosines(V.shape[1], D, width * middle)(V)
            for error, ridge in held_out(Z, y, job.classes):
                yield error, {"scaling": kind, "length_scale": width * middle, "ridge": ridge}


def held_out(Z: np.ndarray, y: np.ndarray, classes: int) -> Iterator[tuple[float, float]]:
    """Errors on the last quarter of the rows at every penalty."""
    cut = 3 * len(Z) // 4
    sums = Sums.of(Z[:cut], targets(y[:cut], classes))
    for ridge in RIDGES:
        try:
            predict = linear(lambda Z: Z, *sums.weights(ridge), classes)
            yield float(loss(predict(Z[cut:]), y[cut:], classes).mean()), ridge
        except np.linalg.LinAlgError:
            yield np.inf, ridge


def nystroem(job: Job) -> float:
    """In memory, as the pipeline of scikit-learn has it."""
    from sklearn.kernel_approximation import Nystroem
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline

    s = job.settings

    def fit() -> Any:
        X, y = job.whole()
        scaling = Scaling.fit(s["scaling"], X[:20_000])
        features = Nystroem(gamma=0.5 / s["length_scale"] ** 2, n_components=s["D"], random_state=0, n_jobs=job.threads)
        model = make_pipeline(features, Ridge(alpha=s["ridge"] * job.rows * s.get("factor", 1.0), copy_X=False))
        return scaling, model.fit(scaling(X), targets(y, job.classes))

    scaling, model = job.timed(fit)
    return job.error(lambda X: decide(np.atleast_2d(model.predict(scaling(X)).T).T.reshape(len(X), -1), job.classes))


@search
def tune_nystroem(job: Job) -> Tries:
    """Its own width and penalty, from the sample."""
    from sklearn.kernel_approximation import Nystroem

    X, y = job.sample(10_000)
    V = Scaling.fit(job.settings["scaling"], X)(X)
    for width in some(job, (0.5, 1.0, 2.0)):
        length_scale = width * job.settings["length_scale"]
        features = Nystroem(gamma=0.5 / length_scale**2, n_components=min(300, job.settings["D"]), random_state=0)
        for error, ridge in held_out(features.fit_transform(V), y, job.classes):
            yield error, {"length_scale": length_scale, "ridge": ridge}


# -- exact machines


def exact(job: Job) -> float:
    """A support vector machine for classes, kernel ridge regression for numbers."""
    s = job.settings
    scaling, model = job.timed(lambda: fit_exact(s, *job.whole(), job.classes))
    return job.error(lambda X: model.predict(scaling(X)))


def fit_exact(s: dict[str, Any], X: np.ndarray, y: np.ndarray, classes: int) -> tuple[Scaling, Any]:
    from sklearn.compose import TransformedTargetRegressor
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.preprocessing import StandardScaler
    from sklearn.svm import SVC

    scaling, gamma = Scaling.fit(s["scaling"], X), 0.5 / s["length_scale"] ** 2
    if classes:
        return scaling, SVC(C=s["C"], gamma=gamma, cache_size=2000).fit(scaling(X), y)
    ridge = KernelRidge(alpha=s["ridge"] * len(X), kernel="rbf", gamma=gamma)  # it has no intercept
    centre = StandardScaler(with_std=False)
    return scaling, TransformedTargetRegressor(ridge, transformer=centre).fit(scaling(X), y)


@search
def tune_exact(job: Job) -> Tries:
    """Width and penalty on 4,000 rows."""
    X, y = job.sample(4000)
    cut, penalties = 3 * len(X) // 4, (1.0, 10.0, 100.0) if job.classes else RIDGES[1:7]
    for kind in some(job, SCALINGS):
        middle = median_distance(Scaling.fit(kind, X)(X))
        for width, penalty in product(some(job, (0.25, 0.5, 1.0, 2.0)), some(job, penalties)):
            s = {"scaling": kind, "length_scale": width * middle, "C": penalty, "ridge": penalty}
            scaling, model = fit_exact(s, X[:cut], y[:cut], job.classes)
            yield float(loss(model.predict(scaling(X[cut:])), y[cut:], job.classes).mean()), s
