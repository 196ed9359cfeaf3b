"""What a file to be converted is: by what the user says, its ending, or its first line."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from streamrf.data.columns.handling import Handling
from streamrf.data.locations import absolute, is_pattern, is_url, without_query
from streamrf.data.open import open_source
from streamrf.data.readers.blocks import opened_text
from streamrf.data.readers.frame import Frame
from streamrf.data.readers.matrix import Matrix, SourceMatrix
from streamrf.data.readers.open_frame import COMPRESSED, format_of, open_frame
from streamrf.support.errors import DataError, InputError, StorageError

if TYPE_CHECKING:
    from streamrf.data.convert.convert import Conversion

FORMATS = ("csv", "jsonl", "arrow", "parquet", "libsvm", "npz", "hdf5", "npy", "zarr")
_LIBSVM, _HDF5 = (".libsvm", ".svm", ".svmlight"), (".h5", ".hdf5", ".hdf", ".he5")
_OPTIONS = {"csv": ("delimiter", "header", "nulls")}


def open_input(location: str, asked: Conversion, told: Callable[[int], None]) -> Frame | Matrix:
    """The table at a location, as a frame of named columns or a matrix of numbers."""
    kind = asked.form or detect(location)
    _check_options(kind, asked)
    place = absolute(location)
    if kind == "libsvm":
        from streamrf.data.readers.libsvm import LibsvmMatrix

        return LibsvmMatrix(place, n_features=asked.n_features, told=told)
    if kind == "npz":
        from streamrf.data.readers.npz import NpzMatrix

        return NpzMatrix(place, x=asked.x, y=asked.y)
    if kind == "hdf5":
        from streamrf.data.readers.hdf5 import Hdf5Matrix

        return Hdf5Matrix(place, x=asked.x, y=asked.y)
    if kind in ("npy", "zarr"):
        return SourceMatrix(open_source(location, x=asked.x, y=asked.y, need_targets=None))
    frame = open_frame(location, kind=kind, csv=asked.csv, told=told)
    if frame is None:
        raise DataError(f"{location} is not {kind}")
    return frame


def _check_options(kind: str, asked: Conversion) -> None:
    if asked.csv and kind != "csv":
        raise InputError(f"--delimiter, --header and --null are about CSV, and the input is {kind}")
    if asked.n_features is not None and kind != "libsvm":
        raise InputError(f"--n-features is about LIBSVM files, and the input is {kind}")
    stray = _asked_of_columns(asked)
    if stray and kind in ("libsvm", "npz", "hdf5", "npy", "zarr"):
        raise InputError(f"{stray[0]} is about tables with named columns, and the input is {kind}")


def _asked_of_columns(asked: Conversion) -> list[str]:
    """Options that choose or code columns, of those that were given."""
    given, silent = asdict(asked.handling), asdict(Handling())
    given |= {"target": asked.target, "features": asked.features, "exclude": asked.exclude or None}
    return [f"--{name.replace('_', '-')}" for name, value in given.items() if value != silent.get(name)]


def detect(location: str) -> str:
    """The format of what is at a location; InputError where nothing tells."""
    path = without_query(location).rstrip("/").lower()
    for ending in COMPRESSED:
        path = path.removesuffix(ending)
    endings: dict[str, Any] = {"libsvm": _LIBSVM, "hdf5": _HDF5, "npz": ".npz", "npy": ".npy", "zarr": ".zarr"}
    found = next((kind for kind, ends in endings.items() if path.endswith(ends)), None)
    found = found or (format_of(location) if not os.path.isdir(location) else None)
    if found in ("csv", None) and not (is_url(location) or is_pattern(location)):
        return _by_content(location, found)
    return found or "parquet"


def _by_content(location: str, by_name: str | None) -> str:
    """LIBSVM files have any ending or none; a directory holds one of the formats that sources know."""
    if not os.path.exists(location):
        raise StorageError(f"{location} does not exist")
    if os.path.isdir(location):
        from streamrf.data.open import local_kind

        return local_kind(location)
    from streamrf.data.readers.libsvm import looks_like_libsvm

    with opened_text(location) as stream:
        first = stream.readline(1 << 16)
    if looks_like_libsvm(first):
        return "libsvm"
    if by_name is None:
        raise InputError(f"the format of {location} is not told by its ending: say it with --from {'|'.join(FORMATS)}")
    return by_name
