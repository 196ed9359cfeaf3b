"""Factors of a sample of rows that precondition iterative solvers, and how large the sample may be.

Where the sample has more rows than there are features, the Gram matrix of the features is smaller than that of rows.
For mini-batches the leading directions of the sample are enough.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from streamrf.features.base import FeatureMap
from streamrf.solvers.conjugate_gradients import Preconditioner
from streamrf.solvers.preconditioners import NystromFactor, SampleFactor, SampleRows, Spectrum
from streamrf.solvers.settings import SolverSettings
from streamrf.statistics.gram_kernels import PRODUCT_ROWS, Layout, choose_product, worst_work_bytes
from streamrf.support.errors import NumericalError
from streamrf.support.threads import Threads, available_cores

KNOWN_SHARE = 0.25  # directions that a sample knows, for each of its rows
ROUNDING = 5e-7  # of the largest eigenvalue: what float32 can tell from nothing
FLOAT_ROWS = 1024  # of a block of floats
RAISED = (1.0, 10.0, 100.0)  # times mu, where a factor fails


@dataclass(frozen=True)
class SampleGram:
    """Sums of products of a sample's raw features, each row counting for its share of the weight; and its mean."""

    totals: np.ndarray  # flat, in panels
    layout: Layout
    mean: np.ndarray  # (D,)
    scale: float  # of the totals
    rows: int

    @classmethod
    def of(cls, map: FeatureMap, X: np.ndarray, threads: Threads, weights: np.ndarray | None = None) -> SampleGram:
        """From scaled inputs. Integer features of rows that count alike go through an exact product."""
        D, plain = map.n_features, weights is None and map.precision.exact
        product, layout = choose_product(map.precision.key if plain else "float64", threads.count), Layout(D)
        shares = np.ones(len(X)) if weights is None else weights * (len(X) / weights.sum())
        totals, sums = np.zeros(layout.length, np.int64 if plain else np.float64), np.zeros(D)
        step = product.rows if plain else FLOAT_ROWS
        Z = np.zeros((step, max(map.width, D)), product.dtype if plain else map.precision.features)
        for first in range(0, len(X), step):
            some = X[first : first + step]
            map.compute(some, Z, threads)
            features = Z[: len(some), :D]
            if plain:
                sums += features.sum(axis=0, dtype=np.int64)
                product.add(features, layout, totals, threads)
            else:
                share = shares[first : first + len(some)]
                sums += share @ features
                product.add(features * np.sqrt(share)[:, None], layout, totals, threads)
        return cls(totals, layout, sums / len(X), 1 / len(X), len(X))

    def centred(self, centre: np.ndarray, amplitudes: np.ndarray) -> np.ndarray:
        """(D, D) float32, its lower triangle in Fortran order: second moments about ``centre``, scaled."""
        D = self.layout.size
        out = np.zeros((D, D), np.float32)  # rows here are columns of the result
        for number, j0 in enumerate(self.layout.starts):
            own = slice(j0, j0 + self.layout.width(j0))
            part = self.layout.panel(self.totals, number) * self.scale
            part -= np.outer(self.mean[own], centre[j0:]) + np.outer(centre[own], self.mean[j0:] - centre[j0:])
            out[own, j0:] = part * np.outer(amplitudes[own], amplitudes[j0:])
        return out.T


