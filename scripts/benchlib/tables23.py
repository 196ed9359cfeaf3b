"""`tables23`: Tables 2 and 3 of Li et al. (2019): kernel errors of drawn and learned features, errors of machines."""

from __future__ import annotations

import time
from functools import partial

import numpy as np

from benchlib.context import Context
from benchlib.li import COUNTS, DRAWN, SETS, TABLE_2, TABLE_3, Task, load, paper_2
from benchlib.places import DATA
from benchlib.results import Cell, Results, rounded
from streamrf.features.fourier import Frequencies, draw, kind_of
from streamrf.features.kernels import Kernel
from streamrf.features.learned.ekal import Learned, Pairs, relative_error
from streamrf.features.learned.machine import Fit, Moments
from streamrf.features.learned.supervised import features, learn_supervised
from streamrf.features.learned.unsupervised import learn_kernel_features
from streamrf.support.threads import Threads

MINUTES = "about 12 minutes, of which MNIST takes 5; its errors do not depend on how busy the machine is"
DEFAULTS = {"rows": 2000, "counts": COUNTS, "r": 200, "maps_seeds": 5, "learned_seeds": 2}
TOYS = {"rows": 100, "counts": (10,), "r": 10, "maps_seeds": 1, "learned_seeds": 1}
EXTRA = ("orthogonal", "sorf")  # not in the paper's table
RIDGES = tuple(10.0**e for e in np.arange(-7, 1.5, 0.5))


def run(context: Context) -> Results:
    results, s = context.open("tables23"), context.settings(DEFAULTS, TOYS)
    for name, (file, _) in SETS.items():
        if (name == "toy") != context.quick:
            continue
        if not (DATA / file).exists() and file:
            context.say(f"{name}: {file} is not there: skipped")
            continue
        if context.wants(f"maps/{name}"):
            results.cell(f"maps/{name}", partial(maps, name, s.counts, s.rows, s.maps_seeds))
        if context.wants(f"learned/{name}"):
            results.cell(f"learned/{name}", partial(learned, name, s.counts, s.r, s.rows, s.learned_seeds))
    return results


def mean(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}


# -- Table 2, frequencies that are drawn


def maps(name: str, counts: tuple[int, ...], rows: int, seeds: int) -> Cell:
    """Every column without looking at the data, with principal axes where they help, and the paper's figure."""
    start, rng = time.perf_counter(), np.random.default_rng(0)
    task = load(name, rng)
    train, test = (X[rng.permutation(len(X))[:rows]] for X in (task.X, task.X_test))
    K, test = task.kernel(test).astype(np.float32), test.astype(np.float32)
    entries = []
    for r in counts:
        measure = partial(drawn_errors, task.kernel, r, train, test, K, seeds)
        for column, kind in [*DRAWN.items(), *((kind.upper(), kind) for kind in EXTRA)]:
            entry = {"data": name, "r": r, "column": column, "kind": kind, "paper": paper_2(name, r, column)}
            entry["ours"] = measure(kind, axes=False)
            if kind_of(kind).sample == "helps":
                entry["axes"] = measure(kind, axes=True)
            entries.append(entry)
    return rounded({"ok": True, "seconds": time.perf_counter() - start, "found": {"table2": entries}}, 4)


def drawn_errors(
    kernel: Kernel, r: int, train: np.ndarray, test: np.ndarray, K: np.ndarray, seeds: int, kind: str, axes: bool
) -> dict[str, float]:
    """Mean and spread over seeds; kinds that a sample merely helps see it only if ``axes``."""
    sample = train if axes or kind_of(kind).sample == "needed" else None
    errors = [kernel_error(draw(kind, kernel, r, test.shape[1], s, sample=sample), test, K) for s in range(seeds)]
    return {"mean": float(np.mean(errors)), "spread": float(np.std(errors))}


def kernel_error(drawn: Frequencies, X: np.ndarray, K: np.ndarray) -> float:
    """In float32, whose rounding is far below these errors."""
    angles, root = X @ drawn.dense().T.astype(np.float32), np.sqrt(drawn.weights).astype(np.float32)
    C, S = np.cos(angles) * root, np.sin(angles) * root
    return float(np.linalg.norm(C @ C.T + S @ S.T - K) / np.linalg.norm(K))


# -- Tables 2 and 3, features that are learned


