"""From what a user names (a path, a URL, a pattern, arrays, a list of these) to the source that reads it."""

# mypy: disable-error-code="type-abstract"
# A kind of reader is named by its abstract class.

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from streamrf.data.cache import Reading, as_parquet, ordered_files
from streamrf.data.columns import Choice, Columns, Handling, names_of
from streamrf.data.frames import dask_collection, frame_table, is_frame
from streamrf.data.keyed import Keyed, array_column, as_number
from streamrf.data.locations import absolute, is_pattern, matches, names_in, reading
from streamrf.data.partitions import TOKEN, Collection, known_collection
from streamrf.data.readers import reader_by_ending, reader_of, row_reader_at
from streamrf.data.readers.base import BatchReader, Chained, RowReader
from streamrf.data.readers.memory import ArraySource, CountingSource
from streamrf.data.source import Source, Spec
from streamrf.data.split import ORDER
from streamrf.data.wrappers import Shards, TargetsOnly, Weighted
from streamrf.support.errors import InputError, StorageError
from streamrf.support.progress import Reporter

Path: TypeAlias = str | os.PathLike[str]
Arrays: TypeAlias = np.ndarray | tuple[np.ndarray, np.ndarray]
Data: TypeAlias = Any  # Path | Arrays | Source | Mapping[str, Any] | a data frame | Sequence[Data] | int
Weights: TypeAlias = "str | Mapping[str, Any] | Sequence[float] | np.ndarray"


def open_source(
    data: Data, *, x: str = "X", y: Any = "y", target: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None, exclude: str | Sequence[str] = (), need_targets: bool | None = True,
    columns: Columns | Handling | Mapping[str, Any] | None = None, sample_weight: Weights | None = None,
    holdout_by: Any = None, holdout_after: Any = None, cache: bool = True, reporter: Reporter | None = None,
    trained_reading: Mapping[str, Any] | None = None, **reading: Any,
) -> Source:  # fmt: skip
    """Open a table for reading; only metadata is read, unless it must be converted first.

    Parameters
    ----------
    data : Any
        A path, a URL, a pattern or a directory; a pandas, polars, dask or Arrow table, a DuckDB relation or a stream of
        Arrow batches; a numpy or dask array, or a pair ``(X, y)`` of such; a list of delayed data frames; a source; the
        ``spec()`` of one; or a list of any of these, which is read as one table. CSV, JSON lines and Arrow files are
        converted to parquet once.
    x : str, default='X'
        Name of the array of inputs (zarr, npy).
    y : str or array, default='y'
        Name of the array of targets (zarr, npy), or the targets of an array.
    target : str, sequence of str or None, default=None
        Target columns of a table.
    features : sequence of str or None, default=None
        Input columns; all others by default. ``*`` in a name stands for any letters.
    exclude : str or sequence of str, default=()
        Columns to leave out, also with ``*``.
    need_targets : bool or None, default=True
        With False targets are not read, with None they are read where there are any.
    columns : Columns, Handling, dict or None, default=None
        The coding of raw columns, as a model keeps it, or a ``Handling`` to learn it by, which reads the columns.
    sample_weight : str, array or None, default=None
        The array or column of the rows' weights; for arrays an array.
    holdout_by : str, int, array or None, default=None
        A column (name, number among the features, or array) whose groups are never on both sides of the hold-out.
    holdout_after : str, int, array, pair or None, default=None
        A column, whose last rows judge, or a pair of a column and a value.
    cache : bool, default=True
        Keep what was converted beside the data for the next run; False: in a temporary folder.
    reporter : Reporter or None, default=None
        Hears what is converted and read.
    trained_reading : dict or None, default=None
        What a model says of ``null``, ``decimal`` and ``dates``: it holds where ``reading`` says nothing of them.
    **reading : Any
        How CSV is written, where its first lines do not tell: ``delimiter``, ``header``, ``null``, ``encoding``,
        ``decimal`` and ``dates``.
    """
    data, y = (data, y) if isinstance(y, str) else ((data, y), "y")
    asked = Reading(reading, cache, trained_reading or {})
    data, keeps = readable(data, asked, reporter or Reporter())
    choice = named(data, Choice(x, y, target, features, exclude, need_targets))
    if isinstance(columns, Handling):
        columns = learn_coding(data, columns, reporter, sample_weight=sample_weight, **vars(choice))
    coding = Columns.from_json(columns) if isinstance(columns, Mapping) else columns
    choice = replace(choice, columns=coding)
    source = _open(data, choice) if sample_weight is None else _open_weighted(data, sample_weight, choice)
    if holdout_by is not None or holdout_after is not None:
        source = _keyed(data, source, choice, holdout_by, holdout_after)
    source.keeps, source.reading = (*source.keeps, *keeps), source.reading or asked.meanings
    return source