class PrimalFactor:
    """(S_m + mu I)^-1 by a Cholesky factor in float32. mu is lambda, or larger where the sample knows no better."""

    def __init__(self, gram: SampleGram, centre: np.ndarray, amplitudes: np.ndarray, threads: Threads) -> None:
        self._gram, self._about, self._threads = gram, (centre, amplitudes), threads
        matrix = gram.centred(*self._about)
        with threads.blas_for(len(matrix)):
            spectrum = Spectrum(matrix)
        self.least = max(spectrum.shift_for(gram.rows * KNOWN_SHARE), ROUNDING * spectrum.largest)
        self._factored(matrix, self.least)

    def at(self, ridge: float) -> Preconditioner:
        """The preconditioner for one lambda."""
        mu = max(ridge, self.least)
        if mu != self._mu:
            self._factored(self._gram.centred(*self._about), mu)
        factor, threads = self._factor, self._threads

        def apply(residual: np.ndarray) -> np.ndarray:
            with threads.blas_for(len(factor)):
                solved, _ = scipy.linalg.lapack.spotrs(factor, residual.T.astype(np.float32), lower=1)
            return np.ascontiguousarray(solved.T, np.float64)

        return apply

    def _factored(self, matrix: np.ndarray, mu: float) -> None:
        """In place, where that succeeds; only one factor is kept."""
        for times in RAISED:
            matrix.flat[:: len(matrix) + 1] += np.float32(mu * times)
            with self._threads.blas_for(len(matrix)):
                factor, info = scipy.linalg.lapack.spotrf(matrix, lower=1, clean=0, overwrite_a=1)
            if info == 0:
                self._factor, self._mu = factor, mu
                return
            matrix = self._gram.centred(*self._about)
        raise NumericalError(f"the sample's system is singular even at lambda {mu * RAISED[-1]:g}: choose a larger one")

    @staticmethod
    def nbytes(D: int, bits: str) -> int:
        """Sums in int64, half a square of them; factors at two lambdas, one of which is about to be let go; and what
        the sums are made with."""
        work = 4 * PRODUCT_ROWS * (D + 64) + worst_work_bytes(bits, Layout(D), available_cores())
        return 4 * D * D + 2 * 4 * D * D + work


SPARE, ROUNDS = 16, 3  # vectors beyond those wanted, and products with all of them
SMALLEST = 1e-20  # what nothing is taken for: z'z is about one, and constant features leave only rounding


