"""What a feature map is to a statistic or a predictor, and predictions from features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Protocol, Self

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numpy.typing import DTypeLike

from streamrf.features.precision import Precision
from streamrf.support import simd
from streamrf.support.compiled import kernel
from streamrf.support.errors import InputError
from streamrf.support.simd import I64, aligned_empty, call, counted_loop, lanes, own_function, prefetch
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import ALONE, Threads

T = simd.Type
LANES = 16  # on every machine: narrower vectors are paired by the compiler
GROUP_BYTES = 12  # of outputs whose sums for two rows fit the registers
TILE_BYTES = 1 << 13  # of each output's weights
BATCH, MOST_ROWS = 64, 512  # rows whose features are alive at once in each thread: a multiple of the first
BATCH_BYTES = 1 << 18  # that they may take where rows are short: half of the second cache


def _dots(outputs: int) -> simd.Codegen:
    """Code for the dot products of two rows, ``apart`` bytes apart, with lines of W: LANES sums of each go on."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        element, real = (context.get_value_type(signature.args[number].dtype) for number in (7, 8))

        def body(inner: ir.IRBuilder, *places: ir.Value) -> None:
            _dot_tile(inner, element, real, outputs, *places)

        name = f"streamrf_dots_{outputs}_{element}_{real}"
        return own_function(name, body)(context, builder, signature, args[:6])

    return codegen


def _dot_tile(
    builder: ir.IRBuilder, element: ir.Type, real: ir.Type, outputs: int,
    z: ir.Value, apart: ir.Value, w: ir.Value, stride: ir.Value, count: ir.Value, sums: ir.Value,
) -> None:  # fmt: skip
    """``count`` features, a register's worth at a time, so that no more than one of W's is held."""
    width = lanes() if real == ir.FloatType() else lanes() // 2
    kind, parts = ir.VectorType(real, width), LANES // width
    vector, two = ir.VectorType(element, width).as_pointer(), builder.add(apart, apart)
    starts = (z, builder.add(z, apart))
    rows = [builder.inttoptr(start, vector) for start in starts]
    following = [builder.inttoptr(builder.add(start, two), vector) for start in starts]
    lines = [
        builder.inttoptr(builder.add(w, builder.mul(stride, ir.Constant(I64, o))), kind.as_pointer())
        for o in range(outputs)
    ]
    held = builder.inttoptr(sums, kind.as_pointer())
    places = [builder.gep(held, [ir.Constant(I64, index)]) for index in range(len(rows) * outputs * parts)]

    def feature(row: ir.Value, at: ir.Value) -> ir.Value:
        value = builder.load(builder.gep(row, [at]), align=1)
        if isinstance(element, ir.IntType):
            return builder.sitofp(value, kind)
        return value if element == real else builder.fpext(value, kind)

    def turn(k: ir.Value, totals: list[ir.Value]) -> list[ir.Value]:
        for line in following:  # where features are kept, they come from memory
            prefetch(builder, builder.ptrtoint(builder.gep(line, [k]), I64), write=False)
        for part in range(parts):
            at = builder.add(k, ir.Constant(I64, part))
            values = [feature(row, at) for row in rows]
            for o, line in enumerate(lines):
                weight = builder.load(builder.gep(line, [at]), align=4)
                for r, value in enumerate(values):
                    place = (r * outputs + o) * parts + part
                    totals[place] = call(builder, "llvm.fma", kind, value, weight, totals[place])
        return totals

    vectors, start = builder.sdiv(count, ir.Constant(I64, width)), [builder.load(place, align=4) for place in places]
    for value, place in zip(counted_loop(builder, vectors, parts, start, turn), places, strict=True):
        builder.store(value, place, align=4)