def _keyed(data: Data, table: Source, choice: Choice, by: Any, after: Any) -> Source:
    if by is not None and after is not None:
        raise InputError("`holdout_by` keeps groups together and `holdout_after` goes by an order: give one of them")
    if by is not None:
        return Keyed(table, _key_column(data, table, choice, by), _key_name(by))
    pair = isinstance(after, list | tuple) and len(after) == 2 and not np.isscalar(after)
    column, value = after if pair else (after, None)
    number = None if value is None else as_number(value)
    return Keyed(table, _key_column(data, table, choice, column), _key_name(column), ORDER, number)


def _key_name(asked: Any) -> str:
    return str(asked) if isinstance(asked, int | str) else "the column"


def _key_column(data: Data, table: Source, choice: Choice, asked: Any) -> Source | int:
    """A feature by its number, or a column beside the features."""
    if isinstance(asked, int) or (isinstance(asked, str) and asked.isdigit()):
        return int(asked)
    if isinstance(asked, Mapping):
        return open_source(asked)
    if not isinstance(asked, str):
        return array_column(asked, table)
    if table.feature_names and asked in table.feature_names:
        return table.feature_names.index(asked)
    if table.columns is not None and asked in table.columns.names:  # its own values are read beside its code
        others = tuple(column for column in table.columns.columns if column.name != asked)
        if not others:
            raise InputError(f"'{asked}' is the only feature: rows held out by it would have nothing to be told by")
        choice = replace(choice, columns=replace(table.columns, columns=others))
    rest = [name for name in (*names_of(choice.exclude), *names_of(choice.target or choice.y)) if name != asked]
    try:
        return _open(data, replace(choice, exclude=rest, y=asked, target=None, need_targets=True))
    except InputError as error:  # which speaks of a target
        raise InputError(
            f"rows cannot be held out by '{asked}': the data has neither a column nor an array of that name"
        ) from error


def readable(data: Data, reading: Reading, reporter: Reporter) -> tuple[Data, list[object]]:
    """The same data as ``open_source`` can open it: files that are read in order as parquet, data frames as tables.

    The second part must live as long as the data is used: it holds folders that are deleted afterwards.
    """
    if isinstance(data, str | os.PathLike):
        files = ordered_files(absolute(os.fspath(data)))
        if not files:
            return data, []
        places, keeps = as_parquet(files, reading, reporter)
        return places if len(places) > 1 else places[0], keeps
    if is_frame(data):
        return frame_table(data, reporter)
    if (collection := dask_collection(data)) is not None:
        return collection, []
    if isinstance(data, list | tuple) and not _is_pair(data):
        return _readable_list(list(data), reading, reporter)
    return data, []


def _readable_list(items: list[Data], reading: Reading, reporter: Reporter) -> tuple[Data, list[object]]:
    """Files of a list are converted together, so that their columns have the same types."""
    files = [ordered_files(absolute(os.fspath(item))) if isinstance(item, str | os.PathLike) else [] for item in items]
    if files and all(files):
        places, keeps = as_parquet([file for found in files for file in found], reading, reporter)
        return list(places), keeps
    found = [readable(item, reading, reporter) for item in items]
    return [item for item, _ in found], [kept for _, keeps in found for kept in keeps]


