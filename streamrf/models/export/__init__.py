"""Models for programs that do not have streamrf: plain arrays, written as ONNX or as a page of numpy.

Features that are rounded to 7, 8 or 12 bits must be computed with the roundings of our kernels, step by step: a cosine
that differs in its last bit may round to another integer, and that shows in the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.columns import Columns
from streamrf.features.binning.map import BinningMap, hash_multipliers
from streamrf.features.fourier.map import SINE, FourierMap
from streamrf.features.scaling import Scaling
from streamrf.models.model import Model
from streamrf.support.errors import InputError

DENSE, STRUCTURED, BINNING = "dense", "structured", "binning"
TURN = np.float32(1 / (2 * np.pi))  # of projections that come in radians


@dataclass(frozen=True)
class ExportedModel:
    """All that prediction needs, as arrays in the form that the compiled kernels use.

    ``kind`` says which ``arrays`` the map has; ``scale`` is what a cosine of one is rounded to (1: not rounded).
    """

    kind: str
    columns: Columns | None
    feature_names: tuple[str, ...] | None
    scaling: Scaling
    double: bool  # computed in float64 throughout
    scale: int
    arrays: dict[str, np.ndarray]  # of the map
    coefficients: np.ndarray  # (F, outputs) float64, rounded as the kernel has them
    intercept: np.ndarray  # (outputs,)
    classes: tuple[Any, ...]
    slope: np.ndarray | None
    shift: np.ndarray | None
    threshold: float  # of the probability of the second of two classes

    @property
    def n_inputs(self) -> int:
        return self.scaling.n_inputs

    @property
    def rounded(self) -> bool:
        return self.scale > 1

    @property
    def sine(self) -> tuple[float, ...]:
        """Coefficients of the polynomial for sin(2 pi g)."""
        return SINE["double" if self.double else "float"]

    @property
    def tables(self) -> np.ndarray:
        """Of random binning, the coefficients as a table for each grid: (P, slots, outputs)."""
        grids, outputs = len(self.arrays["shifts"]), len(self.intercept)
        return self.coefficients.astype(np.float32).reshape(grids, -1, outputs)


def export_model(model: Model) -> ExportedModel:
    """The model as arrays; InputError for a map that cannot be exported."""
    map, calibration = model.map, model.calibration
    if isinstance(map, FourierMap):
        kind, arrays = _fourier(map)
    elif isinstance(map, BinningMap):
        kind, arrays = BINNING, _binning(map)
    else:
        raise InputError(f"a model with a map of kind '{map.kind}' cannot be exported: it predicts with streamrf only")
    number = np.float64 if kind == BINNING else map.precision.inputs
    weights = np.asarray(model.weights.coefficients).astype(np.float32 if kind == BINNING else number)
    return ExportedModel(
        kind, model.columns, model.feature_names, model.scaling, map.precision.name == "float64",
        map.precision.scale if kind != BINNING else 1, arrays, weights.astype(np.float64),
        np.asarray(model.weights.intercept, np.float64), tuple(model.coding.classes),
        None if calibration is None else calibration.slope, None if calibration is None else calibration.shift,
        0.5 if calibration is None else calibration.threshold,
    )  # fmt: skip


def _fourier(map: FourierMap) -> tuple[str, dict[str, np.ndarray]]:
    """Frequencies and phases in turns, one of each for every feature."""
    number = map.precision.inputs
    repeats = map.n_features // len(map.phases)
    phases = np.concatenate([map.phases, map.phases - np.pi / 2]) if repeats == 2 else map.phases
    turns = (phases / (2 * np.pi)).astype(number)
    if map.frequencies.W is not None:
        W = np.tile(map.frequencies.W, (repeats, 1)) / (2 * np.pi)
        return DENSE, {"W": np.ascontiguousarray(W.T).astype(number), "phases": turns}
    factors = map.frequencies.factors
    assert factors is not None
    return STRUCTURED, {
        "diagonals": factors.diagonals.astype(np.float32),
        "permutations": factors.permutations.astype(np.int64),
        "stretch": factors.scale.astype(np.float32),
        "phases": turns,
    }


def _binning(map: BinningMap) -> dict[str, np.ndarray]:
    low, high = hash_multipliers(map.seed, map.grids, map.n_inputs)
    seen = np.isfinite(map.widths)
    return {
        "shifts": map.shifts,
        "inverses": np.where(seen, np.float32(1) / map.widths, np.float32(0)),
        "low": np.where(seen, low, np.uint32(0)),
        "high": np.where(seen, high, np.uint32(0)),
        "bits": np.array(map.bits),
    }
