"""How it was chosen: the pilot's trials and the path of lambda."""

from __future__ import annotations

from typing import Any

from streamrf.reports import figures
from streamrf.reports.evidence import Evidence
from streamrf.reports.figures import Picture
from streamrf.reports.page import Section


def search(evidence: Evidence) -> Section:
    """The pilot's trials and the path of lambda."""
    story, model = evidence.model.metadata, evidence.model
    section = Section("search", "Search", "Small fits on a sample choose scaling, kernel and width; then rows that were"
                      " held out choose λ.")  # fmt: skip
    trials = [t for t in story.get("pilot") or () if {"length_scale", "scaling", "kernel", "D", "error"} <= set(t)]
    if trials:
        section.pictures.append(Picture(
            "widths", "Each point is a small fit, judged on rows it has not seen (1 is no better than the mean).",
            figures.widths(trials, model.recipe.length_scale),
            f"Error against length scale for {len(trials)} pilot fits",
        ))  # fmt: skip
    if len(found := lambda_path(story)[0]) > 1:
        section.pictures.append(Picture(
            "lambda", "The ridge penalty, by the error it leads to.",
            figures.path([r for r, _ in found], [e for _, e in found], model.weights.ridge, lambda_path(story)[1]),
            f"Error against lambda, {len(found)} tried",
        ))  # fmt: skip
    epochs = (story.get("solver") or {}).get("epochs") or ()
    if len(epochs) > 1:
        section.pictures.append(Picture(
            "epochs", "Stochastic gradients: the loss on hold-out rows after each visit of all rows.",
            figures.steps(range(1, len(epochs) + 1), epochs, "epoch", "loss on hold-out rows"),
            f"Loss after each of {len(epochs)} epochs",
        ))  # fmt: skip
    if story.get("compared"):
        section.text += f" {story['compared']}."
    return section


def _solver_path(story: dict[str, Any]) -> list[dict[str, float]]:
    """What an iterative solver tried."""
    found = (story.get("solver") or {}).get("path") or ()
    return [{"lambda": row["ridge"], "score": row["score"]} for row in found if "ridge" in row and "score" in row]


def lambda_path(story: dict[str, Any]) -> tuple[list[tuple[float, float]], str]:
    """Lambdas and errors in order, and what the errors are, from whichever way lambda was chosen."""
    folds = story.get("cross_validation")
    if folds:
        return sorted((row["lambda"], row["mean"]) for row in folds["path"]), "squared error over folds"
    rows = story.get("lambda_path") or _solver_path(story)
    kinds = {
        "gcv": "GCV score", "mean_squared_error": "squared error on hold-out rows", "score": "loss on hold-out rows",
    }  # fmt: skip
    kind = next((name for name in kinds if rows and name in rows[0]), "gcv")
    points = sorted((row["lambda"], row[kind]) for row in rows if row.get(kind) is not None and row["lambda"] > 0)
    return points, kinds[kind]