def learned(name: str, counts: tuple[int, ...], r: int, rows: int, seeds: int) -> Cell:
    start = time.perf_counter()
    tasks = [load(name, np.random.default_rng(seed)) for seed in range(seeds)]
    with Threads(1):  # products as small as these are slower on several threads; a run of ours has one for BLAS, too
        second = {
            f"{name} {count}": mean([kernel_errors(task, count, rows, seed) for seed, task in enumerate(tasks)])
            for count in counts
        }
        third = {name: mean([machine_errors(task, r, seed) for seed, task in enumerate(tasks)])}
    found = {"seeds": seeds, "table 2": second, "table 3": third}
    paper = {"table 2": [(row[0], *row[-2:]) for row in TABLE_2.get(name, ())], "table 3": TABLE_3.get(name, ())}
    return rounded({"ok": True, "seconds": time.perf_counter() - start, "found": found, "paper": paper}, 4)


def kernel_errors(task: Task, r: int, rows: int, seed: int) -> dict[str, float]:
    """Relative errors on test rows, and CPU seconds of learning.

    ``fixed`` is Algorithm 1 with one set of n = r landmarks; ``fresh`` draws n = r new landmarks at every step.
    """
    rng, kernel, d = np.random.default_rng(seed), task.kernel, task.X.shape[1]
    test = Pairs.within(kernel, task.X_test[rng.permutation(len(task.X_test))[:rows]])
    plain, start = (draw(kind, kernel, r, d, seed) for kind in ("mc", "orthogonal"))
    drawn = {"MC": plain, "start": start}
    errors = {name: relative_error(test, each.dense(), each.weights) for name, each in drawn.items()}
    for fresh in (False, True):
        for landmarks in ("sample", "cluster"):
            name, began = f"{landmarks.upper()} {'fresh' if fresh else 'fixed'}", time.process_time()
            found = learn_kernel_features(
                task.X, kernel, start.dense(), landmarks=landmarks, count=r, fresh=fresh, seed=seed
            )
            errors[f"{name} seconds"] = time.process_time() - began
            errors[name] = relative_error(test, found.learned.W, found.learned.p)
    return errors


def machine_errors(task: Task, r: int, seed: int) -> dict[str, float]:
    """Test errors of the linear machine (RMSE, or % wrong) on drawn and learned features."""
    kernel, d = task.kernel, task.X.shape[1]
    plain, start = (draw(kind, kernel, r, d, seed) for kind in ("mc", "orthogonal"))
    errors = {"MC": machine_error(task, Learned(plain.dense(), plain.weights), None, seed)}
    for landmarks in ("sample", "cluster"):
        found = learn_kernel_features(task.X, kernel, start.dense(), landmarks=landmarks, count=r, seed=seed)
        errors[landmarks.upper()] = machine_error(task, found.learned, None, seed)
    began = time.process_time()
    supervised = learn_supervised(task.X, task.y, task.kind, kernel, start.dense(), seed=seed)
    errors["SUPERVISE seconds"] = time.process_time() - began
    errors["SUPERVISE"] = machine_error(task, Learned(supervised.W, supervised.p), supervised.ridge, seed)
    return errors


def machine_error(task: Task, learned: Learned, ridge: float | None, seed: int) -> float:
    """The ridge, if it is not given, is chosen on a quarter of the training rows."""
    amplitudes = np.sqrt(np.tile(learned.p, 2) * len(learned.p))
    Z, Z_test = (features(X, learned.W) * amplitudes for X in (task.X, task.X_test))
    y = task.y[:, None]
    if ridge is None:
        order, cut = np.random.default_rng(seed).permutation(len(Z)), len(Z) // 4
        held, kept = order[:cut], order[cut:]
        moments = Moments.of(Z[kept], y[kept])
        ridge = min(RIDGES, key=lambda each: _error(moments.ridge(each), Z[held], task.y[held], task.kind))
    return _error(Moments.of(Z, y).ridge(ridge), Z_test, task.y_test, task.kind)


def _error(fit: Fit, Z: np.ndarray, y: np.ndarray, kind: str) -> float:
    scores = fit.scores(Z)[:, 0]
    return float(np.sqrt(((scores - y) ** 2).mean())) if kind == "regression" else 100 * float((scores * y <= 0).mean())
