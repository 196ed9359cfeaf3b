"""The pipeline: everything between a raw row and its features and coded targets, fixed before the first pass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamrf.data.columns import Columns, names_from_json, names_to_json
from streamrf.data.source import Source
from streamrf.features.base import FeatureMap
from streamrf.features.build import map_from_parts
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.support.errors import DataError, MismatchError
from streamrf.support.storage import safejson

Parts = tuple[dict[str, Any], dict[str, np.ndarray]]  # JSON and arrays, as files hold them


@dataclass(frozen=True)
class Pipeline:
    """Raw columns become inputs, inputs are scaled and mapped to features, targets become integers.

    Statistics can be added if their pipelines have the same digests.
    """

    columns: Columns | None  # how raw columns become inputs, where they are not numbers as they come
    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None

    @property
    def n_inputs(self) -> int:
        return self.scaling.n_inputs

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """Inputs as the map takes them."""
        return self.scaling.transform(X, self.map.precision.inputs)

    def check_columns(self, source: Source) -> None:
        """Refuse data with another number of columns, or with columns of other names."""
        if source.n_features != self.n_inputs:
            raise DataError(f"the data has {source.n_features} columns, the model was trained on {self.n_inputs}")
        names, found = self.feature_names, source.feature_names
        if names and found and names != found:
            missing = [name for name in names if name not in found]
            what = f"columns {', '.join(missing[:5])} are missing" if missing else "the columns are in another order"
            raise MismatchError(f"the data does not match the model: {what}")

    def to_parts(self) -> Parts:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        coding, coding_arrays = self.coding.to_parts()
        document = {"scaling": scaling, "map": map, "targets": coding, **names_to_json(self)}
        return document, {**scaling_arrays, **map_arrays, **coding_arrays}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Pipeline:
        return cls(
            scaling=Scaling.from_parts(document["scaling"], arrays), map=map_from_parts(document["map"], arrays),
            coding=TargetCoding.from_parts(document["targets"], arrays), **names_from_json(document),
        )  # fmt: skip

    def digests(self) -> dict[str, str]:
        """SHA-256 of each part that statistics must have in common to be added, by the name people know it by."""
        parts = {
            "map": self.map.to_parts(),
            "scaling": self.scaling.to_parts(),
            "target coding": self.coding.to_parts(),
        }
        if self.columns is not None:
            parts["coding of columns"] = self.columns.to_json(), {}
        return {name: _digest(*part) for name, part in parts.items()}


def _digest(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256(safejson.digest(safejson.plain(document, "a part")).encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()
