"""`solvers`: one gradient pass, conjugate gradients for large D, hinge and logistic loss against scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchlib import ours
from benchlib.contest import Task, compete, is_there
from benchlib.context import Context
from benchlib.parts import bare_map, fourier
from benchlib.results import Cell, Results, rounded
from benchlib.sets import SETS
from benchlib.tables import arrays
from streamrf.data.source import Block
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.statistics.gradient import Gradient
from streamrf.statistics.losses import ScorePull
from streamrf.support.threads import Threads, in_turn, timed

MINUTES = "about two hours, of which `large` takes most"
DEFAULTS: dict[str, Any] = {
    "inputs": 54, "block": 4096, "pass_D": (1000, 5000, 20_000),
    "rows": 500_000, "features": (1000, 2000, 5000, 10_000, 20_000, 50_000), "direct_up_to": 20_000, "ridge": None,
    "length_scale": None, "D": 2000, "epochs": 5, "svc_rows": 100_000, "logistic_rows": 50_000, "logistic_D": 1000,
}  # fmt: skip
TOYS = {"block": 512, "pass_D": (200,), "features": (50, 100), "D": 100, "logistic_D": 100, "rows": None}
RIDGE = 1e-5  # of the logistic loss


def run(context: Context) -> Results:
    results, s = context.open("solvers"), context.settings(DEFAULTS, TOYS)
    for D in s.pass_D if context.wants("pass") else ():
        results.cell(f"pass/{D}", lambda D=D: one_pass(D, s.inputs, s.block))
    for name, tables in tables_of(context, "large", s.rows, ("covtype2",)):
        large(context, results, s, name, tables)
    for name, tables in tables_of(context, "hinge", s.rows):
        base = settled(context, results, name, tables)
        results.cell(f"hinge/{name}", lambda n=name, t=tables, b=base: hinge(context, results, s, n, t, b))
    for name, tables in tables_of(context, "logistic", s.logistic_rows):
        base = settled(context, results, name, tables)
        results.cell(f"logistic/{name}", lambda t=tables, b=base: logistic(context, t, b, s.logistic_D))
    return results


def tables_of(
    context: Context, part: str, rows: int | None, names: tuple[str, ...] = ("covtype2", "adult")
) -> Iterator[tuple[str, ours.Tables]]:
    for name in names[:1] if context.quick else names:
        if context.wants(f"{part}/{name}") and is_there(context, SETS[name]):
            yield name, SETS[name].tables(context.work, context.quick, rows=rows)


def settled(context: Context, results: Results, name: str, tables: ours.Tables) -> tuple[object, ...]:
    """Kernel, width and scaling by the pilot at D = 1,000, once for all."""
    if context.quick:
        return ("--kernel", "gaussian", "--length-scale", 5, "--scaling", "standard", "--bits", 8)
    found = results.cell(f"pilot/{name}", lambda: ours.train(context, tables, "--D", 1000))["settings"]
    names = ("kernel", "length_scale", "scaling", "map", "form")
    options = [word for key in names for word in (f"--{key.replace('_', '-')}", found[key])]
    return (*options, "--bits", 8, "--pilot", "none")


def large(context: Context, results: Results, s: SimpleNamespace, name: str, tables: ours.Tables) -> None:
    """Error and time for growing D: conjugate gradients, as a ratio to the direct route."""
    given = {"--lambda": s.ridge, "--length-scale": s.length_scale}
    base = [*settled(context, results, name, tables)]
    base += [word for option, value in given.items() if value is not None for word in (option, value)]

    def measure(D: int, solver: str, direct: Cell) -> Cell:
        cell = ours.train(context, tables, *base, "--D", D, "--solver", solver)
        ratio = {"ratio": cell["train"] / direct["train"]} if cell["ok"] and direct.get("ok") else {}
        return rounded({"D": D, "solver": solver, **cell, **ratio})

    for D in s.features:
        direct: Cell = {}
        for solver in ("cholesky", "cg") if s.direct_up_to >= D else ("cg",):
            args = (D, solver, direct)
            direct = results.cell(f"large/{name}/{D}/{solver}", lambda args=args: measure(*args))


# -- one pass


def one_pass(D: int, inputs: int, rows: int) -> Cell:
    """Features, scores and pulls of one thread against sgemm and cosine alone; 0.6 of its rows/s is asked for."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((rows, inputs)).astype(np.float32), rng.standard_normal(rows)
    map, coding = fourier(D, inputs), TargetCoding.regression(y.min()[None], y.max()[None])
    weights = rng.standard_normal((D, 1)) * map.amplitudes[:, None]
    gradient = Gradient(fit_scaling("standard", X), map, coding, ScorePull(1), weights, np.zeros(1), 10**6)
    with Threads(1) as threads:
        block = Block(X, y, np.arange(rows))
        works = {"ours": lambda: gradient.update(gradient.zero(), block, threads), "bare": bare_map(X, D, 256)}
        seconds = in_turn(works, 5)
    return rounded({"ok": True, "D": D, "inputs": inputs, "rows_per_second": rows / seconds["ours"],
                    "bare": rows / seconds["bare"], "ratio": seconds["bare"] / seconds["ours"]})  # fmt: skip


