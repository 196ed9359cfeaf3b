"""From what a user names (a path, a URL, a pattern, arrays, a list of these) to the source that reads it."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streamrf.data.columns.document import Columns
from streamrf.data.columns.handling import Handling
from streamrf.data.counting import CountingSource
from streamrf.data.failures import reading
from streamrf.data.locations import absolute, filesystem, is_pattern, is_url, without_query
from streamrf.data.readers.memory import ArraySource
from streamrf.data.shards import Shards
from streamrf.data.source import Source
from streamrf.support.errors import DataError, InputError, StorageError

PARQUET_ENDINGS = (".parquet", ".parq", ".pq")
CONVERTIBLE = (
    ".csv", ".tsv", ".jsonl", ".ndjson", ".gz", ".bz2", ".xz", ".arrow", ".feather", ".ipc", ".npz", ".h5", ".hdf5",
    ".libsvm", ".svm", ".svmlight",
)  # fmt: skip
_ZARR_FILES = ("zarr.json", ".zgroup", ".zarray", ".zmetadata")
_MAGIC = {b"PAR1": "parquet", b"\x93NUM": "npy"}


def open_source(
    data: Any,
    *,
    x: str = "X",
    y: str = "y",
    target: str | Sequence[str] | None = None,
    features: Sequence[str] | None = None,
    exclude: str | Sequence[str] = (),
    need_targets: bool | None = True,
    columns: Columns | Handling | Mapping[str, Any] | None = None,
    sample_weight: Any = None,
) -> Source:
    """Open a table for reading; only metadata is read.

    ``data`` is a path, a URL or a pattern; an array, or a pair ``(X, y)`` of arrays; a source; the ``spec()`` of one;
    or a list of any of these, which is read as one table. ``x`` and ``y`` name arrays (zarr, npy); ``target``,
    ``features`` and ``exclude`` name columns (parquet). With ``need_targets=False`` targets are not looked at, with
    None they are read where there are any. ``columns`` is the coding of raw columns (parquet), as a model keeps it;
    of a ``Handling`` it is learned, which reads them.
    ``sample_weight`` names the array or column of the rows' weights; for arrays it is one.
    """
    options: dict[str, Any] = {"x": x, "y": y, "target": target, "features": features, "exclude": exclude}
    options["need_targets"] = need_targets
    options["columns"] = _coding(data, columns, options, sample_weight)
    if sample_weight is not None:
        return _open_weighted(data, sample_weight, options)
    if isinstance(data, Source):
        return data
    if isinstance(data, Mapping):
        return _open_spec(data, options)
    if isinstance(data, np.ndarray) or _is_pair(data):
        return _open_arrays(data, need_targets)
    if isinstance(data, Sequence) and not isinstance(data, str):
        return _open_list(data, options)
    if isinstance(data, int):  # from the spec of a source that only counts
        return CountingSource(data)
    if not isinstance(data, str | os.PathLike):
        raise InputError(f"data is given as a path, a URL, arrays or a list of these, not as {type(data).__name__}")
    return _open_location(absolute(os.fspath(data)), options)


def _coding(data: Any, columns: Any, options: dict[str, Any], weight: Any) -> Columns | None:
    if isinstance(columns, Mapping):
        return Columns.from_json(columns)
    if not isinstance(columns, Handling):
        return columns
    from streamrf.data.coding import learn_coding

    choice = {name: value for name, value in options.items() if name != "x"}
    return learn_coding(data, columns, sample_weight=weight, **choice)


def _open_spec(spec: Mapping[str, Any], options: dict[str, Any]) -> Source:
    unknown = set(spec) - set(options) - {"data", "sample_weight"}
    if unknown or "data" not in spec:
        raise InputError(f"not the description of a source: it has {', '.join(sorted(spec))}")
    return open_source(**{**options, **spec})


def _open_weighted(data: Any, weight: Any, options: dict[str, Any]) -> Source:
    """A name is an array or a column beside the others, which then is no feature."""
    from streamrf.data.weighted import Weighted

    if isinstance(weight, Mapping):
        return Weighted(open_source(data, **options), open_source(weight), "the weights")
    if not isinstance(weight, str):
        table = open_source(data, **options)
        return Weighted(table, ArraySource(np.zeros((len(weight), 1), np.float32), np.asarray(weight)), "the weights")
    exclude, targets = _several(options["exclude"]), _several(options["target"] or options["y"])
    table = open_source(data, **{**options, "exclude": [*exclude, weight]})
    others = {"exclude": [*exclude, *targets], "y": weight, "target": None, "need_targets": True}
    return Weighted(table, open_source(data, **{**options, **others}), weight)


def _several(names: str | Sequence[str]) -> list[str]:
    return [names] if isinstance(names, str) else [*names]


def _is_pair(data: Any) -> bool:
    return isinstance(data, tuple) and len(data) == 2 and all(isinstance(part, np.ndarray) for part in data)


def _open_arrays(data: Any, need_targets: bool | None) -> Source:
    X, y = data if isinstance(data, tuple) else (data, None)
    if y is None and need_targets:
        raise InputError("an array of features has no targets: give the pair (X, y)")
    return ArraySource(X, None if need_targets is False else y)


def _open_list(items: Sequence[Any], options: dict[str, Any]) -> Source:
    return _joined([open_source(item, **options) for item in items])


def _joined(parts: list[Source]) -> Source:
    return parts[0] if len(parts) == 1 else Shards(parts)


def _open_location(location: str, options: dict[str, Any]) -> Source:
    return _open_pattern(location, options) if is_pattern(location) else _open_one(location, options)


def _open_one(location: str, options: dict[str, Any]) -> Source:
    kind = _remote_kind(location) if is_url(location) else local_kind(location)
    if kind == "parquet":
        return _open_parquet(location, _parquet_files(location), options)
    return _open_zarr(location, options) if kind == "zarr" else _open_npy(location, options)


def _open_pattern(pattern: str, options: dict[str, Any]) -> Source:
    """Parquet files that match are one table; of other formats, each match is a shard."""
    matches = _matches(pattern)
    if not matches:
        raise StorageError(f"nothing matches {pattern}")
    if all(map(_ends_as_parquet, matches)):
        return _open_parquet(pattern, matches, options)
    return _joined([_open_one(absolute(match), options) for match in matches])  # a name may look like a pattern


def parquet_files(data: Any) -> list[str]:
    """The parquet files behind a location or a list of them, in order; none where any of it is something else."""
    if isinstance(data, str | os.PathLike):
        location = absolute(os.fspath(data))
        if is_pattern(location):
            found = _matches(location)
            return found if all(map(_ends_as_parquet, found)) else []
        kind = _remote_kind(location) if is_url(location) else local_kind(location)
        return _parquet_files(location) if kind == "parquet" else []
    if not isinstance(data, list | tuple) or not all(isinstance(item, str | os.PathLike) for item in data):
        return []
    parts = [parquet_files(item) for item in data]
    return [path for part in parts for path in part] if all(parts) else []


def _ends_as_parquet(location: str) -> bool:
    return without_query(location).endswith(PARQUET_ENDINGS)


def _matches(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob.glob(pattern, recursive=True))
    fs, path = filesystem(pattern)
    with reading(pattern):
        return sorted(map(fs.unstrip_protocol, fs.glob(path)))


def local_kind(path: str) -> str:
    """The format of what is at a path: by its contents for a directory, by its first bytes for a file."""
    if not os.path.exists(path):
        raise StorageError(f"{path} does not exist")
    if not os.path.isdir(path):
        return _file_kind(path)
    names = os.listdir(path)
    if any(name in names for name in _ZARR_FILES):
        return "zarr"
    if any(name.endswith(PARQUET_ENDINGS) for name in names):
        return "parquet"
    if any(name.endswith(".npy") for name in names):
        return "npy"
    raise _unknown(path, "it holds no zarr array or group, no parquet file and no .npy file")


def _file_kind(path: str) -> str:
    if path.endswith(PARQUET_ENDINGS):  # before its bytes: a damaged file is then called damaged, not unknown
        return "parquet"
    if path.lower().endswith(CONVERTIBLE):
        made = os.path.join(os.path.dirname(path), os.path.basename(path).partition(".")[0] + ".parquet")
        raise DataError(
            f"{path} cannot be read in parts as training does: convert it first, streamrf convert {path} {made}"
        )
    with reading(path), open(path, "rb") as file:
        start = file.read(4)
    kind = "npy" if path.endswith(".npy") else _MAGIC.get(start)
    if kind is None:
        raise _unknown(path, "its first bytes are neither those of parquet nor of npy")
    return kind


def _remote_kind(url: str) -> str:
    """The format of what is at a URL, by its ending, else by what is there."""
    bare = without_query(url)
    if bare.endswith((".npy", ".npz")):
        raise InputError(f"{url}: .npy files are read from local disks only; copy it, or store it as zarr or parquet")
    if _ends_as_parquet(url):
        return "parquet"
    fs, path = filesystem(url)
    with reading(url):
        if bare.endswith(".zarr") or any(fs.exists(f"{path}/{name}") for name in _ZARR_FILES):
            return "zarr"
        if _remote_parquet(fs, path):
            return "parquet"
    raise _unknown(url, "there is no zarr group or array and no parquet file")


def _unknown(location: str, why: str) -> DataError:
    return DataError(f"{location} is in no format that can be read (zarr, parquet, npy): {why}")


def _parquet_files(location: str) -> list[str]:
    """The parquet files directly in a directory, by name; of a file, itself."""
    if not is_url(location):
        if not os.path.isdir(location):
            return [location]
        names = sorted(name for name in os.listdir(location) if _is_data_file(name))
        return [os.path.join(location, name) for name in names]
    if _ends_as_parquet(location):
        fs, path = filesystem(location)
        with reading(location):
            found = _remote_parquet(fs, path) if fs.isdir(path) else []
        return found or [location]
    return _remote_parquet(*filesystem(location))


def _remote_parquet(fs: Any, path: str) -> list[str]:
    found = sorted(name for name in fs.ls(path, detail=False) if _is_data_file(name.rstrip("/").rpartition("/")[2]))
    return [fs.unstrip_protocol(name) for name in found]


def _is_data_file(name: str) -> bool:
    """Writers leave files such as _metadata and ._SUCCESS.crc beside the data."""
    return name.endswith(PARQUET_ENDINGS) and not name.startswith(("_", "."))


def _open_zarr(location: str, options: dict[str, Any]) -> Source:
    from streamrf.data.readers.zarr import ZarrSource

    return ZarrSource(location, x=options["x"], y=options["y"], targets=options["need_targets"])


def _open_npy(location: str, options: dict[str, Any]) -> Source:
    from streamrf.data.readers.npy import NpySource

    return NpySource(location, x=options["x"], y=options["y"], targets=options["need_targets"])


def _open_parquet(location: str, files: list[str], options: dict[str, Any]) -> Source:
    from streamrf.data.readers.parquet import ParquetSource
    from streamrf.data.readers.parquet_columns import Choice

    return ParquetSource(location, files, Choice(**{name: value for name, value in options.items() if name != "x"}))
