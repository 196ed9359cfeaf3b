"""Ridge on Fourier features by summing the Gram matrix: by hand, with scikit-learn-intelex, and with dask."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchlib.peers.common import Job, Sums, linear, make_features, solved, targets

BLOCK = 8192


def by_hand(job: Job, dtype: type, add: Callable[[np.ndarray, np.ndarray], np.ndarray], lower: bool = False) -> float:
    scaling, cosines = job.timed(lambda: make_features(job))
    D, outputs = job.settings["D"], job.outputs

    def fit() -> tuple[np.ndarray, np.ndarray]:
        G, C = np.zeros((D, D), dtype, order="F"), np.zeros((D, outputs))
        z, y = np.zeros(D), np.zeros(outputs)
        for X, labels in job.blocks(BLOCK):
            Z, Y = cosines(scaling(X)).astype(dtype, copy=False), targets(labels, job.classes)
            G = add(G, Z)
            C += Z.T @ Y.astype(dtype)
            z += Z.sum(axis=0, dtype=np.float64)
            y += Y.sum(axis=0, dtype=np.float64)
        return solved(Sums(G, C, z, y, job.rows), job.settings["ridge"], lower)

    w, a = job.timed(fit)
    return job.error(linear(lambda X: cosines(scaling(X)), w, a, job.classes))


def plain(G: np.ndarray, Z: np.ndarray) -> np.ndarray:
    G += Z.T @ Z
    return G


def in_place(G: np.ndarray, Z: np.ndarray) -> np.ndarray:
    """BLAS adds to the lower triangle where it stands: the best that float32 can do from Python."""
    from scipy.linalg import blas

    return blas.ssyrk(1.0, Z.T, beta=1.0, c=G, overwrite_c=1, lower=1)


def float64(job: Job) -> float:
    return by_hand(job, np.float64, plain)


def float32(job: Job) -> float:
    return by_hand(job, np.float32, plain)


def ssyrk(job: Job) -> float:
    return by_hand(job, np.float32, in_place, lower=True)


def intelex(job: Job) -> float:
    from sklearnex.linear_model import IncrementalRidge

    scaling, cosines = job.timed(lambda: make_features(job))

    def fit() -> IncrementalRidge:
        model = IncrementalRidge(alpha=job.settings["ridge"] * job.rows)
        for X, labels in job.blocks(BLOCK):
            model.partial_fit(cosines(scaling(X)), targets(labels, job.classes))
        model.coef_  # noqa: B018 - it solves when it is asked
        return model

    model = job.timed(fit)
    w, a = np.atleast_2d(model.coef_).T, np.atleast_1d(model.intercept_)
    return job.error(linear(lambda X: cosines(scaling(X)), w, a, job.classes))


def dask_array(job: Job) -> float:
    """As one writes it first: Z lazily from X, then Z'Z. One product D x D for every chunk."""
    import dask
    import dask.array as da
    from threadpoolctl import threadpool_limits

    scaling, cosines = job.timed(lambda: make_features(job))
    D = job.settings["D"]

    def fit() -> tuple[np.ndarray, np.ndarray]:
        X, labels = (da.from_zarr(str(job.train), component=name) for name in "Xy")
        Z = X.map_blocks(lambda block: cosines(scaling(block)), dtype=np.float32, chunks=(X.chunks[0], (D,)))
        Y = labels.map_blocks(
            lambda y: targets(y, job.classes), dtype=np.float32, new_axis=1, chunks=(X.chunks[0], (job.outputs,))
        )
        wanted = (Z.T @ Z, Z.T @ Y, Z.sum(axis=0), Y.sum(axis=0))
        with threadpool_limits(1), dask.config.set(scheduler="threads", num_workers=job.threads):
            parts = dask.compute(*wanted)
        with threadpool_limits(job.threads):
            return solved(Sums(*parts, job.rows), job.settings["ridge"])

    w, a = job.timed(fit)
    return job.error(linear(lambda X: cosines(scaling(X)), w, a, job.classes))
