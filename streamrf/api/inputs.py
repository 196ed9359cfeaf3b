"""What users pass to an estimator: its parameters, and arrays, tables or paths, which become a source."""

from __future__ import annotations

import hashlib
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from inspect import Parameter, Signature
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamrf.data.columns import Handling, known_choice
from streamrf.data.frames import frame_table, has_only_numbers, is_frame
from streamrf.data.keyed import array_column
from streamrf.data.open import open_source
from streamrf.data.partitions import is_collection, is_dask, library
from streamrf.data.readers.memory import ArraySource, SlicedSource, is_sliced
from streamrf.data.readers.table import MemoryTable
from streamrf.data.source import Source
from streamrf.data.wrappers import SourceWrapper, Weighted
from streamrf.models.model import UntrainedModel
from streamrf.recipe import Recipe
from streamrf.support.errors import InputError
from streamrf.support.progress import Reporter
from streamrf.support.settings import about

# The settings of a recipe are parameters of the same name; the class is the task, and random_state the seed.
SETTINGS = tuple(each for each in fields(Recipe) if each.name not in ("task", "seed"))
_OWN = {
    "gamma": ("float | None", None, "Width of the kernel in scikit-learn's convention, instead of length_scale."),
    "random_state": ("Any", 0, "Seed, generator or None; another seed draws other features, sample and hold-out rows."),
    "threads": ("int | None", None, "Threads to use; all cores by default."),
    "memory": ("int | str | None", None, "Memory budget in bytes or as '2GB'; 80 % of free memory by default."),
    "engine": (
        "Any",
        None,
        "A ClusterEngine or Client that does the summing; for dask collections the current client.",
    ),
    "verbose": ("int", 0, "Print progress: 1 for one updating line, 2 for every trial and detail."),
}


def _signature() -> Signature:
    """``self``, the settings of a recipe with their defaults, and the estimators' own; only D may come by position."""
    known = [(each.name, str(each.type), each.default) for each in SETTINGS]
    known += [(name, kind, default) for name, (kind, default, _) in _OWN.items()]
    return Signature([Parameter("self", Parameter.POSITIONAL_OR_KEYWORD), *(_parameter(*each) for each in known)])


def _parameter(name: str, kind: str, default: Any) -> Parameter:
    place = Parameter.POSITIONAL_OR_KEYWORD if name == "D" else Parameter.KEYWORD_ONLY
    optional = default is None and "None" not in kind
    return Parameter(name, place, default=default, annotation=f"{kind} | None" if optional else kind)


SIGNATURE = _signature()