def named(data: Data, choice: Choice) -> Choice:
    """The choice with each column by its own name, where it has lists with commas or patterns such as ``id_*``."""
    asked = [*names_of(choice.exclude), *names_of(choice.features or ())]
    if not any(mark in name for name in asked for mark in ',*?"') or (table := raw_columns(data)) is None:
        return choice
    return with_own_names(choice, table.schema.names, table.location)


def with_own_names(choice: Choice, known: Sequence[str], where: str) -> Choice:
    """The same for a table with these columns."""

    def resolved(names: Sequence[str]) -> list[str]:
        return list(dict.fromkeys(name for text in names for name in names_in(text, known, where)))

    features = None if choice.features is None else resolved(names_of(choice.features))
    return replace(choice, features=features, exclude=resolved(names_of(choice.exclude)))


def _open(data: Data, choice: Choice) -> Source:
    if isinstance(data, Source):
        return data
    if isinstance(data, str | os.PathLike):
        return _open_location(absolute(os.fspath(data)), choice)
    if isinstance(data, Mapping):
        return _open_spec(dict(data), choice)
    if isinstance(data, Collection):
        return data.opened(choice)
    if isinstance(data, np.ndarray) or _is_pair(data):
        return _open_arrays(data, choice.need_targets)
    if isinstance(data, Sequence):
        return _joined([_open(item, choice) for item in data])
    if isinstance(data, int):  # from the spec of a source that only counts
        return CountingSource(data)
    return _open_table(data, choice)


def _open_table(data: object, choice: Choice) -> Source:
    from streamrf.data.readers.table import MemoryTable, TableSource

    if isinstance(data, MemoryTable):
        return TableSource(data, choice)
    raise InputError(f"data must be a path, a URL, a table, arrays or a list of these, not {type(data).__name__}")


WRAPPERS: dict[str, Callable[[Spec], Source]] = {  # how to open the spec of a source around another, by a name in it
    "targets_of": lambda spec: TargetsOnly(open_source(**spec["targets_of"])),
}


def _open_spec(spec: Spec, choice: Choice) -> Source:
    for name in WRAPPERS.keys() & spec.keys():
        return WRAPPERS[name](spec)
    if TOKEN in spec:
        return known_collection(spec[TOKEN]).reopened(spec, choice)
    unknown = set(spec) - set(vars(choice)) - {"data", "sample_weight", "holdout_by", "holdout_after"}
    if unknown or "data" not in spec:
        names = ", ".join(sorted(map(str, spec)))
        raise InputError(f"a dict is no table: make a data frame of it, as in pandas.DataFrame(data) (it has {names})")
    return open_source(**{**vars(choice), **spec})


def _open_weighted(data: Data, weights: Weights, choice: Choice) -> Source:
    """Weights that are named are an array or a column beside the others, which then is no feature."""
    if isinstance(weights, Mapping):
        return Weighted(_open(data, choice), open_source(weights), "the weights")
    if not isinstance(weights, str):
        table = _open(data, choice)
        return Weighted(table, array_column(weights, table), "the weights")
    exclude, targets = names_of(choice.exclude), names_of(choice.target or choice.y)
    table = _open(data, replace(choice, exclude=[*exclude, weights]))
    others = replace(choice, exclude=[*exclude, *targets], y=weights, target=None, need_targets=True)
    return Weighted(table, _open(data, others), weights)


def _is_pair(data: object) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, np.ndarray) for part in data)


def _open_arrays(data: Any, need_targets: bool | None) -> Source:
    X, y = data if isinstance(data, tuple) else (data, None)
    if y is None and need_targets:
        raise InputError("an array of features has no targets: give the pair (X, y)")
    return ArraySource(X, None if need_targets is False else y)


