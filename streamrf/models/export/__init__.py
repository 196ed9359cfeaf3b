"""Models for programs that do not have streamrf: plain arrays, written as ONNX or as a page of numpy.

Features are computed with the roundings of our kernels, step by step. Models of the first versions serve integers: a
cosine that differs in its last bit may round to another one, and that shows in the prediction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.columns import Columns
from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import BinningMap, hash_multipliers
from streamrf.features.blend import BlendMap
from streamrf.features.fourier.landmarks import LandmarkMap
from streamrf.features.fourier.map import SINE, FourierMap
from streamrf.features.profiles import PROFILES
from streamrf.features.scaling import Scaling
from streamrf.features.trees.map import TreesMap
from streamrf.models.model import Model
from streamrf.support.errors import InputError

DENSE, STRUCTURED, BINNING, LANDMARKS, TREES = "dense", "structured", "binning", "landmarks", "trees"
LOOKED_UP = (BINNING, TREES)  # maps whose coefficients are tables
TURN = np.float32(1 / (2 * np.pi))  # of projections that come in radians


@dataclass(frozen=True)
class ExportedMap:
    """Scores of inputs, as arrays in the form that the compiled kernels use.

    ``kind`` says which ``arrays`` the map has; ``scale`` is what a feature of one is rounded to (1: not rounded).
    """

    kind: str
    scaling: Scaling
    double: bool  # computed in float64 throughout
    scale: int
    arrays: dict[str, np.ndarray]
    coefficients: np.ndarray  # (F, outputs) float64, rounded as the kernel has them
    intercept: np.ndarray  # (outputs,)

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
        """The coefficients as a table for each grid or symmetric tree: (P, slots, outputs)."""
        if self.kind == TREES:
            return self._tables(slice(0, int(self.arrays["symmetric"])), len(self.arrays["columns"]))
        return self._tables(slice(None), len(self.arrays["shifts"]))

    @property
    def node_tables(self) -> np.ndarray:
        """The same of trees whose nodes have cuts of their own."""
        return self._tables(slice(int(self.arrays["symmetric"]), None), len(self.arrays["node_columns"]))

    def _tables(self, rows: slice, count: int) -> np.ndarray:
        return self.coefficients[rows].astype(np.float32).reshape(count, -1 if count else 1, len(self.intercept))


@dataclass(frozen=True)
class ExportedModel:
    """All that prediction needs: scores are those of one map, or of the members of a blend by their shares."""

    columns: Columns | None
    feature_names: tuple[str, ...] | None
    maps: tuple[ExportedMap, ...]
    classes: tuple[Any, ...]
    slope: np.ndarray | None
    shift: np.ndarray | None
    threshold: float  # of the probability of the second of two classes
    bend: float  # of the scores: how much of a cube is added
    shares: np.ndarray | None = None  # (members, outputs)
    intercept: np.ndarray | None = None  # (outputs,), of a blend

    @property
    def n_inputs(self) -> int:
        return self.maps[0].n_inputs

    @property
    def outputs(self) -> int:
        return len(self.maps[0].intercept)


def export_model(model: Model) -> ExportedModel:
    """The model as arrays; InputError for a map that cannot be exported."""
    calibration, map, weights = model.calibration, model.map, model.weights
    maps = _members(map) if isinstance(map, BlendMap) else (_plain(model),)
    shares = map.shares(weights.coefficients) if isinstance(map, BlendMap) else None
    return ExportedModel(
        model.columns, model.feature_names, maps, tuple(model.coding.classes),
        None if calibration is None else calibration.slope, None if calibration is None else calibration.shift,
        0.5 if calibration is None else calibration.threshold, 0.0 if calibration is None else calibration.bend,
        shares, np.asarray(weights.intercept) if isinstance(map, BlendMap) else None,
    )  # fmt: skip


def _plain(model: Model) -> ExportedMap:
    weights = model.weights
    return _exported(model.map, model.scaling, weights.coefficients, weights.intercept, model.pipeline.unrounded)


def _members(map: BlendMap) -> tuple[ExportedMap, ...]:
    return tuple(
        _exported(member.map, member.scaling, *member.weights, member.map.can_serve_unrounded) for member in map.members
    )


def _exported(
    map: FeatureMap, scaling: Scaling, coefficients: np.ndarray, intercept: np.ndarray, unrounded: bool
) -> ExportedMap:
    if isinstance(map, FourierMap):
        kind, arrays = _fourier(map)
    elif isinstance(map, LandmarkMap):
        kind, arrays = LANDMARKS, _landmarks(map)
    elif isinstance(map, BinningMap):
        kind, arrays = BINNING, _binning(map)
    elif isinstance(map, TreesMap):
        kind, arrays = TREES, _trees(map)
    else:
        raise InputError(f"a model with a map of kind '{map.kind}' cannot be exported: it predicts with streamrf only")
    number = np.float64 if kind in LOOKED_UP else map.precision.inputs
    scale = 1 if kind in LOOKED_UP else map.precision.scale
    weights = np.asarray(coefficients).astype(np.float32 if kind in LOOKED_UP else np.float64)
    if isinstance(map, BinningMap):
        weights = map.expanded(np.ascontiguousarray(weights.T)).reshape(weights.shape[1], -1).T
    if unrounded:
        weights, scale = weights * scale, 1
    double = kind not in LOOKED_UP and map.precision.inputs == np.float64
    return ExportedMap(
        kind, scaling, double, scale, arrays, weights.astype(number).astype(np.float64),
        np.asarray(intercept, np.float64),
    )  # fmt: skip


def _landmarks(map: LandmarkMap) -> dict[str, np.ndarray]:
    """Landmarks as they are compared with inputs, and the profile of the kernel."""
    profile = PROFILES[map.kernel]
    return {
        "metric": map.factor,
        "landmarks": map.moved(map.rows.astype(map.precision.inputs)).astype(np.float64),
        "profile": np.array([profile.factor, profile.a, profile.b]),
        "norm": np.array(profile.norm),
        "root": np.array(profile.root),
    }


def _trees(map: TreesMap) -> dict[str, np.ndarray]:
    """Symmetric trees and trees of nodes; ``places`` (d, categories) are those of levels, which inputs are if beyond
    ``on``."""
    nodes, levels = map.nodes, map.levels
    places = np.zeros((map.n_inputs, levels.count), np.float32)
    own = levels.group >= 0
    places[own, levels.group[own]] = levels.place[own]
    return {
        "columns": map.columns.astype(np.int64), "thresholds": map.thresholds, "symmetric": np.array(map.n_symmetric),
        "node_columns": nodes.columns.astype(np.int64), "node_thresholds": nodes.thresholds,
        "children": nodes.children.astype(np.int64), "depth": np.array(nodes.depth),
        "on": map.cuts[: map.n_inputs, 0], "places": places,
    }  # fmt: skip


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
