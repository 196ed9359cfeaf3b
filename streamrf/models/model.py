"""The model: what remains of a run. Scaling, map, weights, and where they came from, in a file that is safe to load."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

import streamrf
from streamrf.data.columns import Columns, names_from_json, names_to_json
from streamrf.data.source import Source
from streamrf.features.base import FeatureMap, RowScorer
from streamrf.features.binning.map import BinningMap
from streamrf.features.build import map_from_parts
from streamrf.features.scaling import Scaling
from streamrf.features.targets import CLASSIFICATION, TargetCoding
from streamrf.recipe import Recipe
from streamrf.solvers.ridge import Weights
from streamrf.statistics.calibration import Calibration
from streamrf.statistics.gram import GramState
from streamrf.statistics.rowset import Ledger
from streamrf.support.errors import DataError, FileFormatError, InputError, MismatchError
from streamrf.support.storage.archive import Archive, read_archive, write_archive
from streamrf.support.threads import Threads

KIND = "model"


@dataclass
class Model:
    """Everything that prediction needs, and the story of how it was made."""

    recipe: Recipe
    scaling: Scaling
    map: FeatureMap
    coding: TargetCoding
    weights: Weights
    calibration: Calibration | None
    feature_names: tuple[str, ...] | None
    ledger: Ledger
    story: dict[str, Any] = field(default_factory=dict)  # rows, hold-out metrics, pilot trials, seconds, memory, digest
    columns: Columns | None = None  # how raw columns become the inputs, where they are not numbers as they come
    target_names: tuple[str, ...] | None = None  # columns the targets came from, where they had names
    posterior: Any = None  # how sure it is (streamrf.models.uncertainty), once that was asked for; not kept in the file

    @property
    def n_inputs(self) -> int:
        return self.scaling.n_inputs

    @property
    def is_classifier(self) -> bool:
        return self.coding.task == CLASSIFICATION

    @cached_property
    def _scorer(self) -> RowScorer:
        return self.map.scorer(self.weights.coefficients, self.weights.intercept)

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): decision scores, or predicted numbers, of inputs as they come."""
        if X.shape[1] != self.n_inputs:
            raise DataError(f"the data has {X.shape[1]} columns, the model was trained on {self.n_inputs}")
        return self._scorer.scores(self.scaling.transform(X, self.map.precision.inputs), threads)

    def deviations(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): the standard deviation of each prediction, of a model that has its posterior."""
        return self.posterior.deviations(self.map, self.scaling.transform(X, self.map.precision.inputs), threads)

    def codes(self, scores: np.ndarray) -> np.ndarray:
        """Position of the most probable class."""
        if self.calibration is None:
            raise InputError("this model predicts numbers: it has no classes")
        return self.calibration.logits(scores).argmax(axis=1)

    def labels(self, codes: np.ndarray) -> np.ndarray:
        return np.asarray(self.coding.classes)[codes]

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes)."""
        if self.calibration is None:
            raise InputError("this model predicts numbers: it has no probabilities")
        return self.calibration.probabilities(scores)

    def check_fits(self, source: Source) -> None:
        """Refuse data whose columns are not the model's."""
        check_columns(source, self.n_inputs, self.feature_names)

    def save(self, path: str | Path, *, state: GramState | None = None, overwrite: bool = False) -> None:
        """Write the model, and the statistics beside it where they are given."""
        documents, arrays = self._parts()
        files = {"arrays": arrays}
        if state is not None:
            files["statistics"] = state.arrays()
        write_archive(path, kind=KIND, documents={"model": documents}, arrays=files, overwrite=overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process as it is to a file: what is packed for this CPU stays here."""
        return _revived, (*self._parts(), self.posterior)

    def _parts(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        scaling, scaling_arrays = self.scaling.to_parts()
        map, map_arrays = self.map.to_parts()
        coding, coding_arrays = self.coding.to_parts()
        arrays = {
            **scaling_arrays, **map_arrays, **coding_arrays,
            "weights.coefficients": np.ascontiguousarray(self.weights.coefficients),
            "weights.intercept": self.weights.intercept,
        }  # fmt: skip
        if self.calibration is not None:
            arrays |= {"calibration.slope": self.calibration.slope, "calibration.shift": self.calibration.shift}
        document = {
            "recipe": self.recipe.to_json(), "scaling": scaling, "map": map, "targets": coding,
            "ridge": self.weights.ridge, **names_to_json(self), "ledger": self.ledger.to_json(), "story": self.story,
            "versions": versions(),
        }  # fmt: skip
        return document, arrays

    @classmethod
    def load(cls, path: str | Path) -> Model:
        archive = read_archive(path, kind=KIND)
        try:
            return cls._from_parts(archive.document("model"), archive.arrays("arrays"))
        except (KeyError, TypeError, IndexError) as error:
            raise FileFormatError(f"{path}: the model lacks a part or has one of the wrong kind ({error!r})") from error

    @classmethod
    def _from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Model:
        map, coding = map_from_parts(document["map"], arrays), TargetCoding.from_parts(document["targets"], arrays)
        scaling = Scaling.from_parts(document["scaling"], arrays)
        coefficients, intercept = arrays["weights.coefficients"], arrays["weights.intercept"]
        if coefficients.shape != (map.n_features, coding.outputs) or intercept.shape != (coding.outputs,):
            raise FileFormatError(
                f"weights {coefficients.shape} do not fit {map.n_features} features and {coding.outputs} outputs"
            )
        calibration = None
        if coding.task == CLASSIFICATION:
            calibration = Calibration(arrays["calibration.slope"], arrays["calibration.shift"])
        weights = Weights(coefficients, intercept, float(document["ridge"]))
        return cls(
            Recipe.from_json(document["recipe"]), scaling, map, coding, weights, calibration,
            ledger=Ledger.from_json(document["ledger"]), story=document["story"], **names_from_json(document),
        )  # fmt: skip


def _revived(document: dict[str, Any], arrays: dict[str, np.ndarray], posterior: Any) -> Model:
    model = Model._from_parts(document, arrays)
    model.posterior = posterior
    return model


def check_columns(source: Source, count: int, names: tuple[str, ...] | None) -> None:
    """Refuse data with another number of columns, or with others than those named."""
    if source.n_features != count:
        raise DataError(f"the data has {source.n_features} columns, the model was trained on {count}")
    if names and source.feature_names and names != source.feature_names:
        missing = [name for name in names if name not in source.feature_names]
        what = f"columns {', '.join(missing[:5])} are missing" if missing else "the columns are in another order"
        raise MismatchError(f"the data does not match the model: {what}")


def statistics_of(archive: Archive) -> dict[str, np.ndarray]:
    """The arrays of the statistics kept beside a model."""
    if not archive.has_arrays("statistics"):
        raise InputError(f"{archive.path} {_why_no_statistics(archive.document('model')['recipe'])}")
    return archive.arrays("statistics")


def _why_no_statistics(recipe: dict[str, Any]) -> str:
    if recipe["map"] == BinningMap.kind:
        return (
            "is a model of random binning, which has no sums that rows can join or leave: train anew on the rows you"
            " want, or with Fourier features (--D)"
        )
    if recipe.get("solver", "cholesky") not in ("auto", "cholesky"):
        return f"was fitted by --solver {recipe['solver']}, which leaves no sums: train anew with --solver cholesky"
    return "was saved without its statistics (--no-statistics, or weights of rows): train anew to have them"


def versions() -> dict[str, str]:
    """What the model was made with."""
    import numpy
    import scipy

    return {
        "streamrf": streamrf.__version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }
