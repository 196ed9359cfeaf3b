"""A pair of .npy files, mapped into memory a span at a time, and .npz archives, read a few rows at a time.

``DIR`` stands for ``DIR/X.npy`` and ``DIR/y.npy`` (other names with x and y). The targets of a single file are its
sibling: those of ``X.npy`` are ``y.npy``, those of ``X_train.npy`` are ``y_train.npy``, those of ``other.npy`` are
``y.npy``; or ``y`` may itself be the path of an .npy file.
"""

from __future__ import annotations

import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import IO, NamedTuple

import numpy as np

from streamrf.data.columns import Choice
from streamrf.data.locations import drop_pages, explain, no_such, reading
from streamrf.data.readers.arrays import CHUNK_BYTES, as_matrix, as_targets, rows_of, set_arrays
from streamrf.data.readers.base import MatrixReader, Progress, RowReader, silent
from streamrf.data.source import Rows, Span, Spec, even_spans
from streamrf.data.stored import file_marks
from streamrf.support.errors import DataError, StorageError


class NpySource(RowReader):
    """X and y in .npy files. There are no chunks in an .npy file: about 8 MB of rows are called one."""

    format, endings, magic = "npy", (".npy",), b"\x93NUM"
    reads_folders = True

    def __init__(self, location: str, choice: Choice) -> None:
        self.location, self._choice = location, choice
        x_path = features_path(location, choice.x)
        y_path = targets_path(x_path, choice)
        self._X = MappedFile(x_path)
        self._y = None if y_path is None else MappedFile(y_path)
        set_arrays(self, self._X, self._y, self._X.name, choice.y if self._y is None else self._y.name)

    def chunks(self) -> Sequence[Span]:
        return even_spans(self.n_rows, rows_of(CHUNK_BYTES, self.n_features * self._X.dtype.itemsize))

    def _features(self, span: Span) -> np.ndarray:
        return as_matrix(self._X.read(span), self.x_dtype)

    def _targets(self, span: Span) -> np.ndarray:
        assert self._y is not None
        assert self.y_dtype is not None
        return as_targets(self._y.read(span), self.y_dtype, self._y.path)

    def read_bytes(self, span: Span) -> int:
        """The mapped pages are resident while they are copied."""
        x_bytes = self.n_features * (self._X.dtype.itemsize * 2 + self.x_dtype.itemsize)
        y_bytes = 0 if self._y is None else self.n_outputs * (self._y.dtype.itemsize * 3)
        return len(span) * (x_bytes + y_bytes + 8)

    def has_partial_reads(self) -> bool:
        return True

    def drop_pages(self, span: Span) -> None:
        for file in (self._X, self._y):
            if file is not None:
                file.drop_pages(span)

    def stored(self) -> dict[str, str]:
        return file_marks({each.name: each.path for each in (self._X, self._y) if each is not None})

    def spec(self) -> Spec:
        spec, y = {"data": self.location, **self._choice.arrays_to_json()}, self._choice.y
        return {**spec, "y": os.path.abspath(y)} if y.endswith(".npy") and os.path.exists(y) else spec


class MappedFile:
    """One .npy file. It is mapped again for each read: a mapping kept open would count all it has seen as ours."""

    def __init__(self, path: str) -> None:
        self.path, self.name = path, os.path.basename(path)
        mapped = self._map()
        self.shape, self.dtype = mapped.shape, mapped.dtype
        self._first = getattr(mapped, "offset", 0)  # byte

    def _map(self) -> np.ndarray:
        mapped = self._load()
        if not isinstance(mapped, np.ndarray):
            mapped.close()
            stem = self.path.removesuffix(".npy")
            raise DataError(
                f"{self.path} is an .npz archive, which cannot be read in parts: rename it to {stem}.npz and convert"
                f" it: streamrf convert {stem}.npz {stem}.zarr"
            )
        return mapped

    def _load(self) -> np.ndarray | np.lib.npyio.NpzFile:
        try:
            return np.load(self.path, mmap_mode="r")
        except Exception as error:
            if isinstance(error, ValueError) and "Python objects" in str(error):
                raise DataError(
                    f"{self.path} holds Python objects: save it as numbers or fixed-width strings"
                ) from error
            raise explain(error, self.path) from error

    def read(self, span: Span) -> np.ndarray:
        mapped = self._map()
        if mapped.shape != self.shape or mapped.dtype != self.dtype:
            raise StorageError(f"{self.path} changed while it was read: from shape {self.shape} to {mapped.shape}")
        return np.array(mapped[span.start : span.stop], order="C")

    def drop_pages(self, span: Span) -> None:
        row = self.dtype.itemsize * math.prod(self.shape[1:])
        drop_pages(self.path, self._first + span.start * row, len(span) * row)


