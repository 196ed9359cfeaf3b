"""`python -m benchlib.peers.whole_tables NAME TRAIN TEST THREADS classes|numbers`: a peer with its usual settings.

Trees stop early by a tenth of the rows and take categories as they are; xRFM gets one-hot columns and the same tenth.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

ROUNDS, PATIENCE, RATE = 3000, 50, 0.05
CATBOOST_ROUNDS = 2000
MOST_ONE_HOT = 50


@dataclass
class Task:
    """Inputs as frames, the target as numbers or codes of classes."""

    X: pd.DataFrame
    y: np.ndarray
    Xt: pd.DataFrame
    yt: np.ndarray
    classes: int
    threads: int

    @property
    def cut(self) -> int:
        return len(self.X) - max(1, len(self.X) // 10)

    @property
    def text(self) -> list[str]:
        return [name for name in self.X if self.X[name].dtype.kind not in "iufbM"]


def load(train: str, test: str, threads: int, target: str) -> Task:
    parts = [pd.read_parquet(path) for path in (train, test)]
    y, yt = (part.pop("target").to_numpy() for part in parts)
    classes = 0
    if target == "classes":
        labels = np.unique(y.astype(str))
        classes = len(labels)
        y, yt = (np.searchsorted(labels, each.astype(str)) for each in (y, yt))
    else:
        y, yt = y.astype(float), yt.astype(float)
    for part in parts:
        for name in part:
            if part[name].dtype.kind == "M":
                part[name] = part[name].astype("int64") / 1e9
    return Task(parts[0], y, parts[1], yt, classes, threads)


def with_categories(task: Task) -> tuple[pd.DataFrame, pd.DataFrame]:
    X, Xt = task.X.copy(), task.Xt.copy()
    for name in task.text:
        X[name] = X[name].astype("category")
        Xt[name] = pd.Categorical(Xt[name], categories=X[name].cat.categories)
    return X, Xt


def lightgbm(task: Task) -> np.ndarray:
    import lightgbm as lgb

    X, Xt = with_categories(task)
    X, Xt = (each.rename(columns={name: f"c{i}" for i, name in enumerate(each)}) for each in (X, Xt))
    kind = lgb.LGBMClassifier if task.classes else lgb.LGBMRegressor
    model = kind(n_estimators=ROUNDS, learning_rate=RATE, num_leaves=127, verbose=-1, n_jobs=task.threads)
    cut, stop = task.cut, lgb.early_stopping(PATIENCE, verbose=False)
    model.fit(X[:cut], task.y[:cut], eval_set=[(X[cut:], task.y[cut:])], callbacks=[stop])
    return model.predict_proba(Xt) if task.classes else model.predict(Xt)


def xgboost(task: Task) -> np.ndarray:
    import xgboost as xgb

    X, Xt = with_categories(task)
    kind = xgb.XGBClassifier if task.classes else xgb.XGBRegressor
    model = kind(
        n_estimators=ROUNDS, learning_rate=RATE, max_depth=8, tree_method="hist", enable_categorical=True,
        early_stopping_rounds=PATIENCE, n_jobs=task.threads,
    )  # fmt: skip
    cut = task.cut
    model.fit(X[:cut], task.y[:cut], eval_set=[(X[cut:], task.y[cut:])], verbose=False)
    return model.predict_proba(Xt) if task.classes else model.predict(Xt)


def catboost(task: Task) -> np.ndarray:
    from catboost import CatBoostClassifier, CatBoostRegressor

    X, Xt = task.X.copy(), task.Xt.copy()
    for name in task.text:
        X[name], Xt[name] = (each.astype(object).where(each.notna(), "nan").astype(str) for each in (X[name], Xt[name]))
    kind = CatBoostClassifier if task.classes else CatBoostRegressor
    model = kind(
        iterations=CATBOOST_ROUNDS, verbose=0, thread_count=task.threads, early_stopping_rounds=PATIENCE,
        cat_features=task.text, allow_writing_files=False,
    )  # fmt: skip
    cut = task.cut
    model.fit(X[:cut], task.y[:cut], eval_set=(X[cut:], task.y[cut:]))
    return model.predict_proba(Xt) if task.classes else model.predict(Xt)


def xrfm(task: Task) -> np.ndarray:
    import torch
    from xrfm import xRFM

    torch.set_num_threads(task.threads)
    X, Xt = (each.astype(np.float32) for each in _one_hot(task))
    cut = task.cut
    centre, spread = X[:cut].mean(0), X[:cut].std(0)
    X, Xt = ((each - centre) / np.where(spread > 0, spread, 1) for each in (X, Xt))
    y = task.y.astype(np.int64) if task.classes else task.y.astype(np.float32)[:, None]
    level, unit = (0.0, 1.0) if task.classes else (y[:cut].mean(), y[:cut].std())
    y = y if task.classes else (y - level) / unit
    model = xRFM(device=torch.device("cpu"), tuning_metric="logloss" if task.classes else "mse")
    model.fit(X[:cut], y[:cut], X[cut:], y[cut:])
    return model.predict_proba(Xt) if task.classes else model.predict(Xt).ravel() * unit + level


def _one_hot(task: Task) -> tuple[np.ndarray, np.ndarray]:
    whole = pd.concat([task.X, task.Xt])
    for name in task.text:
        levels = task.X[name].astype(object).value_counts().index[:MOST_ONE_HOT]
        whole[name] = pd.Categorical(whole[name], categories=levels)
    whole = pd.get_dummies(whole, columns=task.text)
    whole = whole.astype(float)
    whole = whole.fillna(whole[: len(task.X)].median()).to_numpy()
    return whole[: len(task.X)], whole[len(task.X) :]


PEERS: dict[str, Callable[[Task], np.ndarray]] = {
    "lightgbm": lightgbm, "xgboost": xgboost, "catboost": catboost, "xrfm": xrfm
}  # fmt: skip


def figures(task: Task, predicted: np.ndarray) -> dict[str, Any]:
    if not task.classes:
        return {"rmse": float(np.sqrt(((predicted - task.yt) ** 2).mean()))}
    own = np.maximum(predicted[np.arange(len(task.yt)), task.yt], 1e-15)
    return {"error": float((predicted.argmax(1) != task.yt).mean()), "log_loss": float(-np.log(own).mean())}


def main(name: str, train: str, test: str, threads: str, target: str) -> None:
    task = load(train, test, int(threads), target)
    start = time.perf_counter()
    predicted = PEERS[name](task)
    print(json.dumps({**figures(task, predicted), "seconds": time.perf_counter() - start}))


if __name__ == "__main__":
    main(*sys.argv[1:])
