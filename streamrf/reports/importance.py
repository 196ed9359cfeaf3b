"""Which columns matter: how much worse predictions get when a column is shuffled, and how they follow its values.

Columns are those of the user's table. All codes of a column (levels, flags, the parts of a date) move together, as
whole rows of codes that the sample has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from streamrf.data.columns.column import DATE, ONEHOT, ORDINAL, TARGET, Column
from streamrf.data.screening import draw_sample
from streamrf.data.source import Block, Source
from streamrf.models.model import Model
from streamrf.reports.evidence import Evidence
from streamrf.reports.page import COLOURS, Picture, Section, bars, legend, panels
from streamrf.support.errors import DataError, InputError
from streamrf.support.threads import Threads
from streamrf.support.units import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ROWS, REPEATS = 5000, 5
MOST_COLUMNS = 100  # of a report, whose first columns are shuffled
SHOWN_COLUMNS = 15
REPORT_REPEATS = 2
POINTS = 20  # values of a column that dependence is drawn at
PRODUCTS = 4e9  # multiplications for a picture
DEPENDENCE_COLUMNS = 4
AT_AN_ANGLE = 8  # names of levels that have room below a panel
MISSING = "missing"  # in place of a value

Groups = Mapping[str, np.ndarray]  # columns of the user's table, and the places of their codes
Loss = Callable[[np.ndarray], float]
Respond = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Dependence:
    """The mean prediction when a column has a value and the others stay as they are."""

    column: str
    values: tuple[Any, ...]  # numbers, levels, or dates as text
    predictions: np.ndarray  # (values, outputs or classes)
    means: bool = False  # whether values are means of the target, which a category is coded by

    def to_json(self) -> dict[str, Any]:
        return {"column": self.column, "values": list(self.values), "predictions": self.predictions.tolist()}


@dataclass(frozen=True)
class Importance:
    """How much a loss rises when a column is shuffled, the most important column first.

    ``rises`` has a row for each column and a column for each shuffle; ``mean`` and ``spread`` (the standard deviation)
    are over the shuffles. ``dependence`` is what was asked for besides.
    """

    names: tuple[str, ...]
    rises: np.ndarray
    loss: str
    base: float  # the loss with nothing shuffled
    rows: int
    dependence: tuple[Dependence, ...] = ()

    @property
    def mean(self) -> np.ndarray:
        return self.rises.mean(axis=1)

    @property
    def spread(self) -> np.ndarray:
        return self.rises.std(axis=1)

    def to_json(self) -> dict[str, Any]:
        lines = zip(self.names, self.mean.tolist(), self.spread.tolist(), strict=True)
        return {
            "rows": self.rows, "repeats": self.rises.shape[1], "loss": self.loss, "base": self.base,
            "columns": [{"column": name, "rise": rise, "spread": spread} for name, rise, spread in lines],
            "partial": [each.to_json() for each in self.dependence],
        }  # fmt: skip

    def picture(self) -> Picture:
        """Bars of the strongest columns; needs matplotlib."""
        names, first = list(self.names[:SHOWN_COLUMNS]), slice(SHOWN_COLUMNS)
        what = f"rise of {self.loss} when the column is shuffled"
        figure = bars(names, self.mean[first], what, spread=self.spread[first])
        caption = "How much worse predictions get when one column is shuffled among the rows."
        return Picture("importance", caption, figure, f"The strongest columns are {', '.join(names[:3])}")

    def _repr_html_(self) -> str:
        from html import escape

        lines = zip(self.names, self.mean, self.spread, strict=True)
        cells = "".join(f"<tr><td>{escape(n)}</td><td>{m:.4g}</td><td>{s:.2g}</td></tr>" for n, m, s in lines)
        head = f"<tr><th>column</th><th>rise of {escape(self.loss)}</th><th>spread</th></tr>"
        return f"<table>{head}{cells}</table>"


# -- of a model and data


def measure_importance(
    model: Model, source: Source, threads: Threads, *, rows: int = ROWS, repeats: int = REPEATS,
    partial: Sequence[str] = (), seed: int = 0,
) -> Importance:  # fmt: skip
    """On a sample of rows whose targets are known. Columns that share what they tell share their importance."""
    model.check_fits(source)
    groups = column_groups(model)
    if unknown := [name for name in partial if name not in groups]:
        raise InputError(f"`partial={unknown[0]!r}` must be a column of the model: {', '.join(list(groups)[:20])}")
    if rows < 2 or repeats < 1:
        raise InputError(f"`rows` must be 2 or more and `repeats` 1 or more, not {rows} and {repeats}")
    sample = draw_sample(source, min(rows, source.n_rows), seed, "drop")
    if sample.y is None:
        raise DataError("importance needs the targets: how much worse predictions get cannot be said without them")
    X, (loss, what) = sample.X.astype(np.float64), loss_of(model, sample, threads)
    found = ordered(permutation_importance(loss, X, groups, seed, repeats), tuple(groups), what, loss(X), len(X))
    respond = respond_of(model, threads)
    drawn = tuple(dependence_of(model, respond, X, name, groups[name]) for name in partial)
    return Importance(found.names, found.rises, what, found.base, len(X), drawn)


def ordered(rises: np.ndarray, names: Sequence[str], loss: str, base: float, rows: int) -> Importance:
    """The most important column first."""
    order = np.argsort(-rises.mean(axis=1), kind="stable")
    return Importance(tuple(names[place] for place in order), rises[order], loss, base, rows)


def column_groups(model: Model) -> dict[str, np.ndarray]:
    """The places of each column's codes; of arrays every column has one."""
    if model.columns is None:
        names = model.feature_names or [f"x{place}" for place in range(model.n_inputs)]
        return {name: np.array([place]) for place, name in enumerate(names)}
    ends = np.cumsum([column.width for column in model.columns.columns])
    widths = zip(model.columns.columns, ends, strict=True)
    return {column.name: np.arange(end - column.width, end) for column, end in widths if column.width}


