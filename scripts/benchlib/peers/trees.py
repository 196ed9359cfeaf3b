"""Boosted trees: LightGBM, and XGBoost in memory and from external memory. Rounds stop by a hold-out."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchlib.peers.common import Job, Tries, search

MILESTONES = (3, 10, 30, 100, 300, 1000)
PATIENCE = 20
Predictor = Callable[[int], Callable[[np.ndarray], np.ndarray]]


def split(rows: int) -> int:
    """Where the hold-out begins: a tenth of the rows, at most 20,000."""
    return rows - min(20_000, rows // 10)


def milestones(job: Job, after: list[float], best: int, predict: Predictor) -> float:
    """The error after some rounds, with the time they took, and that of the best round."""
    for rounds in [number for number in MILESTONES if number < best] + [best]:
        scores = predict(rounds)
        error = job.error(lambda X, scores=scores: classes_of(scores(X), job.classes))
        job.curve.append((f"{rounds} rounds", after[rounds - 1], error))
    return job.curve[-1][2]


def classes_of(scores: np.ndarray, classes: int) -> np.ndarray:
    if classes > 2:
        return scores.reshape(len(scores), -1).argmax(axis=1)
    return (scores > 0.5).astype(np.int64) if classes else scores


def parameters(job: Job, objectives: tuple[str, str, str], **more: Any) -> dict[str, Any]:
    """With the objective for numbers, two classes or more, and what the search settled."""
    objective = objectives[min(job.classes, 3) - 1 if job.classes else 0]
    classes = {"num_class": job.classes} if job.classes > 2 else {}
    return {"objective": objective, "learning_rate": job.settings["learning_rate"], "seed": 0, **classes, **more}


# -- LightGBM


def lightgbm_parameters(job: Job) -> dict[str, Any]:
    kinds = ("regression", "binary", "multiclass")
    return parameters(job, kinds, num_leaves=job.settings["num_leaves"], verbose=-1, num_threads=job.threads,
                      max_bin=255)  # fmt: skip


def lightgbm(job: Job) -> float:
    """In memory, or with ``stream`` through its interface for data that is not; ``all_rows`` stops at no hold-out."""
    import lightgbm as lgb

    start, cut, after = time.perf_counter(), job.rows if job.settings.get("all_rows") else split(job.rows), []
    if job.settings.get("stream"):
        parts = [rows_of(job, 0, cut), rows_of(job, cut, job.rows)]
        y, given = job.y[:], {"params": {"max_bin": 255}, "free_raw_data": True}
    else:
        (X, y), given = job.whole(), {}
        parts = [X[:cut], X[cut:]]
    train = lgb.Dataset(parts[0], y[:cut], **given)
    held = [lgb.Dataset(parts[1], y[cut:], reference=train)] if cut < job.rows else []
    callbacks = [lambda _: after.append(time.perf_counter() - start)]
    callbacks += [lgb.early_stopping(PATIENCE, verbose=False) for _ in held]
    model = lgb.train(lightgbm_parameters(job), train, job.settings["rounds"], held, callbacks=callbacks)
    job.seconds = time.perf_counter() - start
    best = model.best_iteration or model.current_iteration()
    return milestones(job, after, best, lambda rounds: lambda X: model.predict(X, num_iteration=rounds))


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


@search
def tune_lightgbm(job: Job) -> Tries:
    import lightgbm as lgb

    X, y = job.sample()
    cut, rounds = 3 * len(X) // 4, min(200, job.settings["rounds"])
    for leaves, rate in ((31, 0.1), (127, 0.1), (255, 0.2)):
        job.settings |= {"num_leaves": leaves, "learning_rate": rate}
        train = lgb.Dataset(X[:cut], y[:cut])
        held, stop = lgb.Dataset(X[cut:], y[cut:], reference=train), lgb.early_stopping(PATIENCE, verbose=False)
        model = lgb.train(lightgbm_parameters(job), train, rounds, [held], callbacks=[stop])
        yield next(iter(model.best_score["valid_0"].values())), {"num_leaves": leaves, "learning_rate": rate}


# -- XGBoost


def xgboost_parameters(job: Job) -> dict[str, Any]:
    kinds = ("reg:squarederror", "binary:logistic", "multi:softprob")
    return parameters(job, kinds, max_depth=job.settings["max_depth"], tree_method="hist", nthread=job.threads)


def boost(job: Job, make: Callable[[int], tuple[Any, Any]]) -> float:
    import xgboost as xgb

    start, after = time.perf_counter(), []
    train, held = make(split(job.rows))

    class Clock(xgb.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            after.append(time.perf_counter() - start)
            return False

    callbacks = [Clock(), xgb.callback.EarlyStopping(rounds=PATIENCE)]
    given = {"num_boost_round": job.settings["rounds"], "evals": [(held, "held")], "verbose_eval": False}
    model = xgb.train(xgboost_parameters(job), train, callbacks=callbacks, **given)
    job.seconds, best = time.perf_counter() - start, model.best_iteration + 1
    return milestones(job, after, best, lambda rounds: lambda X: model.inplace_predict(X, iteration_range=(0, rounds)))


def halves(X: np.ndarray, y: np.ndarray, cut: int, threads: int) -> tuple[Any, Any]:
    import xgboost as xgb

    train = xgb.QuantileDMatrix(X[:cut], y[:cut], nthread=threads)
    return train, xgb.QuantileDMatrix(X[cut:], y[cut:], ref=train, nthread=threads)


def xgboost(job: Job) -> float:
    return boost(job, lambda cut: halves(*job.whole(), cut, job.threads))


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


@search
def tune_xgboost(job: Job) -> Tries:
    import xgboost as xgb

    X, y = job.sample()
    train, held = halves(X, y, 3 * len(X) // 4, job.threads)
    given = {"num_boost_round": min(200, job.settings["rounds"]), "evals": [(held, "held")], "verbose_eval": False}
    for depth, rate in ((6, 0.3), (9, 0.2), (12, 0.1)):
        job.settings |= {"max_depth": depth, "learning_rate": rate}
        model = xgb.train(xgboost_parameters(job), train, early_stopping_rounds=PATIENCE, **given)
        yield model.best_score, {"max_depth": depth, "learning_rate": rate}
