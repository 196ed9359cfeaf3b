"""What trees settle before their pass: which inputs they see, by trials in haste that also say whether to grow them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.source import Block
from streamrf.features.scaling_fits import fit_scaling
from streamrf.features.targets import TargetCoding
from streamrf.features.trees.boosting import HASTE, Boosting
from streamrf.features.trees.map import TreesMap
from streamrf.features.trees.scores import Rows, in_units
from streamrf.recipe import AUTO, TREES, Recipe
from streamrf.solvers.binning import RIDGE
from streamrf.solvers.boosting import loss_of
from streamrf.support.threads import Threads
from streamrf.training.pilot.choice import Choice
from streamrf.training.pilot.fourier import VALIDATION
from streamrf.training.pilot.judging import judge_of
from streamrf.training.pilot.log import TrialLog

SCALING = "standard"  # trees need none, but single precision does
TRIED = 150  # trees of a trial, which unseen rows may stop earlier
MOST_ROWS = 20_000


def trees_choice(recipe: Recipe, columns: Columns | None) -> Choice:
    """Without trials. What is made of a number and the target is hidden: trees see the number itself, and part its
    values as they like."""
    scaling = SCALING if recipe.scaling == AUTO else recipe.scaling
    others = {"length_scale": None, "grids": None, "table_bits": None, "kernel": AUTO, "metric": AUTO, "solver": AUTO}
    recipe = recipe.with_(map=TREES, **others).with_(scaling=scaling, ridge=RIDGE, bits="8", form="phase")
    return Choice(recipe, hidden=() if columns is None else columns.made_of_target(categories=False))


def tried_trees(
    choice: Choice, columns: Columns | None, sample: Block, coding: TargetCoding, threads: Threads, log: TrialLog
) -> tuple[Choice, float]:
    """With the codes of categories hidden where trees do better without them, and the error that judges say."""
    sample = sample.take(slice(0, MOST_ROWS)) if len(sample) > MOST_ROWS else sample

    def error(hidden: tuple[int, ...]) -> float:
        name = f"{TREES}: without {hidden} of {len(sample)}"
        return log.figure(name, lambda: _error(hidden, choice.recipe, sample, coding, threads))

    found = {hidden: error(hidden) for hidden in _ways(choice, columns)}
    best = min(found, key=lambda hidden: found[hidden])
    return replace(choice, hidden=best), found[best]


def _ways(choice: Choice, columns: Columns | None) -> list[tuple[int, ...]]:
    codes = () if columns is None else columns.made_of_target(categories=True)
    return [choice.hidden, (*choice.hidden, *codes)] if codes else [choice.hidden]


def _error(hidden: tuple[int, ...], recipe: Recipe, sample: Block, coding: TargetCoding, threads: Threads) -> float:
    judge, cut = judge_of(sample, coding, recipe), len(sample) - max(1, int(len(sample) * VALIDATION))
    X = fit_scaling(SCALING, sample.X, sample.weights).transform(sample.X, np.float32)
    loss = loss_of(bool(coding.classes))
    targets, unit = in_units(judge.coding.values(judge.rows.targets), loss)
    weights = np.ones(len(sample)) if sample.weights is None else sample.weights / sample.weights.mean()
    map = TreesMap.ungrown(X[:cut], loss, hidden, targets[:cut], weights[:cut])
    codes = map.with_places(map.codes(X))
    fitted, judges = (
        Rows(np.ascontiguousarray(codes[:, part]), targets[part], weights[part])
        for part in (slice(0, cut), slice(cut, None))
    )
    boosting = Boosting(loss, map.counts, recipe.seed, threads, HASTE, levels=map.levels)
    forest = boosting.grow(fitted, judges, TRIED)
    scores = map.grown(forest).scorer(forest.coefficients, forest.start).scores(X[cut:], threads)
    return judge.verdict((scores * unit)[:, None], slice(cut, len(sample))).error