def loss_of(model: Model, rows: Block, threads: Threads) -> tuple[Loss, str]:
    """RMSE of numbers, log loss of classes; rows count for their weights."""
    weights = None if rows.weights is None else rows.weights / rows.weights.sum() * len(rows)
    if not model.is_classifier:
        truth = model.coding.values(rows.targets)
        counts = np.ones((len(rows), 1)) if weights is None else weights[:, None]
        return lambda X: float(np.sqrt((counts * (model.scores(X, threads) - truth) ** 2).mean())), "RMSE"
    codes, shares = model.coding.codes(rows.targets), np.ones(len(rows)) if weights is None else weights

    def log_loss(X: np.ndarray) -> float:
        chances = model.probabilities(model.scores(X, threads))
        return float(-(shares * np.log(np.maximum(chances[np.arange(len(codes)), codes], 1e-15))).mean())

    return log_loss, "log loss"


def respond_of(model: Model, threads: Threads) -> Respond:
    """Predicted numbers, or probabilities."""

    def respond(X: np.ndarray) -> np.ndarray:
        scores = model.scores(X, threads)
        return model.probabilities(scores) if model.is_classifier else scores

    return respond


def permutation_importance(loss: Loss, X: np.ndarray, groups: Groups, seed: int, repeats: int = REPEATS) -> np.ndarray:
    """How much the loss rises when the codes of one column are shuffled together, (groups, repeats)."""
    rng, base = np.random.default_rng(seed), loss(X)
    rises = np.empty((len(groups), repeats))
    for place, codes in enumerate(groups.values()):
        for repeat in range(repeats):
            shuffled = X.copy()
            shuffled[:, codes] = X[np.ix_(rng.permutation(len(X)), codes)]
            rises[place, repeat] = loss(shuffled) - base
    return rises


def partial_dependence(respond: Respond, X: np.ndarray, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of codes (points, codes), and the mean response with the column set to each (points, outputs).

    All rows of codes that the sample has, or of many those at the quantiles from 2 % to 98 % of the first code.
    """
    order = np.argsort(X[:, codes[0]], kind="stable")
    grid = np.unique(X[:, codes], axis=0)
    if len(grid) > POINTS:
        places = np.unique(np.rint(np.linspace(0.02, 0.98, POINTS) * (len(X) - 1)).astype(int))
        grid = np.unique(X[np.ix_(order[places], codes)], axis=0)
    moved, answers = X.copy(), []
    for values in grid:
        moved[:, codes] = values
        answers.append(respond(moved).mean(axis=0))
    return grid, np.array(answers)


def _in_order(grid: np.ndarray) -> np.ndarray:
    """Where one-hot codes come in the order of their levels: sorted as rows, the last level would come first."""
    return np.argsort([list(row > 0).index(True) if row.any() else len(row) for row in grid], kind="stable")


def dependence_of(model: Model, respond: Respond, X: np.ndarray, name: str, codes: np.ndarray) -> Dependence:
    """With values as the user's table has them."""
    grid, answers = partial_dependence(respond, X, codes)
    columns = {} if model.columns is None else {column.name: column for column in model.columns.columns}
    column = columns.get(name)
    means = column is not None and column.kind == TARGET
    if column is not None and column.kind == ONEHOT:
        order = _in_order(grid)
        grid, answers = grid[order], answers[order]
    if means:  # levels of one mean differ in how many rows they have
        _, first, of = np.unique(grid[:, 0], return_index=True, return_inverse=True)
        grid, answers = grid[first], np.array([answers[of == place].mean(axis=0) for place in range(len(first))])
    return Dependence(name, tuple(value_of(column, row) for row in grid), answers, means)


def value_of(column: Column | None, codes: np.ndarray) -> float | str:
    """What a row of codes stands for: a number, a level, a date, or that the value is missing."""
    if column is not None and column.flag and codes[-1] > 0:
        return MISSING
    if column is not None and column.kind == DATE:
        return str(np.datetime64(0, "s") + np.timedelta64(round(float(codes[0]) * 86400), "s")).removesuffix(
            "T00:00:00"
        )
    if column is not None and column.kind == ONEHOT:
        place = int(np.argmax(codes[: len(column.levels)]))
        return column.levels[place] if codes[place] > 0 else "other"
    if column is not None and column.kind == ORDINAL and column.levels:
        place = int(codes[0])
        return column.levels[place] if 0 <= place < len(column.levels) else "other"
    return float(codes[0])


# -- in a report


def inputs(evidence: Evidence) -> Section:
    """Permutation importance, and partial dependence on the strongest columns."""
    section, model, rows = Section("inputs", "Inputs"), evidence.judged, evidence.rows
    if rows is None:
        return section
    every = column_groups(model)
    groups = dict(list(every.items())[:MOST_COLUMNS])
    some = rows.take(slice(affordable_rows(model, REPORT_REPEATS * len(groups), len(rows))))
    X, (loss, what) = some.X.astype(np.float64), loss_of(model, some, evidence.threads)
    rises = permutation_importance(loss, X, groups, model.recipe.seed, REPORT_REPEATS)
    found = ordered(rises, tuple(groups), what, loss(X), len(X))
    first = "" if len(groups) == len(every) else f" Only the first {len(groups)} columns were tried."
    section.text = f"On {format_count(len(X))} rows. Correlated columns share their importance.{first}"
    section.pictures.append(found.picture())
    section.pictures.append(_dependence(evidence, X, {name: groups[name] for name in found.names[:DEPENDENCE_COLUMNS]}))
    return section


def _dependence(evidence: Evidence, X: np.ndarray, groups: Groups) -> Picture:
    """A panel for each column, all on one scale, with a line for each output or class."""
    model, classes = evidence.judged, [str(label) for label in evidence.judged.coding.classes]
    X = X[: affordable_rows(model, POINTS * len(groups), len(X))]
    shown = slice(1, 2) if len(classes) == 2 else slice(0, len(COLOURS))
    respond = respond_of(model, evidence.threads)
    found = [dependence_of(model, lambda X: respond(X)[:, shown], X, name, codes) for name, codes in groups.items()]
    lines = classes[shown] if classes else [f"output {i}" for i in range(found[0].predictions.shape[1])]
    figure, sides = panels((min(8.6, 2.4 * len(found) + 0.6), 2.9), len(found))
    for axes, each in zip(sides, found, strict=True):
        draw_dependence(axes, each, lines)
    _share_scale(sides, found)
    what = f"probability of {lines[0]}" if len(lines) == 1 else "probability"
    sides[0].set_ylabel(what if classes else "prediction")
    if len(lines) > 1:
        legend(sides[-1], "upper left", (1.01, 1))
    caption = "Mean prediction when one column is set to a value and the others stay as they are."
    if len(classes) > len(lines) > 1:
        caption += f" The first {len(lines)} of {len(classes)} classes."
    if any(_with_gaps(each) for each in found):
        caption += " Dotted: where the value is missing."
    return Picture("dependence", caption, figure, f"Partial dependence on {', '.join(groups)}")


def draw_dependence(axes: Axes, found: Dependence, lines: Sequence[str]) -> None:
    """A line over numbers and dates, with a dotted one for missing values; dots over levels."""
    if _with_gaps(found):
        gaps = [value == MISSING for value in found.values]
        for number in range(len(lines)):
            axes.axhline(found.predictions[gaps.index(True), number], color=COLOURS[number], linestyle=":")
        rest = tuple(value for value in found.values if value != MISSING)
        found = replace(found, values=rest, predictions=found.predictions[~np.array(gaps)])
    levels = any(isinstance(value, str) for value in found.values)
    dates = levels and all(_is_date(value) for value in found.values)
    places: Any = (
        np.array(found.values, "datetime64[s]") if dates else range(len(found.values)) if levels else found.values
    )
    dots = (
        {"marker": "o", "linestyle": "none"} if levels and not dates else {"marker": "o" if len(places) < 4 else None}
    )
    for number, line in enumerate(lines):
        axes.plot(places, found.predictions[:, number], color=COLOURS[number], label=line, **dots)
    if levels and not dates:
        axes.set_xticks(list(places), [str(value)[:14] for value in found.values])
        axes.set_xlim(-0.5, len(places) - 0.5)
    if levels:
        axes.tick_params(axis="x", labelrotation=45)
    if levels and not dates and len(places) > AT_AN_ANGLE:  # names at an angle would lie on one another
        axes.tick_params(axis="x", labelrotation=90, labelsize=6)
    axes.set_xlabel(found.column[:24] + (", by its mean" if found.means else ""))


def _with_gaps(found: Dependence) -> bool:
    """Whether missing is one value among numbers or dates."""
    others = [value for value in found.values if value != MISSING]
    return 0 < len(others) < len(found.values) and all(isinstance(v, float) or _is_date(v) for v in others)


def _is_date(value: object) -> bool:
    try:
        return isinstance(value, str) and bool(np.datetime64(value) == np.datetime64(value)) and value[:4].isdigit()
    except ValueError:
        return False


def _share_scale(sides: Sequence[Axes], found: Sequence[Dependence]) -> None:
    low, high = min(each.predictions.min() for each in found), max(each.predictions.max() for each in found)
    margin = 0.05 * (high - low or 1.0)
    for axes in sides:
        axes.set_ylim(low - margin, high + margin)
        axes.tick_params(labelleft=axes is sides[0])


def affordable_rows(model: Model, evaluations: int, rows: int) -> int:
    """How many rows can be predicted ``evaluations`` times with about PRODUCTS multiplications."""
    width = getattr(model.map, "n_features", 1000)
    return int(np.clip(PRODUCTS / (max(evaluations, 1) * width * (model.n_inputs + 4)), 50, rows))
