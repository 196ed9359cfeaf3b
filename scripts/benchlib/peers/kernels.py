"""Kernel methods of scikit-learn: Nystroem features with Ridge, and the exact machines. And the search for widths."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchlib.peers.common import Cosines, Job, Scaling, Sums, decide, linear, loss, targets

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


def tune_fourier(job: Job) -> dict[str, Any]:
    """Scaling, width and penalty by a hold-out of the sample, with at most 1,000 features."""
    start, found, (X, y) = time.perf_counter(), [], job.sample()
    cut, D = 3 * len(X) // 4, min(1000, job.settings["D"])
    Y = targets(y, job.classes)
    for kind in some(job, SCALINGS):
        V = Scaling.fit(kind, X)(X)
        middle = median_distance(V)
        for width in some(job, WIDTHS):
            Z = Cosines(V.shape[1], D, width * middle)(V)
            G, C = Z[:cut].T @ Z[:cut], Z[:cut].T @ Y[:cut]
            sums = Sums(G, C, Z[:cut].sum(axis=0, dtype=float), Y[:cut].sum(axis=0, dtype=float), cut)
            found += [(held_out(sums, ridge, Z[cut:], y[cut:], job.classes), kind, width * middle, ridge)
                      for ridge in RIDGES]  # fmt: skip
    error, scaling, length_scale, ridge = min(found)
    return {"scaling": scaling, "length_scale": length_scale, "ridge": ridge, "held_out": error, "tried": len(found),
            "seconds": time.perf_counter() - start}  # fmt: skip


def held_out(sums: Sums, ridge: float, Z: np.ndarray, y: np.ndarray, classes: int) -> float:
    try:
        w, a = sums.weights(ridge)
    except np.linalg.LinAlgError:
        return np.inf
    return float(loss(linear(lambda Z: Z, w, a, classes)(Z), y, classes).mean())


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


def tune_nystroem(job: Job) -> dict[str, Any]:
    """Its own width and penalty, from the sample."""
    from sklearn.kernel_approximation import Nystroem

    start, found, (X, y) = time.perf_counter(), [], job.sample(10_000)
    cut, Y = 3 * len(X) // 4, targets(y, job.classes)
    V = Scaling.fit(job.settings["scaling"], X)(X)
    for width in some(job, (0.5, 1.0, 2.0)):
        length_scale = width * job.settings["length_scale"]
        features = Nystroem(gamma=0.5 / length_scale**2, n_components=min(300, job.settings["D"]), random_state=0)
        Z = features.fit_transform(V)
        sums = Sums(Z[:cut].T @ Z[:cut], Z[:cut].T @ Y[:cut], Z[:cut].sum(axis=0), Y[:cut].sum(axis=0), cut)
        found += [(held_out(sums, ridge, Z[cut:], y[cut:], job.classes), length_scale, ridge) for ridge in RIDGES]
    _, length_scale, ridge = min(found)
    return {"length_scale": length_scale, "ridge": ridge, "tried": len(found), "seconds": time.perf_counter() - start}


# -- exact machines


def exact(job: Job) -> float:
    """A support vector machine for classes, kernel ridge regression for numbers."""
    s = job.settings
    scaling, model = job.timed(lambda: fit_exact(s, *job.whole(), job.classes))
    return job.error(lambda X: model.predict(scaling(X)))


def fit_exact(s: dict[str, Any], X: np.ndarray, y: np.ndarray, classes: int) -> tuple[Scaling, Any]:
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.svm import SVC

    scaling, gamma = Scaling.fit(s["scaling"], X), 0.5 / s["length_scale"] ** 2
    if classes:
        return scaling, SVC(C=s["C"], gamma=gamma, cache_size=2000).fit(scaling(X), y)
    return scaling, Centred(KernelRidge(alpha=s["ridge"] * len(X), kernel="rbf", gamma=gamma)).fit(scaling(X), y)


class Centred:
    """Takes the mean of the targets away and adds it again: KernelRidge has no intercept."""

    def __init__(self, model: Any) -> None:
        self.model, self.mean = model, 0.0

    def fit(self, X: np.ndarray, y: np.ndarray) -> Centred:
        self.mean = float(y.mean())
        self.model.fit(X, y - self.mean)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X) + self.mean


def tune_exact(job: Job) -> dict[str, Any]:
    """Width and penalty on 4,000 rows."""
    start, found, (X, y) = time.perf_counter(), [], job.sample(4000)
    cut = 3 * len(X) // 4
    for kind in some(job, SCALINGS):
        middle = median_distance(Scaling.fit(kind, X)(X))
        for width in some(job, (0.25, 0.5, 1.0, 2.0)):
            for penalty in some(job, (1.0, 10.0, 100.0) if job.classes else RIDGES[1:7]):
                s = {"scaling": kind, "length_scale": width * middle, "C": penalty, "ridge": penalty}
                scaling, model = fit_exact(s, X[:cut], y[:cut], job.classes)
                wrong = float(loss(model.predict(scaling(X[cut:])), y[cut:], job.classes).mean())
                found.append((wrong, len(found), s))
    return {**min(found)[2], "tried": len(found), "seconds": time.perf_counter() - start}
