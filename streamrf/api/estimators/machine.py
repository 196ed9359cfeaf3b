"""What the regressor and the classifier share: settings, sources, statistics that grow, weights when asked for."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from streamrf.api.estimators.batch import Batch
from streamrf.api.estimators.inputs import (
    array_source,
    checked_rows,
    checked_weights,
    is_stored,
    remember_columns,
    stored_source,
    weighted,
)
from streamrf.data.source import Source
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model
from streamrf.models.predict import evaluate_rows, gather_scores
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError, MismatchError
from streamrf.support.progress import Reporter
from streamrf.support.storage.archive import read_archive
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, train
from streamrf.training.update.changes import Work, accumulate, prepare
from streamrf.training.update.statistics import Statistics, prepared_of

# Settings of a recipe that estimators have under the same name.
PLAIN = tuple(field.name for field in fields(Recipe) if field.name not in ("task", "seed", "length_scale"))


class KernelMachine(BaseEstimator):
    """Settings are those of `streamrf train`, with ``gamma`` and ``random_state`` as scikit-learn has them."""

    _task: ClassVar[str]
    _model: Model | None  # None: to be solved from the statistics
    _statistics: Statistics | None  # None: there are none

    def __init__(  # every setting of a recipe: scikit-learn reads them here
        self,
        D: int = 2000,
        *,
        kernel: str = "auto",
        length_scale: float | None = None,
        gamma: float | None = None,
        map: str = "auto",
        grids: int | None = None,
        table_bits: int | None = None,
        form: str = "auto",
        metric: str = "none",
        landmarks: int | None = None,
        learning_iterations: int | None = None,
        learning_steps: int | None = None,
        weight_decay: float | None = None,
        eta: float | None = None,
        prediction_loss: str = "auto",
        scaling: str = "auto",
        bits: str = "auto",
        ridge: float | None = None,
        solver: str = "auto",
        preconditioner: str = "auto",
        loss: str = "squared",
        quantile: float = 0.5,
        huber_epsilon: float = 1.35,
        class_weight: str | None = None,
        epochs: int | None = None,
        shards: int | None = None,
        holdout: float | None = None,
        cv: int | None = None,
        nan: str = "error",
        pilot: str = "auto",
        random_state: Any = 0,
        threads: int | None = None,
        memory: int | None = None,
    ) -> None:
        self.D = D
        self.kernel = kernel
        self.length_scale = length_scale
        self.gamma = gamma
        self.map = map
        self.grids = grids
        self.table_bits = table_bits
        self.form = form
        self.metric = metric
        self.landmarks = landmarks
        self.learning_iterations = learning_iterations
        self.learning_steps = learning_steps
        self.weight_decay = weight_decay
        self.eta = eta
        self.prediction_loss = prediction_loss
        self.scaling = scaling
        self.bits = bits
        self.ridge = ridge
        self.solver = solver
        self.preconditioner = preconditioner
        self.loss = loss
        self.quantile = quantile
        self.huber_epsilon = huber_epsilon
        self.class_weight = class_weight
        self.epochs = epochs
        self.shards = shards
        self.holdout = holdout
        self.cv = cv
        self.nan = nan
        self.pilot = pilot
        self.random_state = random_state
        self.threads = threads
        self.memory = memory

    # -- fitting

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> Self:
        source = self._training_source(X, y, sample_weight, first=True)
        trained = train(source, self._recipe_for(X), self._settings())
        return self._adopt(trained.model, trained.state)

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        """Sums of the rows join those that are there; the first call fixes everything that is not a sum."""
        source = self._training_source(X, y, sample_weight, first=not hasattr(self, "_statistics"))
        if source.has_weights:
            raise InputError("exact sums that grow count every row once: give weights to fit, or leave them out")
        if not hasattr(self, "_statistics"):
            self._statistics = Statistics.zero(self._prepared(source, classes))
            self._batches = 0
        if self._statistics is None:
            raise InputError(
                "there are no statistics that rows could join: the estimator was loaded without them, or its solver or"
                " map keeps none; fit it anew"
            )
        with Threads(self.threads) as threads:
            self._statistics += accumulate(self._statistics.prepared, Batch(source, self._batches), self._work(threads))
        self._batches += 1
        self._model = None  # solved when it is asked for
        return self

    def _prepared(self, source: Source, classes: Any) -> Any:
        labels = None if classes is None else tuple(str(label) for label in np.unique(np.asarray(classes)))
        with Threads(self.threads) as threads:
            return prepare(source, self._recipe(), self._work(threads), classes=labels)

    def _adopt(self, model: Model, state: Any) -> Self:
        """Take over a model, and the sums it was solved from where there are any."""
        self._model = model
        self._batches = 0
        self._statistics = None if state is None else statistics_of(model, state)
        return self

    def _recipe(self) -> Recipe:
        """The recipe of these settings; gamma becomes a length scale."""
        settings = {name: getattr(self, name) for name in PLAIN}
        if isinstance(self.class_weight, dict):
            settings["class_weight"] = None  # weights of rows
        return Recipe(task=self._task, length_scale=self._length_scale(), seed=self._seed(), **settings)

    def _recipe_for(self, X: Any) -> Recipe:
        """Weights of classes are weights of rows already, where the rows are in memory."""
        recipe = self._recipe()
        return recipe if is_stored(X) else recipe.with_(class_weight=None)

    def _length_scale(self) -> float | None:
        if self.gamma is None:
            return self.length_scale
        if self.kernel == "auto":
            raise InputError("gamma means another width for each kernel: name one, such as kernel='gaussian'")
        return make_kernel(self.kernel, length_scale=self.length_scale, gamma=self.gamma).length_scale

    def _seed(self) -> int:
        if isinstance(self.random_state, int | np.integer):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _settings(self) -> Settings:
        return Settings(threads=self.threads, memory=self.memory)

    def _work(self, threads: Threads) -> Work:
        return Work(threads, self._settings())

    # -- data

    def _training_source(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Source:
        if is_stored(X):
            if isinstance(self.class_weight, dict):
                raise InputError(
                    "a weight for each class goes with arrays in memory; stored data takes class_weight='balanced'"
                )
            source = stored_source(X, y, known=None if first else self._known())
            remember_columns(self, source)
            return weighted(source, checked_weights(sample_weight, source.n_rows))
        finite = self.nan == "error" or "allow-nan"
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype="numeric", ensure_all_finite=finite,
            ensure_min_samples=2, reset=first, **self._target_checks(),
        )  # fmt: skip
        y, weights = self._checked_targets(y), checked_weights(sample_weight, X.shape[0])
        return weighted(array_source(X, y, self._column_names()), self._weights(y, weights))

    def _weights(self, y: np.ndarray, weights: np.ndarray | None) -> np.ndarray | None:
        """What rows in memory count for."""
        return weights

    def _target_checks(self) -> dict[str, Any]:
        return {"multi_output": True}

    def _checked_targets(self, y: np.ndarray) -> np.ndarray:
        return y

    def _known(self) -> Any:
        """What knows the columns that it was fitted on: the model, or what rows have joined so far."""
        return self._model if self._model is not None else self._statistics.prepared  # type: ignore[union-attr]

    def _column_names(self) -> list[str] | None:
        """Names of the columns that the estimator was fitted on, where they had names."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else list(names)

    def _source(self, X: Any, y: Any = None, *, need_targets: bool = False) -> Source:
        if is_stored(X):
            return stored_source(X, y, known=self._known(), need_targets=need_targets)
        return array_source(checked_rows(self, X), None, self._column_names())

    # -- using it

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_statistics")

    @property
    def model_(self) -> Model:
        """The streamrf model: solved from the statistics if rows have joined since."""
        check_is_fitted(self)
        if self._model is None:
            assert self._statistics is not None
            ridge = self.ridge if self.ridge is not None else self._statistics.ridge
            with Threads(self.threads) as threads:
                self._model = self._statistics.solve(*(() if ridge is None else (ridge,)), threads=threads)
        return self._model

    @property
    def statistics_(self) -> Statistics | None:
        """The exact sums behind the weights; they add and subtract. None where there are none."""
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
        """Write the model as `streamrf train` does; ``statistics`` allow update, forget, merge and partial_fit."""
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
        """An estimator that predicts as this model does; ``state`` are its sums, to which rows can be added."""
        if model.coding.task != cls._task:
            raise MismatchError(f"this is a model for {model.coding.task}, and {cls.__name__} is for {cls._task}")
        asked = Recipe.from_json(model.metadata["asked"]) if "asked" in model.metadata else model.recipe
        settings = {name: getattr(asked, name) for name in PLAIN}
        estimator = cls(length_scale=asked.length_scale, random_state=asked.seed, **settings)
        estimator.n_features_in_ = model.n_inputs
        if model.feature_names:
            estimator.feature_names_in_ = np.array(model.feature_names, dtype=object)
        return estimator._adopt(model, state)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def statistics_of(model: Model, state: Any) -> Statistics:
    """The sums of a model as people hold them."""
    dropped = int(model.metadata.get("dropped") or 0)
    ridge, calibration = model.weights.ridge, model.calibration
    return Statistics(prepared_of(model), state, model.ledger.copy(), dropped, ridge, calibration)
