"""Scores from features: ``intercept + features . coefficients``, in a fixed order of operations.

Every row is summed in the same 16 lanes in the same order whatever the block or the machine, so that a prediction too
depends on its row alone. Features are made, used and dropped a few rows at a time, while they are in cache.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from streamrf.maps.base import FeatureMap
from streamrf.simd import I32, I64, aligned_empty, call, counted_loop
from streamrf.threads import ALONE, Threads

LANES = 16  # on every machine: narrower vectors are paired by the compiler
GROUP = 4  # outputs that share one reading of the features
BATCH, MOST_ROWS = 64, 512  # rows whose features are alive at once in each thread: a multiple of the first
BATCH_BYTES = 1 << 18  # that they may take where rows are short: half of the second cache


def _dots(outputs: int) -> Callable[..., Any]:
    """The body for ``outputs`` dot products of one row with coefficients (outputs, count), rows ``stride`` apart."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        z, w, stride, count, out = args[:5]
        element = context.get_value_type(signature.args[5].dtype)
        real = context.get_value_type(signature.args[6].dtype)
        kind = ir.VectorType(real, LANES)
        features = builder.inttoptr(z, ir.VectorType(element, LANES).as_pointer())
        lines = [
            builder.inttoptr(builder.add(w, builder.mul(stride, ir.Constant(I64, o))), kind.as_pointer())
            for o in range(outputs)
        ]

        def turn(k: Any, totals: list[Any]) -> list[Any]:
            value = builder.load(builder.gep(features, [k]), align=1)
            if isinstance(element, ir.IntType):
                value = builder.sitofp(value, kind)
            elif element != real:
                value = builder.fpext(value, kind)
            return [
                call(builder, "llvm.fma", kind, value, builder.load(builder.gep(line, [k]), align=4), total)
                for line, total in zip(lines, totals, strict=True)
            ]

        vectors, zero = builder.sdiv(count, ir.Constant(I64, LANES)), ir.Constant(kind, [0.0] * LANES)
        after = counted_loop(builder, vectors, 1, [zero] * outputs, turn)
        store = builder.inttoptr(out, real.as_pointer())
        for o, line in enumerate(after):
            builder.store(_in_order(builder, line), builder.gep(store, [ir.Constant(I64, o)]))
        return context.get_dummy_value()

    return codegen


def _in_order(builder: Any, value: Any) -> Any:
    """The sum of a vector's lanes, first to last."""
    total = builder.extract_element(value, ir.Constant(I32, 0))
    for lane in range(1, value.type.count):
        total = builder.fadd(total, builder.extract_element(value, ir.Constant(I32, lane)))
    return total


@intrinsic
def _dot_group(typing: Any, z: Any, w: Any, stride: Any, count: Any, out: Any, Z: Any, W: Any) -> Any:
    i = types.intp
    return types.void(i, i, i, i, i, Z, W), _dots(GROUP)


@intrinsic
def _dot_one(typing: Any, z: Any, w: Any, stride: Any, count: Any, out: Any, Z: Any, W: Any) -> Any:
    i = types.intp
    return types.void(i, i, i, i, i, Z, W), _dots(1)


@njit(cache=True, nogil=True)
def dot_rows(Z: Any, rows: int, W: Any, intercept: Any, out: Any) -> None:
    """``out[r, o] = intercept[o] + Z[r] . W[o]``."""
    outputs, count = W.shape
    scratch = np.empty(GROUP, W.dtype)
    s, w, stride = scratch.ctypes.data, W.ctypes.data, W.strides[0]
    for r in range(rows):
        z = np.intp(Z.ctypes.data + r * Z.strides[0])
        o = 0
        while o + GROUP <= outputs:
            _dot_group(z, np.intp(w + o * stride), stride, count, np.intp(s), Z, W)
            for g in range(GROUP):
                out[r, o + g] = scratch[g] + intercept[o + g]
            o += GROUP
        while o < outputs:
            _dot_one(z, np.intp(w + o * stride), stride, count, np.intp(s), Z, W)
            out[r, o] = scratch[0] + intercept[o]
            o += 1


def scored_width(map: FeatureMap) -> int:
    """Columns of features that are to be scored: what the map writes, in whole vectors."""
    return -(-max(map.width, map.n_features) // LANES) * LANES


def batch_rows(row_bytes: int) -> int:
    """Rows whose features are alive at once in each thread."""
    return min(MOST_ROWS, max(1, BATCH_BYTES // max(row_bytes * BATCH, 1)) * BATCH)


class Scorer:
    """A feature map with coefficients: scaled inputs in, scores out."""

    def __init__(self, map: FeatureMap, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        self.map = map
        self.dtype = map.precision.inputs
        self.intercept = intercept.astype(self.dtype)
        self.width = scored_width(map)
        self.batch = batch_rows(self.width * map.precision.features.itemsize)
        self._coefficients = aligned_empty((coefficients.shape[1], self.width), self.dtype)
        self._coefficients[:] = 0
        self._coefficients[:, : map.n_features] = coefficients.T

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""
        out = np.empty((len(X), len(self.intercept)))
        step = max(BATCH, -(-len(X) // (4 * threads.count * BATCH)) * BATCH)  # some for each thread

        def batches(first: int) -> None:
            Z = self.batch_features()
            last = min(first + step, len(X))
            for start in range(first, last, self.batch):
                stop = min(start + self.batch, last)
                self.map.compute(X[start:stop], Z, ALONE)
                dot_rows(Z, stop - start, self._coefficients, self.intercept, out[start:stop])

        threads.each(batches, range(0, len(X), step))
        return out

    def batch_features(self) -> np.ndarray:
        """Room for the features of one batch."""
        return np.zeros((self.batch, self.width), self.map.precision.features)

    def score_features(self, Z: np.ndarray, rows: int) -> np.ndarray:
        """(rows, outputs) scores of the first rows of Z, features as the map writes them."""
        out = np.empty((rows, len(self.intercept)))
        dot_rows(Z, rows, self._coefficients, self.intercept, out)
        return out