# -- other losses, on the features of a model of ours


def features_of(context: Context, X: np.ndarray) -> np.ndarray:
    model = Model.load(ours.model_of(context))
    with Threads(context.threads) as threads:
        scaled = model.scaling.transform(X, model.map.precision.inputs)
        return model.map.dense(scaled, threads).astype(np.float32)


def hinge(
    context: Context, results: Results, s: SimpleNamespace, name: str, tables: ours.Tables, base: tuple[object, ...]
) -> Cell:
    """Stochastic gradients against LinearSVC on the same features, and against RBFSampler with SGDClassifier."""
    from sklearn.svm import LinearSVC

    cell = ours.train(context, tables, *base, "--D", s.D, "--loss", "hinge", "--epochs", s.epochs)
    if not cell["ok"]:
        return cell
    (X, y), (X_test, y_test) = (arrays(path) for path in tables)
    Z, y = features_of(context, X[: s.svc_rows]), y[: s.svc_rows]
    ridge = Model.load(ours.model_of(context)).weights.ridge
    svc = LinearSVC(C=1 / (2 * len(Z) * ridge), loss="hinge", tol=1e-3, max_iter=300).fit(Z, y)
    wrong = float((svc.predict(features_of(context, X_test)) != y_test).mean())
    length_scale = cell["settings"]["length_scale"]
    more = {"scaling": "every", "length_scale": length_scale, "alpha": 1e-4, "loss": "hinge"}
    task = Task(f"hinge/{name}", tables, 2, s.D, 0, epochs=s.epochs, more=tuple(more.items()), search=False)
    theirs = compete(context, results, task, "rbfsampler-sgd")
    if not theirs["ok"]:
        return theirs
    return rounded({**cell, "linear_svc": wrong, "svc_iterations": int(np.max(svc.n_iter_)),
                    "sklearn_seconds": theirs["train"], "sklearn_error": theirs["error"],
                    "time_ratio": cell["train"] / theirs["train"]})  # fmt: skip


def logistic(context: Context, tables: ours.Tables, base: tuple[object, ...], D: int) -> Cell:
    """The mean loss on the rows that were fitted, within 1e-3 of scikit-learn's."""
    from sklearn.linear_model import LogisticRegression

    given = ("--D", D, "--loss", "logistic", "--lambda", RIDGE, "--holdout", 0)
    cell = ours.train(context, tables, *base, *given)
    if not cell["ok"]:
        return cell
    X, y = arrays(tables[0])
    Z, model, rows = features_of(context, X), Model.load(ours.model_of(context)), np.arange(len(X))
    machine = LogisticRegression(C=1 / (2 * len(Z) * RIDGE), tol=1e-6, max_iter=2000)
    seconds = timed(lambda: machine.fit(Z, y))
    with Threads(context.threads) as threads:
        found = model.probabilities(model.scores(X, threads))
    loss, theirs = (float(-np.log(p[rows, y]).mean()) for p in (found, machine.predict_proba(Z)))
    return rounded({**cell, "loss": loss, "sklearn": theirs, "gap": loss - theirs, "sklearn_seconds": seconds,
                    "time_ratio": cell["train"] / seconds})  # fmt: skip
