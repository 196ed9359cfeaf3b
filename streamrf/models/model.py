"""The model: what remains of a run. Pipeline, weights and metadata, in a file that is safe to load."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from streamrf.data.columns import Columns
from streamrf.data.source import Source
from streamrf.features.base import FeatureMap
from streamrf.features.binning.map import BinningMap
from streamrf.features.blend import BlendMap
from streamrf.features.pipeline import Parts, Pipeline
from streamrf.features.scaling import Scaling
from streamrf.features.targets import CLASSIFICATION, TargetCoding
from streamrf.features.trees.map import TreesMap
from streamrf.recipe import AUTO, Recipe
from streamrf.solvers.settings import PROBABILITY
from streamrf.statistics.gram import GramState
from streamrf.statistics.rowset import Ledger
from streamrf.statistics.scores import Calibration, Predictor, Weights
from streamrf.support import __version__
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.storage.archive import Archive, read_archive, write_archive
from streamrf.support.storage.files import content_errors
from streamrf.support.threads import Threads

KIND = "model"
METADATA = "story"  # what model files call it, since the first version


class Posterior(Protocol):
    """What knows the uncertainty of predictions."""

    def deviations(
        self, map: FeatureMap, X: np.ndarray, threads: Threads, *, unrounded: bool = False
    ) -> np.ndarray: ...


TABLES = "weights.tables"  # of random binning: (outputs, bins)


@dataclass
class UntrainedModel:
    """A model before its weights: a settled recipe, the pipeline, and how both were chosen.

    A checkpoint holds it besides the sums, and sites must share it to add theirs.
    """

    recipe: Recipe
    pipeline: Pipeline
    metadata: dict[str, Any]

    def to_parts(self) -> Parts:
        document, arrays = self.pipeline.to_parts()
        return {"recipe": self.recipe.to_json(), **document, METADATA: self.metadata}, arrays

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> UntrainedModel:
        return UntrainedModel(
            Recipe.from_json(document["recipe"]), Pipeline.from_parts(document, arrays), _metadata(document)
        )

    def trained(
        self, weights: Weights, calibration: Calibration | None, ledger: Ledger, metadata: dict[str, Any]
    ) -> Model:
        """The model with these weights; ``metadata`` adds to what is known."""
        predictor = Predictor(self.pipeline, weights, calibration)
        recipe = self.recipe.with_(ridge=weights.ridge)
        if recipe.threshold is not None and predictor.calibration is not None:
            if not isinstance(recipe.threshold, str):  # nothing was held out, perhaps: then no one has set it yet
                predictor.calibration = replace(predictor.calibration, threshold=recipe.threshold)
            recipe = recipe.with_(threshold=predictor.calibration.threshold)
        return Model(recipe, self.pipeline, {**self.metadata, **metadata}, predictor, ledger)

    def with_metadata(self, **more: Any) -> UntrainedModel:
        return replace(self, metadata={**self.metadata, **more})

    @property
    def scaling(self) -> Scaling:
        return self.pipeline.scaling

    @property
    def map(self) -> FeatureMap:
        return self.pipeline.map

    @property
    def coding(self) -> TargetCoding:
        return self.pipeline.coding

    @property
    def columns(self) -> Columns | None:
        return self.pipeline.columns

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        return self.pipeline.feature_names

    @property
    def target_names(self) -> tuple[str, ...] | None:
        return self.pipeline.target_names

    @property
    def reading(self) -> dict[str, Any]:
        """How values of text files were read in training, which those of later files are too."""
        found = self.metadata.get("reading", {})
        return found if isinstance(found, dict) else {}

    @property
    def n_inputs(self) -> int:
        return self.pipeline.n_inputs

    def check_fits(self, source: Source) -> None:
        """Refuse data whose columns are not the model's."""
        self.pipeline.check_columns(source)


