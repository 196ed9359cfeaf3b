"""Stochastic gradients on Fourier features: scikit-learn's partial_fit, and dask-ml's Incremental around it."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np

from benchlib.peers.common import Job, Scaling, Tries, loss, search

BLOCK = 4096
MILESTONES = (1, 2, 3, 5, 10, 20, 50)  # epochs after which the error is looked at, besides the last


def make_sgd(job: Job) -> Any:
    from sklearn.linear_model import SGDClassifier, SGDRegressor

    alpha = job.settings["alpha"]
    if job.classes:
        return SGDClassifier(loss=job.settings["loss"], alpha=alpha, average=True, random_state=0, n_jobs=job.threads)
    return SGDRegressor(alpha=alpha, eta0=job.settings["eta0"], average=True, random_state=0)


def make_sampler(job: Job) -> tuple[Scaling, Any]:
    from sklearn.kernel_approximation import RBFSampler

    scaling = Scaling.fit(job.settings["scaling"], job.sample()[0])
    gamma = 0.5 / job.settings["length_scale"] ** 2
    sampler = RBFSampler(gamma=gamma, n_components=job.settings["D"], random_state=0)
    return scaling, sampler.fit(np.zeros((1, job.inputs), np.float32))


def unit(job: Job) -> tuple[float, float]:
    """Mean and spread that make targets of regression easy to descend on."""
    if job.classes:
        return 0.0, 1.0
    y = job.sample()[1]
    return float(y.mean()), float(y.std())


def predictor(model: Any, features: Any, mean: float, spread: float, classes: int) -> Any:
    if classes:
        return lambda X: model.predict(features(X))
    return lambda X: mean + spread * model.predict(features(X))


def sklearn(job: Job) -> float:
    """Some epochs, in blocks; the error after some is kept, and its time is not counted."""
    (scaling, sampler), (mean, spread) = job.timed(lambda: (make_sampler(job), unit(job)))
    model, errors = make_sgd(job), []

    def features(X: np.ndarray) -> np.ndarray:
        return sampler.transform(scaling(X))

    for epoch in range(job.settings["epochs"]):
        job.timed(lambda: one_epoch(job, model, features, mean, spread))
        if epoch + 1 in (*MILESTONES, job.settings["epochs"]):
            errors.append(job.error(predictor(copy.deepcopy(model), features, mean, spread, job.classes)))
            job.curve.append((f"{epoch + 1} epochs", job.seconds, errors[-1]))
    return errors[-1]


def one_epoch(job: Job, model: Any, features: Any, mean: float, spread: float) -> None:
    for X, y in job.blocks(BLOCK):
        model.partial_fit(features(X), y if job.classes else (y - mean) / spread, **classes_given(job))


def classes_given(job: Job) -> dict[str, Any]:
    return {"classes": list(range(job.classes))} if job.classes else {}


def dask_ml(job: Job) -> float:
    import dask
    import dask.array as da
    from dask_ml.wrappers import Incremental

    (scaling, sampler), (mean, spread) = job.timed(lambda: (make_sampler(job), unit(job)))
    D = job.settings["D"]

    def features(X: np.ndarray) -> np.ndarray:
        return sampler.transform(scaling(X))

    def fit() -> Any:
        X, y = (da.from_zarr(str(job.train), component=name) for name in "Xy")
        Z = X.map_blocks(features, dtype=np.float32, chunks=(X.chunks[0], (D,)), meta=np.empty((0, 0), np.float32))
        model = Incremental(make_sgd(job), shuffle_blocks=False)
        with dask.config.set(scheduler="threads", num_workers=job.threads):
            for _ in range(job.settings["epochs"]):
                model.partial_fit(Z, y if job.classes else (y - mean) / spread, **classes_given(job))
        return model.estimator_ if hasattr(model, "estimator_") else model.estimator

    model = job.timed(fit)
    return job.error(predictor(model, features, mean, spread, job.classes))


@search
def tune(job: Job) -> Tries:
    """Penalty and loss, or penalty and first step, by a hold-out of the sample and ten epochs each."""
    (X, y), (mean, spread), (scaling, sampler) = job.sample(), unit(job), make_sampler(job)
    Z, cut, more = sampler.transform(scaling(X)), 3 * len(X) // 4, classes_given(job)
    ways = [("hinge", 0.01), ("log_loss", 0.01)] if job.classes else [(None, eta0) for eta0 in (0.01, 0.1, 1.0)]
    for (kind, eta0), alpha in product(ways, (1e-7, 1e-6, 1e-5, 1e-4)):
        tried = {"alpha": alpha, "loss": kind, "eta0": eta0}
        job.settings |= tried
        model = make_sgd(job)
        for _ in range(min(10, max(5, job.settings["epochs"]))):
            model.partial_fit(Z[:cut], y[:cut] if job.classes else (y[:cut] - mean) / spread, **more)
        predict = predictor(model, lambda Z: Z, mean, spread, job.classes)
        yield float(loss(predict(Z[cut:]), y[cut:], job.classes).mean()), tried
