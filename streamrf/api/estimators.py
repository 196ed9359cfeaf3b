"""The estimators for scikit-learn: the model of `streamrf train`, with statistics that grow by ``partial_fit``."""

from __future__ import annotations

from inspect import cleandoc
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state, compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from streamrf.api.inputs import (
    SETTINGS,
    SIGNATURE,
    Batch,
    array_source,
    checked_rows,
    checked_weights,
    is_stored,
    parameters,
    remember_columns,
    stored_source,
    weighted,
)
from streamrf.data.frames import is_frame
from streamrf.data.keyed import Keyed, array_column
from streamrf.data.source import Source
from streamrf.features.kernels import make_kernel
from streamrf.features.targets import CLASSIFICATION, REGRESSION
from streamrf.models.model import Model, UntrainedModel
from streamrf.models.predict import evaluate_rows, gather_scores
from streamrf.recipe import AUTO, Recipe
from streamrf.support.errors import DataError, InputError, MismatchError
from streamrf.support.progress import Reporter
from streamrf.support.storage.archive import read_archive
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, train
from streamrf.training.update.changes import Work, accumulate, prepare
from streamrf.training.update.statistics import Statistics, prepared_of


class KernelMachine(BaseEstimator):
    """What the regressor and the classifier share. Parameters, their defaults and their help are those of a recipe."""

    _task: ClassVar[str]
    _model: Model | None  # None: to be solved from the statistics
    _statistics: Statistics | None  # None: the model has none
    _by_name: bool = False  # whether columns of a data frame are found by name, in any order

    D: int | None
    kernel: str
    length_scale: float | None
    gamma: float | None
    ridge: float | None
    class_weight: str | dict[Any, float] | None
    nan: str
    random_state: int | np.random.RandomState | None
    threads: int | None
    memory: int | None

    def __init__(self, *args: Any, **settings: Any) -> None:
        given = SIGNATURE.bind(self, *args, **settings)
        given.apply_defaults()
        for name in given.arguments.keys() - {"self"}:
            setattr(self, name, given.arguments[name])

    # scikit-learn reads the names of the parameters here, as do help() and editors.
    __init__.__signature__ = SIGNATURE  # type: ignore[attr-defined]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = f"{cleandoc(cls.__doc__ or '')}\n\n{parameters()}\n"

    # -- fitting

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, groups: Any = None) -> Self:
        """Train on all rows: the pilot, the passes, then lambda and calibration on hold-out rows. Rows of one of the
        ``groups`` (n,) are never on both sides of the hold-out."""
        source = self._training_source(X, y, sample_weight, first=True)
        if groups is not None:
            source = Keyed(source, array_column(groups), "groups")
        trained = train(source, self._recipe(X, y), self._settings())
        return self._adopt(trained.model, trained.state)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        """Add the sums of these rows. The first call fixes everything that is not a sum."""
        source = self._training_source(X, y, sample_weight, first=not hasattr(self, "_statistics"))
        if source.has_weights:
            raise InputError("partial_fit must count every row once: pass sample_weight to fit, or leave it out")
        if not hasattr(self, "_statistics"):
            self._statistics = Statistics.zero(self._prepared(source, classes))
            self._batches = 0
        if self._statistics is None:
            raise InputError(
                "the estimator has no statistics that rows could join: it was loaded without them, or its solver or map"
                " keeps none. Fit again, with D set for Fourier features and solver='cholesky'"
            )
        with Threads(self.threads) as threads:
            self._statistics += accumulate(self._statistics.prepared, Batch(source, self._batches), self._work(threads))
        self._batches += 1
        self._model = None  # solved when it is asked for
        return self

    def _prepared(self, source: Source, classes: Any) -> UntrainedModel:
        labels = None if classes is None else tuple(str(label) for label in np.unique(np.asarray(classes)))
        with Threads(self.threads) as threads:
            return prepare(source, self._recipe(), self._work(threads), classes=labels)

    def _adopt(self, model: Model, state: Any) -> Self:
        """Take over a model, and the sums it was solved from where there are any."""
        self._model = model
        self._batches = 0
        self._statistics = None if state is None else statistics_of(model, state)
        return self

    def _recipe(self, X: Any = None, y: Any = None) -> Recipe:
        """The recipe of these settings. Class weights are row weights already where the rows are in memory."""
        settings = {each.name: getattr(self, each.name) for each in SETTINGS}
        if isinstance(self.class_weight, dict):
            settings["class_weight"] = None
        recipe = Recipe(**settings | {"task": self._task, "length_scale": self._length_scale(), "seed": self._seed()})
        return recipe if X is None or is_stored(X, y) else recipe.with_(class_weight=None)

    def _length_scale(self) -> float | None:
        if self.gamma is None:
            return self.length_scale
        if self.kernel == AUTO:
            raise InputError("`gamma` is a different width for each kernel: name one, such as `kernel='gaussian'`")
        return make_kernel(self.kernel, length_scale=self.length_scale, gamma=self.gamma).length_scale

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _work(self, threads: Threads) -> Work:
        return Work(threads, self._settings())

    def _settings(self) -> Settings:
        return Settings(threads=self.threads, memory=self.memory)

    # -- data

    def _training_source(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Source:
        if first:
            self._by_name = is_stored(X, y)
        if is_stored(X, y) or (self._by_name and is_frame(X)):
            if isinstance(self.class_weight, dict):
                raise InputError("a dict as class_weight needs arrays in memory: stored data takes 'balanced'")
            source = stored_source(X, y, known=None if first else self._known())
            remember_columns(self, source)
            return weighted(source, checked_weights(sample_weight, source.n_rows))
        finite = self.nan != "drop" or "allow-nan"
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype="numeric", ensure_all_finite=finite,
            ensure_min_samples=2, reset=first, **self._target_checks(),
        )  # fmt: skip
        y, weights = self._checked_targets(y), checked_weights(sample_weight, X.shape[0])
        return weighted(array_source(X, y, self._column_names()), self._weights(y, weights))

    def _weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """The weights of rows in memory."""
        return weights

    def _target_checks(self) -> dict[str, Any]:
        return {"multi_output": True}

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def _known(self) -> UntrainedModel:
        """The model, solved or not, whose columns later data must have."""
        if self._model is None:
            assert self._statistics is not None
            return self._statistics.prepared
        return self._model

    def _column_names(self) -> list[str] | None:
        """Column names seen in fit, if there were any."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _source(self, X: Any, y: Any = None, *, need_targets: bool = False) -> Source:
        if is_stored(X, y) or (self._by_name and is_frame(X)):
            return stored_source(X, y, known=self._known(), need_targets=need_targets)
        return array_source(checked_rows(self, X), None, self._column_names())

    # -- using it

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_statistics")

    @property
    def model_(self) -> Model:
        """The streamrf model, solved from the statistics if rows were added since."""
        check_is_fitted(self)
        if self._model is None:
            assert self._statistics is not None
            ridge = self.ridge if self.ridge is not None else self._statistics.ridge
            with Threads(self.threads) as threads:
                self._model = self._statistics.solve(*(() if ridge is None else (ridge,)), threads=threads)
        return self._model

    @property
    def statistics_(self) -> Statistics | None:
        """The exact sums behind the weights, which add and subtract. None if the solver or map keeps none."""
        check_is_fitted(self)
        return self._statistics

    def _scores(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        source = self._source(X)
        with Threads(self.threads) as threads:
            return gather_scores(self.model_, source, threads)

    def _metrics(self, X: Any, y: Any) -> dict[str, Any]:
        """Metrics on stored data, without its predictions in memory."""
        check_is_fitted(self)
        source = self._source(X, y, need_targets=True)
        with Threads(self.threads) as threads:
            return evaluate_rows(self.model_, source, threads=threads, reporter=Reporter(), nan=self.nan)

    # -- files

    def save(self, path: str | Path, *, statistics: bool = True, overwrite: bool = False) -> None:
        """Write the model as `streamrf train` does. The statistics allow update, forget, merge and partial_fit."""
        model = self.model_
        state = self._statistics.state if statistics and self._statistics is not None else None
        model.save(path, state=state, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, statistics: bool = True) -> Self:
        """An estimator from a model that the command or ``save`` wrote."""
        kept = statistics and read_archive(path, kind="model").has_arrays("statistics")
        model = Model.load(path)
        return cls.from_model(model, Statistics.load(path).state if kept else None)

    @classmethod
    def from_model(cls, model: Model, state: Any = None) -> Self:
        """An estimator that predicts as this model does. ``state`` holds its sums, to which rows can be added."""
        if model.coding.task != cls._task:
            raise MismatchError(f"the model is for {model.coding.task}, and {cls.__name__} is for {cls._task}")
        asked = Recipe.from_json(model.metadata["asked"]) if "asked" in model.metadata else model.recipe
        settings = {each.name: getattr(asked, each.name) for each in SETTINGS}
        estimator = cls(random_state=asked.seed, **settings)
        estimator.n_features_in_ = model.n_inputs
        estimator._by_name = bool(model.feature_names)
        if model.feature_names:
            estimator.feature_names_in_ = np.array(model.feature_names, dtype=object)
        return estimator._adopt(model, state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def statistics_of(model: Model, state: Any) -> Statistics:
    """A model's sums with the settings that they belong to."""
    dropped = int(model.metadata.get("dropped") or 0)
    weights, ledger = model.weights, model.ledger.copy()
    return Statistics(
        prepared_of(model), state, ledger, dropped, weights.ridge, model.calibration, ridges=weights.ridges
    )


