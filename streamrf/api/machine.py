"""What the estimators for scikit-learn share: fitting, growing by ``partial_fit``, files, and what a fit found."""

from __future__ import annotations

from copy import copy
from inspect import cleandoc
from pathlib import Path
from typing import Any, ClassVar, Self, Unpack

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from streamrf.api.fitted import FittedAttributes
from streamrf.api.inputs import (
    SETTINGS,
    SIGNATURE,
    Batch,
    array_source,
    checked_rows,
    checked_weights,
    is_in_memory,
    is_stored,
    parameters,
    remember_columns,
    stored_source,
    weighted,
    with_named_target,
)
from streamrf.api.parameters import Parameters
from streamrf.data.frames import is_frame
from streamrf.data.keyed import Keyed, array_column
from streamrf.data.source import Source
from streamrf.engines.current import engine_for
from streamrf.features.kernels import make_kernel
from streamrf.models.model import Model, UntrainedModel
from streamrf.models.predict import evaluate_rows, gather_scores
from streamrf.models.uncertainty import Posterior
from streamrf.recipe import AUTO, Recipe
from streamrf.support.errors import InputError, MismatchError
from streamrf.support.live import reporter_for
from streamrf.support.progress import Reporter
from streamrf.support.storage.archive import read_archive
from streamrf.support.threads import Threads
from streamrf.training.run import Settings, train
from streamrf.training.update.changes import Work, accumulate, prepare
from streamrf.training.update.statistics import Statistics, prepared_of
from streamrf.training.warm import compiling


class KernelMachine(FittedAttributes, BaseEstimator):
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
    memory: int | str | None
    verbose: int
    engine: Any

    def __init__(self, D: int | None = None, **settings: Unpack[Parameters]) -> None:
        given = SIGNATURE.bind(self, D, **settings)
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
        """Train on all rows: the pilot, the passes, then lambda and calibration on hold-out rows.

        Parameters
        ----------
        X : array, sparse matrix, data frame, path or other data
            The rows; with targets in it where y is a name or None.
        y : array, str or None, default=None
            Targets (n,) or (n, outputs), or the name of the target column.
        sample_weight : array or None, default=None
            What each row counts for (n,).
        groups : array or None, default=None
            Rows of one group are never on both sides of the hold-out (n,).

        Returns
        -------
        self
            The estimator, fitted.
        """
        y = with_named_target(X, y)
        source = self._training_source(X, y, sample_weight, first=True)
        if groups is not None:
            source = Keyed(source, array_column(groups, source), "groups")
        recipe = self._recipe(X, y)
        with compiling(recipe):
            trained = train(source, recipe, self._settings(source), reporter_for(self.verbose))
        if trained.source.columns is not None:  # columns coded by the target are known by now
            remember_columns(self, trained.source)
        self._adopt(trained.model, trained.state)
        self._keep_rows(trained.source, in_memory=is_in_memory(X, y))
        return self

    def _partial_fit(self, X: Any, y: Any, classes: Any, sample_weight: Any) -> Self:
        """Add the sums of these rows. The first call fixes everything that is not a sum."""
        y = with_named_target(X, y)
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
            work, batch = self._work(source, threads), Batch(source, self._batches)
            self._statistics += accumulate(self._statistics.prepared, batch, work)
        self._batches += 1
        self._model = None  # solved when it is asked for
        return self

    def _prepared(self, source: Source, classes: Any) -> UntrainedModel:
        labels = None if classes is None else tuple(str(label) for label in np.unique(np.asarray(classes)))
        with Threads(self.threads) as threads:
            return prepare(source, self._recipe(), self._work(source, threads), classes=labels)

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

    def _work(self, source: Source, threads: Threads) -> Work:
        return Work(threads, self._settings(source), reporter_for(self.verbose))

    def _settings(self, source: Source) -> Settings:
        return Settings(threads=self.threads, memory=self.memory, engine=engine_for(self.engine, source))

    # -- data

    def _training_source(self, X: Any, y: Any, sample_weight: Any, *, first: bool) -> Source:
        if first:
            self._by_name = is_stored(X, y)
        if is_stored(X, y) or (self._by_name and is_frame(X)):
            if isinstance(self.class_weight, dict):
                raise InputError("a dict as class_weight needs arrays in memory: stored data takes 'balanced'")
            engine = engine_for(self.engine, (X, y))
            X, y = (X, y) if engine is None else engine.kept((X, y))
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

    def _deviations(self, X: Any) -> np.ndarray:
        """(n, outputs): the standard deviation of a new target, from the posterior that the sums give."""
        model = self.model_
        if self._statistics is None:
            raise InputError(
                "`return_std=True` needs the sums of the Cholesky solver: fit with `D` set, by the squared loss and"
                " without weights, or load with statistics (a blend, the default of larger tables, keeps none)"
            )
        with Threads(self.threads) as threads:
            if model.posterior is None:
                model.posterior = Posterior.from_state(
                    self._statistics.state, model.map, model.coding, model.weights.ridge, threads,
                    unrounded=model.pipeline.unrounded,
                )  # fmt: skip
            return gather_scores(model, self._source(X), threads, deviations=True)

    def _metrics(self, X: Any, y: Any) -> dict[str, Any]:
        """Metrics on stored data, without its predictions in memory."""
        check_is_fitted(self)
        source = self._source(X, y, need_targets=True)
        with Threads(self.threads) as threads:
            engine = engine_for(self.engine, source)
            return evaluate_rows(self.model_, source, threads=threads, reporter=Reporter(), nan=self.nan, engine=engine)

    # -- files

    def save(self, path: str | Path, *, statistics: bool = True, overwrite: bool = False) -> None:
        """Write the model as `streamrf train` does.

        Parameters
        ----------
        path : str or Path
            Where the model goes.
        statistics : bool, default=True
            Also write the sums that allow update, forget, merge and partial_fit.
        overwrite : bool, default=False
            Replace what is there.
        """
        model = self.model_
        state = self._statistics.state if statistics and self._statistics is not None else None
        model.save(path, state=state, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path, *, statistics: bool = True) -> Self:
        """An estimator from a model that the command or ``save`` wrote.

        Parameters
        ----------
        path : str or Path
            Where the model is.
        statistics : bool, default=True
            Also read the sums, if there are any, to which rows can be added.
        """
        kept = statistics and read_archive(path, kind="model").has_arrays("statistics")
        model = Model.load(path)
        return cls.from_model(model, Statistics.load(path).state if kept else None)

    @classmethod
    def from_model(cls, model: Model, state: Any = None) -> Self:
        """An estimator that predicts as this model does.

        Parameters
        ----------
        model : Model
            What ``train`` returned or ``Model.load`` read.
        state : GramState or None, default=None
            Its sums, to which rows can be added.
        """
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

    def __sklearn_clone__(self) -> Self:
        """A client cannot be copied: all copies use it."""
        other = copy(self)
        other.engine = None
        other = super(KernelMachine, other).__sklearn_clone__()
        other.engine = self.engine
        return other

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