@intrinsic
def _dot(
    typing: simd.Typing, outputs: T, z: T, apart: T, w: T, stride: T, count: T, sums: T, Z: T, W: T
) -> simd.Intrinsic:
    """As many outputs as are asked for: code for each number of them that a group may have."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        for number in range(1, GROUP_BYTES // (signature.args[8].dtype.bitwidth // 8) + 1):
            with builder.if_then(builder.icmp_signed("==", args[0], ir.Constant(I64, number))):
                _dots(number)(context, builder, signature, args[1:])
        return context.get_dummy_value()

    return types.void(*[types.intp] * 7, Z, W), codegen


def dot_rows(Z: np.ndarray, rows: int, W: np.ndarray, intercept: np.ndarray, out: np.ndarray) -> None:
    """``out[r, o] = intercept[o] + Z[r] . W[o]``."""
    group = GROUP_BYTES // W.itemsize
    _dot_rows(Z, rows, W, intercept, group, np.empty((rows + 1) * group * LANES, W.dtype), out)


@kernel
def _dot_rows(
    Z: np.ndarray, rows: int, W: np.ndarray, intercept: np.ndarray, group: int, sums: np.ndarray, out: np.ndarray
) -> None:
    """Outputs of a group share one reading of the features, a tile of them at a time, whose weights stay in the first
    cache. A last row without a partner is taken twice.
    """
    z, w, s, tile = Z.ctypes.data, W.ctypes.data, sums.ctypes.data, TILE_BYTES // W.itemsize
    count, z_stride, w_stride = W.shape[1], Z.strides[0], W.strides[0]
    for first in range(0, W.shape[0], group):
        outputs = min(group, W.shape[0] - first)
        for i in range((rows + 1) * outputs * LANES):
            sums[i] = 0
        for k in range(0, count, tile):
            size, weights = min(tile, count - k), w + first * w_stride + k * W.itemsize
            for r in range(0, rows, 2):
                row, place = z + r * z_stride + k * Z.itemsize, s + r * outputs * LANES * sums.itemsize
                apart = z_stride if r + 1 < rows else 0
                _dot(outputs, row, apart, weights, w_stride, size, place, Z, W)
        for r in range(rows):
            for o in range(outputs):
                start = (r * outputs + o) * LANES
                total = sums[start]
                for lane in range(1, LANES):
                    total += sums[start + lane]
                out[r, first + o] = np.float64(total) + intercept[first + o]


def batch_rows(row_bytes: int, room: int = BATCH_BYTES) -> int:
    """Rows whose features are alive at once in each thread."""
    return min(MOST_ROWS, max(1, room // max(row_bytes * BATCH, 1)) * BATCH)


Arrays = dict[str, np.ndarray]
Features = Callable[[slice, np.ndarray], np.ndarray]
"""The features of some rows: written to the buffer that is given, or from where they are kept."""


class RowScorer(Protocol):
    """A map with coefficients: scaled inputs in, scores out."""

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64."""