def parameters() -> str:
    """The numpydoc section about the parameters, from the help texts of the settings."""
    entries: list[tuple[str, str, Any, str]]
    entries = [(each.name, _values(each), each.default, about(each).help.replace("`", "``")) for each in SETTINGS]
    entries += [(name, kind.replace(" | ", " or "), default, text) for name, (kind, default, text) in _OWN.items()]
    lines = ["Parameters", "----------"]
    for name, kind, default, text in entries:
        lines.append(f"{name} : {kind}, default={default!r}")
        lines += textwrap.wrap(text, 100, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    return "\n".join(lines)


def _values(each: Field[Any]) -> str:
    names = about(each).allowed(each.default)
    if each.name == "class_weight":
        return "'balanced', dict or None"  # a weight for each class: of arrays in memory
    return f"{{{', '.join(map(repr, names))}}}" if names else str(each.type).replace(" | ", " or ")


# -- data


def is_stored(X: Any, y: Any = None) -> bool:
    """Whether X is read in parts rather than checked as an array: a path, a source, a list of these, dask or zarr; or a
    data frame with columns that are not numbers, or whose target is a column (``y`` is its name)."""
    if sparse.issparse(X):  # some of them are mappings too
        return False
    first = X[0] if isinstance(X, list | tuple) and len(X) else X
    is_place = isinstance(first, str | os.PathLike | Source) or isinstance(X, Mapping)
    return is_place or is_table(X, y) or is_sliced(X) or is_dask(X) or is_dask(first)


def is_table(X: Any, y: Any = None) -> bool:
    """Whether X is a data frame whose columns are found by name and coded."""
    return is_frame(X) and (is_name(y) or not has_only_numbers(X))


def is_in_memory(X: Any, y: Any = None) -> bool:
    """Whether a few rows of X can be had at once."""
    return not is_stored(X, y) or (is_table(X, y) and not type(X).__module__.startswith("dask"))


def is_name(y: Any) -> bool:
    """Whether y names a column, or several."""
    return isinstance(y, str) or (isinstance(y, list | tuple) and len(y) > 0 and all(isinstance(n, str) for n in y))


def with_named_target(X: Any, y: Any) -> Any:
    """``y``, as text where it is the name of a pandas column that is none: a number, or a tuple of several levels."""
    is_pandas = is_frame(X) and library(X) in ("pandas", "dask", "dask_expr")
    if is_pandas and not isinstance(y, str) and isinstance(y, int | np.integer | tuple) and y in X.columns:
        return str(y)
    return y


def stored_source(X: Any, y: Any, *, known: UntrainedModel | None = None, need_targets: bool = True) -> Source:
    """Stored data as a source; ``y`` is the name of the target column, or None.

    Columns that are not numbers are coded as in the model ``known``, or else as learned from the data.
    """
    by_name = is_table(X, y) or (is_frame(X) and known is not None and bool(known.feature_names))
    if is_sliced(X):
        return _sliced_source(X, y, need_targets=need_targets)
    if is_collection(X) and not (by_name and (y is None or is_name(y))):
        return _collection_source(X, y, need_targets=need_targets)
    choice: dict[str, Any] = known_choice(known) if known else {"columns": Handling()}
    if y is not None and not is_name(y):
        if not is_frame(X):
            raise InputError("for stored data, y must be the name of the target column (parquet) or None (zarr, npy)")
        return _table_source(X, y, choice)
    if y is not None:
        choice["target"] = y
    source = open_source(X, need_targets=need_targets, **choice)
    array = source.first_array()
    if y is not None and array is not None:
        place = getattr(array, "location", "the data")
        raise InputError(
            f"y={y!r} names a column of parquet, and {place} is not parquet: leave it out, or pass"
            " open_source(path, y=NAME) as X, which names an array"
        )
    return source


def _collection_source(X: Any, y: Any, *, need_targets: bool) -> Source:
    """Dask arrays, or a frame of numbers with its targets beside it."""
    if is_frame(X) and not has_only_numbers(X):
        raise InputError("of a frame that is not in memory, the target must be a column: pass its name as y")
    if y is None and need_targets:
        raise InputError("there is no y: pass the targets as an array with one row for each row of X")
    return open_source((X, y), need_targets=need_targets)


def _table_source(X: Any, y: Any, choice: dict[str, Any]) -> Source:
    """A data frame in memory, with its targets beside it."""
    table, _ = frame_table(X, Reporter())
    if not isinstance(table, MemoryTable):
        raise InputError("of a frame that is not in memory, the target must be a column: pass its name as y")
    targets = y.to_numpy() if hasattr(y, "to_numpy") else np.asarray(y)
    if len(targets) != len(table.table):
        raise InputError(
            f"X has {len(table.table):,} rows and y {len(targets):,}: there must be one target for each row"
        )
    table.targets = targets[:, 0] if targets.ndim == 2 and targets.shape[1] == 1 else targets
    return open_source(table, **choice | {"need_targets": False, "target": []})


def _sliced_source(X: Any, y: Any, *, need_targets: bool) -> Source:
    if y is None and need_targets:
        raise InputError("there is no y: pass the targets as an array with one row for each row of X")
    return SlicedSource(X, y if y is None or is_sliced(y) else np.asarray(y))


def array_source(X: Any, y: np.ndarray | None, names: Sequence[str] | None) -> Source:
    """Arrays that scikit-learn has checked, dense or sparse."""
    if sparse.issparse(X):
        return SlicedSource(X, y, feature_names=names)
    return ArraySource(X, y, feature_names=names)


def weighted(table: Source, weights: np.ndarray | None) -> Source:
    """The table with the weights of its rows, if there are any."""
    if weights is None:
        return table
    return Weighted(table, array_column(weights, table), "sample_weight")


def checked_weights(sample_weight: Any, rows: int) -> np.ndarray | None:
    """Weights of rows as scikit-learn checks them; None if all are equal."""
    if sample_weight is None:
        return None
    stand_in = np.empty((rows, 1), np.float32)  # only its length matters
    weights = _check_sample_weight(sample_weight, stand_in, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError(f"all {rows:,} rows have the sample_weight 0: at least one weight must be positive")
    return None if (weights == weights[0]).all() else weights


def checked_rows(estimator: Any, X: Any, **checks: Any) -> Any:
    """X, checked by scikit-learn against the data of fit."""
    return validate_data(estimator, X, accept_sparse="csr", dtype="numeric", reset=False, **checks)


def remember_columns(estimator: Any, source: Source) -> None:
    """Set the attributes that ``validate_data`` sets for arrays."""
    estimator.n_features_in_ = source.n_features
    if source.feature_names is not None:
        estimator.feature_names_in_ = np.array(source.feature_names, dtype=object)
    elif hasattr(estimator, "feature_names_in_"):
        del estimator.feature_names_in_


class Batch(SourceWrapper):
    """A batch of ``partial_fit``, with a fingerprint of its own: the ledger counts two equal batches as two."""

    def __init__(self, source: Source, number: int) -> None:
        super().__init__(source)
        self.number = number

    def fingerprint(self) -> str:
        return hashlib.sha256(f"{self.source.fingerprint()} in batch {self.number}".encode()).hexdigest()

    def members(self) -> tuple[Source, ...]:
        parts = self.source.members()
        return (self,) if len(parts) == 1 else tuple(Batch(part, self.number) for part in parts)

    def describe(self) -> str:
        return f"batch {self.number} of {self.source.describe()}"
