"""The pipeline: everything between a raw row and its features and coded targets, fixed before the first pass."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

import numpy as np

from streamrf.data.columns import Columns, names_from_json, names_to_json
from streamrf.data.source import Source
from streamrf.features import blend as _blend  # noqa: F401 (its import registers the map)
from streamrf.features.base import Arrays, FeatureMap, RowScorer, Scorer
from streamrf.features.binning import map as _binning  # noqa: F401
from streamrf.features.fourier import KINDS, UNTOLD, Draw, Learning, check, draw, draw_phases, kind_of
from streamrf.features.fourier.map import FourierMap
from streamrf.features.kernels import Kernel
from streamrf.features.precision import Precision
from streamrf.features.scaling import Scaling
from streamrf.features.targets import TargetCoding
from streamrf.features.trees import map as _trees  # noqa: F401
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError
from streamrf.support.storage import safejson
from streamrf.support.storage.safejson import JSON

SOBOL_COLUMNS = 256
UNROUNDED = "unrounded"  # what a model file says of features that are rounded in the sums alone


class Given(TypedDict, total=False):
    """What kinds that are fitted to data may see; rows are scaled as the map's inputs will be."""

    sample: np.ndarray | None
    targets: np.ndarray | None
    learning: Learning
    metric: np.ndarray | None  # a factor for the inputs, which the frequencies then carry


def build_map(
    kind: str, kernel: Kernel, D: int, d: int, *, form: str, precision: Precision, seed: int, **given: Unpack[Given]
) -> FeatureMap:
    """D features of the kernel, of any kind: Fourier features, or what the kind itself draws."""
    if not kind_of(kind).whole:
        return build_fourier(kind, kernel, D, d, form=form, precision=precision, seed=seed, **given)
    if given.get("metric") is not None and not kind_of(kind).metric:
        raise InputError(f"a metric changes Fourier frequencies, and {kind} has none: use `metric='none'`")
    check(kind, kernel)
    seen = given.get("sample"), given.get("targets"), given.get("learning", UNTOLD)
    map = kind_of(kind).draw(Draw(kind, kernel, D, d, seed, *seen, precision, given.get("metric")))
    assert isinstance(map, FeatureMap)
    return map


def build_fourier(
    kind: str, kernel: Kernel, D: int, d: int, *, form: str, precision: Precision, seed: int, **given: Unpack[Given]
) -> FourierMap:
    """D frequencies at random phases, or D / 2 with a cosine and a sine each."""
    count = D // 2 if form == "pairs" else D
    phases = np.zeros(count) if form == "pairs" else draw_phases(count, seed)
    return FourierMap(draw(kind, kernel, count, d, seed, **given), phases, form, precision)


def default_kind(kernel: Kernel, d: int) -> str:
    """Sobol points, which cover the spectrum most evenly; in many columns orthogonal directions, if there are any."""
    if d <= SOBOL_COLUMNS:
        return "sobol"
    return "orthogonal" if kernel.radial else "mc"


def map_from_parts(document: JSON, arrays: Arrays) -> FeatureMap:
    """The map that a model file describes. Only kinds that this process has defined are read: nothing is imported."""
    for what, name, known in (
        ("a map", document.get("kind"), FeatureMap.FAMILIES),
        ("frequencies", document.get("frequencies", "mc"), KINDS),
    ):
        if name not in known:
            raise FileFormatError(
                f"the model has {what} of kind {name!r}; this version knows {', '.join(known)}. If a package of yours"
                " defines it, import that package first"
            )
    return FeatureMap.FAMILIES[str(document["kind"])].from_parts(document, arrays)


Parts = tuple[dict[str, Any], dict[str, np.ndarray]]  # JSON and arrays, as files hold them


@dataclass(frozen=True)
class Pipeline:
    """Raw columns become inputs, inputs are scaled and mapped to features, targets become integers.

    Statistics can be added if their pipelines have the same digests. What is served is no part of these: integers are
    summed either way. ``unrounded`` says that predictions take the features that the integers are rounded from.
    """

    columns: Columns | None  # how raw columns become inputs, where they are not numbers as they come
    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    unrounded: bool = False  # as in models of the first versions

    @property
    def n_inputs(self) -> int:
        return self.scaling.n_inputs

    def scaled(self, X: np.ndarray) -> np.ndarray:
        """Inputs as the map takes them."""
        return self.scaling.transform(X, self.map.precision.inputs)

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        """Predictions of scaled inputs, from the features that are served; coefficients are for those of the sums."""
        if self.unrounded:
            return Scorer(self.map, coefficients, intercept, unrounded=True)
        return self.map.scorer(coefficients, intercept)

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
        document |= {"serves": UNROUNDED} if self.unrounded else {}
        return document, {**scaling_arrays, **map_arrays, **coding_arrays}

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Pipeline:
        map = map_from_parts(document["map"], arrays)
        return cls(
            scaling=Scaling.from_parts(document["scaling"], arrays), map=map,
            coding=TargetCoding.from_parts(document["targets"], arrays), **names_from_json(document),
            unrounded=_serves_unrounded(document, map),
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


def _serves_unrounded(document: dict[str, Any], map: FeatureMap) -> bool:
    """Models of the first versions say nothing, and serve the integers of their sums."""
    serves = document.get("serves")
    if serves not in (None, UNROUNDED) or (serves is not None and not map.can_serve_unrounded):
        raise FileFormatError(f"the model serves {serves!r} features of a map of kind {map.kind!r}: it is damaged")
    return serves is not None


def _digest(document: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    sha = hashlib.sha256(safejson.digest(safejson.plain(document, "a part")).encode())
    for name, array in sorted(arrays.items()):
        sha.update(f"{name}:{array.dtype.str}:{array.shape};".encode())
        sha.update(np.ascontiguousarray(array).data)
    return sha.hexdigest()
