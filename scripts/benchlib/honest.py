"""`honest`: whether what training reports is what fresh rows show, within its own interval, over generated problems.

Each of 100 problems is another draw: rows, columns, task, noise, map, D, weights. A model is trained with defaults
otherwise. Its reported figure and 95 % interval are compared with the same figure on 50,000 fresh rows.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from benchlib.context import Context
from benchlib.results import Cell, Results, judged, rounded

MINUTES = "about 15 minutes"
DEFAULTS = {"problems": 100, "fresh": 50_000}
TOYS = {"problems": 3, "fresh": 2000}
WANTED = 0.9  # of the problems, of which 95 % should do
MAPS = ("any", "sobol", "binning", "mc", "any", "supervised", "orthogonal", "any", "auto", "fastfood", "aligned", "any",
        "moment-matched", "sorf", "any", "landmarks", "ekal-sample", "any", "halton", "binning", "weighted",
        "digital-net", "lattice")  # fmt: skip
FEW, MANY = 200, 50_000
DRAWS = 500  # of a thousand rows, to find one of each class


@dataclass(frozen=True)
class Problem:
    """What is drawn for one problem; ``number`` seeds its rows too."""

    number: int
    rows: int
    inputs: int
    classes: int  # 0: numbers
    noise: float
    map: str
    D: int
    weighted: bool

    @classmethod
    def draw(cls, number: int, problems: int, most: int) -> Problem:
        """Sizes in even steps of the logarithm, in a random order; all else at random."""
        rng = np.random.default_rng([16, number])
        place = np.random.default_rng(16).permutation(problems)[number]
        rows = int(FEW * (most / FEW) ** ((place + rng.random()) / problems))
        classes = 0 if number % 5 < 2 else int(2 * 25 ** rng.random()) if number % 5 < 4 else 2
        return cls(
            number, rows, int(rng.integers(2, 13)), min(classes, max(2, rows // 40)),
            float(rng.choice([0.1, 0.5, 2.0])), MAPS[number % len(MAPS)], 2 * int(50 * 10 ** rng.random()),
            bool(rng.random() < 0.35),
        )  # fmt: skip

    def sample(self, rows: int, *, fresh: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Inputs, targets and weights, which depend on the inputs; fresh rows are others of the same law."""
        rng = np.random.default_rng([self.number, int(fresh)])
        X, y = self._rows(rng, rows)
        if self.classes and not fresh:
            self._complete(X, y)
        weights = rng.gamma(1.0, size=rows) * np.exp(0.5 * X[:, 1]) if self.weighted else None
        return X.astype(np.float32), y, weights

    def _rows(self, rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
        X = rng.standard_normal((rows, self.inputs))
        X[:, 0] = np.exp(X[:, 0])  # one column is skewed
        values = self._truth(X)
        if self.classes:
            return X, (values + self.noise * rng.gumbel(size=values.shape)).argmax(axis=1)
        return X, values[:, 0] + self.noise * rng.standard_normal(rows)

    def _complete(self, X: np.ndarray, y: np.ndarray) -> None:
        """Every class must be known: rows of common classes give way to others of the classes that no row has. (A label
        that is not the row's own would be an error that fresh rows do not have.)"""
        rng, missing = np.random.default_rng([self.number, 2]), set(range(self.classes)) - set(y.tolist())
        place = (row for row in range(len(y)) if (y == y[row]).sum() > 1)
        for _ in range(DRAWS):
            if not missing:
                break
            more, labels = self._rows(rng, 1000)
            for known in sorted(missing & set(labels.tolist())):
                row, missing = next(place), missing - {known}
                X[row], y[row] = more[np.argmax(labels == known)], known
        for rare in sorted(missing):  # so rare that fresh rows hardly have it
            y[next(place)] = rare

    def _truth(self, X: np.ndarray) -> np.ndarray:
        """(rows, classes or 1): sums of a few waves; classes differ in how frequent they are."""
        law, columns = np.random.default_rng([self.number, 7]), max(self.classes, 1)
        waves = np.sin(X @ law.standard_normal((self.inputs, 12)) * 0.7 + law.uniform(0, 6, 12))
        bias = law.standard_normal(columns) * (0.5 if self.classes else 0.0)
        return waves @ law.standard_normal((12, columns)) * (2 / 12**0.5) + bias


def run(context: Context) -> Results:
    results, s = context.open("honest"), context.settings(DEFAULTS, TOYS)
    for number in range(s.problems):
        problem = Problem.draw(number, s.problems, 1000 if context.quick else MANY)
        if context.wants(name := f"problem/{number:03d}"):
            results.cell(name, lambda p=problem: measured(context, p, s.fresh))
    return results


def measured(context: Context, problem: Problem, fresh: int) -> Cell:
    """What the model says of itself, and what fresh rows say."""
    import streamrf

    X, y, weights = problem.sample(problem.rows, fresh=False)
    task = "classification" if problem.classes else "regression"
    asked: dict[str, Any] = {"map": problem.map, "task": task, "pilot": "none" if context.quick else "auto"}
    if problem.map != "binning" and (context.quick or problem.map != "any"):  # which has nothing set
        asked["D"] = 100 if context.quick else problem.D
    recipe = streamrf.Recipe(**asked)
    settings = streamrf.Settings(threads=context.threads)
    try:
        model = streamrf.train((X, y), recipe, settings, sample_weight=weights).model
    except streamrf.StreamRFError as error:
        return {"ok": False, "why": str(error), **asdict(problem)}
    X, y, weights = problem.sample(fresh, fresh=True)
    found = streamrf.evaluate(model, (X, y), threads=context.threads, sample_weight=weights)
    return rounded({"ok": True, **asdict(problem), **compared(model.metadata["holdout"], found)})


def figure_of(found: dict[str, Any]) -> str:
    """What a task is judged by."""
    return "error" if "error" in found else "rmse"


def compared(reported: dict[str, Any] | None, found: dict[str, Any]) -> Cell:
    """The reported figure with its interval, and the one that fresh rows have."""
    if not reported:
        return {"ok": False, "why": "nothing was reported"}
    name = figure_of(found)
    low, high = interval_of(reported, name)
    return {
        "figure": name, "reported": reported[name], "low": low, "high": high, "fresh": found[name],
        "judges": reported["rows"], "inside": bool(low <= found[name] <= high),
    }  # fmt: skip


def interval_of(reported: dict[str, Any], name: str) -> tuple[float, float]:
    """The 95 % interval of a figure; where none is reported, the figure itself, which no other can hit."""
    low, high = (reported.get("interval") or {}).get(name) or (reported[name], reported[name])
    return float(low), float(high)


# -- what it comes to


def lines(cells: dict[str, Cell]) -> list[str]:
    """How often the interval held, and whether the reported figure is too good more often than not."""
    done = [cell for cell in cells.values() if "inside" in cell]
    if not done:
        return []
    return [judged(f"{inside_of(done)} (wanted: {WANTED:.0%})", held(done) >= WANTED), signs(done)]


def held(cells: list[Cell]) -> float:
    return sum(cell["inside"] for cell in cells) / len(cells)


def inside_of(cells: list[Cell]) -> str:
    count = sum(cell["inside"] for cell in cells)
    return f"fresh rows within the reported 95 % interval in {count} of {len(cells)} problems"


def signs(cells: list[Cell]) -> str:
    """Figures are errors: one that is smaller than that of fresh rows is too good."""
    better = sum(cell["reported"] < cell["fresh"] for cell in cells)
    ratio = float(np.median([cell["reported"] / cell["fresh"] for cell in cells if cell["fresh"] > 0]))
    return f"reported better than fresh rows in {better} of {len(cells)}, median of reported / fresh {ratio:.3f}"