@dataclass(frozen=True)
class EigenFactor:
    """Roughly (S + shift)^-1, in float32: S has ``values`` along the rows of U (r, D), the least of them elsewhere."""

    U: np.ndarray  # (r, D) float32
    values: np.ndarray  # (r,), falling
    trace: float  # of S

    @classmethod
    def of(cls, rows: SampleRows, rank: int, threads: Threads) -> EigenFactor:
        dual = rows.dual(threads)
        m, trace = len(dual), float(np.trace(dual))
        rank = max(1, min(rank, m // 2))
        with threads.blas_for(m):
            values, vectors = leading(dual, rank)
        values = np.maximum(values, SMALLEST)
        kept = values > 1e-10 * values[0]
        values, vectors = values[kept], vectors[:, kept]
        U = rows.back(np.ascontiguousarray(vectors.T)) / np.sqrt(values)[:, None]
        return cls(U.astype(np.float32), values.copy(), trace)

    def leverage(self, shift: float) -> float:
        """The usual z'(S + shift)^-1 z: how strongly one row can pull in the preconditioned norm."""
        rest = max(self.trace - float(self.values.sum()), 0.0)
        return float((self.values / (self.values + shift)).sum() + rest / (self.values[-1] + shift))

    def apply(self, gradient: np.ndarray, shift: float) -> np.ndarray:
        """(k, D) float32."""
        rest = 1.0 / (self.values[-1] + shift)
        gain = (1.0 / (self.values + shift) - rest).astype(np.float32)
        return np.float32(rest) * gradient + ((gradient @ self.U.T) * gain) @ self.U


def leading(lower: np.ndarray, rank: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The largest eigenvalues, falling, and their vectors (m, r), of a matrix given by its lower triangle.

    Subspace iteration from random vectors, a few more than are wanted: rough at the end of the list, where little hangs
    on it, and much quicker than all of the spectrum.
    """
    m = len(lower)
    start = np.random.default_rng([seed, 0x4547]).standard_normal((m, min(m, rank + SPARE)))
    basis = np.linalg.qr(start)[0]
    for _ in range(ROUNDS):
        basis = np.linalg.qr(scipy.linalg.blas.dsymm(1.0, lower, basis, lower=1))[0]
    values, vectors = np.linalg.eigh(basis.T @ scipy.linalg.blas.dsymm(1.0, lower, basis, lower=1))
    return values[::-1][:rank], (basis @ vectors)[:, ::-1][:, :rank]


MOST_ROWS, LEAST_ROWS = 16_000, 256  # of a sample that preconditions by the products of its rows
SGD_ROWS = 4000  # of the sample that stochastic gradients look at, at most
FEW = 1000  # rows that cost nothing worth saving
PER_FEATURE, MOST_PER_FEATURE = 2, 8  # rows of one that preconditions by those of its features
ROWS_SHARE = 12  # the part of all rows that a sample may be, so that it costs little beside the passes
MOST_RANK = 1000
MEMORY_SHARE = 0.4  # of what is left of the budget
BATCH = 512  # rows of a step of stochastic gradients
PART_ROWS, PART_BYTES = 65_536, 64 * 2**20  # rows that are shuffled together


def sample_rows(recipe: SolverSettings, n_rows: int, room: int) -> int:
    """Rows of the sample (or rank of the sketch) that precondition: as many as help and fit."""
    if recipe.solver == "sgd":
        return min(SGD_ROWS, n_rows)
    if is_sketched(recipe):
        return rank(recipe, room)
    allowed = n_rows // ROWS_SHARE
    if allowed >= PER_FEATURE * recipe.D and PrimalFactor.nbytes(recipe.D, recipe.bits) <= MEMORY_SHARE * room:
        return min(max(FEW, min(MOST_PER_FEATURE * recipe.D, allowed)), n_rows)
    rows = max(FEW, min(MOST_ROWS, recipe.D, allowed))
    while rows > LEAST_ROWS and preconditioner_bytes(recipe, rows) > MEMORY_SHARE * room:
        rows = rows * 3 // 4
    return min(rows, n_rows)


def part_rows(n_rows: int, row_bytes: int, shards: int) -> int:
    """Rows of a part that stochastic gradients go through in one run, at most."""
    return max(BATCH, min(PART_ROWS, PART_BYTES // max(1, row_bytes), -(-n_rows // shards)))


def parts_of_a_leg(n_rows: int, row_bytes: int, shards: int) -> int:
    """At most; two parts that follow one another have the rows of more than a full one together."""
    return min(shards, 2 * n_rows // part_rows(n_rows, row_bytes, shards) + 1)


def is_sketched(recipe: SolverSettings) -> bool:
    """Whether a sketch of all rows preconditions; stochastic gradients look at a sample, whatever is asked for."""
    return recipe.preconditioner == "nystrom" and recipe.solver != "sgd"


def drawn_rows(recipe: SolverSettings, rows: int) -> int:
    """Rows to keep, where so many precondition: a sketch has none, and some losses take their scale from residuals."""
    return max(FEW, rows) if is_sketched(recipe) else rows


def is_primal(D: int, rows: int) -> bool:
    """Whether the sample knows enough of the features' own matrix, which is then smaller than that of the rows."""
    return 2 * rows >= 3 * D


def rank(recipe: SolverSettings, room: int) -> int:
    rank = min(MOST_RANK, max(1, recipe.D // 4))
    while rank > 16 and NystromFactor.nbytes(rank, recipe.D) > MEMORY_SHARE * room:
        rank = rank * 3 // 4
    return rank


def preconditioner_bytes(recipe: SolverSettings, rows: int) -> int:
    if is_sketched(recipe):
        return NystromFactor.nbytes(rows, recipe.D)
    if is_primal(recipe.D, rows) and recipe.solver != "sgd":
        return PrimalFactor.nbytes(recipe.D, recipe.bits)
    return SampleFactor.nbytes(rows, recipe.D, "float64" if recipe.bits == "auto" else recipe.bits)
