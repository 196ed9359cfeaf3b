"""Boosted trees: LightGBM, and XGBoost in memory and from external memory. Rounds stop by a hold-out."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchlib.peers.common import Job

MILESTONES = (3, 10, 30, 100, 300, 1000)
PATIENCE = 20


class Clock:
    """The seconds after each round."""

    def __init__(self) -> None:
        self.start, self.after = time.perf_counter(), []

    def __call__(self, *_: object) -> None:
        self.after.append(time.perf_counter() - self.start)


def split(rows: int) -> int:
    """Where the hold-out begins: a tenth of the rows, at most 20,000."""
    return rows - min(20_000, rows // 10)


def milestones(job: Job, clock: Clock, before: float, best: int, predict: Callable[[int], Callable]) -> float:
    """The error after some rounds, with the time they took, and that of the best round."""
    for rounds in [number for number in MILESTONES if number < best] + [best]:
        job.curve.append((f"{rounds} rounds", before + clock.after[rounds - 1], job.error(predict(rounds))))
    return job.curve[-1][2]


def classes_of(scores: np.ndarray, classes: int) -> np.ndarray:
    if classes > 2:
        return scores.reshape(len(scores), -1).argmax(axis=1)
    return (scores > 0.5).astype(np.int64) if classes else scores


# -- LightGBM


def lightgbm_parameters(job: Job) -> dict[str, Any]:
    s, objective = job.settings, "regression"
    if job.classes:
        objective = "multiclass" if job.classes > 2 else "binary"
    more = {"num_class": job.classes} if job.classes > 2 else {}
    return {"objective": objective, "learning_rate": s["learning_rate"], "num_leaves": s["num_leaves"], "verbose": -1,
            "num_threads": job.threads, "seed": 0, "max_bin": 255, **more}  # fmt: skip


def lightgbm(job: Job) -> float:
    """In memory, or with ``stream`` through its interface for data that is not; ``all_rows`` stops at no hold-out."""
    import lightgbm as lgb

    start, cut = time.perf_counter(), job.rows if job.settings.get("all_rows") else split(job.rows)
    if job.settings.get("stream"):
        parts = [rows_of(job, 0, cut), rows_of(job, cut, job.rows)]
        y, given = job.y[:], {"params": {"max_bin": 255}, "free_raw_data": True}
    else:
        (X, y), given = job.whole(), {}
        parts = [X[:cut], X[cut:]]
    train = lgb.Dataset(parts[0], y[:cut], **given)
    held = [lgb.Dataset(parts[1], y[cut:], reference=train)] if cut < job.rows else []
    clock = Clock()
    clock.start = start
    callbacks = [clock, *(lgb.early_stopping(PATIENCE, verbose=False) for _ in held)]
    model = lgb.train(lightgbm_parameters(job), train, job.settings["rounds"], held, callbacks=callbacks)
    job.seconds = time.perf_counter() - start
    best = model.best_iteration or model.current_iteration()
    return milestones(
        job, clock, 0.0, best, lambda n: lambda X: classes_of(model.predict(X, num_iteration=n), job.classes)
    )


def rows_of(job: Job, start: int, stop: int) -> Any:
    """Rows that are read when they are asked for; the chunk that was read last is kept, since some are asked singly."""
    import lightgbm as lgb

    chunk = job.X.chunks[0]

    class Rows(lgb.Sequence):
        batch_size = chunk
        first, kept = -1, np.empty((0, 0))

        def __getitem__(self, index: Any) -> np.ndarray:
            if isinstance(index, slice):
                return job.X[start + (index.start or 0) : min(stop, start + index.stop)].astype(np.float64)
            row = start + int(index)
            if row // chunk != self.first:
                self.first, self.kept = row // chunk, job.X[row // chunk * chunk : (row // chunk + 1) * chunk]
            return self.kept[row % chunk].astype(np.float64)

        def __len__(self) -> int:
            return stop - start

    return Rows()


def tune_lightgbm(job: Job) -> dict[str, Any]:
    import lightgbm as lgb

    start, found, (X, y) = time.perf_counter(), [], job.sample()
    cut = 3 * len(X) // 4
    for leaves, rate in ((31, 0.1), (127, 0.1), (255, 0.2)):
        job.settings.update(num_leaves=leaves, learning_rate=rate)
        train = lgb.Dataset(X[:cut], y[:cut])
        held = lgb.Dataset(X[cut:], y[cut:], reference=train)
        stop = lgb.early_stopping(PATIENCE, verbose=False)
        model = lgb.train(lightgbm_parameters(job), train, min(200, job.settings["rounds"]), [held], callbacks=[stop])
        found.append((next(iter(model.best_score["valid_0"].values())), leaves, rate))
    _, leaves, rate = min(found)
    return {"num_leaves": leaves, "learning_rate": rate, "tried": len(found), "seconds": time.perf_counter() - start}


# -- XGBoost


def xgboost_parameters(job: Job) -> dict[str, Any]:
    s, objective = job.settings, "reg:squarederror"
    if job.classes:
        objective = "multi:softprob" if job.classes > 2 else "binary:logistic"
    more = {"num_class": job.classes} if job.classes > 2 else {}
    return {"objective": objective, "learning_rate": s["learning_rate"], "max_depth": s["max_depth"], "seed": 0,
            "tree_method": "hist", "nthread": job.threads, **more}  # fmt: skip


def boost(job: Job, make: Callable[[int], tuple[Any, Any]]) -> float:
    import xgboost as xgb

    start, cut = time.perf_counter(), split(job.rows)
    train, held = make(cut)
    clock = Clock()
    clock.start = start

    class Ticks(xgb.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            clock()
            return False

    stop = xgb.callback.EarlyStopping(PATIENCE)
    model = xgb.train(
        xgboost_parameters(job), train, job.settings["rounds"], [(held, "held")], verbose_eval=False,
        callbacks=[Ticks(), stop],
    )  # fmt: skip
    job.seconds = time.perf_counter() - start

    def predict(rounds: int) -> Callable:
        return lambda X: classes_of(model.inplace_predict(X, iteration_range=(0, rounds)), job.classes)

    return milestones(job, clock, 0.0, model.best_iteration + 1, predict)


def xgboost(job: Job) -> float:
    import xgboost as xgb

    def make(cut: int) -> tuple[Any, Any]:
        X, y = job.whole()
        train = xgb.QuantileDMatrix(X[:cut], y[:cut], nthread=job.threads)
        return train, xgb.QuantileDMatrix(X[cut:], y[cut:], ref=train, nthread=job.threads)

    return boost(job, make)


def xgboost_external(job: Job) -> float:
    import xgboost as xgb

    class Blocks(xgb.DataIter):
        def __init__(self, start: int, stop: int, folder: str) -> None:
            self.span, self.at = (start, stop), start
            super().__init__(cache_prefix=f"{folder}/{start}")

        def next(self, input_data: Callable) -> bool:
            if self.at >= self.span[1]:
                return False
            here = slice(self.at, min(self.at + 500_000, self.span[1]))
            input_data(data=job.X[here], label=job.y[here])
            self.at = here.stop
            return True

        def reset(self) -> None:
            self.at = self.span[0]

    with tempfile.TemporaryDirectory() as folder:

        def make(cut: int) -> tuple[Any, Any]:
            train = xgb.ExtMemQuantileDMatrix(Blocks(0, cut, folder), nthread=job.threads)
            return train, xgb.ExtMemQuantileDMatrix(Blocks(cut, job.rows, folder), ref=train, nthread=job.threads)

        return boost(job, make)


def tune_xgboost(job: Job) -> dict[str, Any]:
    import xgboost as xgb

    start, found, (X, y) = time.perf_counter(), [], job.sample()
    cut = 3 * len(X) // 4
    train = xgb.QuantileDMatrix(X[:cut], y[:cut], nthread=job.threads)
    held = xgb.QuantileDMatrix(X[cut:], y[cut:], ref=train, nthread=job.threads)
    for depth, rate in ((6, 0.3), (9, 0.2), (12, 0.1)):
        job.settings.update(max_depth=depth, learning_rate=rate)
        model = xgb.train(
            xgboost_parameters(job), train, min(200, job.settings["rounds"]), [(held, "held")], verbose_eval=False,
            early_stopping_rounds=PATIENCE,
        )  # fmt: skip
        found.append((model.best_score, depth, rate))
    _, depth, rate = min(found)
    return {"max_depth": depth, "learning_rate": rate, "tried": len(found), "seconds": time.perf_counter() - start}
