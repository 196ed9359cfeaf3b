"""A blend: one model made of several. Its features are what its members predict, and its weights say how much of each.

A member has a scaling, a map and, once it is trained, coefficients of its own; all members see the same inputs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from streamrf.features.base import Arrays, FeatureMap, RowScorer, Scorer
from streamrf.features.precision import Precision, make_precision
from streamrf.features.scaling import Scaling
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads

COEFFICIENTS, INTERCEPT = "coefficients", "intercept"
MOST_MEMBERS = 16


@dataclass(frozen=True, eq=False)
class Member:
    """One model of a blend; without coefficients until it is trained."""

    scaling: Scaling
    map: FeatureMap
    coefficients: np.ndarray | None = None  # (features of the map, outputs)
    intercept: np.ndarray | None = None  # (outputs,)

    def trained(self, coefficients: np.ndarray, intercept: np.ndarray) -> Member:
        return replace(self, coefficients=coefficients, intercept=np.asarray(intercept, np.float64))

    @property
    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercept."""
        if self.coefficients is None or self.intercept is None:
            raise InputError("a member of this blend is not trained yet: it has no predictions")
        return self.coefficients, self.intercept

    @cached_property
    def _scorer(self) -> RowScorer:
        coefficients, intercept = self.weights
        if self.map.can_serve_unrounded:
            return Scorer(self.map, coefficients, intercept, unrounded=True)
        return self.map.scorer(coefficients, intercept)

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) of inputs as they come."""
        return self._scorer.scores(self.scaling.transform(X, self.map.precision.inputs), threads)

    def to_parts(self) -> tuple[JSON, Arrays]:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        arrays = {**scaling_arrays, **map_arrays}
        if self.coefficients is not None and self.intercept is not None:
            arrays |= {COEFFICIENTS: np.ascontiguousarray(self.coefficients), INTERCEPT: self.intercept}
        return {"scaling": scaling, "map": map}, arrays

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> Member:
        described, scaling = document.get("map"), document.get("scaling")
        if not isinstance(described, dict) or not isinstance(scaling, dict):
            raise FileFormatError("a member of the blend is damaged: it has no map or no scaling")
        kind = described.get("kind")
        if not isinstance(kind, str) or kind not in FeatureMap.FAMILIES or kind == BlendMap.kind:
            raise FileFormatError(f"a member of the blend has a map of kind {kind!r}, which this version does not know")
        map = FeatureMap.FAMILIES[kind].from_parts(described, arrays)
        coefficients, intercept = arrays.get(COEFFICIENTS), arrays.get(INTERCEPT)
        if coefficients is not None or intercept is not None:
            _check_weights(coefficients, intercept, map.n_features)
        return cls(Scaling.from_parts(scaling, arrays), map, coefficients, intercept)


@dataclass(frozen=True, eq=False)
class BlendMap(FeatureMap):
    """The predictions of all members, side by side."""

    kind = "blend"

    members: tuple[Member, ...]
    outputs: int

    @property
    def precision(self) -> Precision:  # type: ignore[override]
        return make_precision("float64")

    @property
    def n_inputs(self) -> int:
        return self.members[0].scaling.n_inputs

    @property
    def n_features(self) -> int:
        return len(self.members) * self.outputs

    @property
    def amplitudes(self) -> np.ndarray:
        return np.ones(self.n_features)

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        for number, member in enumerate(self.members):
            out[: len(X), number * self.outputs : (number + 1) * self.outputs] = member.scores(X, threads)

    def shares(self, coefficients: np.ndarray) -> np.ndarray:
        """(members, outputs): how much of each member is taken, from the weights of a blend."""
        return coefficients.reshape(len(self.members), self.outputs, self.outputs).diagonal(axis1=1, axis2=2)

    def untrained(self) -> BlendMap:
        first = {each.map.kind: each for each in reversed(self.members)}  # of small tables each was trained in turns
        kinds = dict.fromkeys(each.map.kind for each in self.members)
        return BlendMap(tuple(Member(first[kind].scaling, first[kind].map.untrained()) for kind in kinds), self.outputs)

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        return BlendScorer(self, np.asarray(coefficients, np.float64), np.asarray(intercept, np.float64))

    def to_parts(self) -> tuple[JSON, Arrays]:
        parts = [member.to_parts() for member in self.members]
        arrays = {f"{_prefix(i)}{name}": array for i, (_, own) in enumerate(parts) for name, array in own.items()}
        return {"kind": self.kind, "outputs": self.outputs, "members": [document for document, _ in parts]}, arrays

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> BlendMap:
        described: Any = document.get("members")
        outputs = document.get("outputs")
        if not isinstance(described, list) or not 1 <= len(described) <= MOST_MEMBERS or type(outputs) is not int:
            raise FileFormatError("the model's blend is damaged: it has no list of members, or no number of outputs")
        members = tuple(Member.from_parts(each, _under(arrays, _prefix(i))) for i, each in enumerate(described))
        for member in members:
            if member.scaling.n_inputs != members[0].scaling.n_inputs or (
                member.intercept is not None and len(member.intercept) != outputs
            ):
                raise FileFormatError("the model's blend is damaged: its members do not fit together")
        return cls(members, outputs)

    def check(self, outputs: int) -> None:
        """Whether all members are trained, for so many outputs."""
        if self.outputs != outputs or any(member.coefficients is None for member in self.members):
            raise FileFormatError(
                f"the model's blend is damaged: not all of its members have weights for {outputs} outputs"
            )


class BlendScorer:
    """Members one after the other, each at its own speed; a row's score does not depend on the rows beside it."""

    def __init__(self, map: BlendMap, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        self.map, self.coefficients, self.intercept = map, coefficients, intercept

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64."""
        total = np.tile(self.intercept, (len(X), 1))
        for number, member in enumerate(self.map.members):
            shares = self.coefficients[number * self.map.outputs : (number + 1) * self.map.outputs]
            total += member.scores(X, threads) * np.diagonal(shares)
        return total


def _check_weights(coefficients: np.ndarray | None, intercept: np.ndarray | None, features: int) -> None:
    sound = coefficients is not None and intercept is not None and intercept.ndim == 1
    if sound:
        assert coefficients is not None
        assert intercept is not None
        sound = coefficients.shape == (features, len(intercept)) and coefficients.dtype.kind == "f"
        sound = sound and bool(np.isfinite(coefficients).all() and np.isfinite(intercept).all())
    if not sound:
        raise FileFormatError("a member of the blend is damaged: its weights are missing, or do not fit its features")


def _prefix(number: int) -> str:
    return f"member{number}."


def _under(arrays: Arrays, prefix: str) -> Arrays:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