def features_path(location: str, x: str) -> str:
    if not os.path.isdir(location):
        return location
    path = os.path.join(location, f"{x}.npy")
    if os.path.exists(path):
        return path
    raise no_such("array", x, npy_names(location), location, " (name another with `x`)")


def targets_path(x_path: str, choice: Choice) -> str | None:
    """The file with the targets; None where none are needed, or where they are optional and there are none."""
    if choice.need_targets is False:
        return None
    folder = os.path.dirname(x_path)
    path = next((path for path in _candidates(folder, x_path, choice.x, choice.y) if os.path.exists(path)), None)
    if path is None and choice.need_targets:
        raise no_such("array", choice.y, npy_names(folder), folder, " (name another with `y`, or give its path)")
    return path


def _candidates(folder: str, x_path: str, x: str, y: str) -> list[str]:
    if y.endswith(".npy"):
        return [os.path.join(folder, y), os.path.abspath(y)]
    stem = os.path.basename(x_path).removesuffix(".npy")
    suffix = stem.removeprefix(x) if stem.startswith(x) else ""
    return [os.path.join(folder, f"{y}{suffix}.npy")]


def npy_names(folder: str) -> list[str]:
    return [name.removesuffix(".npy") for name in os.listdir(folder) if name.endswith(".npy")]


class Header(NamedTuple):
    """What the head of an .npy stream says."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype


class NpzMatrix(MatrixReader):
    """Members ``x`` and ``y`` of an archive, compressed or not; the targets may be left out."""

    format, endings, options = "npz", (".npz",), frozenset({"x", "y"})

    def __init__(self, location: str, *, x: str = "X", y: str = "y", progress: Progress = silent) -> None:
        self.location = location
        with reading(location), zipfile.ZipFile(location) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            if x not in names:
                raise no_such("array", x, names, location, " (name another with `x`)")
            self._names = [x, y] if y in names else [x]
            headers = [self._header(archive, name) for name in self._names]
        set_arrays(self, headers[0], headers[1] if len(headers) > 1 else None, x, y)

    def _header(self, archive: zipfile.ZipFile, name: str) -> Header:
        with archive.open(f"{name}.npy") as file:
            header = read_header(file)
        if header.dtype.hasobject:
            raise DataError(f"{name} in {self.location} holds Python objects: save it as numbers or strings")
        if header.is_fortran and len(header.shape) > 1:
            raise DataError(
                f"{name} in {self.location} is stored by columns (Fortran order), and rows cannot be read one after the"
                " other: save numpy.ascontiguousarray of it"
            )
        return header

    def blocks(self, rows: int) -> Iterator[Rows]:
        with ExitStack() as stack:
            stack.enter_context(reading(self.location))
            archive = stack.enter_context(zipfile.ZipFile(self.location))
            files = [stack.enter_context(archive.open(f"{name}.npy")) for name in self._names]
            headers = [read_header(file) for file in files]
            for start in range(0, self.n_rows, rows):
                count = min(rows, self.n_rows - start)
                parts = [_take(file, count, header) for file, header in zip(files, headers, strict=True)]
                yield as_matrix(parts[0], self.x_dtype), self._plain_targets(parts[1:])

    def _plain_targets(self, parts: list[np.ndarray]) -> np.ndarray | None:
        if not parts or self.y_dtype is None:
            return None
        return as_targets(parts[0], self.y_dtype, f"the targets in {self.location}")


def read_header(file: IO[bytes]) -> Header:
    """The head of an .npy stream, which then stands at its first value."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return Header(*read(file))


def _take(file: IO[bytes], count: int, header: Header) -> np.ndarray:
    shape = (count, *header.shape[1:])
    size = int(np.prod(shape)) * header.dtype.itemsize
    data = file.read(size)
    if len(data) != size:
        raise EOFError(f"{size - len(data)} bytes of rows are missing")
    return np.frombuffer(data, header.dtype).reshape(shape)
