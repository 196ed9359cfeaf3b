"""Landmarks: features that are values of the kernel itself, k(x, c) for D rows c of the sample (Nystrom's method).

A row gives the same bits in any block, on any thread: distances are summed column by column in the tiles of the
Fourier kernel, and exponentials are polynomials of our own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.types import Array
from numba.extending import intrinsic

from streamrf.features.base import Arrays, FeatureMap
from streamrf.features.fourier.frequencies import Draw, Kind
from streamrf.features.fourier.map import ROW_BATCH, ROWS, pack_tiles, tile_intrinsic, tile_of
from streamrf.features.precision import Precision, make_precision
from streamrf.features.profiles import PROFILES
from streamrf.features.scaling import rotate_rows
from streamrf.support import simd
from streamrf.support.compiled import inner_kernel, kernel
from streamrf.support.errors import FileFormatError
from streamrf.support.simd import I32, I64, call
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads

T = simd.Type
SPARE = 16  # columns, a cache line of float32
SAMPLE_ROWS = 24_000  # that landmarks are drawn from


# exp(-s) = 2^-k exp(f): log2(e), ln 2 in two parts, the farthest s that is told from others, and the series of exp(f)
EXPONENTIAL = {
    np.dtype(np.float32): ((1.4426950408889634, 0.693359375, -2.12194440e-4, 87.0), 7),
    np.dtype(np.float64): ((1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10, 700.0), 13),
}


def _add_square(builder: ir.IRBuilder, weight: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
    gap = builder.fsub(value, weight)
    return call(builder, "llvm.fma", total.type, gap, gap, total)


def _add_absolute(builder: ir.IRBuilder, weight: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
    return builder.fadd(call(builder, "llvm.fabs", total.type, builder.fsub(value, weight)), total)


def _as_it_is(builder: ir.IRBuilder, total: ir.Value) -> ir.Value:
    return total


@intrinsic
def _four_squares(
    typing: simd.Typing, x: T, xs: T, w: T, b: T, depth: T, scale: T, out: T, os: T, X: Array, Z: Array
) -> simd.Intrinsic:
    return tile_intrinsic(X, Z, tile_of(ROWS, _add_square, _as_it_is))


@intrinsic
def _one_square(
    typing: simd.Typing, x: T, xs: T, w: T, b: T, depth: T, scale: T, out: T, os: T, X: Array, Z: Array
) -> simd.Intrinsic:
    return tile_intrinsic(X, Z, tile_of(1, _add_square, _as_it_is))


@intrinsic
def _one_absolute(
    typing: simd.Typing, x: T, xs: T, w: T, b: T, depth: T, scale: T, out: T, os: T, X: Array, Z: Array
) -> simd.Intrinsic:
    return tile_intrinsic(X, Z, tile_of(1, _add_absolute, _as_it_is))


@intrinsic
def _power_of_two(typing: simd.Typing, k: T) -> simd.Intrinsic:
    """2^-k for a whole number k within the range of its float type."""
    single = k == types.float32
    whole, bias, shift = (I32, 127, 23) if single else (I64, 1023, 52)

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        exponent = builder.sub(ir.Constant(whole, bias), builder.fptosi(args[0], whole))
        return builder.bitcast(builder.shl(exponent, ir.Constant(whole, shift)), args[0].type)

    return k(k), codegen


@inner_kernel
def _distances(
    X: np.ndarray, C: np.ndarray, zeros: np.ndarray, norm: int, first: int, last: int, out: np.ndarray
) -> None:
    """Of rows ``first:last`` to landmarks C (tiles, d, width), as sums of squares or of absolute values."""
    tiles, depth, width = C.shape
    x, c, zero, z = X.ctypes.data, C.ctypes.data, np.intp(zeros.ctypes.data), out.ctypes.data
    x_stride, z_stride, one = X.strides[0], out.strides[0], zeros[0]
    for tile in range(tiles):
        c_at, z_at = np.intp(c + tile * C.strides[0]), z + tile * width * out.itemsize
        row = first
        while row < last:
            here, there = np.intp(x + row * x_stride), np.intp(z_at + (row - first) * z_stride)
            if norm == 1:
                _one_absolute(here, x_stride, c_at, zero, depth, one, there, z_stride, X, out)
                row += 1
            elif row + ROWS <= last:
                _four_squares(here, x_stride, c_at, zero, depth, one, there, z_stride, X, out)
                row += ROWS
            else:
                _one_square(here, x_stride, c_at, zero, depth, one, there, z_stride, X, out)
                row += 1


@inner_kernel
def _profile(line: np.ndarray, root: bool, numbers: np.ndarray, series: np.ndarray, room: np.ndarray) -> None:
    """Distances of one row in ``line`` become values of the kernel; every loop is one of vectors."""
    factor, a, b, log2e = numbers[0], numbers[1], numbers[2], numbers[3]
    ln2_high, ln2_low, farthest, one = numbers[4], numbers[5], numbers[6], numbers[7]
    powers, rest, total = room[0], room[1], room[2]
    for j in range(len(line)):
        s = factor * line[j]
        line[j] = np.sqrt(s) if root else s
    for j in range(len(line)):
        s = line[j] if line[j] < farthest else farthest
        k = np.rint(s * log2e)
        line[j], rest[j], powers[j] = s, (k * ln2_high - s) + k * ln2_low, _power_of_two(k)
        total[j] = series[0]
    for power in range(1, len(series)):
        term = series[power]
        for j in range(len(line)):
            total[j] = total[j] * rest[j] + term
    for j in range(len(line)):
        s = line[j]
        line[j] = (one + s * (a + s * b)) * (total[j] * powers[j])


@kernel
def landmark_values(
    X: np.ndarray, C: np.ndarray, zeros: np.ndarray, norm: int, root: bool, numbers: np.ndarray, series: np.ndarray,
    scale: np.floating, room: np.ndarray, lines: np.ndarray, out: np.ndarray,
) -> None:  # fmt: skip
    """Features of all rows of X, a batch of distances at a time; ``room`` is for a row, ``lines`` are for a batch."""
    rounded, count = scale > 0, out.shape[1]  # to integers; floats have no scale
    for first in range(0, len(X), ROW_BATCH):
        last = min(first + ROW_BATCH, len(X))
        _distances(X, C, zeros, norm, first, last, lines)
        for row in range(first, last):
            line, features = lines[row - first], out[row]
            _profile(line, root, numbers, series, room)
            for j in range(count):
                features[j] = np.rint(line[j] * scale) if rounded else line[j]


@dataclass(frozen=True, eq=False)
class LandmarkMap(FeatureMap):
    """k(x, c) for every landmark c, times a factor that makes z'z at most one."""

    kind = "landmarks"
    rounds_integers_only = True

    kernel: str
    rows: np.ndarray  # (D, d) float64: the landmarks, as scaled inputs
    factor: np.ndarray  # (d,) or (d, d) float64: the metric in units of the kernel's width
    precision: Precision

    @property
    def n_inputs(self) -> int:
        return self.rows.shape[1]

    @property
    def n_features(self) -> int:
        return len(self.rows)

    @property
    def width(self) -> int:
        """More than the features: no block is contiguous then, and loops are compiled for one kind of blocks alone."""
        return len(self.rows) + SPARE

    @cached_property
    def amplitudes(self) -> np.ndarray:
        return np.full(len(self.rows), len(self.rows) ** -0.5 / self.precision.scale)

    def moved(self, X: np.ndarray) -> np.ndarray:
        """Scaled inputs in the metric, with every sum in the order of the columns."""
        moved = np.array(X, np.float64, order="C")
        if self.factor.ndim == 1:
            moved *= self.factor
        else:
            rotate_rows(moved, self.factor)
        return moved.astype(self.precision.inputs)

    @cached_property
    def _packed(self) -> np.ndarray:
        return pack_tiles(self.moved(self.rows.astype(self.precision.inputs)), self.precision.inputs)

    @cached_property
    def _numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Constants of the profile, and the series of exp, the highest power first."""
        profile, ((*constants,), degree) = PROFILES[self.kernel], EXPONENTIAL[self.precision.inputs]
        series = [1 / math.factorial(power) for power in range(degree, -1, -1)]
        numbers = [profile.factor, profile.a, profile.b, *constants, 1.0]
        return np.array(numbers, self.precision.inputs), np.array(series, self.precision.inputs)

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        profile, (numbers, series), packed = PROFILES[self.kernel], self._numbers, self._packed
        zeros = np.zeros(packed.shape[2] + 16, packed.dtype)
        scale = packed.dtype.type(self.precision.scale if out.dtype.kind == "i" else 0)
        zeros = zeros[-zeros.ctypes.data % 64 // zeros.itemsize :]
        step = max(ROW_BATCH, -(-len(X) // (4 * threads.count * ROW_BATCH)) * ROW_BATCH)

        def values(moved: np.ndarray, features: np.ndarray) -> None:
            room, lines = (
                np.empty((count, packed.shape[0] * packed.shape[2]), packed.dtype) for count in (3, ROW_BATCH)
            )
            constants = profile.norm, profile.root, numbers, series, scale
            landmark_values(moved, packed, zeros, *constants, room, lines, features)

        def rows(first: int) -> None:
            moved, features = self.moved(X[first : first + step]), out[first : first + step, : len(self.rows)]
            if out.dtype == packed.dtype:
                values(moved, features[: len(moved)])
                return
            room = np.empty((ROW_BATCH, self.width), packed.dtype)[:, : len(self.rows)]
            for start in range(0, len(moved), ROW_BATCH):  # one type is compiled, and a few rows stay in cache
                some = moved[start : start + ROW_BATCH]
                values(some, room[: len(some)])
                features[start : start + len(some)] = room[: len(some)]

        threads.each(rows, range(0, len(X), step))

    def to_parts(self) -> tuple[JSON, Arrays]:
        document = {"kind": self.kind, "kernel": self.kernel, "precision": self.precision.name}
        return document, {"landmarks.rows": self.rows, "landmarks.factor": self.factor}

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> LandmarkMap:
        rows, factor = (arrays.get(f"landmarks.{name}") for name in ("rows", "factor"))
        kernel, precision = str(document.get("kernel")), make_precision(str(document.get("precision")))
        if kernel not in PROFILES or rows is None or factor is None:
            raise FileFormatError(f"the model's landmarks are damaged: kernel {kernel!r}, arrays {sorted(arrays)}")
        d = rows.shape[-1]
        sound = rows.dtype == factor.dtype == np.float64 and rows.ndim == 2 and rows.size > 0
        if (
            not sound
            or factor.shape not in ((d,), (d, d))
            or not (np.isfinite(rows).all() and np.isfinite(factor).all())
        ):
            raise FileFormatError(f"the model's landmarks are damaged: rows {rows.shape}, factor {factor.shape}")
        return cls(kernel, np.ascontiguousarray(rows), np.ascontiguousarray(factor), precision)


@Kind(
    "landmarks", "values of the kernel at rows of the sample", sample="needed", rows=SAMPLE_ROWS, whole=True,
    metric=True, kernels=tuple(PROFILES), tried=("gaussian", "laplacian", "matern12"),
)  # fmt: skip
def draw_landmarks(request: Draw) -> LandmarkMap:
    """Different rows, all as likely; where there are fewer of them than features, they are taken in turn."""
    sample = request.rows()
    _, first = np.unique(sample, axis=0, return_index=True)
    taken = np.resize(request.rng().permutation(np.sort(first)), request.F)
    metric = np.ones(request.d) if request.metric is None else np.asarray(request.metric, np.float64)
    factor = np.ascontiguousarray(metric / request.kernel.length_scale)
    return LandmarkMap(request.kernel.label, np.ascontiguousarray(sample[taken]), factor, request.precision)
