"""A pair of .npy files, mapped into memory a span at a time.

``DIR`` stands for ``DIR/X.npy`` and ``DIR/y.npy`` (other names with x and y). The targets of a single file are its
sibling: those of ``X.npy`` are ``y.npy``, those of ``X_train.npy`` are ``y_train.npy``, those of ``other.npy`` are
``y.npy``; or ``y`` may itself be the path of an .npy file.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from streamrf.data.dtypes import as_matrix, as_targets, feature_dtype, target_dtype
from streamrf.data.failures import explain, no_such
from streamrf.data.readers.memory import CHUNK_BYTES, rows_of
from streamrf.data.source import Span
from streamrf.data.table import Table, even_spans
from streamrf.support.errors import DataError, StorageError


class NpySource(Table):
    """X and y in .npy files. There are no chunks in an .npy file: about 8 MB of rows are called one."""

    feature_names = None

    def __init__(self, location: str, *, x: str = "X", y: str = "y", targets: bool | None = True) -> None:
        self.location, self._names, self._wanted = location, (x, y), targets
        x_path = features_path(location, x)
        y_path = targets_path(location, x_path, x, y, targets)
        self._X = MappedFile(x_path)
        self._y = None if y_path is None else MappedFile(y_path)
        y_shape, y_name = (None, y) if self._y is None else (self._y.shape, self._y.name)
        self._check_shapes(self._X.shape, y_shape, self._X.name, y_name)
        self.x_dtype = feature_dtype(self._X.dtype, x_path)
        self.y_dtype = None if self._y is None else target_dtype(self._y.dtype, self._y.path)

    def chunks(self) -> tuple[Span, ...]:
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

    def spec(self) -> dict[str, Any]:
        x, y = self._names
        y = os.path.abspath(y) if y.endswith(".npy") and os.path.exists(y) else y
        return {"data": self.location, "x": x, "y": y, "need_targets": self._wanted}

    def _format(self) -> str:
        return "npy"


class MappedFile:
    """One .npy file. It is mapped anew for each read: a mapping kept open would count all it has seen as ours."""

    def __init__(self, path: str) -> None:
        self.path, self.name = path, os.path.basename(path)
        mapped = self._map()
        self.shape, self.dtype = mapped.shape, mapped.dtype

    def _map(self) -> np.ndarray:
        mapped = self._load()
        if not isinstance(mapped, np.ndarray):
            mapped.close()
            raise DataError(
                f"{self.path} is an .npz archive, which cannot be read in parts: convert it first, streamrf convert"
                f" {self.path} {self.path.removesuffix('.npy')}.zarr --from npz"
            )
        return mapped

    def _load(self) -> Any:
        try:
            return np.load(self.path, mmap_mode="r")
        except ValueError as error:
            if "Python objects" in str(error):
                raise DataError(
                    f"{self.path} holds Python objects: save it as numbers or fixed-width strings"
                ) from error
            raise explain(error, self.path) from error
        except Exception as error:
            raise explain(error, self.path) from error

    def read(self, span: Span) -> np.ndarray:
        mapped = self._map()
        if mapped.shape != self.shape or mapped.dtype != self.dtype:
            raise StorageError(f"{self.path} changed while it was read: from shape {self.shape} to {mapped.shape}")
        return np.array(mapped[span.start : span.stop], order="C")


def features_path(location: str, x: str) -> str:
    if not os.path.isdir(location):
        return location
    path = os.path.join(location, f"{x}.npy")
    if os.path.exists(path):
        return path
    raise no_such("array", x, npy_names(location), location, " (name another with --x)")


def targets_path(location: str, x_path: str, x: str, y: str, wanted: bool | None) -> str | None:
    """The file with the targets; None where none are wanted, or where they were asked for only if there are any."""
    if wanted is False:
        return None
    folder = os.path.dirname(x_path)
    path = next((path for path in _candidates(folder, x_path, x, y) if os.path.exists(path)), None)
    if path is None and wanted:
        raise no_such("array", y, npy_names(folder), folder, " (name another with --y, or give its path)")
    return path


def _candidates(folder: str, x_path: str, x: str, y: str) -> list[str]:
    if y.endswith(".npy"):
        return [os.path.join(folder, y), os.path.abspath(y)]
    stem = os.path.basename(x_path).removesuffix(".npy")
    suffix = stem.removeprefix(x) if stem.startswith(x) else ""
    return [os.path.join(folder, f"{y}{suffix}.npy")]


def npy_names(folder: str) -> list[str]:
    return [name.removesuffix(".npy") for name in os.listdir(folder) if name.endswith(".npy")]