def _joined(parts: list[Source]) -> Source:
    return parts[0] if len(parts) == 1 else Shards(parts)


def _open_location(location: str, choice: Choice) -> Source:
    """Of files that match a pattern each is a shard, unless their format joins them to one table."""
    if not is_pattern(location):
        return _read_at(location, choice)
    found = matches(location)
    if not found:
        raise StorageError(f"nothing matches {location}")
    joining = _joining_reader(found)
    if joining is not None:
        return joining(location, choice)
    places = map(absolute, found)  # a name may look like a pattern
    return _joined([_read_at(place, choice) for place in places])


def _read_at(location: str, choice: Choice) -> Source:
    """Whatever a library makes of damaged metadata is one sentence."""
    with reading(location):
        return row_reader_at(location)(location, choice)


def _joining_reader(files: list[str]) -> type[RowReader] | None:
    """The format that makes one table of these files."""
    readers = {reader_by_ending(RowReader, file) for file in files}
    reader = readers.pop() if len(readers) == 1 else None
    return reader if reader is not None and reader.joins_files else None


# -- columns that are not numbers yet


def learn_coding(
    data: Data,
    handling: Handling,
    reporter: Reporter | None = None,
    *,
    rows: int | None = None,
    sample_weight: Weights | None = None,
    **choice: Any,
) -> Columns | None:
    """The coding of the features of stored columns; None where all are plain numbers, or data is arrays.

    ``choice`` is what ``open_source`` takes: target, features, exclude, y, need_targets. With ``rows`` only about so
    many of the first rows are read: enough to guess how many features there will be.
    """
    table = raw_columns(data)
    if table is None:
        return None
    from streamrf.data.columns.learning import check_unique, feature_names, learn_columns, needs_coding, target_names

    asked, known, reporter = named(data, Choice(**choice)), table.schema.names, reporter or Reporter()
    check_unique(known, table.location)
    if isinstance(sample_weight, str):
        asked = replace(asked, exclude=[*names_of(asked.exclude), sample_weight])
    names = feature_names(known, table.location, asked, target_names(known, table.location, asked))
    if not names or not needs_coding(table.schema, names, handling):
        return None
    reporter.started("reading columns", rows or table.n_rows or 0, 0)
    columns = learn_columns(
        table, names, handling, lambda done: reporter.advanced(done, None), rows=rows, say=reporter.note,
        asked=() if asked.features is None else names_of(asked.features),
    )  # fmt: skip
    reporter.finished()
    if columns.is_plain and handling.missing == "auto":
        return None
    reporter.note(columns.describe())
    return columns


def raw_columns(data: Data) -> BatchReader | None:
    """The columns of stored tables as they are; None where any of it is arrays, which are numbers already."""
    items = list(data) if isinstance(data, list | tuple) and not _is_pair(data) else [data]
    tables = [_raw_table(item) for item in items]
    found = [table for table in tables if table is not None]
    if not found or len(found) < len(tables):
        return None
    return found[0] if len(found) == 1 else Chained(found)


def _raw_table(data: object) -> BatchReader | None:
    if isinstance(data, str | os.PathLike):
        return _stored_table(absolute(os.fspath(data)))
    if isinstance(data, Source | Mapping | np.ndarray | tuple | list | int) or data is None:
        return None
    if isinstance(data, Collection):
        return data.columns()
    from streamrf.data.readers.table import MemoryTable, TableBatches

    return TableBatches(data) if isinstance(data, MemoryTable) else None


def _stored_table(location: str) -> BatchReader | None:
    rows = _joining_reader(matches(location)) if is_pattern(location) else row_reader_at(location)
    reader = reader_of(BatchReader, rows.format) if rows is not None and rows.picks_columns else None
    return None if reader is None else reader(location, progress=lambda done: None)
