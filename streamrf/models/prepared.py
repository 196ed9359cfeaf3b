"""Everything that is fixed before the first pass: recipe, target coding, scaling and map."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from streamrf.data.columns import Columns, names_from_json, names_to_json
from streamrf.features.base import FeatureMap
from streamrf.features.build import map_from_parts
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.models.model import Model
from streamrf.recipe import Recipe
from streamrf.solvers.ridge import Weights
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.rowset import Ledger
from streamrf.support.storage import safejson


@dataclass
class Prepared:
    """What a checkpoint must hold besides the sums, and sites must share to add theirs."""

    recipe: Recipe
    coding: TargetCoding
    scaling: Scaling
    map: FeatureMap
    story: dict[str, Any] = field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None
    columns: Columns | None = None
    target_names: tuple[str, ...] | None = None

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """Inputs as the map takes them."""
        return self.scaling.transform(X, self.map.precision.inputs)

    def to_parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        coding, coding_arrays = self.coding.to_parts()
        document = {
            "recipe": self.recipe.to_json(), "scaling": scaling, "map": map, "targets": coding, "story": self.story,
            **names_to_json(self),
        }  # fmt: skip
        return document, {**scaling_arrays, **map_arrays, **coding_arrays}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Prepared:
        return cls(
            Recipe.from_json(document["recipe"]), TargetCoding.from_parts(document["targets"], arrays),
            Scaling.from_parts(document["scaling"], arrays), map_from_parts(document["map"], arrays), document["story"],
            **names_from_json(document),
        )  # fmt: skip

    def digests(self) -> dict[str, str]:
        """SHA-256 of each part that statistics must have in common to be added, by the name people know it by."""
        parts: dict[str, Any] = {"map": self.map, "scaling": self.scaling, "target coding": self.coding}
        digests = {name: _digest(*part.to_parts()) for name, part in parts.items()}
        return (
            digests if self.columns is None else {**digests, "coding of columns": _digest(self.columns.to_json(), {})}
        )

    def model(self, weights: Weights, calibration: Calibration | None, ledger: Ledger, story: dict[str, Any]) -> Model:
        """The model that these weights make of it."""
        if calibration is None and self.coding.classes:
            calibration = Calibration.plain(self.coding.outputs)
        return Model(
            self.recipe.with_(ridge=weights.ridge), self.scaling, self.map, self.coding, weights, calibration,
            self.feature_names, ledger, story, self.columns, self.target_names,
        )  # fmt: skip


def _digest(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256(safejson.digest(safejson.plain(document, "a part")).encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()
