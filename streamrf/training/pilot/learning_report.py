"""What was learned before the pass, in words: the ``learning`` of a model's story."""

from __future__ import annotations

from typing import Any

MEASURES = {  # of a learned map, in the order of their telling
    "landmark_loss": "landmark loss", "kernel_error": "kernel error on fresh rows", "holdout_error": "hold-out error",
}  # fmt: skip


def change(figures: dict[str, float]) -> str:
    """Before and after."""
    return f"{figures['before']:.4g} -> {figures['after']:.4g}"


def map_sentence(told: dict[str, Any]) -> str:
    """Of frequencies that were learned."""
    if "reason" in told:
        return f"nothing was learned: {told['reason']}"
    figures = ", ".join(f"{name} {change(told[key])}" for key, name in MEASURES.items() if key in told)
    kept = "" if told["kept"] == "learned" else "; no better than the start, which was kept"
    return figures + kept


def metric_sentence(told: dict[str, Any]) -> str:
    """Of a metric, with the columns that count most in it."""
    error = f"hold-out error {change(told['holdout_error'])}"
    if told["form"] == "none":
        return f"none: no {told['asked']} metric was better on unseen rows ({error})"
    weights = (f"{100 * each['share']:.0f} % {_name(each)}" for each in told["columns"][:5])
    return f"{told['form']}, {error}; weight is on {', '.join(weights)}"


def _name(column: dict[str, Any]) -> str:
    return str(column.get("name", f"column {column['column']}"))


def with_names(told: dict[str, Any], names: tuple[str, ...] | None, scaling: str) -> dict[str, Any]:
    """A metric's columns with the names that the data has for them, where scaled inputs are the columns themselves."""
    if not names or scaling == "pca":
        return told
    return {**told, "columns": [{**each, "name": names[each["column"]]} for each in told["columns"]]}


def learning_rows(learning: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Lines for a table that people read."""
    learning = learning or {}
    rows = [("learned map", map_sentence(learning["map"]))] if "map" in learning else []
    return rows + ([("metric", metric_sentence(learning["metric"]))] if "metric" in learning else [])