class FeatureMap(ABC):
    """Fixed features of scaled inputs; a feature is between -1 and 1 (or an integer that stands for it).

    Defining a subclass with a ``kind`` registers it: ``map_from_parts`` then reads model files that have such a map.
    """

    FAMILIES: ClassVar[dict[str, type[FeatureMap]]] = {}

    kind: ClassVar[str]
    rounds_integers_only: ClassVar[bool] = False  # whether ``compute`` leaves floats as they are
    precision: Precision

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if kind := vars(cls).get("kind"):
            known = cls.FAMILIES.setdefault(kind, cls)
            if known.__qualname__ != cls.__qualname__:
                raise InputError(f"there are {kind!r} maps already: choose another kind")
            cls.FAMILIES[kind] = cls

    @property
    @abstractmethod
    def n_inputs(self) -> int:
        """Columns of the scaled inputs."""

    @property
    @abstractmethod
    def n_features(self) -> int: ...

    @property
    def width(self) -> int:
        """Columns an output block needs: the features, rounded up to what the kernel writes at once."""
        return self.n_features

    @property
    @abstractmethod
    def amplitudes(self) -> np.ndarray:
        """(n_features,) float64: feature times amplitude is z, with z(x)'z(y) ~ k(x, y)."""

    @property
    def can_serve_unrounded(self) -> bool:
        """Whether there are features, between -1 and 1, that the integers of the sums are rounded from."""
        return self.rounds_integers_only and self.precision.exact

    @abstractmethod
    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        """Features of scaled X into ``out[:len(X), :n_features]``; columns up to ``width`` may be overwritten."""

    @abstractmethod
    def to_parts(self) -> tuple[JSON, Arrays]:
        """JSON, which has the ``kind``, and arrays for the model file."""

    @classmethod
    @abstractmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> Self:
        """The map of ``to_parts``; parts that do not fit together are a FileFormatError."""

    @property
    def report(self) -> JSON:
        """How learning went, where the map was learned; not kept in files."""
        return {}

    def untrained(self) -> FeatureMap:
        """The map as it was before the first pass: what is known of it only once it is solved is left out."""
        return self

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        """Predictions with coefficients (n_features, outputs) of the features as they are written."""
        return Scorer(self, coefficients, intercept)

    def __reduce__(self) -> tuple[object, ...]:
        """Sent to another process as it is to a file: what is packed for this CPU stays here."""
        return type(self).from_parts, self.to_parts()

    def block(self, rows: int, dtype: DTypeLike, extra: int = 0) -> np.ndarray:
        """An output block for so many rows, with room for ``extra`` columns after the features."""
        return np.empty((rows, max(self.width, self.n_features + extra)), dtype)

    def dense(self, X: np.ndarray, threads: Threads, *, unrounded: bool = False) -> np.ndarray:
        """z(X) as (n, n_features) float64: for tests, pilots and small data."""
        dtype = self.precision.inputs if unrounded else self.precision.features
        out = self.block(len(X), dtype)
        self.compute(X, out, threads)
        return out[:, : self.n_features] * (self.amplitudes * self.precision.scale if unrounded else self.amplitudes)


def scored_width(map: FeatureMap) -> int:
    """Columns of features that are to be scored: what the map writes, in whole vectors."""
    return -(-max(map.width, map.n_features) // LANES) * LANES


class Scorer:
    """A feature map with coefficients: scaled inputs in, scores out.

    ``unrounded`` takes the features that the map's integers are rounded from, with the same coefficients.
    """

    def __init__(
        self, map: FeatureMap, coefficients: np.ndarray, intercept: np.ndarray, room: int = BATCH_BYTES,
        *, unrounded: bool = False,
    ) -> None:  # fmt: skip
        self.map = map
        self.dtype = map.precision.inputs
        self.features = self.dtype if unrounded else map.precision.features
        self.intercept = np.asarray(intercept, np.float64)  # targets may lie far from zero and close together
        self.width = scored_width(map)
        self.batch = batch_rows(self.width * self.features.itemsize, room)
        self._coefficients = aligned_empty((coefficients.shape[1], self.width), self.dtype)
        self._coefficients[:] = 0
        self._coefficients[:, : map.n_features] = (coefficients * map.precision.scale if unrounded else coefficients).T

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""

        def features(rows: slice, room: np.ndarray) -> np.ndarray:
            self.map.compute(X[rows], room, ALONE)
            return room

        return self.scores_from(features, len(X), threads)

    def scores_from(self, features: Features, count: int, threads: Threads) -> np.ndarray:
        """The same of so many rows, whose features are to be had a batch at a time."""
        out = np.empty((count, len(self.intercept)))
        step = max(BATCH, -(-count // (4 * threads.count * BATCH)) * BATCH)  # some for each thread

        def batches(first: int) -> None:
            room = self.batch_features()
            last = min(first + step, count)
            for start in range(first, last, self.batch):
                rows = slice(start, min(start + self.batch, last))
                dot_rows(features(rows, room), rows.stop - start, self._coefficients, self.intercept, out[rows])

        threads.each(batches, range(0, count, step))
        return out

    def batch_features(self) -> np.ndarray:
        """Room for the features of one batch."""
        return np.zeros((self.batch, self.width), self.features)

    def score_features(self, Z: np.ndarray, rows: int) -> np.ndarray:
        """(rows, outputs) scores of the first rows of Z, features as the map writes them."""
        out = np.empty((rows, len(self.intercept)))
        dot_rows(Z, rows, self._coefficients, self.intercept, out)
        return out
