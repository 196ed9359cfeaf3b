"""Settings without trials, for ``pilot='none'``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from streamrf.features.kernels import make_kernel
from streamrf.features.median import median_length_scale
from streamrf.features.pipeline import default_kind
from streamrf.features.scaling_fits import fit_scaling
from streamrf.recipe import AUTO, Recipe

DEFAULTS = {"scaling": "standard", "kernel": "gaussian", "bits": "12", "ridge": 1e-6}  # --pilot none
MEDIAN_ROWS = 2000  # of the sample, for the median heuristic


def defaults(recipe: Recipe, sample: np.ndarray, weights: np.ndarray | None = None) -> Recipe:
    """The documented defaults of ``pilot='none'``; the width is the median heuristic."""
    settled: dict[str, Any] = {}
    for name, value in DEFAULTS.items():
        if getattr(recipe, name) in (AUTO, None):
            settled[name] = value
    recipe = replace(recipe, **settled, form=recipe.settled_form)
    if recipe.length_scale is None:
        scaled = fit_scaling(recipe.scaling, sample, weights).transform(sample[:MEDIAN_ROWS])
        rng, some = np.random.default_rng(recipe.seed), None if weights is None else weights[:MEDIAN_ROWS]
        recipe = replace(recipe, length_scale=median_length_scale(scaled, recipe.kernel, rng, some))
    kernel = make_kernel(recipe.kernel, length_scale=recipe.length_scale)
    return replace(recipe, map=default_kind(kernel, sample.shape[1])) if recipe.map == AUTO else recipe
