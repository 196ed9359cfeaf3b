"""Random binning (Rahimi & Recht): each of P random grids puts a row in one bin, and z(x) says which bins it is in.

Two rows share the bin of a grid with probability k(x, y), so ``z(x)'z(y) / P`` estimates the kernel. Bins are hashed to
2^bits buckets a grid. A row is P bin indices, the numbers of its buckets (once it is known which have rows: among
these), and every sum over rows is a sum of integers.
``docs/decisions/random-binning.md`` says what was measured and why it is so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy

from streamrf.features.base import Arrays, FeatureMap, RowScorer
from streamrf.features.binning.layout import Layout
from streamrf.features.binning.normal import ROWS_HASHED, hash_rows, moved_scores, scores
from streamrf.features.binning.numbering import Numbering
from streamrf.features.kernels import Laplacian, make_kernel
from streamrf.features.precision import make_precision
from streamrf.support.errors import FileFormatError, InputError, MismatchError
from streamrf.support.storage.safejson import JSON
from streamrf.support.threads import Threads

MAX_BITS = 30
MOST_COLUMNS = 8  # that a low-order grid sees
MAX_SHAPE = 1000
GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio, the step of splitmix64
LOW_ORDER_STREAM = 0x10  # of random numbers, apart from those of widths and shifts
ROWS_A_TASK = 8192
OCCUPIED = "binning.occupied"  # buckets that have rows, in a model
HASH_BITS = 32  # that tell a few thousand cells apart
GRIDS_COUNTED = 100  # which are enough to tell how full all of them are
BLOCK_ROWS = 32_768  # rows whose bin indices are alive at once in a prediction


class WidthLaw(Protocol):
    """A product kernel by the law of its bin widths, whose density is ``delta k''(delta)``."""

    def bin_widths(self, U: np.ndarray) -> np.ndarray:
        """Widths of bins from uniforms, by inverse distribution function."""


@dataclass(frozen=True)
class GammaWidths:
    """Gamma bin widths of mean ``2 length_scale``: shape 2 is the Laplacian kernel, larger shapes vary less."""

    shape: float = 4.0
    length_scale: float = 1.0

    def bin_widths(self, U: np.ndarray) -> np.ndarray:
        inside = np.clip(np.asarray(U, np.float64), 2.0**-54, 1.0 - 2.0**-53)
        return scipy.special.gammaincinv(self.shape, inside) * (2.0 * self.length_scale / self.shape)

    def __call__(self, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        """The exact kernel between rows of X and of Y: the product over columns of E[max(0, 1 - gap / width)]."""
        gaps = np.abs(np.asarray(X, np.float64)[:, None] - np.asarray(Y, np.float64))
        t = gaps * (self.shape / (2.0 * self.length_scale))
        return (
            scipy.special.gammaincc(self.shape, t) - t / (self.shape - 1) * scipy.special.gammaincc(self.shape - 1, t)
        ).prod(2)


def width_law(name: str) -> GammaWidths:
    """The law of a kernel's bin widths, at length scale 1: ``bins:SHAPE``, or ``laplacian``, which is ``bins:2``."""
    family, _, shape = name.partition(":")
    if family == "bins":
        try:
            found = float(shape)
        except ValueError:
            found = 0.0
        if not 1 < found <= MAX_SHAPE:
            raise InputError(f"`kernel={name!r}`: the shape of bins:SHAPE must be above 1 and at most {MAX_SHAPE}")
        return GammaWidths(found)
    kernel = make_kernel(name)
    kernel.bin_widths(np.array([0.5]))  # refuses a kernel that cannot be binned, and says why
    if not isinstance(kernel, Laplacian):
        raise InputError(f"`kernel={name!r}`: random binning has the kernels laplacian and bins:SHAPE")
    return GammaWidths(2.0)


def mixed_scales(length_scales: np.ndarray, importance: np.ndarray, grids: int, seed: int) -> np.ndarray:
    """Length scales (grids, d) of which every other grid sees 1 to 8 columns, drawn by importance, and is blind to the
    rest (an infinite length scale): additive and low-order parts of a function, beside grids that see all columns."""
    rng = np.random.default_rng([seed, LOW_ORDER_STREAM])
    sizes = rng.integers(1, MOST_COLUMNS + 1, grids)
    share = np.maximum(importance, 1e-12 * max(importance.max(), 1e-12))  # a column that never varies comes last
    races = rng.standard_exponential((grids, len(length_scales))) / share
    places = races.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable")  # the first to arrive are drawn
    seen = (places < sizes[:, None]) | (np.arange(grids) % 2 == 1)[:, None]
    return np.where(seen, length_scales, np.inf)


@dataclass(frozen=True, eq=False)
class BinningMap(FeatureMap):
    """P grids: row x lies in cell ``floor((x - shift) / width)`` of each; an infinite width ignores its column.

    As features, bin indices are zeros and a one for each grid; ``compute`` writes them out, for small maps alone.
    """

    kind = "binning"
    precision = make_precision("8")  # zeros and ones

    widths: np.ndarray  # (P, d) float32
    shifts: np.ndarray  # (P, d) float32
    bits: int
    seed: int
    numbering: Numbering | None = None  # of the buckets that have rows, once they are known: the others have no weights

    def __post_init__(self) -> None:
        if self.widths.ndim != 2 or self.widths.shape != self.shifts.shape:
            raise MismatchError(f"widths of shape {self.widths.shape} do not go with shifts of {self.shifts.shape}")
        if not 1 <= self.bits <= MAX_BITS:
            raise InputError(f"a grid has 2^1 to 2^{MAX_BITS} buckets, not 2^{self.bits}: choose fewer bits")
        if not (self.widths > 0).all():
            raise InputError(f"bin widths must be positive, and the smallest is {self.widths.min()}")
        if self.numbering is not None:
            self.numbering.check(self.grids, self.buckets)

    def __reduce__(self) -> tuple[object, ...]:
        """Sent without what can be computed again."""
        return BinningMap, (self.widths, self.shifts, self.bits, self.seed, self.numbering)

    @classmethod
    def draw(
        cls, kernel: WidthLaw, d: int, grids: int, bits: int, seed: int, *, metric: np.ndarray | None = None,
        bounds: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> BinningMap:  # fmt: skip
        """Grids of a kernel. ``metric``, (d,) or (grids, d), multiplies the widths: a length scale for each column, or
        for each grid and column. Columns whose ``bounds`` (low, high) fall in one cell of a grid are ignored there.
        """
        if grids < 1 or d < 1:
            raise InputError(f"random binning needs at least one grid and one column, not {grids} and {d}")
        rng = np.random.default_rng(seed)
        widths = kernel.bin_widths(rng.random((grids, d))) * (1.0 if metric is None else metric)
        shifts = rng.random((grids, d)) * np.where(np.isfinite(widths), widths, 0.0)
        drawn = cls(np.maximum(widths.astype(np.float32), np.float32(1e-30)), shifts.astype(np.float32), bits, seed)
        return drawn if bounds is None else drawn._without_idle_columns(*bounds)

    def _without_idle_columns(self, low: np.ndarray, high: np.ndarray) -> BinningMap:
        first, last = (np.floor((end.astype(np.float32) - self.shifts) * self._inverse) for end in (low, high))
        idle = first == last
        widths = np.where(idle, np.float32(np.inf), self.widths)
        return BinningMap(widths, np.where(idle, np.float32(0), self.shifts), self.bits, self.seed)

    @property
    def grids(self) -> int:
        return len(self.widths)

    @property
    def n_inputs(self) -> int:
        return self.widths.shape[1]

    @property
    def n_features(self) -> int:
        """Buckets of all grids that can have weights."""
        return int(self.starts[-1])

    @cached_property
    def starts(self) -> np.ndarray:
        """Where the bin indices of each grid begin among those of all, (P + 1,)."""
        if self.numbering is not None:
            return self.numbering.starts
        return np.arange(self.grids + 1, dtype=np.int64) << self.bits

    @cached_property
    def layout(self) -> Layout:
        """Of bin indices in 16-bit words."""
        return Layout.packed(self.starts)

    def expanded(self, values: np.ndarray) -> np.ndarray:
        """Values (k, n_features) as tables of all buckets, (k, P, buckets)."""
        if self.numbering is not None:
            return self.numbering.expand(values, self.buckets)
        return values.reshape(len(values), self.grids, self.buckets)

    @property
    def buckets(self) -> int:
        """Buckets of one grid."""
        return 1 << self.bits

    @property
    def active(self) -> np.ndarray:
        """How many columns each grid uses, (P,)."""
        return np.isfinite(self.widths).sum(axis=1)

    def indices(self, X: np.ndarray, out: np.ndarray | None = None, threads: Threads | None = None) -> np.ndarray:
        """The bin index of each row in each grid, (P, n) uint32: ``out``, if there is one."""
        out = np.empty((self.grids, len(X)), np.uint32) if out is None else out
        self._hash(X, self.bits, out, threads)
        return out

    def words(self, X: np.ndarray, threads: Threads | None = None) -> np.ndarray:
        """The bin indices in 16-bit words, (``layout.rows``, n)."""
        X = np.ascontiguousarray(X, np.float32)
        out = np.empty((self.layout.rows, len(X)), np.uint16)

        def work(rows: slice) -> None:
            self.layout.pack(self.indices(X[rows]), out[:, rows])

        _each_part(work, len(X), threads)
        return out

    def renumbered(self, words: np.ndarray, before: BinningMap) -> np.ndarray:
        """Words of the same grids ``before`` their buckets were numbered, as words of this map."""
        assert self.numbering is not None
        out = np.empty((self.layout.rows, words.shape[1]), np.uint16)
        for start in range(0, words.shape[1], ROWS_A_TASK):
            part = slice(start, start + ROWS_A_TASK)
            indices = before.layout.unpack(words[:, part])
            self.numbering.number(indices)
            self.layout.pack(indices, out[:, part])
        return out

    def keys(self, X: np.ndarray, threads: Threads | None = None) -> np.ndarray:
        """The 64-bit hash of each row's cell in each grid, (P, n): its top bits are the bin index."""
        out = np.empty((self.grids, len(X)), np.uint64)
        self._hash(X, 64, out, threads)
        return out

    def hashes(self, X: np.ndarray, threads: Threads | None = None) -> np.ndarray:
        """The upper halves of the keys, in words for which the loop is compiled anyway."""
        out = np.empty((self.grids, len(X)), np.uint32)
        self._hash(X, HASH_BITS, out, threads)
        return out

    def _hash(self, X: np.ndarray, bits: int, out: np.ndarray, threads: Threads | None) -> None:
        X = np.ascontiguousarray(X, np.float32)
        if X.ndim != 2 or X.shape[1] != self.n_inputs:
            raise MismatchError(f"the grids are for {self.n_inputs} columns, and the rows have shape {X.shape}")
        if out.shape != (self.grids, len(X)):
            raise MismatchError(f"the bin indices of {len(X)} rows take shape {(self.grids, len(X))}, not {out.shape}")

        numbers = self.numbering if bits == self.bits else None

        def work(rows: slice) -> None:
            turned = np.empty((self.n_inputs, ROWS_HASHED), np.float32)
            sums = np.empty((2, ROWS_HASHED), np.uint32)
            hash_rows(X, rows.start, rows.stop, *self._compiled, bits, turned, sums, out)
            if numbers is not None:
                numbers.number(out[:, rows])

        _each_part(work, len(X), threads)

    def sensitivity(self, X: np.ndarray, table: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Mean square change (d,) of the scores by a table (k, P, buckets) as column j of X becomes ``moves[:, j]``."""
        X, moves = np.ascontiguousarray(X, np.float32), np.ascontiguousarray(moves, np.float32)
        change, totals = np.empty((self.n_inputs, len(table))), np.zeros(self.n_inputs)
        moved_scores(X, moves, *self._compiled, self.bits, table, change, totals)
        return totals / max(1, len(X))

    # -- as any other feature map

    @property
    def amplitudes(self) -> np.ndarray:
        return np.full(self.n_features, self.grids**-0.5)

    def compute(self, X: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        out[: len(X), : self.n_features] = 0
        columns = self.indices(X, threads=threads).T + self.starts[:-1]
        np.put_along_axis(out[: len(X)], columns, 1, axis=1)

    def untrained(self) -> BinningMap:
        return BinningMap(self.widths, self.shifts, self.bits, self.seed)

    def scorer(self, coefficients: np.ndarray, intercept: np.ndarray) -> RowScorer:
        return BinningScorer(self, coefficients, intercept)

    def to_parts(self) -> tuple[JSON, Arrays]:
        document = {"kind": self.kind, "bits": self.bits, "seed": self.seed}
        arrays = {"binning.widths": self.widths, "binning.shifts": self.shifts}
        return document, arrays if self.numbering is None else {**arrays, OCCUPIED: self.numbering.words}

    @classmethod
    def from_parts(cls, document: JSON, arrays: Arrays) -> BinningMap:
        """Takes no memory that the file does not fill: tables are arrays of their own, with their sizes."""
        widths, shifts = arrays["binning.widths"], arrays["binning.shifts"]
        bits, seed = document["bits"], document["seed"]
        if type(bits) is not int or type(seed) is not int or widths.dtype != np.float32 or shifts.dtype != np.float32:
            raise FileFormatError(
                "the model's grids are damaged: bits and seed must be whole, widths and shifts float32"
            )
        if not widths.size or not np.isfinite(shifts).all() or np.isnan(widths).any():
            raise FileFormatError(
                f"the model's grids are damaged: {widths.shape} widths, or numbers that are not finite"
            )
        numbering = Numbering(arrays[OCCUPIED]) if OCCUPIED in arrays else None
        try:
            return cls(widths, shifts, bits, seed, numbering)
        except (InputError, MismatchError) as error:
            raise FileFormatError(f"the model's grids are damaged: {error}") from error

    # -- inside

    @cached_property
    def _inverse(self) -> np.ndarray:
        return np.float32(1) / self.widths

    @cached_property
    def _compiled(self) -> tuple[np.ndarray, ...]:
        """What the kernels read: the columns each grid uses, one after the other, and their four constants."""
        grid, column = np.nonzero(np.isfinite(self.widths))
        starts = np.concatenate([[0], np.cumsum(self.active)])
        low, high = hash_multipliers(self.seed, self.grids, self.n_inputs)
        at = grid, column
        return starts, np.ascontiguousarray(column), self.shifts[at], self._inverse[at], low[at], high[at]


def _each_part(work: Callable[[slice], None], rows: int, threads: Threads | None) -> None:
    """A task for so many rows at a time."""
    parts = [slice(start, min(start + ROWS_A_TASK, rows)) for start in range(0, rows, ROWS_A_TASK)]
    if threads is None:
        for part in parts:
            work(part)
    else:
        threads.each(work, parts)


# -- predictions


class BinningScorer:
    """Tables of float32 weights; a row's score is summed in float64, grid after grid, whatever the block."""

    def __init__(self, map: BinningMap, coefficients: np.ndarray, intercept: np.ndarray) -> None:
        self.map = map
        self.intercept = np.asarray(intercept, np.float64)
        self.table = np.ascontiguousarray(coefficients.T, np.float32)

    def scores(self, X: np.ndarray, threads: Threads) -> np.ndarray:
        """(n, outputs) float64 scores of scaled inputs."""
        out = np.empty((len(X), len(self.intercept)))
        for start in range(0, len(X), BLOCK_ROWS):
            rows = slice(start, start + BLOCK_ROWS)
            self.score_words(self.map.words(X[rows], threads=threads), out[rows], threads)
        return out

    def score_words(self, words: np.ndarray, out: np.ndarray, threads: Threads) -> None:
        """Scores (n, outputs) of rows whose bin indices are known, in words."""
        np.add(scores(words, self.table, threads, layout=self.map.layout).T, self.intercept, out=out)


def hash_multipliers(seed: int, grids: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Two odd 32-bit multipliers for each grid and column: the halves of splitmix64 started at the seed."""
    golden = np.uint64(GOLDEN)
    z = np.uint64(seed % 2**64) + golden * np.arange(1, grids * d + 1, dtype=np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))).reshape(grids, d)
    return (z | np.uint64(1)).astype(np.uint32), ((z >> np.uint64(32)) | np.uint64(1)).astype(np.uint32)


@dataclass(frozen=True)
class Occupancy:
    """How full the buckets of each grid are with a sample of rows."""

    rows: int
    buckets: int
    cells: np.ndarray  # (P,) different cells, told apart by their hashes
    occupied: np.ndarray  # (P,) different buckets they fall in

    @property
    def colliding(self) -> float:
        """Share of cells that share a bucket with an earlier one."""
        return 1.0 - float(self.occupied.sum() / self.cells.sum())

    def describe(self) -> str:
        """One line for people."""
        full = self.occupied / self.buckets
        return (
            f"{self.cells.mean():,.0f} bins a grid ({self.cells.min():,} to {self.cells.max():,}) "
            f"in {self.buckets:,} buckets: {full.mean():.0%} of them occupied, {self.colliding:.1%} of bins collide"
        )


def occupancy(map: BinningMap, X: np.ndarray, threads: Threads | None = None) -> Occupancy:
    """Bins and occupied buckets of the rows X in some of the grids: what hashing costs."""
    hashes = np.sort(map.hashes(X, threads)[:: -(-map.grids // GRIDS_COUNTED)], axis=1)
    cells, occupied = (_different(each) for each in (hashes, hashes >> np.uint32(HASH_BITS - map.bits)))
    return Occupancy(len(X), map.buckets, cells, occupied)


def _different(ordered: np.ndarray) -> np.ndarray:
    """How many different values each row has."""
    return np.count_nonzero(np.diff(ordered, axis=1), axis=1) + min(1, ordered.shape[1])
