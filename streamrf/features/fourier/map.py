"""Random Fourier features: cos(w'x + b), or cos and sin pairs, from any frequencies; and the compiled cosines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from llvmlite import ir
from numba import types
from numba.core.types import Array
from numba.extending import intrinsic
from numpy.typing import DTypeLike

from streamrf.features.base import Arrays, FeatureMap
from streamrf.features.fourier.frequencies import Frequencies
from streamrf.features.precision import Precision, make_precision
from streamrf.support import simd
from streamrf.support.compiled import kernel
from streamrf.support.errors import FileFormatError, InputError
from streamrf.support.simd import I64, aligned_empty, call, constant, counted_loop, lanes, splat
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import ALONE, Threads

T = simd.Type
ROWS, VECTORS = 4, 3  # one tile: 12 accumulators, 3 vectors of frequencies, 1 input: the 16 registers of AVX2
ROW_BATCH = 64  # rows whose inputs stay in the first-level cache while the frequencies stream by

# sin(2 pi g) = g (c0 + c1 g^2 + ...): Chebyshev fits on [-1/4, 1/4], off by 3e-8 and 3e-16.
SINE = {
    "float": (6.2831854820251465, -41.34168243408203, 81.60247802734375, -76.58116912841797, 39.75982666015625),
    "double": (
        6.283185307179586, -41.341702240399755, 81.60524927607362, -76.70585975282492, 42.058693925428685,
        -15.0946416761179, 3.8199280942271643, -0.7177337921413454, 0.10089695501646812,
    ),
}  # fmt: skip
SINE_32 = SINE["float"]


def _cosine_of_turns(builder: ir.IRBuilder, t: ir.Value) -> ir.Value:
    """cos(2 pi t), lane by lane."""
    kind = t.type
    wrapped = builder.fsub(t, call(builder, "llvm.rint", kind, t))
    g = builder.fsub(constant(0.25, kind), call(builder, "llvm.fabs", kind, wrapped))
    square = builder.fmul(g, g)
    terms = [constant(c, kind) for c in SINE[str(kind.element)]]
    series = terms[-1]
    for term in reversed(terms[:-1]):
        series = call(builder, "llvm.fma", kind, series, square, term)
    return builder.fmul(series, g)


def _store(builder: ir.IRBuilder, value: ir.Value, scale: ir.Value, pointer: ir.Value, element: ir.Type) -> None:
    """Write ``value`` as it is, or scaled and rounded to the nearest integer where the features are integers."""
    if isinstance(element, ir.IntType):
        kind = value.type
        whole = call(builder, "llvm.rint", kind, builder.fmul(value, splat(builder, scale, kind.count)))
        value = builder.fptosi(whole, ir.VectorType(element, kind.count))
    address = builder.inttoptr(pointer, value.type.as_pointer())
    builder.store(value, address, align=1)


def _multiply_add(builder: ir.IRBuilder, weight: ir.Value, value: ir.Value, total: ir.Value) -> ir.Value:
    return call(builder, "llvm.fma", total.type, weight, value, total)


Step = Callable[[ir.IRBuilder, ir.Value, ir.Value, ir.Value], ir.Value]
Finish = Callable[[ir.IRBuilder, ir.Value], ir.Value]


def tile_of(rows: int, step: Step = _multiply_add, finish: Finish = _cosine_of_turns) -> simd.Codegen:
    """The intrinsic that computes ``rows`` rows by one tile of features: a step for each column, in order."""

    def codegen(context: simd.Lowering, builder: ir.IRBuilder, signature: simd.Signature, args: simd.Args) -> ir.Value:
        x, x_stride, w, b, depth, scale, out, out_stride = args[:8]
        real = context.get_value_type(signature.args[8].dtype)
        element = context.get_value_type(signature.args[9].dtype)
        width = lanes() if isinstance(real, ir.FloatType) else lanes() // 2
        kind = ir.VectorType(real, width)
        item = ir.Constant(I64, width * (4 if isinstance(real, ir.FloatType) else 8))
        span = ir.Constant(I64, item.constant * VECTORS)

        def load(base: ir.Value, index: int) -> ir.Value:
            address = builder.add(base, ir.Constant(I64, item.constant * index))
            return builder.load(builder.inttoptr(address, kind.as_pointer()), align=item.constant)

        start = [load(b, v) for v in range(VECTORS)] * rows

        def turn(k: ir.Value, sums: list[ir.Value]) -> list[ir.Value]:
            weights_at = builder.add(w, builder.mul(k, span))
            weights = [load(weights_at, v) for v in range(VECTORS)]
            after = []
            for row in range(rows):
                offset = builder.mul(x_stride, ir.Constant(I64, row))
                address = builder.add(builder.add(x, offset), builder.mul(k, ir.Constant(I64, item.constant // width)))
                scalar = builder.load(builder.inttoptr(address, real.as_pointer()))
                value = splat(builder, scalar, width)
                for v in range(VECTORS):
                    after.append(step(builder, weights[v], value, sums[row * VECTORS + v]))
            return after

        after = counted_loop(builder, depth, 1, start, turn)
        stored = ir.Constant(I64, width * np.dtype(str(signature.args[9].dtype)).itemsize)
        for row in range(rows):
            line = builder.add(out, builder.mul(out_stride, ir.Constant(I64, row)))
            for v in range(VECTORS):
                feature = finish(builder, after[row * VECTORS + v])
                place = builder.add(line, builder.mul(stored, ir.Constant(I64, v)))
                _store(builder, feature, scale, place, element)
        return context.get_dummy_value()

    return codegen


def tile_intrinsic(X: Array, Z: Array, code: simd.Codegen) -> simd.Intrinsic:
    """Its arguments are addresses and strides, as ``_four_rows`` has them."""
    i = types.intp
    return types.void(i, i, i, i, i, X.dtype, i, i, X, Z), code


@intrinsic
def _four_rows(
    typing: simd.Typing, x: T, xs: T, w: T, b: T, depth: T, scale: T, out: T, os: T, X: Array, Z: Array
) -> simd.Intrinsic:
    return tile_intrinsic(X, Z, tile_of(ROWS))


@intrinsic
def _one_row(
    typing: simd.Typing, x: T, xs: T, w: T, b: T, depth: T, scale: T, out: T, os: T, X: Array, Z: Array
) -> simd.Intrinsic:
    return tile_intrinsic(X, Z, tile_of(1))


@kernel
def cosines(
    X: np.ndarray, W: np.ndarray, b: np.ndarray, scale: np.floating, first: int, last: int, out: np.ndarray
) -> None:
    """Features of rows ``first:last``: inputs X (n, d), frequencies W (tiles, d, width) and phases b in turns."""
    tiles, depth, width = W.shape
    x, w, phase, z = X.ctypes.data, W.ctypes.data, b.ctypes.data, out.ctypes.data
    x_stride, z_stride = X.strides[0], out.strides[0]
    for batch in range(first, last, ROW_BATCH):
        end = min(batch + ROW_BATCH, last)
        for tile in range(tiles):
            w_at = np.intp(w + tile * W.strides[0])
            b_at = np.intp(phase + tile * b.strides[0])
            z_at = z + tile * width * out.itemsize
            row = batch
            while row + ROWS <= end:
                _four_rows(
                    np.intp(x + row * x_stride), x_stride, w_at, b_at, depth, scale,
                    np.intp(z_at + row * z_stride), z_stride, X, out,
                )  # fmt: skip
                row += ROWS
            while row < end:
                _one_row(
                    np.intp(x + row * x_stride), x_stride, w_at, b_at, depth, scale,
                    np.intp(z_at + row * z_stride), z_stride, X, out,
                )  # fmt: skip
                row += 1


def pack_tiles(rows: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """Rows (F, d) as (tiles, d, width), padded with zeros: a tile holds a column of its rows side by side."""
    width = tile_width(dtype)
    count, d = rows.shape
    packed = aligned_empty((-(-count // width), d, width), dtype)
    packed[:] = 0
    for tile, place in enumerate(packed):
        some = rows[tile * width : (tile + 1) * width]
        place[:, : len(some)] = some.T
    return packed


@dataclass(frozen=True)
class PackedCosines:
    """Frequencies and phases laid out for the kernel: in turns, in tiles of whole vectors, padded with zeros."""

    W: np.ndarray  # (tiles, d, width)
    b: np.ndarray  # (tiles, width)
    count: int  # features asked for; the last tile may hold more

    @classmethod
    def pack(cls, frequencies: np.ndarray, phases: np.ndarray, dtype: DTypeLike) -> PackedCosines:
        """From frequencies (F, d) in radians per unit and phases (F,) in radians."""
        W, b = pack_tiles(frequencies / (2 * np.pi), dtype), pack_tiles((phases / (2 * np.pi))[:, None], dtype)
        return cls(W, b[:, 0], len(frequencies))

    @property
    def padded(self) -> int:
        """Columns the kernel writes: an output row must have room for so many."""
        return self.W.shape[0] * self.W.shape[2]

    def compute(self, X: np.ndarray, scale: float, out: np.ndarray, threads: Threads) -> None:
        """Fill ``out[:len(X), :count]`` (columns up to ``padded`` are overwritten), rounding integers at ``scale``."""
        X = np.ascontiguousarray(X, self.W.dtype)
        if X.shape[1] != self.W.shape[1] or out.shape[1] < self.padded or len(out) < len(X):
            raise ValueError(f"inputs {X.shape} and output {out.shape} do not fit {self.W.shape} packed frequencies")
        step = max(ROW_BATCH, -(-len(X) // (4 * threads.count * ROW_BATCH)) * ROW_BATCH)
        factor = self.W.dtype.type(scale)

        def rows(first: int) -> None:
            cosines(X, self.W, self.b, factor, first, min(first + step, len(X)), out)

        threads.each(rows, range(0, len(X), step))


@kernel
def wrap_projections(T: np.ndarray, b: np.ndarray, scale: np.float32, out: np.ndarray) -> None:
    """Features of projections T (n, F) made elsewhere, in radians, with phases b (R F,) in turns: R features each."""
    turn = np.float32(1 / (2 * np.pi))
    rounded = scale > 0  # to integers; floats have no scale
    F = T.shape[1]
    for row in range(len(T)):
        line = T[row]
        for first in range(0, len(b), F):  # cosines, then sines: slices, so that the inner loop is one of vectors
            phases, features = b[first : first + F], out[row, first : first + F]
            for j in range(F):
                t = line[j] * turn + phases[j]
                t -= np.rint(t)
                g = np.float32(0.25) - abs(t)
                s = g * g
                c = np.float32(SINE_32[4])
                c = c * s + np.float32(SINE_32[3])
                c = c * s + np.float32(SINE_32[2])
                c = c * s + np.float32(SINE_32[1])
                c = (c * s + np.float32(SINE_32[0])) * g
                features[j] = np.rint(c * scale) if rounded else c


def tile_width(dtype: DTypeLike) -> int:
    """Features in one tile."""
    return VECTORS * (lanes() if np.dtype(dtype) == np.float32 else lanes() // 2)


FORMS = ("phase", "pairs")
BATCH = 256  # rows whose projections are alive at once in each thread, for structured frequencies


@dataclass(frozen=True, eq=False)
class FourierMap(FeatureMap):
    """``phase``: one cosine a frequency, at a random phase. ``pairs``: a cosine and a sine a frequency."""

    kind = "fourier"
    rounds_integers_only = True

    frequencies: Frequencies
    phases: np.ndarray  # (F,) float64, radians; zeros for pairs
    form: str
    precision: Precision

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise InputError(f"feature form {self.form!r}: choose one of {', '.join(FORMS)}")
        if self.frequencies.W is None and self.precision.name == "float64":
            raise InputError(
                f"{self.frequencies.kind} frequencies are projected in float32: use `bits` 7, 8, 12 or float32"
            )

    @property
    def n_inputs(self) -> int:
        return self.frequencies.d

    @property
    def n_features(self) -> int:
        return len(self._phases)

    @cached_property
    def _phases(self) -> np.ndarray:
        """One a feature: pairs are a cosine and a cosine a quarter turn behind, which is a sine."""
        if self.form == "phase":
            return self.phases
        return np.concatenate([self.phases, self.phases - np.pi / 2])

    @cached_property
    def _packed(self) -> PackedCosines:
        assert self.frequencies.W is not None
        repeats = len(self._phases) // len(self.phases)
        return PackedCosines.pack(np.tile(self.frequencies.W, (repeats, 1)), self._phases, self.precision.inputs)

    def waves(self) -> tuple[np.ndarray, np.ndarray]:
        """Frequencies (n_features, d) and phases (n_features,): a feature is the cosine of its wave."""
        W = self.frequencies.dense()
        return np.tile(W, (len(self._phases) // len(W), 1)), self._phases

    @property
    def report(self) -> JSON:
        return self.frequencies.report

    @property
    def width(self) -> int:
        return self.n_features if self.frequencies.W is None else self._packed.padded

    @cached_property
    def amplitudes(self) -> np.ndarray:
        weights = self.frequencies.weights
        if self.form == "phase":
            return np.sqrt(2 * weights) / self.precision.scale
        return np.sqrt(np.concatenate([weights, weights])) / self.precision.scale

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        if self.frequencies.W is not None:
            self._packed.compute(X, self.precision.scale, out, threads)
            return
        threads.each(lambda first: self._structured(X, first, out), range(0, len(X), BATCH))

    def _structured(self, X: np.ndarray, first: int, out: np.ndarray) -> None:
        """Project one batch by its factors, then wrap: never a d x F matrix."""
        part = X[first : first + BATCH]
        projected = np.empty((len(part), len(self.frequencies)), np.float32)
        self.frequencies.structure.project(part, projected, ALONE)
        turns = (self._phases / (2 * np.pi)).astype(np.float32)
        wrap_projections(
            projected,
            turns,
            np.float32(self.precision.scale if out.dtype.kind == "i" else 0),
            out[first : first + BATCH],
        )

    def to_parts(self) -> tuple[JSON, Arrays]:
        names = {"frequencies": self.frequencies.kind, "form": self.form, "precision": self.precision.name}
        arrays = {f"frequencies.{name}": array for name, array in self.frequencies.arrays().items()}
        return {"kind": self.kind, **names}, {**arrays, "map.phases": self.phases}

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> FourierMap:
        prefix = "frequencies."
        parts = {name[len(prefix) :]: array for name, array in arrays.items() if name.startswith(prefix)}
        frequencies, phases = Frequencies.from_arrays(str(document["frequencies"]), parts), arrays["map.phases"]
        if phases.shape != (len(frequencies),):
            raise FileFormatError(f"the model's map is damaged: {len(frequencies)} frequencies, {phases.shape} phases")
        return cls(frequencies, phases, str(document["form"]), make_precision(str(document["precision"])))
