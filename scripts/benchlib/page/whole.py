"""The section on whole tables with nothing set, beside boosted trees."""

from __future__ import annotations

from typing import Any

from benchlib.all_tables import NEAR, OURS, TREES, means, ratios, verdicts
from benchlib.page.words import table
from benchlib.results import Cell

Found = dict[str, dict[str, Any]]
HEADS = ("table", "streamrf", "LightGBM", "XGBoost", "CatBoost", "ratio", "log loss", "best tree's", "time")


def tables(found: Found) -> list[str]:
    cells = found["tables"]["cells"]
    known = means(cells)
    lines = [
        "Whole tables with nothing set, text, dates and gaps included, beside LightGBM (127 leaves) and XGBoost (depth",
        "8), both at rate 0.05 with up to 3,000 rounds, and CatBoost with its defaults, all with early stopping on a",
        "tenth and categories as they are. Error on the test part: RMSE (`r-`) or share of wrong classes (`c-`), and",
        "its ratio to the best of the three. Time is of the whole command, in brackets in times of CatBoost's.",
        _splits(cells), "",
    ]  # fmt: skip
    rows = [_row(name, entrants) for name, entrants in known.items() if OURS in entrants]
    if not rows:
        return lines
    picture = ["![Ratio of the error to that of the best boosted tree, by table](pictures/benchmarks-tables.png)", ""]
    return [*lines, *(picture if ratios(known) else []), *table(HEADS, rows), "", *(f"- {v}" for v in verdicts(known))]


def _splits(cells: dict[str, Cell]) -> str:
    count = len({key.split("/")[1] for key in cells})
    return "One split." if count == 1 else f"Means over up to {count} splits."


def _row(name: str, entrants: dict[str, dict[str, float]]) -> list[str]:
    own, trees = entrants[OURS], [entrants[tree] for tree in TREES if tree in entrants]
    errors = [f"{entrants[each]['error']:.4g}" if each in entrants else "" for each in (OURS, *TREES)]
    ratio = f"{own['error'] / min(tree['error'] for tree in trees):.3f}" if trees else ""
    losses = [tree["log_loss"] for tree in trees if "log_loss" in tree]
    beside = f" ({own['wall'] / entrants['catboost']['wall']:.1f})" if "catboost" in entrants else ""
    logs = [f"{own['log_loss']:.3g}" if "log_loss" in own else "", f"{min(losses):.3g}" if losses else ""]
    return [name, *errors, ratio, *logs, f"{own['wall']:.0f} s{beside}"]


def draw(plt: Any, found: Found) -> Any:
    """A bar for each table, from the best ratio to the worst."""
    known = ratios(means(found["tables"]["cells"]))
    names = sorted(known, key=known.__getitem__, reverse=True)
    figure, axis = plt.subplots(figsize=(8, 0.32 * max(len(names), 3) + 1))
    colors = ["#16a085" if known[name] <= 1 else "#e67e22" if known[name] <= NEAR else "#c0392b" for name in names]
    axis.barh(names, [known[name] - 1 for name in names], left=1, color=colors)
    axis.axvline(1, color="black", linewidth=1)
    axis.set(xlabel="error of streamrf / error of the best of LightGBM, XGBoost and CatBoost")
    axis.grid(alpha=0.3, axis="x")
    return figure