@dataclass
class Model(UntrainedModel):
    """Everything that prediction needs, and metadata: rows, hold-out metrics, pilot trials, seconds, memory, digest."""

    predictor: Predictor
    ledger: Ledger = field(default_factory=Ledger)
    posterior: Posterior | None = None  # the uncertainty, once that was asked for; not kept in the file

    @property
    def weights(self) -> Weights:
        return self.predictor.weights

    @property
    def calibration(self) -> Calibration | None:
        return self.predictor.calibration

    @property
    def is_classifier(self) -> bool:
        return self.predictor.is_classifier

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): decision scores, or predicted numbers, of inputs as they come."""
        return self.predictor.scores(X, threads)

    def deviations(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs): the standard deviation of each prediction, of a model that has its posterior."""
        assert self.posterior is not None
        pipeline = self.pipeline
        return self.posterior.deviations(pipeline.map, pipeline.scaled(X), threads, unrounded=pipeline.unrounded)

    def codes(self, scores: np.ndarray) -> np.ndarray:
        """Position of the most probable class."""
        return self.predictor.codes(scores)

    def labels(self, codes: np.ndarray) -> np.ndarray:
        return self.predictor.labels(codes)

    def probabilities(self, scores: np.ndarray) -> np.ndarray:
        """(n, classes)."""
        return self.predictor.probabilities(scores)

    def _facts(self) -> dict[str, str]:
        """What a person wants to see first."""
        recipe, found = self.recipe, self.metadata.get("holdout") or {}
        facts = {"task": self.coding.describe(), "rows": self.metadata.get("rows"), "inputs": self.n_inputs}
        facts |= {
            "map": recipe.map,
            "features": self._features(),
            "kernel": None if recipe.kernel == AUTO else recipe.kernel,
            "lambda": None if recipe.map == TreesMap.kind else self.weights.ridge,
        }
        facts |= {
            f"hold-out {name.replace('_', ' ')}": found.get(name) for name in ("rmse", "r2", "error", "log_loss", "auc")
        }
        return {name: f"{v:.5g}" if isinstance(v, float) else str(v) for name, v in facts.items() if v is not None}

    def _features(self) -> int | str:
        """How many there are; of a blend those of its members, with what is taken of them."""
        if not isinstance(self.map, BlendMap):
            return self.map.n_features
        shares = self.map.shares(self.weights.coefficients).mean(axis=1)
        taken = {member.map.kind: [0.0, member.map.n_features] for member in reversed(self.map.members)}
        for share, member in zip(shares, self.map.members, strict=True):  # all turns of a member are told as one
            taken[member.map.kind][0] += share
        kinds = dict.fromkeys(member.map.kind for member in self.map.members)
        return " + ".join(f"{taken[kind][0]:.2f} of {taken[kind][1]} ({kind})" for kind in kinds)

    def __repr__(self) -> str:
        return f"<streamrf model: {', '.join(f'{name} {text}' for name, text in self._facts().items())}>"

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        left = "style='text-align:left'"
        lines = (
            f"<tr><th {left}>{name}</th><td {left}>{escape(text)}</td></tr>" for name, text in self._facts().items()
        )
        return f"<table><caption>streamrf model</caption>{''.join(lines)}</table>"

    def save(self, path: str | Path, *, state: GramState | None = None, overwrite: bool = False) -> None:
        """Write the model, and the statistics beside it where they are given."""
        document, arrays = self.to_parts()
        files = {"arrays": arrays}
        if state is not None:
            files["statistics"] = state.arrays()
        write_archive(path, kind=KIND, documents={"model": document}, arrays=files, overwrite=overwrite)

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another process as it is to a file: what is packed for this CPU stays here."""
        return _revived, (*self.to_parts(), self.posterior)

    def to_parts(self) -> Parts:
        document, arrays = super().to_parts()
        arrays |= _stored(self.weights.coefficients, self.map)
        arrays["weights.intercept"] = self.weights.intercept
        if self.calibration is not None:
            arrays |= {"calibration.slope": self.calibration.slope, "calibration.shift": self.calibration.shift}
            if self.calibration.threshold != 0.5:  # older versions never had another
                document["threshold"] = self.calibration.threshold
            if self.calibration.bend:
                document["bend"] = self.calibration.bend
        document |= {"ridge": self.weights.ridge, "ledger": self.ledger.to_json(), "versions": versions()}
        document |= {"ridges": list(self.weights.ridges)} if self.weights.ridges else {}
        return document, arrays

    @classmethod
    def load(cls, path: str | Path) -> Model:
        archive = read_archive(path, kind=KIND)
        with content_errors(path):
            return cls.from_parts(archive.document("model"), archive.arrays("arrays"))

    @classmethod
    def from_parts(cls, document: dict[str, Any], arrays: dict[str, np.ndarray]) -> Model:
        pipeline = Pipeline.from_parts(document, arrays)
        map, coding = pipeline.map, pipeline.coding
        coefficients = arrays[TABLES].T if TABLES in arrays else arrays["weights.coefficients"]
        intercept = arrays["weights.intercept"]
        if coefficients.shape != (map.n_features, coding.outputs) or intercept.shape != (coding.outputs,):
            raise FileFormatError(
                f"weights {coefficients.shape} do not fit {map.n_features} features and {coding.outputs} outputs"
            )
        if isinstance(map, BlendMap):
            map.check(coding.outputs)
        calibration = None
        if coding.task == CLASSIFICATION:
            slope, shift = arrays["calibration.slope"], arrays["calibration.shift"]
            threshold, bend = _threshold(document.get("threshold", 0.5)), _bend(document.get("bend", 0.0))
            calibration = Calibration(slope, shift, threshold, bend)
        ridges = tuple(float(ridge) for ridge in document.get("ridges", ()))
        weights = Weights(coefficients, intercept, float(document["ridge"]), ridges=ridges)
        predictor = Predictor(pipeline, weights, calibration)
        ledger = Ledger.from_json(document["ledger"])
        return cls(Recipe.from_json(document["recipe"]), pipeline, _metadata(document), predictor, ledger)


def _stored(coefficients: np.ndarray, map: FeatureMap) -> dict[str, np.ndarray]:
    """Coefficients as a file has them; tables of bins as they are in memory, of which there shall be no second copy."""
    if isinstance(map, BinningMap) and map.numbering is not None:
        return {TABLES: np.ascontiguousarray(coefficients.T)}
    return {"weights.coefficients": np.ascontiguousarray(coefficients)}


def _threshold(value: Any) -> float:
    if not isinstance(value, float) or value not in PROBABILITY:
        raise FileFormatError(f"the model's threshold is {value!r}: it must be a probability {PROBABILITY}")
    return value


def _bend(value: Any) -> float:
    if not isinstance(value, float) or not 0 <= value < 1e6:
        raise FileFormatError(f"the model's calibration is bent by {value!r}: it must be a number from 0 on")
    return value


def _metadata(document: dict[str, Any]) -> dict[str, Any]:
    found = document[METADATA]
    if not isinstance(found, dict):
        raise FileFormatError(
            f"the metadata of the model must be an object, not {type(found).__name__}; it is damaged."
        )
    return found


def _revived(document: dict[str, Any], arrays: dict[str, np.ndarray], posterior: Posterior | None) -> Model:
    model = Model.from_parts(document, arrays)
    model.posterior = posterior
    return model


def statistics_of(archive: Archive) -> dict[str, np.ndarray]:
    """The arrays of the statistics kept beside a model."""
    if not archive.has_arrays("statistics"):
        raise InputError(f"{archive.path} {_why_no_statistics(archive.document('model')['recipe'])}")
    return archive.arrays("statistics")


def _why_no_statistics(recipe: dict[str, Any]) -> str:
    if recipe["map"] == BinningMap.kind:
        return (
            "is a model of random binning, which has no sums that rows can join or leave: retrain on the rows you want,"
            " or with Fourier features (`D`)"
        )
    if recipe["map"] == TreesMap.kind:
        return (
            "is a model of trees, which rows can neither join nor leave: retrain on the rows you want, or with Fourier"
            " features (`D`)"
        )
    if recipe["map"] == BlendMap.kind:
        return (
            "is a blend, which keeps no sums that rows can join or leave: retrain on the rows you want, or with"
            " `map='landmarks'` or `D`"
        )
    if recipe.get("solver", "cholesky") not in ("auto", "cholesky"):
        return f"was fitted by `solver={recipe['solver']!r}`, which leaves no sums: retrain with `solver='cholesky'`"
    return "was saved without its statistics, which weights of rows rule out too: retrain to have them"


def versions() -> dict[str, str]:
    """What the model was made with."""
    import numpy
    import scipy

    return {
        "streamrf": __version__,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "scipy": scipy.__version__,
    }
