"""What it looks at: permutation importance and partial dependence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from streamrf.reports import curves, figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section
from streamrf.support.units import format_count

MOST_COLUMNS = 100  # inputs that are shuffled
SHOWN_COLUMNS = 15
DEPENDENCE_COLUMNS = 4


def inputs(evidence: Evidence) -> Section:
    """Permutation importance, and partial dependence for the strongest inputs."""
    section, model, rows = Section("inputs", "What it looks at"), evidence.judged, evidence.rows
    if rows is None:
        return section
    columns = np.arange(min(rows.X.shape[1], MOST_COLUMNS))
    some = curves.affordable_rows(model, 2 * len(columns), len(rows))
    X = rows.X[:some].astype(np.float64)
    loss, what = _loss(evidence, some)
    rises = curves.permutation_importance(loss, X, columns, model.recipe.seed)
    order = np.argsort(-rises.mean(axis=1), kind="stable")[:SHOWN_COLUMNS]
    names = [evidence.column_name(int(columns[place])) for place in order]
    all_columns = "" if len(columns) == rows.X.shape[1] else f" Only the first {len(columns)} inputs were tried."
    section.text = f"On {format_count(some)} rows. Inputs that say the same share their importance.{all_columns}"
    section.pictures = [
        Picture("importance", "How much worse it gets when one input is shuffled among the rows.",
                figures.importance(names, rises[order].mean(axis=1), rises[order].std(axis=1), what),
                f"The strongest inputs are {', '.join(names[:3])}"),
        _dependence(evidence, X, [int(columns[place]) for place in order[:DEPENDENCE_COLUMNS]]),
    ]  # fmt: skip
    return section


def _loss(evidence: Evidence, rows: int) -> tuple[Callable[[np.ndarray], float], str]:
    model, truth = evidence.judged, evidence.truth[:rows]
    if model.is_classifier:

        def surprise(X: np.ndarray) -> float:
            chances = model.probabilities(model.scores(X, evidence.threads))
            return float(-np.log(np.maximum(chances[np.arange(rows), truth], 1e-15)).mean())

        return surprise, "log loss"
    return lambda X: float(np.sqrt(((model.scores(X, evidence.threads) - truth) ** 2).mean())), "RMSE"


def _dependence(evidence: Evidence, X: np.ndarray, columns: Sequence[int]) -> Picture:
    model = evidence.judged
    X = X[: curves.affordable_rows(model, 20 * len(columns), len(X))]
    shown, lines = slice(None), [str(label) for label in model.coding.classes][: len(figures.COLOURS)]
    if len(model.coding.classes) == 2:
        shown, lines = slice(1, 2), lines[1:]

    def respond(rows: np.ndarray) -> np.ndarray:
        scores = model.scores(rows, evidence.threads)
        return (model.probabilities(scores) if model.is_classifier else scores)[:, shown][:, : len(figures.COLOURS)]

    found = [(evidence.column_name(c), *curves.partial_dependence(respond, X, c)) for c in columns]
    what = ("probability of " + lines[0] if len(lines) == 1 else "probability") if model.is_classifier else "prediction"
    names = lines if model.is_classifier else [f"output {i}" for i in range(found[0][2].shape[1])]
    caption = "Mean answer when one input is set to a value and the others stay as they are."
    alt = f"Partial dependence on {', '.join(name for name, _, _ in found)}"
    return Picture("dependence", caption, figures.dependence(found, names, what), alt)
