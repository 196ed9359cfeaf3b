"""LIBSVM (svmlight) text, also compressed: a label and index:value pairs a line. Read twice, in constant memory."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from streamrf.data.locations import first_line, opened
from streamrf.data.readers.base import Lines, MatrixReader, Progress, line_blocks, silent
from streamrf.data.source import Rows
from streamrf.support.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_PAIRS = re.compile(rb"^\s*[-+]?[\d.][\d.eE+-]*(,[-+\d.]+)*(\s+qid:\d+)?(\s+\d+:[^\s:]+)*\s*(#.*)?$")
_MOST_COLUMNS = 10_000_000
_DENSE_BYTES = 16 << 20  # of rows made dense at a time


def looks_like_libsvm(line: bytes) -> bool:
    return b":" in line and bool(_PAIRS.match(line.strip()))


class LibsvmMatrix(MatrixReader):
    """Rows made dense. The first pass finds how many rows and columns there are, and whether indices begin at 0."""

    format, endings, compressed = "libsvm", (".libsvm", ".svm", ".svmlight"), True
    options = frozenset({"n_features"})

    def __init__(self, location: str, *, n_features: int | None = None, progress: Progress = silent) -> None:
        self.location, self.n_outputs = location, 1
        self.x_dtype, self.y_dtype = np.dtype(np.float32), np.dtype(np.int64)
        low, high, rows = _MOST_COLUMNS, -1, 0
        for lines in self._lines():
            X, y = parse_lines(lines, location)
            if X.nnz:
                low, high = min(low, int(X.indices.min())), max(high, int(X.indices.max()))
            if (y != np.rint(y)).any():
                self.y_dtype = np.dtype(np.float64)
            rows += len(y)
            progress(rows)
        if not rows:
            raise DataError(f"{location} has no rows")
        self.n_rows, self._base = rows, 0 if low == 0 else 1
        self.n_features = self._columns(high + 1 - self._base, n_features)

    def _columns(self, found: int, asked: int | None) -> int:
        if asked is not None and asked < found:
            raise DataError(f"`n_features={asked}`: {self.location} has the index {found - 1 + self._base}, so {found}")
        return max(1, asked or found)

    def _lines(self) -> Iterator[Lines]:
        with opened(self.location) as stream:
            yield from line_blocks(stream, quotes=False)

    def blocks(self, rows: int) -> Iterator[Rows]:
        step = max(1, min(rows, _DENSE_BYTES // (4 * self.n_features)))
        for lines in self._lines():
            X, y = parse_lines(lines, self.location)
            X.indices -= self._base
            X.resize((X.shape[0], self.n_features))
            for start in range(0, len(y), step):
                yield X[start : start + step].astype(np.float32).toarray(), y[start : start + step].astype(self.y_dtype)


def parse_lines(lines: Lines, where: str) -> tuple[csr_matrix, np.ndarray]:
    """The rows of these lines, indices as they stand; a line that is none is named."""
    try:
        return _parse(lines.text)
    except Exception:
        for number, line in enumerate(lines.text.splitlines(), lines.first):
            try:
                _parse(line + b"\n")
            except Exception as error:
                raise DataError(
                    f"line {number:,} of {where} is not a label with index:value pairs: {line[:60]!r}"
                    f" ({first_line(error)})"
                ) from error
        raise


def _parse(text: bytes) -> tuple[csr_matrix, np.ndarray]:
    from sklearn.datasets import load_svmlight_file  # slow to import

    X, y = load_svmlight_file(io.BytesIO(text), zero_based=True)
    if X.nnz and int(X.indices.max()) >= _MOST_COLUMNS:
        raise ValueError(f"index {int(X.indices.max())} is above {_MOST_COLUMNS}")
    return X, y
