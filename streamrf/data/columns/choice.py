"""Which columns of a table with named columns are features and which are targets, and the numpy type of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from streamrf.data.columns import Choice, names_of
from streamrf.data.columns.encoding import is_text
from streamrf.data.locations import listed, no_such
from streamrf.support.errors import DataError, InputError

TEXT = np.dtype("U")  # strings of any width
_PANDAS_INDEX = "__index_level_"


@dataclass(frozen=True)
class Chosen:
    """Names in order, each with the numpy type it has where nothing is null."""

    features: dict[str, np.dtype]
    targets: dict[str, np.dtype]

    @cached_property
    def all(self) -> dict[str, np.dtype]:
        return {**self.features, **self.targets}

    def check_same(self, schema: pa.Schema, first: str, path: str) -> None:
        """Raise a DataError naming both files where another one has not the same columns."""
        for name, dtype in self.all.items():
            if name not in schema.names:
                raise no_such("column", name, schema.names, f"{path}, but {first} has it")
            found = schema.field(name).type
            if numpy_type(found) != dtype:
                raise DataError(f"column '{name}' is of type {dtype.name} in {first} but {found} in {path}")


def choose_columns(schema: pa.Schema, where: str, choice: Choice) -> Chosen:
    """Features and targets of a file by name and type, or a sentence saying which name or type is wrong."""
    twice = [name for name, count in Counter(schema.names).items() if count > 1]
    if twice:
        raise DataError(f"{where} has more than one column called '{twice[0]}': names must be unique")
    targets = target_names(schema.names, where, choice)
    types = coded_types if choice.columns is not None else feature_types
    features = feature_names(schema.names, where, choice, targets)
    chosen = Chosen(types(schema, features, where), target_types(schema, targets, where))
    if not chosen.features:
        raise DataError(f"no column of {where} is left to be a feature: {listed(schema.names)}")
    return chosen


def target_names(known: Sequence[str], where: str, choice: Choice) -> list[str]:
    """The target columns to read; none where none are needed, or where they were asked for only if there are any."""
    asked = names_of(choice.target if choice.target is not None else choice.y)
    absent = [name for name in asked if name not in known]
    if choice.need_targets is False or (choice.need_targets is None and absent):
        return []
    if absent and choice.target is None:
        raise InputError(f"which column of {where} is the target? name it with --target: {listed(known)}")
    if absent:
        raise no_such("column", absent[0], known, where, " (the target)")
    return asked


def feature_names(known: Sequence[str], where: str, choice: Choice, targets: list[str]) -> list[str]:
    """The feature columns: those asked for, or all that are nothing else."""
    if choice.columns is not None:
        return _asked_features(known, where, choice.columns.names, targets)
    if choice.features is not None:
        return _asked_features(known, where, names_of(choice.features), targets)
    excluded = names_of(choice.exclude)
    absent = [name for name in excluded if name not in known]
    if absent and choice.need_targets is not False:  # rows to predict need not have what training left out
        raise no_such("column", absent[0], known, where, " (to exclude)")
    rest = {*excluded, *targets, *names_of(choice.target if choice.target is not None else choice.y)}
    return [name for name in known if name not in rest and not name.startswith(_PANDAS_INDEX)]


def _asked_features(known: Sequence[str], where: str, asked: list[str], targets: list[str]) -> list[str]:
    for name in asked:
        if name not in known:
            raise no_such("column", name, known, where, " (a feature)")
        if name in targets or asked.count(name) > 1:
            role = "also the target" if name in targets else "named twice"
            raise InputError(f"feature column '{name}' is {role}: each column has one part to play")
    return asked


def feature_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    types = {name: numpy_type(schema.field(name).type) for name in names}
    wrong = [name for name, dtype in types.items() if dtype is None or dtype.kind == "U"]
    if wrong:
        raise DataError(
            f"column '{wrong[0]}' of {where} is of type {schema.field(wrong[0]).type}, which is not numeric:"
            " code it with --categories auto (in Python: columns=Handling()), or leave it out with --exclude"
            f" {','.join(wrong)}"
        )
    return {name: dtype for name, dtype in types.items() if dtype is not None}


def coded_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    """Types of columns that a coding turns into numbers: for memory, and to compare files."""
    types = {name: numpy_type(schema.field(name).type) for name in names}
    return {name: TEXT if dtype is None else dtype for name, dtype in types.items()}


def target_types(schema: pa.Schema, names: Iterable[str], where: str) -> dict[str, np.dtype]:
    types: dict[str, np.dtype] = {}
    for name in names:
        dtype = numpy_type(schema.field(name).type)
        if dtype is None or pa.types.is_temporal(schema.field(name).type):
            raise DataError(
                f"target column '{name}' of {where} is of type {schema.field(name).type},"
                " but targets must be numbers, booleans or strings"
            )
        types[name] = dtype
    if len({dtype.kind == "U" for dtype in types.values()}) > 1:
        raise DataError(f"the target columns {', '.join(types)} of {where} mix strings and numbers")
    return types


def numpy_type(stored: pa.DataType) -> np.dtype | None:
    """What an arrow type is in numpy; None for what is neither a number nor a string."""
    if pa.types.is_dictionary(stored):
        return numpy_type(stored.value_type)
    if pa.types.is_boolean(stored) or pa.types.is_integer(stored) or pa.types.is_floating(stored):
        return np.dtype(stored.to_pandas_dtype())
    if pa.types.is_decimal(stored) or (pa.types.is_temporal(stored) and not pa.types.is_interval(stored)):
        return np.dtype(np.float64)
    return TEXT if is_text(stored) else None
