"""The Gram product by libraries: numpy's BLAS, and Intel MKL's integer gemm where it is installed (the `mkl` extra).

BLAS is right on every machine, and what the float precisions use. Integer-valued features in floating point give the
same integers as the integer kernel as long as no partial sum of a slice leaves the range where every integer has its
own float: 2^24 in float32, 2^53 in float64.

MKL is the fastest on CPUs with VNNI. It is loaded with ctypes, which releases the GIL, in its sequential layer, because
our threads take a panel each. Column-major ``C = A B'`` with A the features from the diagonal down and B the
panel's columns. The 8-bit call wants one side unsigned: features + 128, taken off again by ``bo = -128``; without VNNI
it may saturate, which the proof at start-up (``prove``) finds out.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np

from streamrf.features.precision import LIMITS
from streamrf.statistics.gram_kernels.base import PANEL, Layout, Product, each_panel
from streamrf.support.threads import Threads

COLUMN_MAJOR, NO_TRANS, TRANS, FIXED_OFFSET, SEQUENTIAL = 102, 111, 112, 173, 1


class BlasProduct(Product):
    """Slices of rows through sgemm or dgemm, one panel at a time, added to totals of the caller's type."""

    name = "blas"

    def __init__(self, precision: int | str) -> None:
        if precision in LIMITS:
            limit = LIMITS[int(precision)]
            self.dtype = np.min_scalar_type(-max(limit, 128))
            self.work = np.dtype(np.float32 if limit * limit * 512 < 2**24 else np.float64)
            self.slice = min(4096, (2 ** (24 if self.work == np.float32 else 53) - 1) // (limit * limit))
        else:
            self.dtype = self.work = np.dtype(str(precision))
            self.slice = 1024
        self.rows = self.slice * max(1, 4096 // self.slice)

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        for first in range(0, len(Z), self.slice):
            block = Z[first : first + self.slice, : layout.size].astype(self.work, copy=False)

            def multiply(number: int, block: np.ndarray = block) -> None:
                j0 = layout.starts[number]
                product = block[:, j0 : j0 + layout.width(j0)].T @ block[:, j0:]
                layout.add_panel(totals, number, product)

            each_panel(layout, threads, multiply)

    def work_bytes(self, layout: Layout, threads: int) -> int:
        converted = 0 if self.work == self.dtype else self.slice * layout.size
        return self.work.itemsize * (converted + 3 * threads * PANEL * layout.size)


def _candidates() -> list[Path]:
    folders = [Path(sys.prefix) / "lib", Path(sys.prefix) / "Library" / "bin", Path(np.__file__).parents[3]]
    return [path for folder in folders for path in sorted(folder.glob("*mkl_rt*")) if path.is_file()]


@cache
def library() -> ctypes.CDLL | None:
    """The MKL runtime of this environment, or None; STREAMRF_MKL=0 leaves it out."""
    if os.environ.get("STREAMRF_MKL") == "0":
        return None
    for path in _candidates():
        try:
            runtime = ctypes.CDLL(str(path))
            runtime.MKL_Set_Threading_Layer(SEQUENTIAL)
            _ = runtime.cblas_gemm_s8u8s32, runtime.cblas_gemm_s16s16s32
        except (OSError, AttributeError):
            continue
        return runtime
    return None


def _at(array: np.ndarray, column: int) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + column * array.itemsize)


class MklProduct(Product):
    """int8 or int16 features through ``cblas_gemm_s8u8s32`` or ``cblas_gemm_s16s16s32`` into int32, then int64."""

    name = "mkl"

    def __init__(self, bits: int) -> None:
        self.dtype = np.dtype(np.int8 if bits <= 8 else np.int16)
        self.depth = min(8192, (2**31 - 1) // LIMITS[bits] ** 2)
        self.rows = min(4096, self.depth)
        runtime = library()
        assert runtime is not None, "MKL is not installed"
        self._gemm = runtime.cblas_gemm_s8u8s32 if bits <= 8 else runtime.cblas_gemm_s16s16s32
        self._scalar = ctypes.c_int8 if bits <= 8 else ctypes.c_int16
        self._shift = -128 if bits <= 8 else 0

    def add(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        for first in range(0, len(Z), self.depth):
            self._add_slice(Z[first : first + self.depth], layout, totals, threads)

    def _add_slice(self, Z: np.ndarray, layout: Layout, totals: np.ndarray, threads: Threads) -> None:
        other = np.bitwise_xor(Z.view(np.uint8), 128) if self._shift else Z  # feature + 128, in eight bits

        def multiply(number: int) -> None:
            j0 = layout.starts[number]
            product = np.zeros((layout.width(j0), layout.size - j0), np.int32)
            self._multiply(Z, other, j0, product)
            layout.add_panel(totals, number, product)

        each_panel(layout, threads, multiply)

    def _multiply(self, Z: np.ndarray, other: np.ndarray, j0: int, product: np.ndarray) -> None:
        width, height = product.shape
        one, zero = ctypes.c_float(1.0), np.zeros(1, np.int32)
        ld = Z.strides[0] // Z.itemsize
        ld_other = other.strides[0] // other.itemsize
        self._gemm(
            COLUMN_MAJOR, NO_TRANS, TRANS, FIXED_OFFSET, height, width, len(Z), one,
            _at(Z, j0), ld, self._scalar(0), _at(other, j0), ld_other, self._scalar(self._shift), ctypes.c_float(0.0),
            ctypes.c_void_p(product.ctypes.data), height, ctypes.c_void_p(zero.ctypes.data),
        )  # fmt: skip

    def work_bytes(self, layout: Layout, threads: int) -> int:
        return (self.rows * layout.size if self._shift else 0) + 4 * threads * PANEL * layout.size