class KernelRegressor(RegressorMixin, KernelMachine):
    """Kernel ridge regression with random features, of one output or several.

    ``X`` may be an array, a sparse matrix, a pandas, polars, dask or Arrow table, a DuckDB relation, a dask or zarr
    array, or the path of stored data. ``y`` is an array, or the name of the target column. Parameters and defaults are
    those of `streamrf train`: a pilot on a sample of rows chooses what is ``auto`` or None. ``score`` is R², averaged
    over outputs.
    """

    _task = REGRESSION

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add rows exactly. The first batch fixes settings, scaling and map.

        Weights are solved when first needed. Generalised cross-validation (GCV) chooses ``ridge`` if it is None.
        """
        return self._partial_fit(X, y, None, sample_weight)

    def predict(self, X: Any) -> np.ndarray:
        """Predictions of shape (n,), or (n, outputs) if there are several outputs."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R². For stored data ``y`` is the name of the target column, or None."""
        if is_stored(X, y) and sample_weight is None:
            return float(self._metrics(X, y)["r2"])
        return float(super().score(X, y, sample_weight))

    def _target_checks(self) -> dict[str, Any]:
        return {"multi_output": True, "y_numeric": True}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


class KernelClassifier(ClassifierMixin, KernelMachine):
    """Classification into two classes or more with random features; labels are numbers or text.

    ``X`` may be an array, a sparse matrix, a pandas, polars, dask or Arrow table, a DuckDB relation, a dask or zarr
    array, or the path of stored data. ``y`` is an array, or the name of the target column. Parameters and defaults are
    those of `streamrf train`: a pilot on a sample of rows chooses what is ``auto`` or None.
    """

    _task = CLASSIFICATION

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None, sample_weight: Any = None) -> Self:
        """Add rows exactly. The first batch fixes settings, scaling and map.

        ``classes`` lists all labels, for a first batch that lacks some. Weights are solved when first needed.
        Generalised cross-validation (GCV) chooses ``ridge`` if it is None.
        """
        return self._partial_fit(X, y, classes, sample_weight)

    @property
    def classes_(self) -> np.ndarray:
        """The labels, sorted."""
        return np.asarray(self.model_.coding.classes)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of each row."""
        scores = self._scores(X)
        return self.classes_[self.model_.codes(scores)]

    def decision_function(self, X: Any) -> np.ndarray:
        """Calibrated logits: (n,) of the second class if there are two classes, else (n, classes)."""
        scores = self._scores(X)
        assert self.model_.calibration is not None
        logits = self.model_.calibration.logits(scores)
        return logits[:, 1] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities of shape (n, classes)."""
        return self.model_.probabilities(self._scores(X))

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy. For stored data ``y`` is the name of the target column, or None."""
        if is_stored(X, y) and sample_weight is None:
            return float(self._metrics(X, y)["accuracy"])
        return float(super().score(X, y, sample_weight))

    def _weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """Row weights, multiplied by the weights of the classes."""
        if self.class_weight is not None:
            by_class = compute_sample_weight(self.class_weight, y)
            weights = by_class if weights is None else weights * by_class
        if weights is not None and len(np.unique(y[weights > 0])) < 2:
            raise DataError("only one class has rows with a positive weight: a classifier needs at least two")
        return weights

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        y = column_or_1d(y, warn=True)
        check_classification_targets(y)
        return np.asarray(y.tolist()) if y.dtype.kind == "O" else y


def load(path: str | Path, *, statistics: bool = True) -> KernelRegressor | KernelClassifier:
    """An estimator from a model file: a regressor or a classifier, as the model is."""
    kind = KernelClassifier if Model.load(path).coding.task == CLASSIFICATION else KernelRegressor
    return kind.load(path, statistics=statistics)
